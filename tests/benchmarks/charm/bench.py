"""Data with fields, pools to rank, and what a model makes of them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from palmette import Document, FieldsModel, Index, RetrievalData, load_data
from palmette.evaluation import BM25
from palmette.methods.fields.documents import FieldExtractor
from palmette.metrics import Judgements, query_scores

FIELDS: dict[str, dict[str, str]] = {
    "chorus_icecat": {f: f for f in ("brand", "name", "title", "text", "attributes")},
    "scifact": {"title": "title", "text": "text"},
    "squad": {"title": "title", "text": "text"},
    "medquad": {"group": "semantic_group", "title": "title", "synonyms": "synonyms", "text": "text"},
}
"""Short to long; a medquad document's ``question`` is a query, and no field."""
KS = (10, 50, 100)
SHOWN = ("ndcg@10", "ndcg@50", "recall@100")
MODES: dict[str, dict[str, Any]] = {
    "aggregate": {"by": "aggregate"},
    "best": {"by": "best"},
    "two stages": {"by": "two_stage", "blend": 0.0},
    "two stages, blended": {"by": "two_stage"},
    "aggregate and words": {"by": "aggregate", "lexical": "auto"},
    "two stages, blended, and words": {"lexical": "auto"},
}
"""Ways of searching one model; the last two, with words mixed in, are what users get."""


@dataclass(frozen=True)
class Bench:
    """One data set: what trains, and the pools of documents that are ranked."""

    name: str
    data: RetrievalData
    fields: dict[str, str]
    pool: int
    queries: int

    @classmethod
    def load(cls, folder: str, pool: int, queries: int) -> Self:
        """Read a BEIR folder."""
        name = Path(folder).name
        return cls(name, load_data(folder, titles=False), FIELDS[name], pool, queries)

    def cut(self, size: int) -> Self:
        """So many documents alone: what queries of dev and test need (icecat: what anybody judged), others at random.

        Only so many queries of dev and test are kept as are asked for, and of train those whose answers are there.
        """
        draw, data = np.random.default_rng(0), self.data
        qrels = {split: dict(judged) for split, judged in data.qrels.items()}
        for split in ("dev", "test"):
            names = list(qrels[split])
            some = np.sort(draw.permutation(len(names))[: self.queries or None])
            qrels[split] = {names[at]: qrels[split][names[at]] for at in some.tolist()}
        sources = qrels.values() if self.name == "chorus_icecat" else (qrels["dev"], qrels["test"])
        needed = {data.rows[id] for judged in sources for grades in judged.values() for id in grades}
        others = [row for row in draw.permutation(len(data.corpus)).tolist() if row not in needed]
        kept = sorted([*needed, *others[: max(0, size - len(needed))]])
        there = {data.corpus[row].key for row in kept}
        for split, judged in qrels.items():
            held = {q: {id: g for id, g in grades.items() if id in there} for q, grades in judged.items()}
            qrels[split] = {q: grades for q, grades in held.items() if any(g > 0 for g in grades.values())}
        asked = {query for judged in qrels.values() for query in judged}
        queries = {query: text for query, text in data.queries.items() if query in asked}
        corpus = [data.corpus[row] for row in kept]
        return replace(self, data=replace(data, corpus=corpus, queries=queries, qrels=qrels))

    def folded(self, folds: int, fold: int) -> Self:
        """Cross validation: the judged queries of all splits dealt anew, one part of ``folds`` held out as test."""
        every = {query: grades for qrels in self.data.qrels.values() for query, grades in qrels.items()}
        order = sorted(every, key=lambda query: hashlib.sha256(query.encode()).digest())
        parts: dict[str, dict[str, dict[str, int]]] = {"train": {}, "dev": {}, "test": {}}
        for at, query in enumerate(order):
            place = (at - fold) % folds
            parts["test" if place == 0 else "dev" if place == 1 else "train"][query] = every[query]
        return replace(self, data=replace(self.data, qrels=parts))

    def few(self, count: int, seed: int, split: str) -> Self:
        """So few judged questions to learn from, a fifth of them held out; those of ``split`` as test."""
        judged = self.data.qrels["train"]
        named = sorted(judged, key=lambda query: hashlib.sha256(f"{seed}:{query}".encode()).digest())[:count]
        held = count // 5
        parts = {
            "train": {query: judged[query] for query in named[held:]},
            "dev": {query: judged[query] for query in named[:held]},
            "test": self.data.qrels[split],
        }
        return replace(self, data=replace(self.data, qrels=parts))

    def ranked(self, split: str, seed: int = 0) -> tuple[list[str], list[Document], Judgements]:
        """The queries of a split, the documents that are ranked, and their judgements.

        Those are all that anybody judged in any split, and others at random, ``pool`` in all (0 for all documents).
        """
        draw = np.random.default_rng(seed)
        judged = list(self.data.split(split).qrels.items())
        judged = [(query, grades) for query, grades in judged if any(g > 0 for g in grades.values())]
        if self.queries and len(judged) > self.queries:
            judged = [judged[at] for at in np.sort(draw.permutation(len(judged))[: self.queries])]
        every = np.arange(len(self.data.corpus))
        if self.pool:
            needed = {self.data.rows[id] for _, grades in judged for id in grades}
            others = [row for row in draw.permutation(every).tolist() if row not in needed]
            every = np.sort(np.array([*needed, *others[: max(0, self.pool - len(needed))]], np.int64))
        texts = [self.data.queries[query] for query, _ in judged]
        documents = [self.data.corpus[row] for row in every.tolist()]
        places = {document.key: place for place, document in enumerate(documents)}
        return (texts, documents, Judgements.of_queries([grades for _, grades in judged], places, len(documents)))


