"""What a tree learns from: the pairs given, or questions made of its documents where those teach nothing of them."""

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from palmette import FakeEncoder, RetrievalData, TreeModel
from palmette.data import load_data, with_made_queries
from palmette.errors import ConfigError
from palmette.held_out import HeldOut
from palmette.hub.card import render_card
from palmette.methods.tree import adapter as mapping
from palmette.methods.tree.adapter import Adapter, learn_adapter
from palmette.methods.tree.lessons import ENOUGH, learn_space
from palmette.pairs import EncodedPairs
from palmette.types import Document

WIDTH = 12


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of a dozen columns need no more steps, and one rate."""
    monkeypatch.setattr(mapping, "HOW", mapping.HOW.replace(steps=150, evaluate_every=30))
    monkeypatch.setattr(mapping, "RATES", (3e-3,))


def telling() -> EncodedPairs:
    """Of every text's coordinates only the first half tells which pair it belongs to; the others are as large."""
    generator = torch.Generator().manual_seed(0)
    signal = torch.randn(400, WIDTH // 2, generator=generator)
    queries, documents = (
        torch.cat([signal, torch.randn(400, WIDTH // 2, generator=generator)], dim=1) for _ in range(2)
    )
    data = load_data([(f"question {row}", f"answer {row}") for row in range(400)])
    return EncodedPairs(data, queries, documents, *data.pairs("train"), HeldOut.of(data, 0))


def misleading(pairs: EncodedPairs) -> EncodedPairs:
    """The same held-out questions; those that train have other answers."""
    rows = np.random.default_rng(0).permutation(pairs.document_rows)
    return replace(pairs, document_rows=rows)


def never() -> NoReturn:
    raise AssertionError("nobody asks for made questions where pairs teach")


def quality(adapter: Adapter, pairs: EncodedPairs) -> float:
    return pairs.validate(adapter, lambda q, d: q @ d.T)["ndcg@10"]


def test_pairs_that_teach_are_kept_and_no_questions_made() -> None:
    pairs, adapter = telling(), Adapter(WIDTH)
    before = quality(adapter, pairs)
    assert learn_space(adapter, pairs, never, 0, False) is pairs
    assert quality(adapter, pairs) > before + 0.1


def test_made_questions_teach_where_pairs_do_not() -> None:
    made, adapter = telling(), Adapter(WIDTH)
    pairs = misleading(made)
    made = replace(made, data=replace(made.data, labelled=False))
    before = quality(adapter, pairs)
    assert learn_space(adapter, pairs, lambda: made, 0, False) is made
    assert quality(adapter, pairs) > before + 0.05
    alone = Adapter(WIDTH)
    learn_adapter(alone, made, 0, False)  # half of the way
    torch.testing.assert_close(adapter.weight, alone.weight, atol=0, rtol=0)


@pytest.mark.parametrize("made", [None, lambda: None, lambda: misleading(telling())])
def test_the_pairs_are_kept_where_made_questions_are_no_better(made: Any) -> None:
    pairs, adapter, alone = misleading(telling()), Adapter(WIDTH), Adapter(WIDTH)
    learn_space(alone, pairs, None, 0, False)
    assert learn_space(adapter, pairs, made, 0, False) is pairs
    torch.testing.assert_close(adapter.weight, alone.weight, atol=0, rtol=0)


@pytest.mark.parametrize("held", [ENOUGH - 1, ENOUGH, 0])
def test_a_few_held_out_questions_cannot_tell(held: int) -> None:
    made = telling()
    assert made.dev is not None
    judged = dict(list(made.data.qrels["dev"].items())[:held])
    data = replace(made.data, qrels={**made.data.qrels, "dev": judged})
    made = replace(made, data=data, dev=HeldOut.of(data, 0))
    pairs = misleading(made)
    asked = []

    def make() -> EncodedPairs:
        asked.append(1)
        return made

    learn_space(Adapter(WIDTH), pairs, make, 0, False)
    assert bool(asked) == (held >= ENOUGH)


def half_labelled() -> RetrievalData:
    """Texts of common and of own words; held-out questions mix both; those that train are answered at random."""
    draw, common = np.random.default_rng(0), [f"c{word}" for word in range(12)]
    corpus, asked = [], {}
    for row in range(120):
        words = [*draw.choice(common, 8), *(f"w{word}" for word in draw.integers(0, 120, 6))]
        draw.shuffle(words)
        corpus.append(Document(id=str(row), text=" ".join(words) + "."))
        own = [word for word in words if word.startswith("w")]
        asked[f"d{row}"] = " ".join([*draw.choice(own, 3, replace=False), *draw.choice(common, 4)])
    train = {f"t{row}": {str(draw.integers(120)): 1} for row in range(60)}
    dev = {key: {key[1:]: 1} for key in list(asked)[:60]}
    queries = {key: f"nothing {key}" for key in train} | {key: asked[key] for key in dev}
    return RetrievalData("half", corpus, queries, {"train": train, "dev": dev, "test": {"d0": {"0": 1}}})


def test_made_queries_train_and_judged_ones_are_held_out() -> None:
    data = half_labelled()
    made = with_made_queries(data, 3)
    alone = load_data(data.corpus, dev_fraction=0, seed=3)
    assert sorted(made.queries[key] for key in made.qrels["train"]) == sorted(alone.queries.values())
    assert all(made.qrels[split] == data.qrels[split] for split in ("dev", "test"))
    assert not made.labelled
    assert all(made.queries[key] == text for key, text in data.queries.items())
    taken = replace(data, queries=data.queries | {key: "mine" for key in alone.queries})
    again = with_made_queries(taken, 3)
    assert not set(again.qrels["train"]) & set(taken.queries)
    assert sorted(again.queries[key] for key in again.qrels["train"]) == sorted(alone.queries.values())


@pytest.mark.parametrize("space", ["adapted", "encoder"])
def test_a_tree_learns_from_what_it_is_told_to(space: Any) -> None:
    data, how = half_labelled(), {"encoder": FakeEncoder(64), "depth": 4, "steps": 4, "batch_size": 8}
    made = with_made_queries(data, 0)
    labels = TreeModel.fit(data, learn_from="labels", space=space, **how)
    documents = TreeModel.fit(data, learn_from="documents", space=space, **how)
    assert (labels.record.pairs, labels.record.made) == (60, False)
    assert (documents.record.pairs, documents.record.made) == (len(made.qrels["train"]), True)
    assert "made from the documents" in card(documents)
    assert "made from the documents" not in card(labels)
    auto = TreeModel.fit(data, space=space, **how)
    assert auto.record.pairs == (labels.record.pairs if space == "encoder" else documents.record.pairs)
    assert auto.record.made == (space == "adapted")


def test_texts_too_short_for_questions_leave_the_pairs() -> None:
    pairs = [(f"q{row}", f"a{row}") for row in range(10 * ENOUGH)]
    how: Any = {"encoder": FakeEncoder(16), "depth": 3, "steps": 4, "batch_size": 8}
    assert not TreeModel.fit(pairs, **how).record.made


def test_what_to_learn_from_is_checked() -> None:
    with pytest.raises(ConfigError, match="learn_from"):
        TreeModel.fit(half_labelled(), encoder=FakeEncoder(16), learn_from="both")


def card(model: TreeModel) -> str:
    """The model's card."""
    return render_card(
        method="tree", class_name="TreeModel", config={}, encoder={}, record=model.record.to_dict()
    )
