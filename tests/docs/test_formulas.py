"""Every displayed formula of the "How it works" pages, beside the code on the same numbers.

A formula is the docstring of its test, to the letter: one that changes on its page is missed here, and the reverse.
"""

import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from palmette.encoder import Backbone, States, load_encoder
from palmette.maths import info_nce, ntvd
from palmette.methods.fields.config import FieldsConfig
from palmette.methods.fields.losses import charm_loss
from palmette.methods.fields.module import FieldEncoder, Layout, Pooled
from palmette.methods.layers.config import LayersConfig
from palmette.methods.layers.module import LayerNetworks
from palmette.methods.paths.losses import intra_leaf, triplet
from palmette.methods.paths.module import Indexer
from palmette.methods.taxonomy.config import TaxonomySearch
from palmette.methods.taxonomy.losses import column_weights, matches_softmax
from palmette.methods.taxonomy.search import RelevanceCutoff
from palmette.methods.tree.losses import level_loss
from palmette.methods.tree.module import Linear, propagate
from palmette.ranking.score import Calibration, Evidence, Scale, Units, chance, probability
from palmette.reader import ReaderConfig
from palmette.reader.answer import Candidates
from palmette.reader.scores import reading_loss, words_of
from palmette.reader.spans import SpanModule
from support.pages import ROOT
from support.readers import encoder as encoder_folder
from support.reference import Doubles, sigmoid, softmax, unit
from support.taxonomies import zoo, zoo_model

FOLDER = ROOT / "docs" / "how"
ELSEWHERE = set[str]()
"""Pages whose formulas are tested with what they are about."""
Check = Callable[[], None]
CHECKS: dict[tuple[str, str], Check] = {}
DRAW = np.random.default_rng(0)


def spaceless(formula: str) -> str:
    return " ".join(formula.split())


def on(page: str, formula: str) -> Callable[[Check], Check]:
    """Register a check of a page's formula."""

    def register(check: Check) -> Check:
        CHECKS[page, spaceless(formula)] = check
        return check

    return register


def formulas() -> set[tuple[str, str]]:
    found = set()
    for path in FOLDER.glob("*.md"):
        if path.stem not in ELSEWHERE:
            blocks = re.findall(r"^\$\$\n(.+?)\n\$\$$", path.read_text(encoding="utf-8"), re.M | re.S)
            found |= {(path.stem, spaceless(block)) for block in blocks}
    return found


def same(found: object, expected: object) -> None:
    found = found.detach().numpy() if isinstance(found, torch.Tensor) else found
    np.testing.assert_allclose(np.asarray(found, float), expected, atol=1e-5, rtol=1e-5)


def numbers(*shape: int) -> tuple[Doubles, torch.Tensor]:
    """The same random numbers for the formula and for the code."""
    x = DRAW.normal(size=shape)
    return x, torch.from_numpy(x)


def distributions(n: int, columns: int) -> tuple[Doubles, torch.Tensor]:
    p = softmax(2 * DRAW.normal(size=(n, columns)))
    return p, torch.from_numpy(p)


# -- tree ---------------------------------------------------------------------------------------------------------


@on("tree", r"z_t(x) = \sigma\left( s_t \left( w_t^{\top} e(x) + b_t \right) \right)")
def _turn() -> None:
    e, x = numbers(4, 5)
    split = Linear(3, 5).double()
    with torch.no_grad():
        for value in (split.directions, split.offsets, split.slopes):
            value.copy_(torch.from_numpy(DRAW.normal(size=value.shape)))
    w, b, s = (v.detach().numpy() for v in (split.directions, split.offsets, split.slopes))
    z = sigmoid(s * (e @ w.T + b))
    scores = split(States(x), 3)
    same(scores.sigmoid(), z)
    same(propagate(scores, 1)[:, 0], z[:, 0])  # z is the turn to the left, which has the first half of the leaves


