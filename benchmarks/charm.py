"""The benchmark of fields: data, what is compared, what a model makes of it, and tables."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common import spread
from palmette import Document, FieldsModel, Index, RetrievalData, load_data
from palmette.data.metrics import Judgements, query_scores
from palmette.evaluation import BM25
from palmette.methods.fields.config import FieldsConfig
from palmette.methods.fields.documents import FieldExtractor
from palmette.methods.fields.losses import losses
from palmette.methods.fields.training import FieldsTask
from recording import table

FIELDS: dict[str, dict[str, str]] = {
    "chorus_icecat": {f: f for f in ("brand", "name", "title", "text", "attributes")},
    "medquad": {"group": "semantic_group", "title": "title", "synonyms": "synonyms", "text": "text"},
}
"""Short to long; a medquad document's ``question`` is a query, and no field."""
K = 100
MODES: dict[str, dict[str, Any]] = {
    "aggregate": {"by": "aggregate"},
    "best field": {"by": "best"},
    "two stages": {"by": "two_stage"},
    "aggregate, words": {"by": "aggregate", "lexical": "auto"},
    "two stages, words": {"lexical": "auto"},
}
"""Ways of searching one model; the last two, with words mixed in, are what users get."""


@dataclass(frozen=True)
class Bench:
    """One data set, and how many of its questions are asked (0: all)."""

    name: str
    data: RetrievalData
    fields: dict[str, str]
    queries: int

    @classmethod
    def load(cls, folder: str, queries: int) -> Self:
        """Read a BEIR folder."""
        name = Path(folder).name
        return cls(name, load_data(folder), FIELDS[name], queries)

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

    def asked(self, split: str) -> tuple[list[str], Judgements]:
        """Queries of a split that have answers, and their judgements."""
        judged = list(self.data.split(split).qrels.items())
        judged = [(query, grades) for query, grades in judged if any(g > 0 for g in grades.values())]
        if self.queries and len(judged) > self.queries:
            draw = np.random.default_rng(0)
            judged = [judged[at] for at in np.sort(draw.permutation(len(judged))[: self.queries])]
        texts, grades = [self.data.queries[query] for query, _ in judged], [grades for _, grades in judged]
        return texts, Judgements.of_queries(grades, self.data.rows, len(self.data.corpus))


def measured(ranks: np.ndarray, judgements: Judgements) -> list[float]:
    """nDCG@10 by query of rankings [Q, K] of document rows."""
    return np.round(query_scores(ranks, judgements, ks=(10,))["ndcg@10"], 4).tolist()


