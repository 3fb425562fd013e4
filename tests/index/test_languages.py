"""A new index takes the stemmer of its texts' language, and warns where its encoder knows English alone."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from palmette import FakeEncoder, Index, SpaceModel
from palmette.cli import main

GERMAN = (
    "Der Mietvertrag für die Wohnung im dritten Stock endet am letzten Tag des Monats, und die Schlüssel der Wohnungen "
    "sind bis dahin bei dem Hausmeister abzugeben. Wer später auszieht, zahlt die Miete für einen weiteren Monat."
)
ENGLISH = (
    "The lease of the flat ends on the last day of the month, and all of the keys are to be handed in by then. " * 2
)


def english_model() -> SpaceModel:
    encoder = FakeEncoder(16)
    encoder.name = "sentence-transformers/all-MiniLM-L6-v2"
    return SpaceModel.untrained(encoder)


def test_build_takes_the_stemmer_of_its_texts_and_names_an_encoder(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"in German, but the encoder .*all-MiniLM.*--encoder.*multilingual-e5-small"):
        index = Index.build([GERMAN, ENGLISH[:40]], english_model())
    assert index.backend.language == "german"
    assert index.search("Wohnungen und Schlüssels", 1, lexical=1)[0].document.content == GERMAN
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Index.build([GERMAN], SpaceModel.untrained(FakeEncoder(16))).backend.language == "german"
        assert Index.build([ENGLISH], english_model(), tmp_path / "kept").backend.language == "english"
        assert Index.build([GERMAN], english_model(), tmp_path / "kept").backend.language == "english"
    assert Index.build([GERMAN], SpaceModel.untrained(FakeEncoder(16)), language=None).backend.language is None


def test_an_index_made_empty_says_that_its_stemmer_is_english() -> None:
    index = Index.in_memory(SpaceModel.untrained(FakeEncoder(16)))
    with pytest.warns(UserWarning, match="stemmed as English ones: make it with language='german'"):
        index.add([GERMAN])
    other = Index.in_memory(SpaceModel.untrained(FakeEncoder(16)))
    with pytest.warns(UserWarning, match="in German"):
        other.sync([{"id": "letter", "text": GERMAN}], "letters")


def test_the_command_reads_some_files_before_it_makes_the_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "letters"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.md").write_text(f"# Brief {number}\n\n{GERMAN}\n", "utf-8")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    for options, language in (([], "german"), (["--language", "english"], "english"), (["--language", "none"], None)):
        out = str(tmp_path / f"index-{language}")
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            assert main(["index", str(folder), "--out", out, "--encoder", "fake:16", *options, "--quiet"]) == 0
        with Index.open(out) as index:
            assert index.backend.language == language
        assert ("palmette: warning: most texts are in German" in capsys.readouterr().err) == (language == "english")