@on(
    "tree",
    r"p_{\ell}(x) = \prod_{t \in \mathrm{path}(\ell)} z_t(x)^{[\ell\ \mathrm{left\ of}\ t]} "
    r"\left( 1 - z_t(x) \right)^{[\ell\ \mathrm{right\ of}\ t]}",
)
def _leaf() -> None:
    scores, x = numbers(3, 7)
    z, p = sigmoid(scores), np.ones((3, 8))
    for leaf, level in product(range(8), range(3)):
        t = 2**level - 1 + (leaf >> (3 - level))  # the split above the leaf at this level
        left = not (leaf >> (2 - level)) & 1
        p[:, leaf] *= z[:, t] if left else 1 - z[:, t]
    same(propagate(x, 3), p)


@on(
    "tree",
    r"\mathrm{nTVD}(q, d) = -\frac{1}{2} \sum_{i} \left| p_i(q) - p_i(d) \right| = "
    r"\sum_{i} \min\left( p_i(q), p_i(d) \right) - 1",
)
def _ntvd() -> None:
    (q, q_), (d, d_) = distributions(3, 8), distributions(4, 8)
    same(-0.5 * np.abs(q[:, None] - d).sum(2), np.minimum(q[:, None], d).sum(2) - 1)
    for kind in (torch.float64, torch.float32):  # by torch, and by the search's kernel
        same(ntvd(q_.to(kind), d_.to(kind)), np.minimum(q[:, None], d).sum(2) - 1)


def pairs_loss(s: Doubles) -> float:
    """L_pairs of τ · nTVD [B, B]."""
    rows, columns = np.exp(s).sum(1), np.exp(s).sum(0)
    own = np.exp(np.diagonal(s))
    return float(-(np.log(own / rows) + np.log(own / columns)).sum() / (2 * len(s)))


@on(
    "tree",
    r"L_{\mathrm{pairs}} = -\frac{1}{2B} \sum_{i} \left( \log \frac{e^{\tau\, \mathrm{nTVD}(q_i, d_i)}}"
    r"{\sum_j e^{\tau\, \mathrm{nTVD}(q_i, d_j)}} + \log \frac{e^{\tau\, \mathrm{nTVD}(q_i, d_i)}}"
    r"{\sum_j e^{\tau\, \mathrm{nTVD}(q_j, d_i)}} \right)",
)
def _pairs() -> None:
    (q, q_), (d, d_), tau = distributions(4, 8), distributions(4, 8), 7.5
    s = tau * (np.minimum(q[:, None], d).sum(2) - 1)
    same(level_loss(q_, d_, torch.tensor(tau), torch.eye(4) > 0), pairs_loss(s))


# -- fields -------------------------------------------------------------------------------------------------------


@on("fields", r"\mathrm{sees}(i, j) = \left[ f(j) \le f(i) \right]")
def _sees() -> None:
    config = FieldsConfig(fields=("a", "b", "c"))
    seen = Layout(torch.from_numpy(config.attended)).attention_table[:3, :3].numpy()  # words of each field
    assert all(seen[i, j] == (j <= i) for i, j in product(range(3), repeat=2))


@on("fields", r"h = \sum_{f} w_f\, h_f, \qquad w = \mathrm{softmax}\left( K\, h_{\mathrm{CLS}} + b \right)")
def _aggregate() -> None:
    module, pooled = field_encoder()
    k, b = (v.detach().numpy() for v in (module.field_weights.weight, module.field_weights.bias))
    found = module("pooled", pooled)
    w = softmax(pooled.first.numpy() @ k.T + b)
    same(found.weights, w)
    same(found.aggregate, unit(np.einsum("bf,bfd->bd", w, found.fields.detach().numpy())))


