"""On a CPU, ONNX Runtime computes encoders of BERT's family from their own weights: torch's vectors and fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import Index, load_encoder
from palmette.encoder import Backbone, SentenceEncoder
from palmette.encoder.onnx.encoder import LightEncoder
from palmette.errors import MissingExtraError
from support.tiny import documents
from support.tiny_encoder import edited, save_tiny_encoder, states_of

TEXTS = ["the cat sat on the mat", "a dog", "", "how do i open a file under the roof. the bird sat", "the cat " * 80]
SHAPES: dict[str, dict[str, Any]] = {
    "bert": {},
    "first token": {"pooling": "cls"},
    "projection": {"dense": 8},
    "roberta": {"family": "roberta"},
    "mpnet": {"family": "mpnet"},
    "distilbert": {"family": "distilbert"},
    "prompts": {"prompts": {"query": "query : ", "passage": "passage : "}},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_it_gives_what_torch_gives(shape: str, tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny", **SHAPES[shape])
    light, heavy = load_encoder(folder), load_encoder(folder, dtype="float32")
    assert isinstance(light, LightEncoder)
    assert isinstance(heavy, SentenceEncoder)
    assert light.to_config() == heavy.to_config()
    assert light.num_layers == heavy.num_layers == 2
    queries = [text for text in TEXTS if text]
    for ours, theirs in (
        (light.encode_queries(queries), heavy.encode_queries(queries)),
        (light.encode(TEXTS), heavy.encode(TEXTS)),
    ):
        np.testing.assert_allclose(ours, theirs, atol=3e-6)
    mine, other = light.encode_sentences(TEXTS)[1], heavy.encode_sentences(TEXTS)[1]
    assert np.array_equal(mine.spans, other.spans)
    np.testing.assert_allclose(mine.floats(), other.floats(), atol=0.02)


def test_an_index_made_with_one_is_opened_and_added_to_with_the_other(tmp_path: Path) -> None:
    folder, texts = save_tiny_encoder(tmp_path / "tiny"), documents()
    light, heavy = load_encoder(folder), load_encoder(folder, dtype="float32")
    answers = []
    for number, pair in enumerate([(light, heavy), (heavy, light), (light, light)]):
        path = tmp_path / str(number)
        with Index.build(texts[:20], path=path, encoder=pair[0]) as index:
            assert len(index) == 20
        with Index.open(path, encoder=pair[1]) as index:
            index.add(texts[20:40])
            answers.append([[hit.id for hit in index.search(text.content, k=5)] for text in texts[:8]])
    assert answers[0] == answers[1] == answers[2]


def test_layers_and_weights_to_train_are_torch_s(tmp_path: Path) -> None:
    light = load_encoder(save_tiny_encoder(tmp_path / "tiny"))
    assert states_of(light, TEXTS[:2], outputs=("layers",)).layers.shape[:2] == (2, 3)
    copies = light.layer_weights(1)
    assert copies is not None
    assert copies.heads == 2
    assert Backbone.of(light).width == 16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edited("config.json", hidden_act="relu"), "activation 'relu'"),
        (edited("config.json", model_type="electra"), "type 'electra'"),
        (edited("config.json", hidden_size=18), "shape"),
        (edited("config.json", num_hidden_layers=3), "no tensor 'encoder.layer.2"),
        (edited("sentence_bert_config.json", do_lower_case=True), "modules"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    ],
)
def test_what_it_cannot_compute_needs_torch_and_says_what_to_do(
    change: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny")
    change(folder)
    monkeypatch.setattr("palmette.encoder.load.has_torch", lambda: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'palmette\[train\]'.*export-onnx") as raised:
        load_encoder(folder)
    assert words in str(raised.value)


@pytest.mark.parametrize("option", [{"device": "cuda"}, {"dtype": "bfloat16"}])
def test_a_device_or_a_precision_needs_torch(
    option: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palmette.machine.devices.has_torch", lambda: False)
    with pytest.raises(MissingExtraError, match=r"palmette\[train\]"):
        load_encoder(save_tiny_encoder(tmp_path / "tiny"), **option)


def test_long_and_short_texts_of_a_batch_are_computed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one long text and many short ones costs what their tokens cost, and gives what each alone gives."""
    from palmette.encoder.onnx import encoder as module

    passes, run = [], module._Sessions.run

    def noted(sessions: Any, values: Any) -> Any:
        passes.append(next(iter(values.values())).shape)
        return run(sessions, values)

    monkeypatch.setattr(module._Sessions, "run", noted)
    encoder = load_encoder("packaged:all-MiniLM-L6-v2", device="cpu")
    texts = ["an owl sleeps", "words " * 200, "a fox", "two hares run over the field", ""]
    together = encoder.encode(texts)
    assert sum(rows * tokens for rows, tokens in passes) < 300  # 5 × 202 padded
    np.testing.assert_allclose(together, np.concatenate([encoder.encode([text]) for text in texts]), atol=1e-6)
