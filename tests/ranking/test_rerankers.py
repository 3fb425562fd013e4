"""Rerankers by name: cross-encoders in folders, with and without torch, and servers of both protocols."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette.errors import CheckpointError, ConfigError, InputError, RemoteError
from palmette.machine import endpoint
from palmette.ranking import rerank_server
from palmette.ranking.cross_encoders import relevance
from palmette.ranking.rerankers import scorer_of
from palmette.ranking.second_stage import as_reranker
from support.model_server import ModelServer
from support.tiny_encoder import save_tiny_encoder

QUESTION = "how do i open a file?"
TEXTS = ["the cat sat on the mat", "a query", "how do i open a file? " * 30, "dog \ud800 dogs", "the bird"]
KEY, OTHER_KEY = "rk-0123456789abcdef", "sk-fedcba9876543210"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny cross-encoder for sentence-transformers, and the same with its ONNX graph."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    root = tmp_path_factory.mktemp("cross-encoders")
    tiny = save_tiny_encoder(root / "tiny")
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=1, attn_implementation="eager").eval()
    model.classifier.weight.data.mul_(50)
    model.save_pretrained(root / "torch")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(root / "torch")
    shutil.copytree(root / "torch", root / "onnx")
    (root / "onnx" / "model.safetensors").unlink()

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            return self.model(**dict(zip(names, values, strict=True))).logits

    names, example = ["input_ids", "attention_mask", "token_type_ids"], torch.ones(2, 5, dtype=torch.long)
    shape = {name: {0: "texts", 1: "tokens"} for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        graph = str(root / "onnx" / "model.onnx")
        named = {"input_names": names, "output_names": ["logits"], "dynamic_axes": shape}
        torch.onnx.export(Logits(), (example, example, example * 0), graph, **named, dynamo=False)
    return {"torch": root / "torch", "onnx": root / "onnx"}


def test_a_graph_gives_the_cross_encoders_logits(folders: dict[str, Path]) -> None:
    expected, found = (scorer_of(f"cross-encoder:{folders[kind]}").score(QUESTION, TEXTS) for kind in ("torch", "onnx"))
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-4)
    alone = [scorer_of(f"cross-encoder:{folders['onnx']}").score(QUESTION, [text])[0] for text in TEXTS]
    np.testing.assert_allclose(alone, found, atol=1e-5)
    assert as_reranker(f"cross-encoder:{folders['onnx']}") is as_reranker(f"cross-encoder:{folders['onnx']}")
    np.testing.assert_allclose(relevance(np.array([[1.0, 3.0], [2.0, 1.0]])), [2, -1])
    with pytest.raises(InputError, match="one or two"):
        relevance(np.zeros((2, 5)))


def test_what_is_no_cross_encoder_is_refused_by_name(folders: dict[str, Path], tmp_path: Path) -> None:
    for name in ("cross-encoder:", "bm25", "rerank:", "rerank:model", "rerank:m@ftp://host"):
        with pytest.raises(ConfigError, match="write 'cross-encoder:FOLDER|write 'rerank:MODEL"):
            scorer_of(name)
    with pytest.raises(ConfigError, match="there is no folder"):
        scorer_of(f"cross-encoder:{tmp_path / 'nowhere'}")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        scorer_of(f"cross-encoder:{tmp_path}")
    broken = tmp_path / "broken"
    shutil.copytree(folders["onnx"], broken)
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        scorer_of(f"cross-encoder:{broken}")
    shutil.copy(folders["onnx"] / "tokenizer.json", broken)
    (broken / "model.onnx").write_bytes((broken / "model.onnx").read_bytes()[:-900])
    with pytest.raises(CheckpointError, match="no usable cross-encoder|no ONNX graph"):
        scorer_of(f"cross-encoder:{broken}")


def cohere(body: dict[str, Any]) -> Any:
    """A reply of Cohere, Jina or vLLM, best first."""
    if "documents" not in body:
        return 422, {}, {"message": "documents: field required"}
    scores = [(len(text) / 100, row) for row, text in enumerate(body["documents"])]
    results = [{"index": row, "relevance_score": score} for score, row in sorted(scores, reverse=True)]
    return 200, {}, {"id": "1", "results": results}


def tei(body: dict[str, Any]) -> Any:
    """A reply of Hugging Face's text-embeddings-inference."""
    if "texts" not in body:
        return 422, {}, {"error": "missing field `texts`", "error_type": "Validation"}
    return 200, {}, [{"index": row, "score": len(text) / 100} for row, text in enumerate(body["texts"])]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.001)
    monkeypatch.setenv("PALMETTE_RERANK_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", OTHER_KEY)
    running = ModelServer(cohere)
    yield running
    running.close()


@pytest.mark.parametrize("protocol", [cohere, tei])
def test_servers_of_both_protocols_judge_with_a_key_of_their_own(server: ModelServer, protocol: Any) -> None:
    server.reply = protocol
    scorer, texts = scorer_of(f"rerank:my/model@{server.url}"), ["four", "nine chars"]
    for _ in range(2):
        assert scorer.score(QUESTION, texts) == pytest.approx([0.04, 0.1])
    assert scorer.name == f"rerank:my/model@{server.url}"
    assert set(server.paths) == {"/v1/rerank"}
    assert len(server.bodies) == (2 if protocol is cohere else 3), "the protocol is found once"
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert server.bodies[-1]["query"] == QUESTION


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ((401, {}, {"message": f"wrong key {KEY}, not {OTHER_KEY}"}), "set PALMETTE_RERANK_KEY"),
        ((200, {}, {"results": [{"index": 0, "relevance_score": 1}]}), "scores of 1 texts, and 2"),
        ((200, {}, {"results": [{"index": 0, "relevance_score": 1}, {"index": 7, "relevance_score": 1}]}), "unusable"),
        ((200, {}, {"data": []}), "unusable"),
        ((200, {}, [{"index": 0}, {"index": 1}]), "unusable"),
        ((500, {}, {"error": "out of memory"}), "out of memory"),
    ],
)
def test_a_reply_that_is_none_is_told_without_keys(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, reply: Any, told: str
) -> None:
    monkeypatch.setattr(rerank_server, "RERANK_SECONDS", 0.5)
    server.reply = lambda body: reply
    with pytest.raises(RemoteError, match=told) as raised:
        scorer_of(f"rerank:model@{server.url}").score(QUESTION, ["a", "b"])
    assert KEY not in str(raised.value)
    assert OTHER_KEY not in str(raised.value)
    with pytest.raises(ConfigError, match="holds a key"):
        scorer_of("rerank:model@https://user:secret@host/v1")
