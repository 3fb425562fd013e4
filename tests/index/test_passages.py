"""Documents of any length in an index: stored whole, found by their passages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.conftest import Counting
from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import ConfigError, InputError
from palmette.sources.passages import PassageOptions
from palmette.store.local.folder import MANIFEST, json_digest

MODEL = SpaceModel.untrained(FakeEncoder(16))
FEW = PassageOptions(tokens=20)
GUIDE = """# Orchard

Trees stand in rows.

## Pruning

Prune apples in winter, when they are bare, and burn what is cut.

```sh
prune --apples

    --deep
```

## Harvest

Cherries ripen in June, and starlings know it before you do.
"""
BITS = [
    "a", "ü", "🌳", "\u0301", " ", "\t", "\n", "\n\n", "\r\n", "\r", "# ", "```\n", "| a | b |\n", "- ", "\x00",
    "\u2028", "def f():\n    x\n", "words and more words ", "Title\n=====\n", "> ", "    code\n",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(BITS), st.text(max_size=5)), min_size=1, max_size=60).map("".join)


@pytest.fixture
def index(place: Callable[[], str | Path]) -> Iterator[Index]:
    with Index.create(place(), MODEL, passages=FEW) as made:
        made.add(
            [
                Document("guide", GUIDE, {"source": "guide.md", "lang": "en"}),
                Document("note", "Cherries are red.", {"lang": "de"}),
            ]
        )
        yield made


def slices(index: Index, id: str) -> list[str]:
    """Check what an index says of a document's passages, and return their texts."""
    with index.backend.read() as view:
        keys = view.keys_of([id])[id]
        [whole] = index.get([id])
        assert whole is not None
        found = view.parts(keys)
        assert [document for document, _ in found] == view.documents(keys)
        assert set(view.document_keys(keys).tolist()) == {keys[0]}
        assert view.ids(keys) == [id] * len(keys)
        for number, (part, place) in enumerate(found):
            assert (place.number, place.count) == (number, len(keys))
            assert part.content == (whole.content[place.start : place.end] if len(keys) > 1 else whole.content)
            before = whole.content[: place.start]
            assert place.first_line == 1 + before.count("\n") + before.count("\r") - before.count("\r\n") - (
                before.endswith("\r") and whole.content[place.start :].startswith("\n")
            )
            assert (part.id, part.metadata) == (id, whole.metadata)
        return [part.content for part, _ in found]


def test_a_hit_is_a_passage_with_its_place(index: Index) -> None:
    texts = slices(index, "guide")
    assert len(texts) > 2
    assert len(index) == 2
    assert index.stats().passages == len(texts) + 1
    hit = index.search("when do starlings eat cherries that ripen?", 1)[0]
    assert (hit.id, hit.document.metadata["source"]) == ("guide", "guide.md")
    assert hit.passage is not None
    assert hit.document.text == GUIDE[hit.passage.start : hit.passage.end]
    assert hit.passage.headings == ("Orchard", "Harvest")
    assert GUIDE.splitlines()[hit.passage.first_line - 1] == "## Harvest"
    assert hit.sentence is not None
    assert "starlings" in hit.document.text[slice(*hit.sentence)]
    assert hit.explain().score == pytest.approx(hit.score)
    assert hit.to_dict()["passage"]["number"] == hit.passage.number
    assert index.get(["guide"])[0].text == GUIDE
    assert [document.text for document in index.documents()] == [GUIDE, "Cherries are red."]


def test_a_short_document_is_one_passage_and_is_not_altered(place: Callable[[], str | Path]) -> None:
    """It is found, scored and stored as in an index that never cuts."""
    given = [Document(str(n), f"\n  The {word} sings. It eats. \n") for n, word in enumerate(("owl", "hen", "cat"))]
    with Index.create(place(), MODEL) as cut, Index.create(place(), MODEL, passages=None) as whole:
        for made in (cut, whole):
            made.add(given)
        assert cut.search("which owl sings?", 3) == whole.search("which owl sings?", 3)
        hit = cut.search("which owl sings?", 1)[0]
        assert (hit.document, hit.passage.count, hit.passage.last_line) == (given[0], 1, 2)
        assert "passage" not in hit.to_dict()


def test_backup_repair_and_reopening_keep_the_passages(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", MODEL, passages=FEW) as index:
        index.add([Document("guide", GUIDE), Document("note", "Cherries are red.")])
        texts, hits = slices(index, "guide"), index.search("prune apples", 9)
        index.backup(tmp_path / "backup")
    report = Index.repair(tmp_path / "index", tmp_path / "repaired")
    assert (report.documents, report.encoded, report.lost) == (2, 0, [])
    for name in ("index", "backup", "repaired"):
        with Index.open(tmp_path / name, verify="full") as opened:
            assert slices(opened, "guide") == texts
            assert opened.search("prune apples", 9) == hits
    segment = next((tmp_path / "index").glob("segments/*/vector.npy"))
    segment.write_bytes(segment.read_bytes()[:-2] + b"\x01\x02")
    report = Index.repair(tmp_path / "index", tmp_path / "anew")
    assert (report.documents, report.encoded, report.lost) == (2, 2, [])
    with Index.open(tmp_path / "anew", verify="full") as opened:
        assert slices(opened, "guide") == texts
        assert [hit.id for hit in opened.search("prune apples", 9)] == [hit.id for hit in hits]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, name=st.sampled_from(["a.md", "a.py", "a.txt", "a.rst", None]), tokens=st.integers(2, 30))
