"""An index that is trained anew on feedback: exchanged where it is better, and never where it is worse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import Document, FakeEncoder, Index, Model, SpaceModel
from palmette.cli import main
from palmette.errors import InputError, NotFoundError, StoreError
from palmette.learning.refit import feedback_data, refit, restore_former
from palmette.store.local.feedback import FEEDBACK
from support.tiny import METHODS

TOPICS = 30
QUIET: dict[str, Any] = {"progress": False}


def documents() -> list[Document]:
    """Documents about a topic each, in words that no question uses."""
    return [Document(f"d{n}", f"beta{n % TOPICS} beta{n % TOPICS} filler{n}") for n in range(2 * TOPICS)]


def question(topic: int, number: int) -> str:
    """A question about a topic, in words that no document uses."""
    return f"alpha{topic} alpha{topic} noise{number}"


def quality(index: Index) -> float:
    """Share of new questions whose first hit is about their topic."""
    hits = index.search([question(topic, 10_000 + topic) for topic in range(TOPICS)], k=1)
    return float(np.mean([int(some[0].id[1:]) % TOPICS == topic for topic, some in enumerate(hits)]))


def with_feedback(path: Path, votes: int, wrong: float, seed: int = 0, model: Model | None = None) -> Index:
    """Build an index on which people have voted, some of them wrongly."""
    draw = np.random.default_rng(seed)
    texts = [replace(document, fields={"name": "beta"}) for document in documents()]
    index = Index.build(texts, model or SpaceModel.untrained(FakeEncoder(64)), path, **QUIET)
    for number in range(votes):
        topic = int(draw.integers(TOPICS))
        said = int(draw.integers(TOPICS)) if draw.random() < wrong else topic
        index.feedback(question(topic, number), f"d{said + TOPICS * int(draw.integers(2))}", useful=True)
    return index


def test_a_better_index_takes_the_place_and_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with with_feedback(path, 300, 0.1) as index:
        before = quality(index)
        result = refit(path, **QUIET)
        assert (result.exchanged, result.questions, result.held_out) == (True, 300, 90)
        assert result.after > result.before + 2 * result.error
        with pytest.raises(StoreError, match="another index than the one that was opened"):
            index.search("alpha1")
    assert result.former == tmp_path / "index.former"
    with Index.open(path, verify="full") as index:
        assert quality(index) > before
        assert len(index.feedback_log.votes()) == 300
        assert not (result.former / FEEDBACK).exists(), "what a person deletes would stay there"
        index.add([Document("new", "a new document")], **QUIET)
        index.delete(["d0"])
        index.feedback("a late question", "d1", useful=True)
    restore_former(path)
    with Index.open(path, verify="full") as index:
        assert quality(index) == before
        assert "new" in index
        assert "d0" not in index
        assert index.feedback_log.votes()[-1].query == "a late question"
        assert not (result.former / FEEDBACK).exists()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["index", "index.former"]


def test_what_a_sync_wrote_meanwhile_stays_with_its_source(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with with_feedback(path, 300, 0.1) as index:
        index.sync([Document("page", "the first text"), Document("gone", "a text")], "pages", **QUIET)
    assert refit(path, **QUIET).exchanged
    with Index.open(path) as index:
        report = index.sync([Document("page", "the second text"), Document("more", "a further text")], "pages", **QUIET)
        assert (report.changed, report.added, report.removed) == (["page"], ["more"], ["gone"])
    restore_former(path)
    with Index.open(path, verify="full") as index:
        assert [document.text for document in index.get(["page", "more"])] == ["the second text", "a further text"]
        assert "gone" not in index
        report = index.sync([Document("page", "the third text")], "pages", **QUIET)
        assert (report.changed, report.removed, report.skipped) == (["page"], ["more"], [])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore")
def test_every_method_is_trained_anew_with_its_own_options(tmp_path: Path, method: str) -> None:
    with with_feedback(tmp_path / "ix", 120, 0.0, model=METHODS[method]()) as index:
        own = index.model.config
    done = refit(tmp_path / "ix", steps=2, batch_size=8, **QUIET)
    assert done.held_out
    with Index.open(tmp_path / "ix") as index:
        assert {name: getattr(index.model.config, name) for name in own.choices()} == {
            name: getattr(own, name) for name in own.choices()
        }


@pytest.mark.parametrize("draws", [2, pytest.param(10, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("wrong", [0.2, 1.0])
def test_never_exchanged_for_a_worse_one(tmp_path: Path, draws: int, wrong: float) -> None:
    for draw in range(draws):
        path = tmp_path / f"{wrong} {draw}"
        with with_feedback(path, 200, wrong, draw) as index:
            before = quality(index)
        result = refit(path, seed=draw, **QUIET)
        with Index.open(path) as index:
            assert quality(index) >= before
        assert result.exchanged == (wrong < 1) or not result.exchanged


def test_what_is_learned_from(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with Index.build(documents(), SpaceModel.untrained(FakeEncoder(64)), path, **QUIET) as index:
        with pytest.raises(InputError, match="nothing to learn"):
            feedback_data(index)
        for useful in (True, True, False):
            index.feedback("a  question", "d1", useful=useful)
        index.feedback("a question", "d2", useful=False)
        index.feedback("only bad", "d2", useful=False)
        for useful in (True, False):
            index.feedback("undecided", "d3", useful=useful)
        index.feedback("of one that is gone", "d4", useful=True)
        index.delete(["d4"])
        pairs = [("a  pair", documents()[5].text), ("about nothing here", "a text of elsewhere")]
        data = feedback_data(index, pairs)
        assert sorted(data.queries.values()) == ["a pair", "a question"]
        judged = {data.queries[key]: grades for part in data.qrels.values() for key, grades in part.items()}
        assert judged == {"a question": {"d1": 1, "d2": 0}, "a pair": {"d5": 1}}
        assert len(data.corpus) == 2 * TOPICS - 1
    few = refit(path, pairs, **QUIET)
    assert (few.exchanged, few.questions) == (False, 2)
    assert "20 must decide" in few.reason


def test_the_command_and_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "index"
    with_feedback(path, 300, 0.1).close()
    assert main(["refit", str(path), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "exchanged: the new index is better" in said
    assert main(["refit", str(path), "--back"]) == 0
    assert "former index is back" in capsys.readouterr().out
    assert main(["feedback", str(path), "--record", "on"]) == 0
    assert main(["feedback", str(path), "--export", str(tmp_path / "votes.jsonl")]) == 0
    assert len((tmp_path / "votes.jsonl").read_text().splitlines()) == 300
    capsys.readouterr()
    for days in ("-5", "nan"):
        assert main(["feedback", str(path), "--delete-before", days]) == 1
        assert "--delete-before must be between 0" in capsys.readouterr().err
    assert main(["feedback", str(path), "--export", str(tmp_path)]) == 1
    assert "name a file that can be written" in capsys.readouterr().err
    assert main(["refit", str(path), "--back", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"restored": str(path)}
    assert main(["feedback", str(path), "--delete-document", "d1"]) == 0
    assert main(["feedback", str(path)]) == 0
    assert "recorded: on" in capsys.readouterr().out
    assert main(["refit", str(tmp_path)]) == 1
    assert "no folder of an index" in capsys.readouterr().err
    with_feedback(tmp_path / "b", 1, 0.0).close()
    capsys.readouterr()
    assert main(["refit", str(tmp_path / "b"), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["before"] is None
    with pytest.raises(NotFoundError, match="no refit has replaced"):
        restore_former(tmp_path / "b")
