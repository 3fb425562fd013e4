"""Training: gradients in chunks, negatives, language modelling, validation."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from palmette import load_data
from palmette.encoder import Backbone
from palmette.errors import ConfigError, TrainingError
from palmette.methods.fields import FieldsConfig
from palmette.methods.fields.layout import Batch
from palmette.methods.fields.losses import contrast
from palmette.methods.fields.model import FieldsModel
from palmette.methods.fields.negatives import HardNegativeSource, by_words, mined_from
from palmette.methods.fields.passes import in_chunks
from palmette.methods.fields.pretraining import LanguageModel, LanguageTask, hidden_words
from palmette.methods.fields.queries import with_field_queries
from palmette.methods.fields.reading import Reader, as_items
from palmette.methods.fields.task import FieldsTask
from palmette.methods.fields.tokens import limits_of
from support.shop import FIELDS, questions, shop, train, unheld
from support.tiny import learner


def task(data=None, **options) -> FieldsTask:
    config = FieldsConfig(**{"fields": as_items(FIELDS), **options})
    loaded = load_data(questions() if data is None else data)
    return FieldsModel.task(config, loaded, learner(), None, seed=0, progress=False)[1]


def gradients(made: FieldsTask, chunk: int) -> tuple[float, dict[str, torch.Tensor]]:
    made.module.config = made.module.config.replace(chunk=chunk)
    made.module.train()  # dropout is on: what is computed twice must drop the same
    made.module.zero_grad()
    torch.manual_seed(0)
    loss = made.loss(made.module, np.arange(16), torch.Generator().manual_seed(0), 0.0)
    loss.backward()
    found = {name: p.grad.clone() for name, p in made.module.named_parameters() if p.grad is not None}
    return loss.item(), found


def test_gradients_in_chunks_are_those_of_the_whole_batch() -> None:
    made = task()
    for part in made.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    made.module.backbone.network.config.attention_probs_dropout_prob = 0.0
    whole, expected = gradients(made, 0)
    chunked, found = gradients(made, 3)
    assert chunked == pytest.approx(whole, abs=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3)
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-3


def test_a_chunk_that_is_computed_twice_drops_the_same_numbers() -> None:
    made = task()
    made.module.train()
    texts = made.fields_of(np.arange(6))
    torch.manual_seed(0)
    found = in_chunks(made.module, "document", texts, 2)
    found.aggregate.square().sum().backward()  # raises where the second pass is another one
    assert made.module.weigh.weight.grad is not None


def test_the_order_of_a_batch_survives_chunks() -> None:
    made = task()
    made.module.eval()
    texts = made.fields_of(np.arange(7))
    torch.testing.assert_close(
        in_chunks(made.module, "document", texts, 2).aggregate,
        in_chunks(made.module, "document", texts, 0).aggregate,
        atol=1e-5,
        rtol=0,
    )


def test_given_negatives_are_used() -> None:
    asked = [(question, right, shop()[(n + 1) % 60]) for n, (question, right) in enumerate(questions())]
    with_them, without = task(data=asked), task(data=asked, negatives="none")
    assert with_them.negatives is not None
    assert without.negatives is None
    rows = np.arange(8)
    draw = lambda: torch.Generator().manual_seed(0)  # noqa: E731
    losses = [t.loss(t.module.eval(), rows, draw(), 0.0).item() for t in (with_them, without)]
    assert losses[0] > losses[1], "more documents to be told apart"


def test_negatives_by_words_share_words_and_are_no_answers() -> None:
    data = load_data(questions(), dev_fraction=0)
    queries = np.arange(60)
    lists = mined_from(data, queries, by_words(data), data.positives_mask, 5)
    for row in queries.tolist():
        assert 1 <= len(lists[row]) <= 5
        assert row not in lists[row]
    asked = data.query_texts[7].split()
    assert all(set(asked) & set(data.corpus[row].text.lower().split()) for row in lists[7].tolist())
    made = task(negatives="words", mining_depth=5)
    assert made.negatives is not None
    assert len(made.negatives.lists.values) >= 50


def test_a_document_with_all_words_of_a_self_made_query_is_no_negative() -> None:
    made = task(data=with_field_queries(load_data(shop()), Reader.of(as_items(FIELDS)), 0))
    reader = Reader.of(as_items(FIELDS))
    words = [set(re.findall(r"\w+", " ".join(reader.read(document)).lower())) for document in shop()]
    asked = {
        row: set(text.split())
        for row, text in enumerate(made.data.query_texts)
        if text.replace(" ", "").isalpha()
    }
    known = made.known(np.array(list(asked)), np.arange(60)).sum(1)
    expected = [sum(query <= having for having in words) for query in asked.values()]
    assert known.tolist() == expected
    assert max(expected) >= 5
    labelled = task()
    assert labelled.known(np.arange(3), np.arange(60)).sum() == 3


def test_mined_negatives_follow_the_model() -> None:
    made = task(negatives="mined", mining_rounds=2, mining_depth=4)
    source = made.negatives
    assert source is not None
    assert [source.due(share) for share in (0.0, 0.2, 0.49, 0.5, 0.9)] == [True, False, False, True, False]
    made._mine()
    first = source.lists
    best = np.flatnonzero(np.diff(first.starts))
    assert len(best) == len(np.unique(made.query_rows))
    with torch.no_grad():
        made.module.weigh.weight.normal_()
        for value in made.module.backbone.parameters():
            value.add_(0.1 * torch.randn_like(value))
    made._mine()
    assert not np.array_equal(first.values, source.lists.values)
    assert FieldsTask.metric


def test_mined_negatives_are_drawn_in_training() -> None:
    model = train(negatives="mined", mining_rounds=2, steps=4)
    assert model.record.steps == 4


def test_language_modelling_hides_words_and_nothing_else() -> None:
    made = task()
    layout, backbone = made.module.layout, made.module.backbone
    batch = layout.documents(made.fields_of(np.arange(60)), made.module.ends, backbone.vocabulary)
    changed, chosen = hidden_words(
        batch, 3, backbone.mask, backbone.vocabulary, torch.Generator().manual_seed(0)
    )
    words = batch.codes < 3
    assert not (chosen & ~words).any()
    assert 0.1 < float(chosen.sum() / words.sum()) < 0.2
    assert (changed.ids[~chosen] == batch.ids[~chosen]).all()
    assert 0.7 < float((changed.ids[chosen] == backbone.mask).float().mean()) < 0.9
    assert isinstance(changed, Batch)


def test_language_modelling_teaches_the_encoder_that_retrieval_goes_on_with() -> None:
    made = task()
    words = LanguageTask(LanguageModel(made.module), made)
    optimizer = torch.optim.Adam(words.module.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = words.loss(words.module.eval(), np.arange(60), torch.Generator().manual_seed(0), 0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    plain, pretrained = train(steps=1, seed=1), train(steps=1, seed=1, pretrain_steps=3)
    name = "backbone.network.embeddings.word_embeddings.weight"
    assert not torch.allclose(
        plain.module.state_dict()[name], pretrained.module.state_dict()[name], atol=1e-4
    )


def test_a_run_goes_on_after_language_modelling(tmp_path) -> None:
    options = {"pretrain_steps": 2, "steps": 4, "output_dir": tmp_path}
    model = train(**options)
    assert (tmp_path / "pretraining" / "training.jsonl").exists()
    assert train(**options, resume=True).fingerprint == model.fingerprint
    with pytest.raises(TrainingError, match="other settings"):
        train(**{**options, "steps": 5}, resume=True)


def test_fields_count_as_much_as_they_help_from_the_start() -> None:
    made = task()

    def loss() -> float:
        found = made.module.eval().documents(made.fields_of(made.document_rows))
        q = made.module.queries([made.queries[row] for row in made.query_rows.tolist()]).aggregate
        known = torch.from_numpy(made.known(made.query_rows, made.document_rows))
        own = torch.arange(made.size())
        return contrast(q @ found.aggregate.T / 0.05, own, known).mean().item()

    begun = made.module.weigh.bias.clone()
    assert begun.std() > 0.1
    fitted = loss()
    with torch.no_grad():
        made.module.weigh.bias.zero_()
    assert fitted < loss() - 1e-3, "better than all alike"
    assert task(fields=("text",)).module.weigh.bias.item() == 0


def test_frozen_layers_stay_as_they_are() -> None:
    start = Backbone.of(learner())
    model = train(trained_layers=1, steps=3)
    now = model.module.backbone
    torch.testing.assert_close(now.layers[0].state_dict(), start.layers[0].state_dict())
    torch.testing.assert_close(now.words(torch.tensor([[7]])), start.words(torch.tensor([[7]])))
    assert not torch.allclose(*(m.layers[1].output.dense.weight for m in (now, start)), atol=1e-6)


def test_room_goes_to_the_fields_that_need_it() -> None:
    backbone, reader = Backbone.of(learner()), Reader.of(as_items(FIELDS))
    sees = FieldsConfig(fields=as_items(FIELDS)).ancestors
    limits = dict(zip(reader.names, limits_of(backbone, reader, shop(), {}, 64, sees), strict=True))
    assert limits["brand"] == limits["title"] == 4
    assert limits["text"] == 12, "all that nearly any needs"
    tight = dict(zip(reader.names, limits_of(backbone, reader, shop(), {}, 20, sees), strict=True))
    assert tight["text"] == 5
    fixed = limits_of(backbone, reader, shop(), {"title": 7}, 64, sees)
    assert fixed[1] == 7
    assert train(budgets={"text": 3}).config.limits[2] == 3
    with pytest.raises(ConfigError, match="3 fields of 70 tokens together, but the encoder has room for 62"):
        train(budgets={"text": 62})
    with pytest.raises(ConfigError, match="a budget of 200 tokens for 'all', but a document has 62 at most"):
        train(whole=True, budgets={"all": 200})
    assert train(whole=True, budgets={"all": 9}).config.limits[-1] == 9
    with pytest.raises(ConfigError, match="20 fields of 80 tokens"):
        train(fields={f"title {n}": "title" for n in range(20)})


def test_of_a_long_query_as_much_is_read_as_the_encoder_takes() -> None:
    data = unheld([(f"{number} golden " * 100, shop()[number]) for number in range(8)])
    made = train(steps=1, data=data, query_tokens=500)
    vectors = made.vectors(["golden " * 100, "golden " * 62, "golden " * 61], kind="query")
    assert np.allclose(vectors[0], vectors[1])
    assert not np.allclose(vectors[0], vectors[2], atol=1e-7)


def test_validation_is_of_two_stages_and_of_each() -> None:
    made = task()
    scores = made.validate(made.module.eval())
    assert set(scores) == {
        f"{metric}{by}"
        for metric in ("ndcg@10", "recall@10", "mrr@10")
        for by in ("", " by aggregate", " by best field")
    }
    assert all(0 <= value <= 1 for value in scores.values())
    assert replace(made, dev=None).validate(made.module) == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"aggregate_weight": 0.0, "fields_weight": 0.0, "best_weight": 0.0}, "or nothing is learned"),
        ({"sees": ("a=b",), "attention": "full"}, "give one of them"),
        ({"budgets": ("text",)}, "field=tokens"),
        ({"budgets": ("colour=3",)}, "budgets name 'colour'"),
        ({"chunk": -1}, "chunk must be"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FieldsConfig(**{"fields": ("brand", "text"), **options})


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "full", "diversity_weight": 0.01, "pooling": "token", "fields_weight": 0.0},
        {"attention": "diagonal", "queries": "plain"},
        {"sees": {"text": ["title"]}, "similarity": "inner_product", "temperature": 1.0},
        {"trained_layers": 0, "chunk": 0, "stored": "float32"},
    ],
    ids=str,
)
def test_every_shape_trains(options: dict) -> None:
    assert train(steps=2, **options).record.steps == 2


def test_negatives_may_be_missing_for_some() -> None:
    data = load_data([("a b", shop()[0], [shop()[1]]), ("c d", shop()[2])], dev_fraction=0)
    source = HardNegativeSource(data.negatives)
    assert source.sample(np.array([0, 1]), np.random.default_rng(0)).tolist() == [data.rows["1"]]
    assert source.sample(np.array([1]), np.random.default_rng(0)).tolist() == []
