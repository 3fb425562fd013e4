"""The forward pass and the loss against CHARM's equations in NumPy; every weight differs from the others."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from palmette import load_data, load_encoder
from palmette.encoder import Backbone
from palmette.methods.base import FitInputs
from palmette.methods.fields.config import FieldsConfig
from palmette.methods.fields.losses import losses
from palmette.methods.fields.model import FieldsModel
from palmette.methods.fields.module import FieldEncoder
from palmette.methods.fields.training import WEIGHT_RATE, WEIGHT_STEPS, FieldsTask, fit_field_weights
from support.reference import Doubles, gelu, info_nce, linear, norm, softmax, unit, weights_of
from support.shop import FIELDS, questions, shop
from support.tiny import learner
from support.tiny_encoder import save_tiny_encoder

NAMES = ("brand", "title", "text")
DOCUMENTS = [[[6, 7], [8, 9, 10], [11, 12, 13, 14]], [[15], [], [16, 17, 18]], [[], [19, 6], [8]]]
QUERIES = [[6, 11, 12], [9]]
WORD, TOKEN, SEP, CLS, ASKED = "word", "token", "sep", "cls", "asked"

Place = tuple[str, int, int, int]
"""What stands somewhere, its field, its id, its position."""


def bert(w: dict[str, Doubles], ids: list[int], positions: list[int], sees: NDArray[np.bool_]) -> Doubles:
    """States of one sequence, of which token i attends to token j where ``sees[i, j]``."""
    words = np.concatenate([w["network.embeddings.word_embeddings.weight"], w["new_tokens"]])
    x = words[ids] + w["network.embeddings.position_embeddings.weight"][positions]
    x = norm(x + w["network.embeddings.token_type_embeddings.weight"][0], w, "network.embeddings.LayerNorm")
    for layer in range(2):
        at, heads = f"network.encoder.layer.{layer}", []
        q, k, v = (linear(x, w, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
        for own in np.split(np.arange(x.shape[1]), 2):
            scores = q[:, own] @ k[:, own].T / math.sqrt(len(own))
            heads.append(softmax(np.where(sees, scores, -np.inf)) @ v[:, own])
        mixed = linear(np.concatenate(heads, 1), w, f"{at}.attention.output.dense")
        x = norm(x + mixed, w, f"{at}.attention.output.LayerNorm")
        inner = linear(gelu(linear(x, w, f"{at}.intermediate.dense")), w, f"{at}.output.dense")
        x = norm(x + inner, w, f"{at}.output.LayerNorm")
    return x


def sequence(fields: list[list[int]], attended: NDArray[np.bool_], words: int) -> list[Place]:
    """CLS, a token per field, then the fields' words, each field after those that it attends to."""
    places = [(CLS, -1, 2, 0), *((TOKEN, f, words + f, 0) for f in range(len(fields)))]
    for f, ids in enumerate(fields):
        start = 1 + sum(len(other) for g, other in enumerate(fields) if g < f and attended[f, g])
        places += [(WORD, f, id, start + at) for at, id in enumerate(ids)]
        places += [(SEP, f, 3, start + len(ids))] if ids else []
    return places


def looks(one: Place, other: Place, attended: NDArray[np.bool_], printed: bool) -> bool:
    """Equation 3, sees(i, j) = [f(j) ≤ f(i)], as printed or of words, with tokens and ends of the own field alone."""
    (kind, f, *_), (what, g, *_) = one, other
    if what == ASKED:
        return kind in (CLS, TOKEN, ASKED)
    if what == CLS:
        return kind in (CLS, ASKED)
    if kind == CLS:
        return what == WORD
    if kind == ASKED:
        return False
    return bool(attended[f, g]) if what == WORD or printed else f == g