def test_passages_are_slices_of_any_text(text: str, name: str | None, tokens: int) -> None:
    if not text.strip():
        return
    with Index.in_memory(MODEL, passages={"tokens": tokens}) as index:
        index.add([Document("x", text, {} if name is None else {"source": name})])
        parts = slices(index, "x")
        assert "".join("".join(parts).split()) == "".join(text.split()), "nothing is lost"
        assert index.get(["x"])[0].text == text


@pytest.mark.parametrize("recorded", [{"splitter": "Halves"}, {"tokens": 20, "overlap": 4}])
def test_an_index_that_was_cut_otherwise_is_searched_and_added_to(tmp_path: Path, recorded: dict[str, object]) -> None:
    with Index.create(tmp_path / "index", MODEL, passages=FEW) as index:
        index.add([Document("guide", GUIDE)])
        texts = slices(index, "guide")
    manifest = tmp_path / "index" / MANIFEST
    facts = json.loads(manifest.read_text()) | {"passages": recorded}
    del facts["digest"]
    manifest.write_text(json.dumps({**facts, "digest": json_digest(facts)}))
    with Index.open(tmp_path / "index") as index:
        assert slices(index, "guide") == texts
        index.add([Document("more", GUIDE)])
        assert len(slices(index, "more")) == (1 if "splitter" in recorded else len(texts))
    with pytest.raises(ConfigError, match="passages must be PassageOptions.*index the pieces"):
        Index.in_memory(MODEL, passages=str.split)


def test_how_an_index_cuts_is_recorded(tmp_path: Path) -> None:
    for passages, count in ((FEW, 4), ({"tokens": 30}, 2), (None, 1)):
        path = tmp_path / str(count)
        Index.create(path, MODEL, passages=passages).close()
        with Index.build([], path=path) as index:
            index.add([Document("guide", GUIDE)])
            assert len(slices(index, "guide")) == count
    with pytest.raises(ConfigError, match="cuts documents"):
        Index.build([], path=tmp_path / "4", passages=None)
    with pytest.raises(ConfigError, match="not by"):
        Index.build([], path=tmp_path / "4", passages={"tokens": 7})


def test_title_and_headings_are_read_before_a_passage_and_are_no_words_of_it() -> None:
    text = "\n\n".join(f"Paragraph {n} tells of apples and pears at some length." for n in range(6))
    documents = [Document("a", text, {"title": "Zeppelin"}), Document("b", text, {"title": "Submarine"})]
    with Index.in_memory(MODEL, passages=FEW) as index:
        index.add(documents)
        vectors = index.vectors(["a", "b"])
        assert not np.allclose(vectors[0], vectors[1]), "the encoder reads the title"
        assert index.search("zeppelin", 1, lexical=1.0)[0].evidence["word_share"] == 0, "which is no word of a passage"


def test_passages_that_are_the_same_are_not_encoded_again(place: Callable[[], str | Path]) -> None:
    encoder = Counting(16)
    paragraphs = [f"## Section {n}\n\nParagraph {n} tells of apples and pears and of {n} more.\n\n" for n in range(8)]
    with Index.create(place(), SpaceModel.untrained(encoder), passages=FEW) as index:
        index.add([Document("a", "".join(paragraphs), {"source": "a.md"})])
        total, encoder.texts = index.stats().passages, 0
        assert total == 8
        changes = index.upsert(
            [Document("a", "".join(["## New\n\nA new one.\n\n", *paragraphs[1:]]), {"source": "a.md"})]
        )
        assert (changes.encoded, encoder.texts) == (1, 1), "those that moved stay as they are"
        changes = index.upsert([Document("b", "".join(paragraphs[1:]), {"source": "b.md"})], delete=["a"])
        assert (changes.encoded, changes.deleted) == (0, ["a"]), "under another name, too"
        with Index.in_memory(index.model, passages=FEW) as other:
            other.add([Document("b", "".join(paragraphs[1:]), {"source": "b.md"})])
            found = [[(hit.document, hit.evidence) for hit in one.search("apples 3", 20)] for one in (index, other)]
            assert found[0] == found[1]
        index.verify()


def test_paths_among_documents_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "guide.md").write_text(GUIDE)
    monkeypatch.chdir(tmp_path)
    for documents in (["notes/guide.md"], [Path("notes")], ["a text", "notes/guide.md"]):
        with pytest.raises(InputError, match="is the name of a file or folder, not a text: give the path itself"):
            Index.build(documents, MODEL)
    with Index.build(["notes", "a.md is a file", "none.md"], MODEL) as index:
        assert len(index) == 3, "texts that name no file, or could be words"
    with Index.build("notes", MODEL, passages=FEW) as index:
        assert index.get(["guide.md"])[0].text == GUIDE
        assert len(slices(index, "guide.md")) > 2
