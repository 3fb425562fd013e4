"""Sentences encoded by themselves, of encoders that give one vector a text."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import Index, SpaceModel, load_encoder
from palmette.cli import main
from palmette.encoder.cache import CachedEncoder
from palmette.encoder.pooled import PROBE
from palmette.encoder.remote import usage_of
from palmette.encoder.sentences.separate import SeparateSentences
from palmette.errors import ConfigError, ModelMismatchError
from support.embedders import FAKE, LangChain, Llama, function
from support.model_server import EmbeddingServer

SENTENCES = [
    f"The {colour} {animal} {does} while nobody else in the whole old village hears or sees it."
    for colour, animal, does in (
        ("red", "owl", "sleeps in the barn"),
        ("blue", "fox", "runs over the hill"),
        ("green", "hen", "eats yellow corn"),
        ("white", "cat", "sings in the morning"),
        ("old", "dog", "reads the newspaper"),
        ("grey", "mouse", "counts the stars"),
    )
]
TEXTS = [" ".join(SENTENCES[:3]), " ".join(SENTENCES[3:5]), SENTENCES[5]]
SEPARATE: dict[str, Any] = {"sentences": "separate"}


@pytest.mark.parametrize("embedder", [LangChain(), Llama(), function], ids=["langchain", "llama_index", "function"])
def test_an_index_ranks_by_sentences(embedder: Any, tmp_path: Path) -> None:
    encoder = load_encoder(embedder, **SEPARATE)
    assert load_encoder(embedder, **SEPARATE) is encoder
    vectors, sentences = encoder.encode_sentences(TEXTS)
    np.testing.assert_allclose(vectors, FAKE.encode(TEXTS), atol=1e-6)
    assert [TEXTS[0][start:end] for start, end in sentences.spans[:3]] == SENTENCES[:3]
    assert (sentences.floats() * FAKE.encode(SENTENCES)).sum(axis=1).min() > 0.999
    with Index.build(TEXTS, path=tmp_path / "index", encoder=encoder) as index:
        hit = index.search(SENTENCES[1], k=1)[0]
        assert hit.text[slice(*hit.highlights.sentence)] == SENTENCES[1]
        assert hit.evidence["best_sentence"] == pytest.approx(1, abs=1e-3)
        assert index.explain(SENTENCES[1], hit.id).score == pytest.approx(hit.score)
    with pytest.raises(ModelMismatchError, match="not stored: give the same object as encoder="):
        Index.open(tmp_path / "index")
    for again in (embedder, load_encoder(embedder), encoder):
        with Index.open(tmp_path / "index", encoder=again) as index:
            assert index.model.encoder is encoder, "the index says how its sentences are encoded"
            late = SENTENCES[0].replace("owl", "bat")
            index.upsert([f"{SENTENCES[2]} {late}"])
            hit = index.search(late, k=1)[0]
            assert hit.text[slice(*hit.highlights.sentence)] == late
            index.delete([hit.id])
    with pytest.raises(ModelMismatchError, match="was trained with encoder"):
        Index.build(TEXTS, path=tmp_path / "plain", encoder=embedder).close()
        Index.open(tmp_path / "plain", encoder=encoder)


def test_every_sentence_is_paid_once_and_said_before(
    server: EmbeddingServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    notes, index = tmp_path / "notes", str(tmp_path / "index")
    notes.mkdir()
    for number, text in enumerate(TEXTS):
        (notes / f"{number}.md").write_text(text)
    options = json.dumps({"name": "openai:small", **SEPARATE})
    with caplog.at_level(logging.WARNING, "palmette"):
        assert main(["index", str(notes), "--out", index, "--encoder", options, "--quiet"]) == 0
    said = "openai:small: 5 sentences, about"
    assert said in caplog.text, "the only sentence of a text is the text"
    assert said in capsys.readouterr().err
    assert set(server.texts.values()) == {1}
    assert {*TEXTS, *SENTENCES} <= set(server.texts)
    paid = sum(server.texts.values())
    with Index.open(index) as opened:  # by its own record
        assert isinstance(opened.model.encoder, SeparateSentences)
        hit = opened.search("an old dog reads the newspaper", k=1)[0]
        assert hit.text[slice(*hit.highlights.sentence)] == SENTENCES[4]
        opened.add([f"{SENTENCES[2]} {SENTENCES[0]}"])
        usage = usage_of(opened.model.encoder)
        assert usage is not None
        assert sum(server.texts.values()) == paid + 2, "a question, and the text, whose sentences are known"
    assert main(["search", index, "the red owl", "--encoder", "openai:small", "--json"]) == 0
    capsys.readouterr()


def test_titles_are_read_before_the_text_and_a_cache_keeps_both(tmp_path: Path) -> None:
    seen = list[str]()

    def embed(texts: list[str]) -> Any:
        seen.extend(texts)
        return FAKE.encode(texts)

    encoder = CachedEncoder(load_encoder(embed, **SEPARATE), tmp_path)
    for _ in range(2):
        vectors, sentences = encoder.encode_sentences(TEXTS, above=["Animals", "", ""])
        np.testing.assert_allclose(vectors[0], FAKE.encode([f"Animals\n{TEXTS[0]}"])[0], atol=1e-6)
        assert sentences.starts.tolist() == [0, 3, 5, 6]
    texts = [text for text in seen if text != PROBE]
    assert len(texts) == len(set(texts)), "kept"


def test_pairs_teach_a_space(tmp_path: Path) -> None:
    pairs = [(f"alpha{n % 9} what{n}", f"beta{n % 9} text{n}. {SENTENCES[0]}") for n in range(60)]
    model = SpaceModel.fit(pairs, encoder=load_encoder(function, **SEPARATE), progress=False)
    again = SpaceModel.from_pretrained(model.save_pretrained(tmp_path / "model"), encoder=function)
    assert again.encoder.plain is load_encoder(function, **SEPARATE)
    with Index.build([text for _, text in pairs], again) as index:
        assert index.search("alpha3", k=1)[0].highlights.sentence


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="leave sentences='separate' out"):
        load_encoder("fake:32", **SEPARATE)
    with pytest.raises(ConfigError, match="sentences must be"):
        load_encoder(function, sentences="all")