def encoded(module: FieldEncoder, places: list[Place]) -> tuple[Doubles, Doubles, Doubles]:
    """h_f [F, d], w_f [F] and h [d] of one text: equation 4 and w = softmax(K h_CLS)."""
    w, attended = weights_of(module), module.config.attended
    body = {name.removeprefix("backbone."): value for name, value in w.items()}
    printed = module.config.attention == "printed"
    sees = np.array([[looks(one, other, attended, printed) for other in places] for one in places])
    x = bert(body, [p[2] for p in places], [p[3] for p in places], sees)
    count = len(attended)
    reads = np.eye(count) > 0 if attended.all() else attended  # with full attention the own words count
    h, logits = np.zeros((count, x.shape[1])), np.full(count, -np.inf)
    for f in range(count):
        inside = [
            at
            for at, (kind, g, *_) in enumerate(places)
            if kind == ASKED or (kind == WORD and reads[f, g]) or (kind in (TOKEN, SEP) and g == f)
        ]
        state = x[1 + f] if module.config.pooling == "token" else x[inside].mean(0)
        if any(kind == ASKED or (kind == WORD and attended[f, g]) for kind, g, *_ in places):
            if "field_maps" in w:
                state = state + state @ w["field_maps"][f]
            h[f] = unit(state)
            logits[f] = w["field_weights.weight"][f] @ x[0] + w["field_weights.bias"][f]
    weights = softmax(logits)
    return h, weights, unit(weights @ h) if module.config.similarity == "cosine" else weights @ h


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder") / "m")


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "triangular", "pooling": "mean"}, {"pooling": "token"},
        {"attention": "printed", "pooling": "mean"}, {"attention": "full", "pooling": "mean"},
        {"pooling": "auto", "similarity": "inner_product"},  # as this encoder pools: the mean
        {"trained_layers": 0}, {"attention": "full", "pooling": "token", "trained_layers": 0},
    ],
    ids=str,
)  # fmt: skip
def test_vectors_are_what_the_equations_say(folder: Path, options: dict[str, Any]) -> None:
    config = FieldsConfig(fields=NAMES, **options)
    backbone = Backbone.of(load_encoder(folder, device="cpu", dtype="float32"), new_tokens=3)
    module, draw = FieldEncoder(config, backbone).eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in (*module.field_weights.parameters(), backbone.new_tokens, module.field_maps):
            if value is not None:
                value.copy_(0.4 * torch.randn(value.shape, generator=draw))
    documents = [sequence(one, config.attended, backbone.vocabulary) for one in DOCUMENTS]
    head = [(CLS, -1, 2, 0), *((TOKEN, f, backbone.vocabulary + f, 0) for f in range(3))]
    queries = [[*head, *((ASKED, -1, id, 1 + at) for at, id in enumerate([*words, 3]))] for words in QUERIES]
    for kind, given, places in (("document", DOCUMENTS, documents), ("query", QUERIES, queries)):
        with torch.no_grad():
            found = module(kind, given)
        by_hand = zip(*(encoded(module, one) for one in places), strict=True)
        for ours, theirs in zip(found, by_hand, strict=True):
            np.testing.assert_allclose(ours.numpy(), np.array(theirs), atol=1e-5)
    assert found.weights.std() > 0.05


