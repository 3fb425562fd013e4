"""Training: gradients in chunks, negatives, initial weights, a frozen encoder, validation, and no labels."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from palmette import load_data
from palmette.encoder import Backbone
from palmette.methods.base import FitInputs
from palmette.methods.fields import FieldsConfig, FieldsModel, FieldsSearch, FieldsWarning
from palmette.methods.fields.search import blend
from palmette.methods.fields.training import FieldsTask
from palmette.training.loop import AdamW, TrainingResult
from support.alone import Index
from support.shop import FIELDS, questions, shop, train
from support.tiny import learner


def task(**options: Any) -> FieldsTask:
    config = FieldsConfig(**{"fields": FIELDS, "whole": False, **options})
    return FieldsModel.task(config, FitInputs(load_data(questions()), learner(), None))[1]


def loss_of(made: FieldsTask) -> torch.Tensor:
    return made.loss(made.module, np.arange(16), torch.Generator().manual_seed(0), 0.0)


def gradients(made: FieldsTask, chunk: int) -> tuple[float, dict[str, torch.Tensor]]:
    made.module.config = made.module.config.replace(chunk=chunk)
    made.module.train().zero_grad()
    torch.manual_seed(0)
    loss = loss_of(made)
    loss.backward()
    found = {name: p.grad.clone() for name, p in made.module.named_parameters() if p.grad is not None}
    return loss.item(), found


def test_gradients_in_chunks_are_those_of_the_whole_batch() -> None:
    made = task(dropout=0.0)
    whole, expected = gradients(made, 0)
    chunked, found = gradients(made, 3)
    assert chunked == pytest.approx(whole, abs=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3)
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-3


def test_frozen_layers_stay_as_they_are() -> None:
    start = Backbone.of(learner())
    now = train(trained_layers=1, steps=3).module.backbone
    torch.testing.assert_close(now.layers[0].state_dict(), start.layers[0].state_dict())
    torch.testing.assert_close(now.words(torch.tensor([[7]])), start.words(torch.tensor([[7]])))
    assert not torch.allclose(*(m.layers[1].output.dense.weight for m in (now, start)), atol=1e-6)


def test_a_frozen_encoder_reads_each_text_once_and_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(trained_layers=0, whole=True)
    passes, backbone, read = [], made.module.backbone, made.module.backbone.forward
    monkeypatch.setattr(backbone, "forward", lambda *a, **k: passes.append(len(a[0])) or read(*a, **k))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    optimizer = AdamW([p for p in made.module.train().parameters() if p.requires_grad], lr=1e-2)
    found = []
    for _ in range(5):
        loss = loss_of(made)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    first = sum(passes)
    loss_of(made)
    assert sum(passes) == first, "nothing is read twice"
    assert found[-1] < found[0], "and yet something is learned"
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_validation_is_of_two_stages_and_of_each() -> None:
    made = task()
    scores = made.validate(made.module.eval())
    assert made.metric in scores
    ways = ("", " by aggregate", " by best field")
    assert set(scores) == {f"{metric}{by}" for metric in ("ndcg@10", "recall@10", "mrr@10") for by in ways}
    assert all(0 <= value <= 1 for value in scores.values())
    assert replace(made, dev=None).validate(made.module) == {}


def test_held_out_queries_choose_the_share_of_the_aggregate(monkeypatch: pytest.MonkeyPatch) -> None:
    made = task()
    assert made.dev is not None
    shape = (len(made.dev.queries), len(made.dev.documents))
    true = np.zeros(shape, np.float32)
    true.flat[made.dev.judgements.keys] = 1
    noise = np.random.default_rng(0).normal(size=shape).astype(np.float32) * 9
    cases = (true, noise, 1.0), (noise, true, 0.0), (true, true, 0.5), (noise, noise, 0.5)
    for aggregate, best, share in cases:
        monkeypatch.setattr(made, "similarities", lambda a=aggregate, b=best: (a, b, np.ones(shape, bool)))
        made.finish(TrainingResult(0, 0, {}, 0.0, False))
        assert blend(made.module.config, FieldsSearch()) == share
    assert blend(made.module.config.replace(blend=0.75), FieldsSearch(blend=0.25)) == 0.25


CATS = [{"id": str(n), "fields": {"brand": ("Red", "Blue")[n % 2], "title": f"cat {n}"}} for n in range(30)]


@pytest.mark.parametrize("catalogue", [shop(), CATS], ids=["texts", "no sentence"])
def test_without_labels_the_encoder_s_own_vectors_are_kept(catalogue: list[Any]) -> None:
    fields = {"brand": "brand", "title": "title"}
    with pytest.warns(FieldsWarning, match="no labelled pairs, so nothing is trained"):
        made = train(data=catalogue, fields=fields, whole=True, steps=3, stored="float32")
    assert (made.record.labelled, made.record.pairs, made.record.steps) == (False, 0, 0)
    index = Index.build(catalogue, made)
    some = index.get([str(n) for n in range(9)])
    texts = [" ".join(filter(None, made.extractor.read(document)[:-1])) for document in some]
    own, asked = learner().encode(texts), learner().encode_queries(["red cat 7"])[0]
    found = {hit.id: hit.score for hit in index.search("red cat 7", k=len(index), by="aggregate")}
    scores = [found[document.id] for document in some]
    np.testing.assert_allclose(scores, own @ asked / np.linalg.norm(own, axis=1), atol=1e-5)
    assert made.calibration(made.search_options({}), "auto").words == 0.5, "words count beside the encoder"
    hit = index.search("red cat 7", k=1)[0]
    assert sum(part.value for part in hit.explain().parts) == pytest.approx(hit.score, abs=1e-5)
    assert index.search("red cat 7", k=1, fields=["title"], lexical=0)[0].explain().detail["field"] == "title"