@on("fields", r"h_f \leftarrow h_f + A_f h_f")
def _map() -> None:
    module, pooled = field_encoder()
    a = module.field_maps.detach().numpy().transpose(0, 2, 1)
    x = pooled.fields.numpy()
    same(module("pooled", pooled).fields, unit(x + np.einsum("fvw,bfw->bfv", a, x)))


def field_encoder() -> tuple[FieldEncoder, Pooled]:
    """A frozen encoder of three fields with random weights, and states."""
    config = FieldsConfig(fields=("a", "b", "c"), trained_layers=0)
    backbone = Backbone.of(load_encoder(encoder_folder(), device="cpu", dtype="float32"), new_tokens=3)
    module = FieldEncoder(config, backbone).eval()
    with torch.no_grad():
        for value in (module.field_maps, module.field_weights.weight, module.field_weights.bias):
            value.copy_(torch.from_numpy(0.3 * DRAW.normal(size=value.shape)))
    states, first = numbers(2, 3, 32)[1].float(), numbers(2, 32)[1].float()
    every = torch.ones(2, 3, dtype=torch.bool)
    return module, Pooled(states, first, every, every)


def contrast(logits: Doubles, own: list[int]) -> float:
    """L(q, h): −log of the own column's share, averaged over queries."""
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return float(-np.log(shares[range(len(own)), own]).mean())


@on("fields", r"L(q, h) = -\log \frac{e^{q \cdot h_{+} / \tau}}{\sum_{d} e^{q \cdot h_{d} / \tau}}")
def _contrast() -> None:
    (q, q_), (h, h_) = numbers(3, 4), numbers(5, 4)
    same(info_nce(q_ @ h_.T / 0.3, torch.tensor([4, 0, 2])), contrast(q @ h.T / 0.3, [4, 0, 2]))


@on(
    "fields",
    r"L = \lambda_{\mathrm{agg}}\, L(q, h) + \lambda_{\mathrm{fields}}\, \frac{1}{F} \sum_{f} L(q, h_f) + "
    r"\lambda_{\max}\, L\left( q, \max_f \right)",
)
def _charm() -> None:
    (q, q_), (f, f_), (h, h_), own = numbers(3, 4), numbers(5, 2, 4), numbers(5, 4), [4, 0, 2]
    config = FieldsConfig(aggregate_weight=0.7, fields_weight=1.9, best_weight=0.4, temperature=0.3)
    by_field = np.einsum("bd,mfd->fbm", q, f) / 0.3
    parts = contrast(q @ h.T / 0.3, own), np.mean([contrast(one, own) for one in by_field])
    loss = charm_loss(config, q_, f_, h_, torch.tensor(own), torch.zeros(3, 5, dtype=torch.bool))
    same(loss, 0.7 * parts[0] + 1.9 * parts[1] + 0.4 * contrast(by_field.max(0), own))


# -- layers -------------------------------------------------------------------------------------------------------


@on(
    "layers",
    r"L = -\frac{1}{L} \sum_{\ell} \log \frac{e^{\tau\, q_{\ell} \cdot d_{+}}}{e^{\tau\, q_{\ell} \cdot d_{+}} + "
    r"\sum_{d_{-}} e^{\tau\, q_{\ell} \cdot d_{-}}}",
)
def _layers() -> None:
    (q, q_), (d, d_), own, tau = numbers(3, 2, 4), numbers(5, 4), [3, 1], 2.5
    scores = tau * torch.einsum("lbd,cd->lbc", q_, d_)
    same(info_nce(scores, torch.tensor(own)), np.mean([contrast(tau * q[layer] @ d.T, own) for layer in range(3)]))


@on("layers", r"s(d) = \frac{\sum_{\ell} w_{\ell}\, q_{\ell} \cdot d}{\sum_{\ell} w_{\ell}}")
def _fused() -> None:
    (q, q_), (d, _), w = numbers(2, 3, 4), numbers(5, 4), np.array([0.2, 1.5, 0.6])
    module = LayerNetworks(LayersConfig(layers=(1, 2, 3), states=4, vector=4, last=3, heads=1))
    module.shares.copy_(torch.from_numpy(w))
    same(module.fused(q_).numpy() @ d.T, np.einsum("l,bld,cd->bc", w, q, d) / w.sum())