def test_the_loss_of_a_batch_is_equation_6() -> None:
    hard = [[shop()[(n + 30) % 60]] if n % 3 else [] for n in range(60)]
    asked = [(question, right, wrong) for (question, right), wrong in zip(questions(), hard, strict=True)]
    λ = {"aggregate_weight": 0.7, "fields_weight": 1.9, "best_weight": 0.4, "temperature": 0.06, "chunk": 5}
    config = FieldsConfig(fields=FIELDS, whole=False, dropout=0.0, **λ)
    task = FieldsModel.task(config, FitInputs(load_data(asked), learner(), None))[1]
    assert isinstance(task, FieldsTask)
    rows = np.arange(0, 24, 2)
    wrong = task.data.negatives.sample(task.query_rows[rows], 1, np.random.default_rng(0))  # one each
    documents = np.unique([*task.document_rows[rows], *wrong[wrong >= 0]])
    q = task.encode("query", task.query_rows[rows])[2].astype(float)
    h_f, _, h = (part.astype(float) for part in task.encode("document", documents))
    own = np.searchsorted(documents, task.document_rows[rows])
    known = task.data.positives_mask(task.query_rows[rows], documents)
    tau = λ["temperature"]
    by_field = [info_nce(q @ h_f[:, f].T / tau, own, known) for f in range(3)]
    h_max = np.array([[max(one @ two for two in h_f[m]) for m in range(len(documents))] for one in q])
    parts = info_nce(q @ h.T / tau, own, known), np.mean(by_field), info_nce(h_max / tau, own, known)
    expected = sum(weight * part for weight, part in zip(list(λ.values())[:3], parts, strict=True))
    assert len(documents) > len(rows) + 3, "given wrong answers are among them"
    assert min(abs(np.diff([*parts, parts[0]]))) > 1e-3, "no part can stand for another"
    loss = task.loss(task.module, rows, torch.Generator().manual_seed(0), 0.0)
    assert loss.item() == pytest.approx(float(expected), abs=1e-4)


def test_other_answers_are_no_negatives_and_a_field_without_a_vector_is_not_asked_to_match() -> None:
    draw = torch.Generator().manual_seed(0)
    q, h = torch.randn(3, 4, generator=draw), torch.randn(5, 2, 4, generator=draw)
    h[2, 0] = 0  # the answer of the second query has nothing in its first field
    target, known = torch.tensor([0, 2, 4]), torch.zeros(3, 5).bool()
    known[0, 3] = known[0, 0] = True
    together, by_field, _ = losses(q, h, h.mean(1), target, known, 0.5)
    own, others = target.numpy(), known.numpy()
    expected = info_nce((q @ h.mean(1).T / 0.5).double().numpy(), own, others)
    assert float(together) == pytest.approx(expected, abs=1e-5)
    each = [
        info_nce((q[[b]] @ h[:, f].T / 0.5).double().numpy(), own[[b]], others[[b]])
        for f in range(2)
        for b in range(3)
        if (f, b) != (0, 1)
    ]
    assert float(by_field) == pytest.approx(np.mean(each), abs=1e-5)


def test_initial_weights_descend_the_aggregates_loss_at_its_temperature(folder: Path) -> None:
    """Adam, with the slope of L_Agg measured."""
    draw, tau = np.random.default_rng(2), 0.4
    q, h_f = unit(draw.normal(size=(6, 16))), unit(draw.normal(size=(8, 3, 16)))
    h_f[[1, 4], 0] = 0
    h_f[:6, 1] += 0.5 * q
    own, known = np.arange(6), np.eye(6, 8) > 0

    def loss(bias: Doubles) -> float:
        weights = softmax(np.where((h_f != 0).any(-1), bias, -np.inf))
        return info_nce(q @ unit(np.einsum("mf,mfd->md", weights, h_f)).T / tau, own, known)

    bias, mean, square = np.zeros(3), np.zeros(3), np.zeros(3)
    for step in range(1, WEIGHT_STEPS + 1):
        slope = np.array([(loss(bias + e) - loss(bias - e)) / 2e-5 for e in 1e-5 * np.eye(3)])
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        bias = bias - WEIGHT_RATE * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    backbone = Backbone.of(load_encoder(folder, device="cpu", dtype="float32"), new_tokens=3)
    module = FieldEncoder(FieldsConfig(fields=NAMES, temperature=tau), backbone)
    tensors = (torch.from_numpy(x) for x in (q.astype(np.float32), h_f.astype(np.float32), own, known))
    fit_field_weights(module, *tensors)
    np.testing.assert_allclose(module.field_weights.bias.detach().numpy(), bias, atol=5e-3)
