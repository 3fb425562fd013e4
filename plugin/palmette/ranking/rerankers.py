"""Rerankers of any kind as one function: a question and texts → a score for each text.

A reranker is sentence-transformers' ``CrossEncoder``; LangChain's ``BaseCrossEncoder`` or ``BaseDocumentCompressor``;
LlamaIndex's ``BaseNodePostprocessor``; ``"cross-encoder:FOLDER_OR_NAME"``; a server's ``/rerank`` as Cohere, Jina, vLLM
and TEI speak it, ``"rerank:MODEL@https://host/v1"``; or a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from palmette.errors import ConfigError, InputError, shown

TextScorer = Callable[[str, Sequence[str]], Sequence[float]]
"""A function from a question and texts to a score for each text; higher is more relevant."""


class Scorer(NamedTuple):
    """A reranker as a function."""

    name: str
    """Name that its model was loaded by, else of its function or class."""
    score: TextScorer
    pointwise: bool = True
    """Whether a text's score depends on no other text."""
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
            f"a reranker is a cross-encoder, a reranker of LangChain or LlamaIndex, 'cross-encoder:PATH', "
            f"'rerank:MODEL@https://host/v1' or a function of a question and texts; got {shown(reranker)}"
        )
    return scorer


def _load(name: str) -> Scorer:
    """Load a reranker by its name."""
    kind, _, place = name.partition(":")
    if kind == "cross-encoder" and place.strip():
        from palmette.ranking.cross_encoders import load_cross_encoder

        return Scorer(name, load_cross_encoder(place.strip()))
    if kind == "rerank":
        from palmette.ranking.rerank_server import RerankServer

        server = RerankServer(name)
        return Scorer(server.name, server.score, parallel=True)
    raise ConfigError(
        f"{shown(name)} names no reranker: write 'cross-encoder:FOLDER_OR_NAME', or 'rerank:MODEL@https://host/v1'"
    )


def framework_scorer(reranker: Any) -> Scorer | None:
    """Return a reranker of sentence-transformers, LangChain or LlamaIndex as a function; ``None`` for another object.

    A reranker that tells no scores counts by the reciprocal ranks of its order.
    """
    name = model_name(reranker)
    if callable(getattr(reranker, "predict", None)) and hasattr(reranker, "tokenizer"):  # a CrossEncoder
        return Scorer(
            name, lambda query, texts: reranker.predict([(query, text) for text in texts], show_progress_bar=False)
        )
    if callable(getattr(reranker, "compress_documents", None)):
        return Scorer(name, partial(_compress, reranker), pointwise=False)
    if callable(getattr(reranker, "postprocess_nodes", None)):
        return Scorer(name, partial(_postprocess, reranker), pointwise=False)
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


def _compress(reranker: Any, query: str, texts: Sequence[str]) -> list[float]:
    """Score by a LangChain reranker: its ``relevance_score`` where it gives one, else its order."""
    from langchain_core.documents import Document

    documents = [Document(page_content=text, metadata={"row": row}) for row, text in enumerate(texts)]
    ranked = list(_for_all(reranker, len(texts)).compress_documents(documents, query))
    scores = [document.metadata.get("relevance_score") for document in ranked]
    return _scores([document.metadata["row"] for document in ranked], scores, len(texts))


def _postprocess(reranker: Any, query: str, texts: Sequence[str]) -> list[float]:
    """Score by a LlamaIndex reranker: the scores of its nodes where it sets them, else their order."""
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    nodes = [NodeWithScore(node=TextNode(id_=str(row), text=text)) for row, text in enumerate(texts)]
    ranked = _for_all(reranker, len(texts)).postprocess_nodes(nodes, query_bundle=QueryBundle(query))
    return _scores([int(node.node.node_id) for node in ranked], [node.score for node in ranked], len(texts))


def _for_all(reranker: Any, count: int) -> Any:
    """Return a reranker that tells all scores, not only those of its ``top_n`` best: of two, one always leads."""
    cuts = isinstance(getattr(reranker, "top_n", None), int) and hasattr(reranker, "model_copy")
    return reranker.model_copy(update={"top_n": count}) if cuts else reranker


def _scores(rows: Sequence[int], scores: Sequence[Any], count: int) -> list[float]:
    """Score all texts: rows that were left out as the lowest one. Without scores, by reciprocal rank, others by 0."""
    known = len(scores) == len(rows) > 0 and all(
        isinstance(one, int | float | np.number) and np.isfinite(one) for one in scores
    )
    values = [float(one) for one in scores] if known else [1 / rank for rank in range(1, len(rows) + 1)]
    out = [min(values) if known else 0.0] * count
    for row, value in zip(rows, values, strict=True):
        out[row] = value
    return out
