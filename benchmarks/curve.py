"""How many pairs until a learned space pays: the product's own fit on samples of the pairs, searched through an index.

    PALMETTE_DATA=FOLDER python benchmarks/curve.py squad scifact medquad fairytaleqa --out PAGE
    PALMETTE_DATA=FOLDER python benchmarks/curve.py scifact --methods tree paths fields layers --out PAGE

Vectors of documents, questions and sentences come from ``FOLDER/encodings``; methods beside the space encode for
themselves. Finished rows are kept beside the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import recording
from common import ENCODER, Ready, parse_with_data
from palmette import FieldsModel, Index, LayersModel, PathsModel, SpaceModel, TreeModel, load_data
from palmette.data import RetrievalData
from palmette.data.metrics import score_run
from palmette.encoder.sentences import Sentences
from recording import Line

QUESTIONS = 300
"""Test questions."""
SIZES = ((0, 1), (30, 5), (100, 5), (300, 2), (1000, 1), (None, 1))
"""Pairs (None: all there are), and draws of them; fewer than thirty leave the model as it is."""
WRONG = ((100, 0.1), (100, 0.3), (1000, 0.1), (1000, 0.3))
"""Pairs, and the share of them whose document is drawn at random; one draw each."""
K = 10
"""Depth of nDCG."""
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tree": (TreeModel, {}),
    "paths": (PathsModel, {}),
    "fields": (FieldsModel, {"fields": ["title", "text"], "trained_layers": 0}),  # a map of each field, in seconds
    "layers": (LayersModel, {}),
}
"""Methods beside the space, and their options; the first draw of each number of right pairs."""
WAYS = {"space": {"lexical": 0, "sentences": False}, "space and sentences": {"lexical": 0}, "default": {}}
"""Searches that are measured."""


class Recorded(Ready):
    """An encoder that looks up vectors of texts, and of documents' sentences, whose places are unknown."""

    def __init__(self, data: RetrievalData, arrays: Any) -> None:
        order = {id: row for row, id in enumerate(arrays["ids"].tolist())}
        self.rows = {document.content: order[document.key] for document in data.corpus}
        known = {text: arrays["docs"][row].astype(np.float32) for text, row in self.rows.items()}
        for split in ("train", "dev", "test"):
            if f"ids_{split}" in arrays:
                vectors = zip(arrays[f"ids_{split}"].tolist(), arrays[f"queries_{split}"], strict=True)
                known |= {data.queries[id]: vector.astype(np.float32) for id, vector in vectors if id in data.queries}
        super().__init__(arrays["docs"].shape[1], known)
        self.sentences = arrays["sentences"]
        self.first = np.append(arrays["first"], len(self.sentences)).astype(np.int64)

    def encode_sentences(self, texts: Sequence[str], **_: Any) -> Any:
        """Return documents' vectors, and their sentences."""
        rows = [self.rows[text] for text in texts]
        parts = [np.arange(self.first[row], self.first[row + 1]) for row in rows]
        starts = np.cumsum([0, *map(len, parts)])
        spans = np.zeros((int(starts[-1]), 2), np.int32)
        return self.encode(texts), Sentences.of(self.sentences[np.concatenate(parts)], spans, starts)


def sampled(data: RetrievalData, pairs: int | None, wrong: float, seed: int) -> RetrievalData:
    """Return the documents with some of the training questions, a share of them with a document drawn at random."""
    draw, train = np.random.default_rng(seed), data.qrels["train"]
    chosen = list(train) if pairs is None else [list(train)[row] for row in draw.permutation(len(train))[:pairs]]
    qrels = {}
    for query in chosen:
        if draw.random() < wrong:
            qrels[query] = {data.corpus[int(draw.integers(len(data.corpus)))].key: 1}
        else:
            qrels[query] = train[query]
    return RetrievalData(data.name, data.corpus, {query: data.queries[query] for query in qrels}, {"train": qrels})


def measured(data: RetrievalData, encoder: Any, pairs: int | None, wrong: float, seed: int, method: str = "") -> Line:
    """Fit on a sample, index all documents, and measure nDCG@10 of the test questions."""
    sample = sampled(data, pairs, wrong, seed)
    if method:
        lessons: Any = sample if pairs != 0 else data.corpus
        kind, options = METHODS[method]
        model: Any = kind.fit(lessons, encoder=encoder, seed=seed, progress=False, **options)
    elif pairs == 0:
        model = SpaceModel.untrained(encoder)
    else:
        model = SpaceModel.fit(sample, encoder=encoder, seed=seed, progress=False)
    test = dict(list(data.qrels["test"].items())[:QUESTIONS])
    taught = {document for judged in data.qrels["train"].values() for document in judged}
    apart = {query for query, judged in test.items() if not taught & {d for d, grade in judged.items() if grade > 0}}
    line: Line = {"learned": model.encoder is not encoder or model.record.steps > 0, "apart": len(apart)}
    with Index.build(data.corpus, model, passages=None, progress=False) as index:
        for way, options in WAYS.items():
            found = index.rank([data.queries[query] for query in test], K, **options)
            run = dict(zip(test, found.ids, strict=True))
            line[way] = round(score_run(run, test, ks=(K,))[f"ndcg@{K}"], 4)
            if apart and len(apart) < len(test):
                some = {query: test[query] for query in apart}
                others = {query: judged for query, judged in test.items() if query not in apart}
                parts = [score_run({q: run[q] for q in part}, part, ks=(K,))[f"ndcg@{K}"] for part in (some, others)]
                line[f"{way}, apart"], line[f"{way}, taught"] = (round(part, 4) for part in parts)
    return line


