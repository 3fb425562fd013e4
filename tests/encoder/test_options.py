"""Prompts and Matryoshka widths, as part of an encoder's vectors, fingerprint and record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import FakeEncoder, Index, load_encoder
from palmette.errors import ModelMismatchError
from support.tiny_encoder import save_tiny_encoder

TEXTS = ["the cat sat on the mat", "a dog ran under the roof", "the bird sat on a file"]
PROMPTS = {"query": "query : ", "document": "passage : "}
FAKE = FakeEncoder(48)


def embed(texts: list[str]) -> Any:
    """Embed by a function."""
    return FAKE.encode(texts)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save_tiny_encoder(tmp_path / "tiny")


def test_prompts_are_read_before_the_text(tiny: Path) -> None:
    plain, prompted = load_encoder(tiny), load_encoder(tiny, prompts=PROMPTS)
    own = load_encoder(save_tiny_encoder(tiny.parent / "own", prompts=PROMPTS))
    np.testing.assert_allclose(prompted.encode(TEXTS), own.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(prompted.encode_queries(TEXTS), own.encode_queries(TEXTS), atol=1e-6)
    np.testing.assert_allclose(
        prompted.encode_sentences(TEXTS)[1].spans, plain.encode_sentences(TEXTS)[1].spans, err_msg="places in the text"
    )
    assert len({plain.fingerprint, prompted.fingerprint}) == 2
    assert load_encoder(own.name, prompts=PROMPTS) is own, "the model's own prompts are no change"
    given = load_encoder(embed, prompts=PROMPTS)
    np.testing.assert_allclose(given.encode(["a cat"]), FAKE.encode(["passage : a cat"]), atol=1e-6)
    np.testing.assert_allclose(given.encode_queries(["a cat"]), FAKE.encode(["query : a cat"]), atol=1e-6)


def test_a_width_keeps_the_first_columns(tiny: Path) -> None:
    plain, narrow = load_encoder(tiny), load_encoder(tiny, truncate=5)
    expected = plain.encode(TEXTS)[:, :5]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(narrow.encode(TEXTS), expected, atol=1e-6)
    assert (narrow.dimension, narrow.to_config()["truncate"]) == (5, 5)
    _, sentences = narrow.encode_sentences(TEXTS)
    assert sentences.vectors.shape == (3, 5)
    assert load_encoder(tiny, truncate=plain.dimension).fingerprint == plain.fingerprint, "the own width is no change"
    assert "truncate" not in plain.to_config()
    np.testing.assert_allclose(load_encoder(embed, truncate=8).encode(TEXTS).shape, (3, 8))


@pytest.mark.parametrize("kind", ["folder", "function"])
def test_an_index_keeps_them(tiny: Path, tmp_path: Path, kind: str) -> None:
    name: Any = str(tiny) if kind == "folder" else embed
    encoder = load_encoder(name, prompts=PROMPTS, truncate=8)
    with Index.build(TEXTS, path=tmp_path / "index", encoder=encoder) as index:
        hits = index.search("the dog", k=3)
    if kind == "folder":
        with Index.open(tmp_path / "index") as index:
            assert index.model.encoder is encoder
    with Index.open(tmp_path / "index", encoder=name) as index:  # the record has prompts and width
        assert [hit.score for hit in index.search("the dog", k=3)] == pytest.approx([hit.score for hit in hits])
    with pytest.raises(ModelMismatchError, match="was trained with encoder"):
        Index.open(tmp_path / "index", encoder=load_encoder(name, truncate=8))