# -- paths --------------------------------------------------------------------------------------------------------


@on(
    "paths",
    r"k = [\,\mathrm{path}\,;\; x\,], \qquad F(k) = k + \mathrm{ReLU}\left( U_h^{\top} k \right), \qquad p_h = "
    r"\mathrm{softmax}\left( W_h^{\top} F(k) + b_h \right) \cdot p_{\mathrm{parent}}",
)
def _route() -> None:
    x, x_ = numbers(4, 5)
    indexer = Indexer(3, 2, 5).double().requires_grad_(False)
    for value in indexer.parameters():
        value.copy_(torch.from_numpy(DRAW.normal(size=value.shape)))
    for text, found in zip(x, indexer(x_).embedding, strict=True):
        path, parent, parts = np.zeros(0), 1.0, []
        for h in range(2):
            u, w, b = (some[h].numpy() for some in (indexer.inner, indexer.outer, indexer.bias))
            k = np.concatenate([path, text])
            p = softmax(w.T @ (k + np.maximum(0, u.T @ k)) + b) * parent
            parts.append(p)
            path, parent = np.concatenate([np.eye(3)[p.argmax()], path]), p.max()
        same(found, np.concatenate(parts))


@on(
    "paths",
    r"L = \lambda_1\, L\left( q, d_{+}, d_{-} \right) + \lambda_2\, L\left( T(q), T(d_{+}), T(d_{-}) \right) + "
    r"\lambda_3\, L\left( T(d_{+}), T(d_{+}), T(d_{-}) \right)",
)
def _triplets() -> None:
    """Two pairs and one more document; the page's ``L`` is [a·c − a·b + γ]₊."""
    (q, q_), (d, d_) = ((unit(x), torch.from_numpy(unit(x))) for x in (numbers(2, 4)[0], numbers(3, 4)[0]))
    (tq, tq_), (td, td_) = distributions(2, 6), distributions(3, 6)
    weights, gamma, similar = (1.3, 0.7, 0.45), 0.35, 0.6

    def loss(a: Doubles, b: Doubles, c: Doubles) -> float:
        return max(0.0, float(a @ c - a @ b + gamma))

    triples = [(i, j) for i, j in product(range(2), range(3)) if i != j]
    apart = [(i, j) for i, j in triples if d[i] @ d[j] < similar]
    assert len(apart) > 0
    parts = (
        np.mean([loss(q[i], d[i], d[j]) for i, j in triples]),
        np.mean([loss(tq[i], td[i], td[j]) for i, j in triples]),
        np.mean([loss(td[i], td[i], td[j]) for i, j in apart]),
    )
    negative = torch.eye(2, 3) == 0
    code = (
        triplet(q_ @ d_.T, negative, gamma),
        triplet(tq_ @ td_.T, negative, gamma),
        intra_leaf(td_, d_[:2] @ d_.T, negative, similar=similar, margin=gamma),
    )
    same(torch.stack(code), parts)
    same(sum(w * part for w, part in zip(weights, code, strict=True)), np.dot(weights, parts))


# -- taxonomy -----------------------------------------------------------------------------------------------------


@on("taxonomy", r"s(q, d) = T \left\langle f(q), g(d) \right\rangle")
def _inner_product() -> None:
    model = zoo_model()
    f = model.module.queries(torch.from_numpy(model.encoder.encode_queries(["owl 3"]))).detach().numpy()
    g = model.encode_documents(zoo())["vector"]
    query = model.encode_queries(["owl 3"], TaxonomySearch())["vector"]
    same(query @ g.T, model.config.multiplier * f @ g.T)