@dataclass
class Measured:
    """Scores of one way of searching: means, and nDCG@10 by query."""

    scores: dict[str, float]
    by_query: list[float]


def judged(ranks: np.ndarray, judgements: Judgements) -> Measured:
    """Rankings [Q, K] of document rows."""
    scores = query_scores(ranks, judgements, ks=KS)
    means = {name: round(float(scores[name].mean()), 4) for name in SHOWN}
    return Measured(means, np.round(scores["ndcg@10"], 4).tolist())


def model_rows(
    model: FieldsModel, bench: Bench, split: str, modes: Sequence[str]
) -> tuple[dict[str, Measured], dict[str, Any]]:
    """Every way of searching one model, and facts about its fields."""
    texts, documents, judgements = bench.ranked(split)
    began = time.perf_counter()
    index = Index.in_memory(model)
    index.add(documents)
    encoding = time.perf_counter() - began
    place = {document.key: row for row, document in enumerate(documents)}
    found, rows = {}, {}
    for mode in modes:
        ids = index.rank(texts, k=max(KS), **{"lexical": 0, "sentences": False, **MODES[mode]}).ids
        ranks = np.full((len(texts), max(KS)), -1, np.int64)
        for row, ranked in enumerate(ids):
            ranks[row, : len(ranked)] = [place[id] for id in ranked]
        found[mode], rows[mode] = judged(ranks, judgements), ranks
    facts: dict[str, Any] = {"seconds to encode": round(encoding, 1), "documents": len(documents)}
    if "best" in modes:
        facts |= _facts(index, model, texts, rows["best"])
    return found, facts


def _facts(index: Index, model: FieldsModel, texts: Sequence[str], best: np.ndarray) -> dict[str, Any]:
    """How well shortlists keep what ``best`` finds; how much fields differ; which queries match which."""
    names = model.config.order
    kept = {}
    with index.backend.read() as view:
        options = model.search_options({"by": "aggregate"})
        queries = model.encode_queries(texts, options)
        keys = view.keys()
        for shortlist in (25, 50, 75, 100):
            near = model.search(view, queries, shortlist, options).keys
            each = zip(best, np.searchsorted(keys, near), strict=True)
            kept[str(shortlist)] = round(float(np.mean([np.isin(b[:10], r).mean() for b, r in each])), 4)
        found = model.search(view, queries, 1, model.search_options({"by": "best"}))
        part = found.evidence["part"][:, 0]
        vectors = view.rows("fields", keys).astype(np.float32)
    lengths = np.array([len(text.split()) for text in texts])
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
    steps = np.einsum("nfd,nfd->nf", units[:, 1:], units[:, :-1]).mean(0) if len(names) > 1 else []
    matched = {name: part == at for at, name in enumerate(names)}
    words = {name: round(float(lengths[by].mean()), 2) for name, by in matched.items() if by.any()}
    return {
        "kept of the best ten": kept,
        "matched": {name: int(by.sum()) for name, by in matched.items()},
        "words of queries by matched field": words,
        "cosine to the field before": dict(
            zip(names[1:], np.round(np.asarray(steps, float), 3).tolist(), strict=False)
        ),
    }


def bm25_rows(bench: Bench, split: str) -> dict[str, Measured]:
    """BM25 over all fields as one text, and as a sum over fields with weights chosen on dev."""
    extractor = FieldExtractor(bench.fields)

    def tables(which: str) -> tuple[list[np.ndarray], np.ndarray, Judgements]:
        texts, documents, judgements = bench.ranked(which)
        read = [extractor.read(document) for document in documents]
        by_field = [_scores(column, texts) for column in zip(*read, strict=True)]
        return by_field, _scores([" ".join(row).strip() for row in read], texts), judgements

    by_field, joined, judgements = tables("dev")
    weights = np.ones(len(by_field))
    best = -1.0
    for _ in range(2):
        for at in range(len(weights)):
            for value in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0):
                tried = weights.copy()
                tried[at] = value
                score = _judged(np.tensordot(tried, by_field, 1), judgements)
                if score.scores["ndcg@10"] > best + 1e-6:
                    best, weights = score.scores["ndcg@10"], tried
    by_field, joined, judgements = tables(split)
    texts, documents, _ = bench.ranked(split)
    two = FieldExtractor.of(("title", "text"))
    titled = [" ".join(filter(None, two.read(document))) for document in documents]
    return {
        "BM25": _judged(joined, judgements),
        "BM25, title and text": _judged(_scores(titled, texts), judgements),
        "BM25, fields weighted": _judged(np.tensordot(weights, by_field, 1), judgements),
    }


def _scores(contents: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """[Q, N] scores of documents with these contents."""
    documents = [Document(str(row), content or "-") for row, content in enumerate(contents)]
    return np.stack(list(BM25(documents).scores(texts)))


def _judged(scores: Any, judgements: Judgements) -> Measured:
    return judged(np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, : max(KS)], judgements)