def model_rows(model: FieldsModel, bench: Bench, modes: Sequence[str]) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Every way of searching one model, and facts about its fields."""
    texts, judgements = bench.asked("test")
    index = Index.in_memory(model)
    index.add(bench.data.corpus)
    found, rows = {}, {}
    for mode in modes:
        ids = index.rank(texts, k=K, **{"lexical": 0, "sentences": False, **MODES[mode]}).ids
        ranks = np.full((len(texts), K), -1, np.int64)
        for row, ranked in enumerate(ids):
            ranks[row, : len(ranked)] = [bench.data.rows[id] for id in ranked]
        found[mode], rows[mode] = measured(ranks, judgements), ranks
    return found, _facts(index, model, texts, rows["best field"]) if "best field" in modes else {}


def _facts(index: Index, model: FieldsModel, texts: Sequence[str], best: np.ndarray) -> dict[str, Any]:
    """How well shortlists keep what ``best`` finds, and which queries match which field."""
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
    matched = {name: int((part == at).sum()) for at, name in enumerate(model.config.order)}
    return {"kept of the best ten": kept, "matched": matched}


def bm25_rows(bench: Bench) -> dict[str, list[float]]:
    """BM25 over all fields as one text, and as a sum over fields with weights chosen on dev."""
    read = [FieldExtractor(bench.fields).read(document) for document in bench.data.corpus]

    def by_field(texts: Sequence[str]) -> list[np.ndarray]:
        return [_scores(column, texts) for column in zip(*read, strict=True)]

    texts, judgements = bench.asked("dev")
    scores, weights, best = by_field(texts), np.ones(len(bench.fields)), -1.0
    for _ in range(2):
        for at in range(len(weights)):
            for value in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0):
                tried = weights.copy()
                tried[at] = value
                score = round(float(np.mean(_measured(np.tensordot(tried, scores, 1), judgements))), 4)
                if score > best + 1e-6:
                    best, weights = score, tried
    texts, judgements = bench.asked("test")
    two = FieldExtractor.of(("title", "text"))
    titled = [" ".join(filter(None, two.read(document))) for document in bench.data.corpus]
    return {
        "BM25": _measured(_scores([" ".join(row).strip() for row in read], texts), judgements),
        "BM25, title and text": _measured(_scores(titled, texts), judgements),
        "BM25, fields weighted": _measured(np.tensordot(weights, by_field(texts), 1), judgements),
    }


def _scores(contents: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """[Q, N] scores of documents with these contents."""
    documents = [Document(str(row), content or "-") for row, content in enumerate(contents)]
    return np.stack(list(BM25(documents).scores(texts)))


def _measured(scores: Any, judgements: Judgements) -> list[float]:
    return measured(np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :K], judgements)


# -- what is compared ----------------------------------------------------------------------------------------------


def diversity(logits: Tensor, target: Tensor) -> Tensor:
    """L_Div (equation 7): −ln softmax of the best-matching field over the fields of each query's document.

    Args:
        logits: [F, B, M] similarities by field, divided by τ.
        target: [B] column of each query's document.
    """
    own = logits[:, torch.arange(len(target), device=target.device), target]  # [F, B]
    return (own.logsumexp(0) - own.amax(0)).mean()


def mvr_loss(
    config: FieldsConfig, queries: Tensor, fields: Tensor, aggregate: Tensor, target: Tensor, known: Tensor
) -> Tensor:
    """L_MVR = L_Max + .01 L_Div, of multi-view representations."""
    by_field = torch.einsum("bd,mfd->fbm", queries, fields) / config.temperature
    _, _, best = losses(queries, fields, aggregate, target, known, config.temperature)
    return best + 0.01 * diversity(by_field, target)


class MVRModel(FieldsModel):
    """Multi-view representations: every vector sees the whole document, and a loss keeps them apart."""

    @classmethod
    def task(cls, *given: Any, **named: Any) -> tuple[FieldsConfig, FieldsTask]:
        config, task = super().task(*given, **named)
        task.objective = mvr_loss
        return config, task


class Method(NamedTuple):
    """A row of the table."""

    options: Mapping[str, Any]
    modes: tuple[str, ...] = tuple(MODES)
    fields: str = "all of them"
    """``title``, ``joined`` (one field that holds all), ``reversed``, or all of them."""
    model: type[FieldsModel] = FieldsModel


ONE = ("aggregate", "aggregate, words")

METHODS: dict[str, Method] = {
    "untuned encoder, all fields joined": Method({"steps": 0}, ONE, "joined"),
    "title only": Method({}, ONE, "title"),
    "all fields joined": Method({}, ONE, "joined"),
    "all fields joined, 144 tokens": Method({"document_tokens": 144}, ONE, "joined"),
    "MVR": Method(
        {"attention": "full", "aggregate_weight": 0.0, "fields_weight": 0.0}, ("best field",), model=MVRModel
    ),
    "CHARM": Method({}),
    "CHARM, the paper's pooling": Method({"pooling": "token"}),
    "equation 3 as printed": Method({"attention": "printed"}),
    "no L_agg": Method({"aggregate_weight": 0.0}),
    "no L_fields": Method({"fields_weight": 0.0}),
    "no L_max": Method({"best_weight": 0.0}),
    "no whole document": Method({"whole": False}),
    "full attention": Method({"attention": "full"}),
    "fields from long to short": Method({}, fields="reversed"),
}


def fields_of(method: Method, fields: Mapping[str, str]) -> dict[str, str]:
    """The fields that a method reads."""
    if method.fields == "title":
        return {"title": "title"}
    if method.fields == "joined":
        return {"all": "+".join(fields.values())}
    return dict(reversed(fields.items())) if method.fields == "reversed" else dict(fields)


# -- tables --------------------------------------------------------------------------------------------------------

RIVALS = {"untuned encoder, all fields joined": "aggregate", "all fields joined": "aggregate", "MVR": "best field"}
"""What every row is compared with, by its main way of searching, and how that is searched."""

Rows = Sequence[Mapping[str, Any]]


def p_value(first: Sequence[float], second: Sequence[float], rounds: int = 10_000) -> float:
    """Two-sided paired permutation test of a difference of means over queries."""
    difference = np.asarray(first) - np.asarray(second)
    draw = np.random.default_rng(0)
    signs = draw.choice([-1.0, 1.0], (rounds, len(difference)))
    shuffled = np.abs((signs * difference).mean(1))
    return float((1 + (shuffled >= abs(difference.mean()) - 1e-12).sum()) / (rounds + 1))


def tables(results: Rows) -> str:
    """One table for each data set and training, and what is known of CHARM's fields."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        groups[result["title"]].append(result)
    return "\n\n".join(f"### {title}\n\n{_table(rows)}\n\n{_told(rows)}".rstrip() for title, rows in groups.items())


def _table(rows: Rows) -> str:
    """nDCG@10 of each method, by its ways of searching: of every seed, by query."""
    found: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for mode, by_query in row["rows"].items():
            found[row["method"]][mode].append(by_query)
    shown, folds = [name for name in RIVALS if name in found], rows[0]["folds"]
    lines = []
    for method, modes in found.items():
        main = modes.get("two stages") or next(iter(modes.values()))
        cells = [spread([float(np.mean(one)) for one in modes.get(mode, ())]) for mode in ("words", *MODES)]
        cells += ["" if name == method else _against(main, found[name][RIVALS[name]], folds) for name in shown]
        lines.append([method, *cells])
    return table(["nDCG@10", "words", *MODES, *(f"against {name} (p)" for name in shown)], lines)


def _against(seeds: list[list[float]], others: list[list[float]], folds: int) -> str:
    """The difference of nDCG@10 in points, and how likely chance makes one as large."""
    first, second = _by_query(seeds, folds), _by_query(others, folds)
    if len(first) != len(second):
        return ""
    return f"{100 * (first.mean() - second.mean()):+.1f} ({p_value(first, second):.3f})"


def _by_query(seeds: list[list[float]], folds: int) -> NDArray[np.float64]:
    """nDCG@10 by query: the mean over seeds, or the folds on end, whose queries differ."""
    return np.concatenate(seeds) if folds else np.mean(seeds, axis=0)


def _told(rows: Rows) -> str:
    for row in rows:
        if row["facts"] and row["seed"] == 0 and row["method"] == "CHARM":
            kept = ", ".join(f"{share:.1%} at {size}" for size, share in row["facts"]["kept of the best ten"].items())
            matched = ", ".join(f"{name} {count}" for name, count in row["facts"]["matched"].items())
            return (
                f"CHARM, seed 0: kept of the ten that `best` finds by a shortlist: {kept}; "
                f"field of the best hit: {matched}."
            )
    return ""
