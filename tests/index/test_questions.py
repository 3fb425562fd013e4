"""Questions as words of passages: found by them, kept while the text stays, gone when it changes; in every storage."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palmette import Document, FakeEncoder, Index, RetrievalData, SpaceModel
from palmette.errors import CorruptIndexError, InputError
from palmette.learning.questions import write_questions

PARTS = (
    "Apples are picked in September.",
    "Bees fly in May.",
    "Cherries are cut in June.",
    "Dates are dried in August.",
)
TEXT = "\n\n".join(f"# Part {n}\n\n{text} And more of it, and more of that." for n, text in enumerate(PARTS))
LONG, SHORT = Document("long", TEXT, {"year": 2020}), Document("short", "Quinces are hard.")
ASKED = RetrievalData(
    "asked",
    [replace(SHORT, id="short"), *(Document(f"long#{n}", TEXT.split("\n\n# ")[n]) for n in range(4))],
    {"q0": "is a marmelo soft?", "q1": "when does the apiary hum?", "q2": "cerise season", "q3": "not about it"},
    {"train": {"q0": {"short": 1}, "q1": {"long#1": 1}, "q2": {"long#2": 2, "long#3": 0}}},
)
WORDS = {"marmelo": "Quinces", "apiary": "Bees", "cerise": "Cherries"}


def build(place: str | Path, documents: list[Document]) -> Index:
    return Index.build(documents, SpaceModel.untrained(FakeEncoder(32)), place, passages={"tokens": 20}, progress=False)


def found(index: Index) -> set[str]:
    """The words of questions by which their passages are found, first and by that word."""
    known = set()
    for word, text in WORDS.items():
        [hit] = index.search(word, 1, lexical=1.0, sentences=False)
        if hit.evidence["word_share"] > 0:
            assert text in hit.text, "it is the passage that was asked about"
            assert "word '" in " ".join(part.name for part in hit.explain().parts)
            known.add(word)
    return known


def test_a_passage_has_its_questions_as_long_as_its_text(place: Callable[[], str | Path]) -> None:
    with build(place(), [LONG, SHORT]) as index:
        assert index.stats().passages == 5
        assert found(index) == set()
        before = {hit.id: hit.text for hit in index.search("Bees fly", 9)}
        assert index.add_questions(ASKED) == 3
        assert found(index) == {*WORDS}
        assert index.get(["long", "short"]) == [LONG, SHORT], "nothing else is changed"
        assert {hit.id: hit.text for hit in index.search("Bees fly", 9)} == before
        assert index.search("Bees fly", 1, lexical=0)[0].score == pytest.approx(
            build(place(), [LONG, SHORT]).search("Bees fly", 1, lexical=0)[0].score
        )
        assert index.add_questions(ASKED) == 3
        index.compact()
        index.verify()
        with index.copy_to(place()) as copy:
            assert found(copy) == {*WORDS}
        # another passage of the document is edited, its metadata too: they stay
        edited = replace(LONG, text=TEXT.replace("Dates are dried", "Dates are eaten"), metadata={"year": 2021})
        assert index.upsert([edited]).encoded <= 1
        assert found(index) == {*WORDS}
        # the document moves; its own passage is edited; it is deleted
        index.upsert([replace(edited, id="other")], delete=["long"])
        assert found(index) == {*WORDS}
        index.upsert([replace(edited, id="other", text=edited.text.replace("Bees fly", "Wasps fly"))])
        assert found(index) == {*WORDS} - {"apiary"}
        assert index.add_questions(ASKED) == 1, "what was edited, or is not there, is no longer asked about"
        index.upsert([replace(SHORT, metadata={"new": 1})], embeddings=index.model.encoder.encode([SHORT.text]))
        assert found(index) == {"marmelo", "cerise"}
        index.delete(["other"])
        assert found(index) == {"marmelo"}


def test_a_synced_source_keeps_them(tmp_path: Path) -> None:
    folder, said = tmp_path / "notes", list[str]()
    folder.mkdir()
    (folder / "long.md").write_text(TEXT)
    (folder / "short.txt").write_text(SHORT.text)

    def llm(prompt: str) -> str:
        said.append(prompt)
        return next((f'["about the {word}?"]' for word, text in WORDS.items() if text in prompt), "[]")

    how: dict[str, Any] = {"kinds": ("question",), "round_trip": 0, "progress": False}
    model = SpaceModel.untrained(FakeEncoder(32))
    with Index.create(tmp_path / "index", model, passages={"tokens": 400}) as index:
        index.sync(folder, progress=False)
        data, report = write_questions(list(index.documents()), llm, tmp_path / "asked", **how)
        assert report.kept
        index.add_questions(tmp_path / "asked")
        known = found(index)
        assert "marmelo" in known
        assert index.sync(folder, progress=False).unchanged == 2
        assert found(index) == known
        (folder / "short.txt").rename(folder / "renamed.txt")
        assert index.sync(folder, progress=False).added == ["notes/renamed.txt"]
        assert found(index) == known
        (folder / "renamed.txt").write_text("Quinces are soft.")
        index.sync(folder, progress=False)
        index.add_questions(data)
        assert found(index) == known - {"marmelo"}
        with pytest.raises(InputError, match="no training questions"):
            index.add_questions(RetrievalData("bare", [SHORT]))
        with pytest.raises(InputError, match="questions must be judged data"):
            index.add_questions([SHORT])  # type: ignore[arg-type]
    Index.repair(tmp_path / "index", tmp_path / "repaired")
    with Index.open(tmp_path / "repaired") as repaired:
        assert found(repaired) == known - {"marmelo"}


def test_what_is_no_question_is_damage(tmp_path: Path) -> None:
    with build(tmp_path / "index", [SHORT]) as index:
        index.add_questions(replace(ASKED, corpus=ASKED.corpus[:1], qrels={"train": {"q0": {"short": 1}}}))
    [database] = (tmp_path / "index").glob("*.sqlite3")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE documents SET passages = '[[0, 17, 1, 1, [], 7]]'")
    with Index.open(tmp_path / "index", verify=False) as index, pytest.raises(CorruptIndexError, match="passage 0"):
        index.search("quinces")