def rows(names: Sequence[str], methods: Sequence[str], store: Path, data: Path) -> None:
    """Measure what the store does not hold."""
    for name in names:
        loaded = load_data(data / name, dev_fraction=0.0)
        for method in methods:
            for size, _ in SIZES:
                key: Line = {"set": name, "pairs": size, "wrong": 0.0, "seed": 0, "method": method}
                if (size is None or size < len(loaded.qrels["train"])) and not recording.find(store, **key):
                    line = measured(loaded, ENCODER, size, 0.0, 0, method)
                    print(recording.append(store, key | line), flush=True)
        if methods:
            continue
        encoder = Recorded(loaded, np.load(data / "encodings" / f"{name}.npz"))
        plan = [(size, 0.0, seed) for size, draws in SIZES for seed in range(draws)]
        plan += [(size, wrong, 0) for size, wrong in WRONG]
        for size, wrong, seed in plan:
            key = {"set": name, "pairs": size, "wrong": wrong, "seed": seed}
            if (size is not None and size >= len(loaded.qrels["train"])) or recording.find(store, **key):
                continue
            print(recording.append(store, key | measured(loaded, encoder, size, wrong, seed)), flush=True)


def written(page: Path, store: Path) -> None:
    """Write the tables and the plot of the page."""
    everything = recording.read(store, "set", "pairs", "wrong", "seed", "method")
    lines = [line for line in everything if "method" not in line]
    sets = list(dict.fromkeys(line["set"] for line in lines))

    def cell(name: str, size: int | None, wrong: float, way: str) -> str:
        values = [x[way] for x in lines if (x["set"], x["pairs"], x["wrong"]) == (name, size, wrong)]
        return f"{np.mean(values):.3f}".lstrip("0") if values else ""

    sizes = [size for size, _ in SIZES]
    head = ["", *["all" if size is None else str(size) for size in sizes]]
    table = [[name, *(cell(name, size, 0.0, "default") for size in sizes)] for name in sets]
    recording.write_part(page, "default", recording.table(head, table))
    wrong = [
        [name, *(cell(name, size, share, "default") for size in (100, 1000) for share in (0.0, 0.1, 0.3))]
        for name in sets
    ]
    columns = ["", *(f"{size}, {share:.0%} wrong" for size in (100, 1000) for share in (0.0, 0.1, 0.3))]
    recording.write_part(page, "wrong", recording.table(columns, wrong))
    apart = []
    for name in sets:
        of_set = {x["pairs"]: x for x in lines if (x["set"], x["wrong"], x["seed"]) == (name, 0.0, 0)}
        if "default, apart" in of_set.get(None, {}):
            both = [of_set[size][f"default, {part}"] for part in ("taught", "apart") for size in (0, None)]
            apart.append([name, str(of_set[None]["apart"]), *(f"{value:.3f}".lstrip("0") for value in both)])
    names = ["", "questions apart", "taught: 0 pairs", "taught: all", "apart: 0 pairs", "apart: all"]
    if apart:
        recording.write_part(page, "apart", recording.table(names, apart))
    of_methods = {(x["set"], x["method"], x["pairs"]): x["default"] for x in everything if "method" in x}
    if pairs := list(dict.fromkeys((name, method) for name, method, _ in of_methods)):
        kept = [[of_methods.get((name, method, size)) for size in sizes] for name, method in pairs]
        cells = [["" if value is None else f"{value:.3f}".lstrip("0") for value in row] for row in kept]
        table = [[f"{name}, {method}", *row] for (name, method), row in zip(pairs, cells, strict=True)]
        recording.write_part(page, "methods", recording.table(head, table))
    plot(page.with_suffix(".svg"), lines, sets)


def plot(path: Path, lines: Sequence[Line], sets: Sequence[str]) -> None:
    """Draw nDCG@10 of the default over the number of pairs, every draw a point."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for number, name in enumerate(sets):
        points = [x for x in lines if x["set"] == name and x["wrong"] == 0 and x["pairs"] is not None]
        sizes = sorted({x["pairs"] for x in points})
        means = [np.mean([x["default"] for x in points if x["pairs"] == size]) for size in sizes]
        axes.plot([max(size, 3) for size in sizes], means, label=name, color=f"C{number}")
        axes.scatter([max(x["pairs"], 3) for x in points], [x["default"] for x in points], s=9, color=f"C{number}")
    axes.set_xscale("log")
    axes.set_xticks([3, 30, 100, 300, 1000], ["0", "30", "100", "300", "1,000"])
    axes.set_xlabel("pairs")
    axes.set_ylabel("nDCG@10")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=[], help="these instead of the space")
    parser.add_argument("--out", type=Path, required=True)
    args = parse_with_data(parser, None)
    rows(args.sets, args.methods, args.out.with_suffix(".jsonl"), args.data)
    written(args.out, args.out.with_suffix(".jsonl"))


if __name__ == "__main__":
    main()
