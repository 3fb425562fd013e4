"""What is asked and what is searched: SQuAD's questions, FAISS's indexes, models kept between runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np

from palmette import LayersModel, TreeModel, load_data, load_encoder
from palmette.data import RetrievalData
from palmette.encoder import Encoder
from palmette.encoder.cache import CachedEncoder
from palmette.hub.checkpointed import TrainingRecord
from palmette.methods.layers.config import LayersSearch
from palmette.methods.layers.module import LayerNetworks
from palmette.methods.layers.search import layers_plan, merge_layers
from palmette.metrics import normalise
from palmette.search.plan import Candidates, SearchPlan

BUDGETS = (6, 12, 30, 60, 120, 240)
NLIST = 128
TREE = {"steps": 300}
"""A third of what is the default: as good on SQuAD."""
INDEXES: dict[str, dict[str, int]] = {
    "flat": {},
    **{f"ivf, {p} of {NLIST} lists": {"nprobe": p} for p in (1, 2, 4, 8, 16)},
    f"ivf, 4 of {NLIST} lists, 16 bytes": {"nprobe": 4, "pq": 16},
}


class FaissView:
    """A FAISS index as a method sees it: what the lists do not hold is not found."""

    def __init__(self, vectors: np.ndarray, index: Any) -> None:
        self.vectors, self.index = vectors, index

    def __len__(self) -> int:
        return len(self.vectors)

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        scores, keys = self.index.search(plan.first.queries, k)
        return Candidates(keys, scores, approximate=True)

    def rows(self, name: str, keys: Sequence[int]) -> np.ndarray:
        return self.vectors[np.asarray(keys, np.int64)]

    @classmethod
    def built(cls, vectors: np.ndarray, seed: int, nprobe: int = 0, pq: int = 0) -> Self:
        """A flat index, or one of inverted lists."""
        width, metric = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
        if not nprobe:
            index = faiss.IndexFlatIP(width)
        else:
            centroids = faiss.IndexFlatIP(width)
            index = (
                faiss.IndexIVFPQ(centroids, width, NLIST, pq, 8, metric)
                if pq
                else faiss.IndexIVFFlat(centroids, width, NLIST, metric)
            )
            index.nprobe, index.cp.seed, index.cp.min_points_per_centroid = nprobe, 1234 + seed, 1
            if pq:
                index.pq.cp.min_points_per_centroid = 1
            index.train(vectors)
        index.add(vectors)
        return cls(vectors, index)


@dataclass
class Questions:
    """The judged questions of a split, their accepted answers, and which documents hold one [Q, N]."""

    texts: list[str]
    answers: list[list[str]]
    gold: np.ndarray
    holds: np.ndarray

    @classmethod
    def read(cls, folder: Path, data: RetrievalData, split: str) -> Self:
        """Without answers, the documents that are judged relevant hold one."""
        ids = list(data.qrels[split])
        given: dict[str, list[str]] = {}
        path = next(folder.glob("queries.jsonl*"))
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            for record in map(json.loads, lines):
                given[record["_id"]] = [answer["text"] for answer in record.get("answers", ())]
        padded = [f" {normalise(document.content)} " for document in data.corpus]
        holds = np.zeros((len(ids), len(padded)), bool)
        for row, id in enumerate(ids):
            if said := {f" {text} " for text in map(normalise, given[id]) if text}:
                holds[row] = [any(text in document for text in said) for document in padded]
            else:
                holds[row, [data.rows[key] for key, grade in data.qrels[split][id].items() if grade > 0]] = (
                    True
                )
        gold = np.array([data.rows[next(iter(data.qrels[split][id]))] for id in ids])
        return cls([data.queries[id] for id in ids], [given[id] for id in ids], gold, holds)

    def part(self, rows: np.ndarray) -> Questions:
        """Some of them."""
        texts, answers = ([some[row] for row in rows] for some in (self.texts, self.answers))
        return Questions(texts, answers, self.gold[rows], self.holds[rows])

    def found(self, keys: np.ndarray) -> np.ndarray:
        """[Q, k] whether each document found holds an answer."""
        return np.take_along_axis(self.holds, np.maximum(keys, 0), 1) & (keys >= 0)

    def accuracy(self, keys: np.ndarray) -> float:
        return 100 * float(self.found(keys).any(axis=1).mean())

    def ndcg(self, keys: np.ndarray) -> float:
        hit = keys[:, :10] == self.gold[:, None]
        return float((hit / np.log2(np.arange(hit.shape[1]) + 2)).sum(axis=1).mean())


@dataclass
class Bench:
    """A collection, an encoder, and the models that were trained on it."""

    folder: Path
    encoder_name: str
    split: str
    kept: Path | None
    titles: bool = False

    @cached_property
    def data(self) -> RetrievalData:
        return load_data(self.folder, titles=self.titles)

    @cached_property
    def encoder(self) -> Encoder:
        return CachedEncoder(load_encoder(self.encoder_name))

    @cached_property
    def questions(self) -> Questions:
        return Questions.read(self.folder, self.data, self.split)

    @cached_property
    def vectors(self) -> np.ndarray:
        return self.encoder.encode(self.data.texts)

    def model(
        self, kind: type[LayersModel] | type[TreeModel], seed: int, labelled: bool = True, **options: Any
    ) -> Any:
        """A model with the defaults and these options, read again where it is kept."""
        named = "-".join(
            [
                kind.method,
                str(seed),
                *([] if labelled else ["unlabelled"]),
                *(f"{key}={value}" for key, value in options.items()),
            ]
        )
        place = self.kept and self.kept / named
        if place and (place / "config.json").is_file():
            return kind.from_pretrained(place, encoder=self.encoder)
        data = self.data if labelled else list(self.data.corpus)
        state = place and place.with_name(f"{named}.training")
        model = kind.fit(
            data, encoder=self.encoder, seed=seed, output_dir=state, resume=state is not None, **options
        )
        print(f"{named}: trained, {dict(model.record.metrics)}", flush=True)
        if place:
            model.save_pretrained(place)
        return model


def untrained(model: LayersModel) -> LayersModel:
    """The last layer alone as it begins: the encoder's own query."""
    config = model.config.replace(layers=(model.config.last,))
    return LayersModel(config, model.encoder, LayerNetworks(config), record=TrainingRecord())


def search(
    view: Any, queries: np.ndarray, fused: np.ndarray, layers: Sequence[int], k: int, options: LayersSearch
) -> Candidates:
    """One search with the queries [Q, L, d] of these layers and their weighted means [Q, d]."""
    plan = layers_plan(queries, fused, options)
    return merge_layers(view, plan, view.candidates(plan, k), layers, k, options)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
