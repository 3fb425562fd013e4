"""Rerankers of any kind as one function: a question and texts → a score for each text.

A reranker is sentence-transformers' ``CrossEncoder``; LangChain's ``BaseCrossEncoder``;
``"cross-encoder:FOLDER_OR_NAME"``; ``"rerank:MODEL@https://host/v1"``, a server's ``/rerank`` in the protocol of Cohere
and Jina, as vLLM speaks it, or that of TEI; or a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from palmette.errors import ConfigError, InputError, shown
from palmette.machine.endpoint import RERANK_KEY, Endpoint

RERANK_SECONDS = 10.0
"""Seconds that a question's judgement may take, all attempts together."""
OTHER_NAMES = (400, 404, 422)
"""HTTP statuses with which a server refuses a request whose fields have the other protocol's names."""

TextScorer = Callable[[str, Sequence[str]], Sequence[float]]
"""A function from a question and texts to a score for each text; higher is more relevant."""


class Scorer(NamedTuple):
    """A reranker as a function."""

    name: str
    """Name that its model was loaded by, else of its function or class."""
    score: TextScorer
    parallel: bool = False
    """Whether threads may call it at the same time."""


def scorer_of(reranker: Any) -> Scorer:
    """Return a reranker, or the one of a name, as a function; raises ConfigError for what is none."""
    if isinstance(reranker, str | Scorer):
        return reranker if isinstance(reranker, Scorer) else _load(reranker)
    scorer = framework_scorer(reranker)
    if scorer is None and callable(reranker) and not isinstance(reranker, type):
        scorer = Scorer(getattr(reranker, "__qualname__", None) or type(reranker).__name__, reranker)
    if scorer is None:
        raise ConfigError(
            f"a reranker is a cross-encoder, 'cross-encoder:PATH', 'rerank:MODEL@https://host/v1' or a function of a "
            f"question and texts; got {shown(reranker)}"
        )
    return scorer


def _load(name: str) -> Scorer:
    """Load a reranker by its name."""
    kind, _, place = name.partition(":")
    if kind == "cross-encoder" and place.strip():
        from palmette.ranking.cross_encoders import load_cross_encoder

        return Scorer(name, load_cross_encoder(place.strip()))
    if kind == "rerank":
        server = RerankServer(name)
        return Scorer(server.name, server.score, parallel=True)
    raise ConfigError(
        f"{shown(name)} names no reranker: write 'cross-encoder:FOLDER_OR_NAME', or 'rerank:MODEL@https://host/v1'"
    )


def framework_scorer(reranker: Any) -> Scorer | None:
    """Return a cross-encoder of sentence-transformers or LangChain as a function; ``None`` for another object."""
    name = model_name(reranker)
    if callable(getattr(reranker, "predict", None)) and hasattr(reranker, "tokenizer"):  # a CrossEncoder
        return Scorer(
            name, lambda query, texts: reranker.predict([(query, text) for text in texts], show_progress_bar=False)
        )
    if callable(getattr(reranker, "score", None)):  # LangChain's BaseCrossEncoder
        return Scorer(name, lambda query, texts: reranker.score([(query, text) for text in texts]))
    return None


def model_name(reranker: Any) -> str:
    """Return the name that a reranker's model was loaded by, or that of its class where it tells none."""
    for owner in (reranker, *(getattr(reranker, part, None) for part in ("config", "model", "_model", "llm"))):
        for attribute in ("model_name", "name_or_path", "_name_or_path", "model"):
            name = getattr(owner, attribute, None)
            if isinstance(name, str) and name:
                return name
    return type(reranker).__name__


def checked_scores(scores: Any, count: int, name: str) -> list[float]:
    """Check that there is a finite number for each text, of a size that 32 bits hold."""
    try:
        values = [float(value) for value in scores]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} returned {shown(scores)} for {count} texts: a number for each is needed") from error
    if len(values) != count or not (np.abs(values) <= np.finfo(np.float32).max).all():
        raise InputError(f"{name} returned {shown(values)} for {count} texts: a finite number for each is needed")
    return values


class RerankServer:
    """A model behind a server; threads may share it.

    The key is read from PALMETTE_RERANK_KEY whenever a request is sent, never from the variable of another server.
    """

    def __init__(self, name: str) -> None:
        match = re.fullmatch(r"rerank:\s*(\S(?:.*?\S)??)\s*@(https?://\S*)\s*", name)
        if match is None:
            raise ConfigError(f"{shown(name)} names no model of a server: write 'rerank:MODEL@https://host/v1'")
        self.name, self._model = f"rerank:{match[1]}@{match[2]}", match[1]
        self._endpoint = Endpoint("/rerank", match[2], key=RERANK_KEY)
        self._texts_as = "documents"

    def score(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return the server's score of each text."""
        for name in dict.fromkeys((self._texts_as, "documents", "texts")):
            body: dict[str, Any] = {"query": question, name: list(texts)}
            body |= {"model": self._model} if name == "documents" else {"truncate": True}  # TEI refuses longer ones
            reply = self._endpoint.post(body, lambda facts: _read(facts, len(texts)), patience=RERANK_SECONDS)
            if reply.status == 200:
                self._texts_as = name
                scores: list[float] = reply.content
                return scores
            if reply.status not in OTHER_NAMES:
                break
        raise self._endpoint.refusal(self._model, reply)


def _read(facts: Any, count: int) -> list[float]:
    """Return the scores of a reply in the order of the texts."""
    items = facts if isinstance(facts, list) else facts["results"]
    scores = {item["index"]: item["relevance_score"] if "relevance_score" in item else item["score"] for item in items}
    if sorted(scores) != list(range(count)):
        raise ValueError(f"scores of {len(scores)} texts, and {count} were sent")
    return [float(scores[row]) for row in range(count)]