@on("taxonomy", r"w(d) = \frac{1}{1 - \left( 1 - p(d) \right)^{B}}")
def _presence() -> None:
    p, batch = np.array([0.3, 0.01, 0.2]), 6
    weights = column_weights(torch.ones(3).double(), torch.from_numpy(np.log(p)), batch, 1.0)
    same(weights.exp(), 1 / (1 - (1 - p) ** batch))


@on("taxonomy", r"w_{\sigma}(d) = n(d)^{1 - \sigma}\, w(d)^{\sigma}")
def _strength() -> None:
    p, n, batch, strength = np.array([0.3, 0.01, 0.2]), np.array([3.0, 1, 2]), 6, 0.7
    weights = column_weights(torch.from_numpy(n), torch.from_numpy(np.log(p)), batch, strength)
    same(weights.exp(), n ** (1 - strength) / (1 - (1 - p) ** batch) ** strength)


@on("taxonomy", r"L = -\log \frac{e^{s(q, d^{+})}}{e^{s(q, d^{+})} + \sum_{d \ne d^{+}} w(d)\, e^{s(q, d)}}")
def _corrected() -> None:
    (q, q_), (d, d_), w = numbers(1, 3), numbers(4, 3), np.array([2.0, 0.5, 7.0, 1.5])
    s = np.exp(d @ q[0])
    loss = matches_softmax(q_, d_, torch.from_numpy(np.log(w)).float(), torch.tensor([0]), torch.tensor([2]))
    same(loss, -np.log(s[2] / (s[2] + (w * s)[[0, 1, 3]].sum())))


@on(
    "taxonomy",
    r"L = -\log \frac{e^{s(q, d^{+})}}{e^{s(q, d^{+})} + \sum_{d \in \text{batch}} w(d)\, e^{s(q, d)} + "
    r"\sum_{d \in \text{hard}(q)} e^{s(q, d)}}",
)
def _hard() -> None:
    (q, q_), (d, d_), (near, near_) = numbers(1, 3), numbers(4, 3), numbers(1, 2, 3)
    w, one = np.array([2.0, 0.5, 7.0, 1.5]), torch.tensor([0])
    s, hard = np.exp(d @ q[0]), np.exp(near[0] @ q[0])
    loss = matches_softmax(q_, d_, torch.from_numpy(np.log(w)).float(), one, torch.tensor([2]), None, near_)
    same(loss, -np.log(s[2] / (s[2] + (w * s)[[0, 1, 3]].sum() + hard.sum())))


def gaps_and_cutoff() -> tuple[Doubles, Doubles, tuple[float, float, float], RelevanceCutoff, Doubles]:
    """Widest gaps at or under three scores, the scores, a, b and c, and the code with a query."""
    (nodes, nodes_), (query, _), coefficients = numbers(6, 3), numbers(1, 3), (0.7, 0.2, -1.1)
    every = np.sort(nodes @ query[0])
    scores = np.array([every[5], every[4], (every[4] + every[3]) / 2])
    gaps = []
    for score in scores:
        at_or_under = [score, *every[every < score]]
        gaps.append(max(s - np.log(np.exp(every[every < s]).sum()) for s in at_or_under if (every < s).any()))
    cut = RelevanceCutoff(nodes_.float(), torch.tensor([*coefficients, 6.0]))
    return np.array(gaps), scores, coefficients, cut, query.astype(np.float32)


@on("taxonomy", r"P(d) = \sigma\left( a\, g(d) + b\, s(q, d) + c \right)")
def _chance() -> None:
    g, s, (a, b, c), cut, query = gaps_and_cutoff()
    same(cut.probability(query, s[None].astype(np.float32))[0], sigmoid(a * g + b * s + c))


@on("taxonomy", r"\mathrm{score}(d) = \frac{1}{2} + \frac{x}{2 \left( 1 + |x| \right)}")
def _scale() -> None:
    g, s, (a, b, c), cut, query = gaps_and_cutoff()
    x = a * g + b * s + c + s / 1000
    same(cut.scaled(query, s[None].astype(np.float32))[0], 0.5 + x / (2 * (1 + np.abs(x))))


