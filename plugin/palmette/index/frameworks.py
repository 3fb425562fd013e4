"""Shared code of both framework adapters: names, vectors, reranking, diversity, passages and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from palmette.arrays import Floats
from palmette.config import check_range
from palmette.errors import ConfigError, InputError, shown
from palmette.machine.telemetry import public_name as public_name
from palmette.types import CITED_BY, Document, Hit
from palmette.types.values import json_value

if TYPE_CHECKING:
    from palmette.encoder import Encoder, Kind
    from palmette.methods.base import Model
    from palmette.ranking.score import Lexical
    from palmette.reader import Answer


def check_size(name: str, value: object) -> int:
    """Check a number of results."""
    size: Any = nan if value is None else value
    check_range("a search", name, size, 1, 2**53, whole=True)
    return int(size)


def as_vector(embedding: Any) -> Floats:
    """Convert a framework's embedding [d]."""
    try:
        vector: Floats = np.asarray(embedding, np.float32)
        if vector.ndim != 1:
            raise ValueError(f"it has the shape {vector.shape}")
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(f"an embedding is a list of numbers, got {shown(embedding)} ({error})") from error
    return vector


def represent(source: Model | Encoder, texts: Sequence[str], kind: Kind) -> list[list[float]]:
    """Vectors of texts by an encoder, or by that of a model, as it was before any training."""
    encoder: Any = getattr(source, "encoder", source)
    vectors = encoder.plain.encode_queries(texts) if kind == "query" else encoder.plain.encode(texts)
    rows: list[list[float]] = vectors.tolist()
    return rows


def rerank(
    model: Model,
    query: str,
    texts: Sequence[str],
    metadata: Sequence[Mapping[str, Any]],
    ids: Sequence[str | None],
    top_n: int | None,
    *,
    lexical: Lexical,
    language: str | None,
    **search_options: Any,
) -> list[tuple[int, float]]:
    """Rows and scores of the best texts, as a search of them orders them; those that its options leave out are not in.

    Ties keep their order, and blank texts come last.
    """
    from palmette.ranking.rerank import rank_documents

    rows = [row for row, text in enumerate(texts) if text.strip()]
    documents = [Document(ids[row] or None, texts[row], json_value(metadata[row])) for row in rows]
    options = model.search_options(search_options)
    ranked = rank_documents(model, query, documents, options, lexical=lexical, language=language)
    best = [(rows[place], ranked.scores[place]) for place in ranked.order]
    return [*best, *((row, 0.0) for row, text in enumerate(texts) if not text.strip())][:top_n]


def check_method(owner: str, method: str | None, model: Model) -> None:
    """Raise unless a retriever class of one method (``None`` for any) is for such a model."""
    if method not in (None, model.method):
        better = dict.fromkeys((model.retriever, "PalmetteRetriever"))  # some methods have no class of their own
        raise ConfigError(
            f"{owner} is for models of method {method!r}, and this one is of method {model.method!r}: "
            f"use {', or '.join(better)} for any"
        )


def check_reader(reader: object) -> None:
    """Raise for an object that is no reader."""
    if getattr(reader, "kind", None) != "reader":
        raise InputError(f"reader must be a palmette.Reader, or the folder of its checkpoint, got {shown(reader)}")


def passage(id: str, text: str, metadata: Mapping[str, Any]) -> Document:
    """Passage of a reader, with the metadata that cite it; a blank one stays, so that the others keep their places."""
    cited_by = {name: metadata[name] for name in CITED_BY if name in metadata}
    return Document(id, text, cited_by, fields={} if text.strip() else {"text": ""})


def answer_facts(answer: Answer) -> dict[str, Any]:
    """Answer as JSON, without its question."""
    facts = answer.to_dict()
    del facts["question"]
    return facts


def diversify(hits: Sequence[Hit], vectors: Floats, k: int, weight: float) -> list[Hit]:
    """Choose ``k`` hits one by one, each for ``weight`` · relevance − (1 − ``weight``) · similarity.

    Similarity is the largest cosine of ``vectors`` [n, d], of length 1, with a hit chosen before. See Carbonell and
    Goldstein (1998), "The use of MMR".
    """
    check_range("maximal marginal relevance", "weight", weight, 0, 1)
    relevant = weight * np.array([hit.score for hit in hits])
    similar, chosen = np.full(len(hits), -1.0), list[int]()
    for _ in range(min(k, len(hits))):
        gain = relevant - (1 - weight) * similar
        gain[chosen] = -np.inf
        chosen.append(int(gain.argmax()))
        similar = np.maximum(similar, vectors @ vectors[chosen[-1]])
    return [hits[row] for row in chosen]