# -- reader -------------------------------------------------------------------------------------------------------


@on(
    "ranking",
    r"m = \tfrac12\,\frac{s - z_s}{u_s} + \tfrac12\,\frac{c - z_c}{u_c} \qquad x = (1 - \lambda)\, m "
    r"+ \lambda\, (w - h) \qquad P = \frac{1}{1 + e^{-(a x + b)}}",
)
def _evidence() -> None:
    s, c, w = DRAW.normal(size=(3, 7))
    h = chance(1.7)
    same(h, 0.8 * np.exp(-1.5 * 1.7))
    (z, u), (zc, uc), lam, a, b = (0.3, 0.7), (0.2, 0.4), 0.35, 5.0, -3.0
    units = Units(own=Scale(zero=z, unit=u), sentence=Scale(zero=zc, unit=uc))
    mix = Calibration(words=lam, slope=a, prior=b, source="held-out questions")
    evidence = Evidence(mix, units, ("a question",))
    m = (s - z) / u / 2 + (c - zc) / uc / 2
    same(probability(evidence.logit(evidence.total(s, c, w - h))), sigmoid(a * ((1 - lam) * m + lam * (w - h)) + b))


@on("reader", r"P(a, p) = \frac{e^{s(a, p)}}{1 + \sum_{p'} \sum_{a'} e^{s(a', p')}}")
def _answer() -> None:
    s = DRAW.normal(size=5)
    chances = np.exp(s) / (1 + np.exp(s).sum())
    places = np.stack([np.array([0, 0, 1, 2, 2]), np.arange(5), np.arange(1, 6)], axis=1)
    found = Candidates.of(places, s, float(np.log1p(np.exp(s).sum())))
    same(found.shares, np.sort(chances)[::-1])
    same(found.none, 1 - chances.sum())
    right = np.where(np.arange(5) == 3, s, -1e4)
    loss = reading_loss(torch.from_numpy(s), torch.from_numpy(right), torch.zeros(5, dtype=torch.int64), 1)
    same(loss[0], -np.log(chances[3]))


@on("reader", r"s(a, p) = n(a, p) + w_1 \cos(q, p) + w_2 \frac{|W_q \cap W_p|}{|W_q|} + b")
def _passage() -> None:
    encoder = load_encoder(encoder_folder(), dtype="float32", device="cpu")
    config = ReaderConfig(max_length=40, overlap=6, max_answer=4, max_question=16)
    reader, question = SpanModule(config, encoder).eval(), "where does the red cat live?"
    passages, w, b = ["the red cat lives in house 7", "a blue dog sings"], np.array([1.5, -0.7]), 0.4
    reader.weigh.weight.copy_(torch.from_numpy(w)[None])
    reader.weigh.bias.fill_(b)
    cosine = unit(encoder.encode(passages)) @ unit(encoder.encode_queries([question]))[0]
    asked = words_of(question)
    common = np.array([len(asked & words_of(passage)) / len(asked) for passage in passages])
    gain = w[0] * cosine + w[1] * common + b
    read = reader.read([question], [passages])[0]
    by_hand = [n + gain[passage] for n, (passage, _, _) in zip(read.scores, read.places, strict=True)]
    found = reader.candidates([question], [passages])[0]
    same(np.log(found.shares / found.none), sorted(by_hand, reverse=True))


def test_every_formula_has_a_check_and_every_check_a_formula() -> None:
    assert formulas() == CHECKS.keys()


@pytest.mark.parametrize("place", list(CHECKS), ids=lambda place: f"{place[0]}: {place[1][:24]}")
def test_the_formula_is_what_the_code_does(place: tuple[str, str]) -> None:
    CHECKS[place]()
