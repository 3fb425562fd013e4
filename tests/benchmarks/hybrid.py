"""Words and structure together: quality on judged collections, and the time words add to a search.

    python tests/benchmarks/hybrid.py quality DATA [DATA …] [--methods tree taxonomy …] [--seeds 0 1 2] [--out FILE]
    python tests/benchmarks/hybrid.py fusion DATA [DATA …] [--methods tree taxonomy] [--out FILE]
    python tests/benchmarks/hybrid.py rerank DATA [DATA …] [--methods tree] [--out FILE]
    python tests/benchmarks/hybrid.py latency [--documents 100000 1000000] [--out FILE]

DATA are BEIR folders with train, dev and test judgements, or ``python`` for the standard library's. ``DATA:without``
are its questions without the words of their answers, ``DATA:decoys`` with three rare words of another document added.
Models, and how much words count (``auto``), learn from train and dev; the split named is only measured. Rows that FILE
holds already are not measured again; trained models are kept in the folder ``--models``, if given.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from palmette import (
    Document,
    FusionModel,
    Index,
    RetrievalData,
    TreeModel,
    load_data,
    load_encoder,
    sample_data,
)
from palmette.encoder.cache import CachedEncoder
from palmette.evaluation import BM25, EncoderBaseline
from palmette.lexical.analyser import analyser_of
from palmette.metrics import score_run
from palmette.model import Model
from palmette.methods import load_model, model_class
from palmette.search.fixed import to_fixed

WEIGHTS: tuple[Any, ...] = (0, 0.3, 0.5, 0.7, "auto")
FIRST = 50  # documents of a first search that are ranked anew
TIMED = 40  # questions timed


def loaded(name: str, titles: bool) -> RetrievalData:
    """A collection by folder, or the standard library; with changed questions where that is asked for."""
    folder, _, change = name.partition(":")
    data = sample_data("small") if folder == "python" else load_data(folder, titles=titles)
    return misled(data, change) if change else data


def misled(data: RetrievalData, change: str) -> RetrievalData:
    """The same documents and judgements, and questions whose words are no help."""
    analyser, draw = analyser_of("english"), np.random.default_rng(0)
    terms = [{word.term for word in analyser.words(document.text)} for document in data.corpus]
    common = Counter(term for held in terms for term in held)
    queries = dict(data.queries)
    for grades in data.qrels.values():
        for id, graded in grades.items():
            words = data.queries[id].split()
            if change == "without":
                known = set().union(*(terms[data.rows[key]] for key, grade in graded.items() if grade > 0))
                kept = [word for word in words if not known & {w.term for w in analyser.words(word)}]
                queries[id] = " ".join(kept or words[:1])
            else:
                other = data.corpus[int(draw.integers(len(terms)))].text.split()
                held = {
                    word: min((common[w.term] for w in analyser.words(word)), default=9**9) for word in other
                }
                queries[id] = " ".join([*words, *sorted(held, key=lambda word: held[word])[:3]])
    return replace(data, queries=queries)


class Table:
    """Rows of figures, written as they come in; rows that a file holds already are not made again."""

    def __init__(self, out: Path | None, names: int, head: Sequence[str]) -> None:
        self.out, self.names = out, names
        self.lines = [f"| {' | '.join(head)} |", "|" + "---|" * names + "---:|" * (len(head) - names)]
        if out and out.is_file():
            self.lines += out.read_text(encoding="utf-8").splitlines()[2:]

    def row(self, key: Sequence[str], cells: Callable[[], Sequence[str]]) -> None:
        """A row by its first cells, unless it is there."""
        start = f"| {' | '.join(key)} |"
        if not any(line.startswith(start) for line in self.lines):
            self.lines.append(f"{start} {' | '.join(cells())} |")
            print(self.lines[-1], flush=True)
            if self.out:
                self.out.write_text("\n".join(self.lines) + "\n", encoding="utf-8")


class Collection:
    """A collection and what is measured on it."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.args, self.name = args, Path(name).name
        self.data = loaded(name, titles=Path(name.partition(":")[0]).name not in args.no_titles)
        self.encoder = CachedEncoder(load_encoder(args.encoder), args.cache)
        self.judged = self.data.split(args.split)
        self.texts = list(self.judged.queries.values())

    def ndcg(self, ids: list[list[str]]) -> float:
        """nDCG@10 of a ranking of the documents for each question."""
        return score_run(dict(zip(self.judged.queries, ids, strict=True)), self.judged.qrels, ks=(10,))[
            "ndcg@10"
        ]

    @cached_property
    def firsts(self) -> dict[str, list[list[str]]]:
        """What the encoder and BM25 find."""
        found = EncoderBaseline(self.encoder, self.data.corpus), BM25(self.data.corpus)
        return {
            name: one.search(self.texts, FIRST).ids
            for name, one in zip(("encoder", "BM25"), found, strict=True)
        }

    def model(self, method: str, seed: int) -> Model:
        """A model of a method, trained or read again."""
        kept = self.args.models and self.args.models / f"{self.name.replace(':', '-')}-{method}-{seed}"
        if kept and kept.is_dir():
            return load_model(kept, encoder=self.encoder)
        options: dict[str, Any] = {"seed": seed}
        if self.args.steps and method == "tree":
            options["steps"] = self.args.steps
        if (
            method == "fields"
        ):  # what a processor can do: maps of what the frozen encoder reads, in short texts
            options |= {"trained_layers": 0, "document_tokens": 128}
        model = model_class(method)._fit(self.data, options, encoder=self.encoder, cache=self.encoder.cache)
        if kept:
            model.save_pretrained(kept)
        return model


def quality(args: argparse.Namespace) -> Table:
    """Each method alone, with fixed weights of words, and with what it has learned."""
    weights = [f"lexical={weight}" for weight in WEIGHTS]
    table = Table(args.out, 3, ["data", "method", "seed", "encoder", "BM25", *weights, "learned", "gain"])
    for here in (Collection(name, args) for name in args.data):
        for method in args.methods:
            for seed in args.seeds:
                table.row([here.name, method, str(seed)], partial(_quality, here, method, seed))
    return table


def _quality(here: Collection, method: str, seed: int) -> list[str]:
    model = here.model(method, seed)
    index = Index.build(here.data.corpus, model)
    plain = [here.ndcg(ids) for ids in here.firsts.values()]
    found = [here.ndcg(index.rank(here.texts, 10, lexical=weight).ids) for weight in WEIGHTS]
    learned = f"{model.lexical_weights[''].weight:.2f}" if "" in model.lexical_weights else "–"
    return [*(f"{value:.4f}" for value in (*plain, *found)), learned, f"{found[-1] - max(plain):+.4f}"]


def fusion(args: argparse.Namespace) -> Table:
    """Several models as one: by learned weights, equal ones, and ranks."""
    ways = ["equal", "learned", "ranks", "learned, auto", "weights"]
    table = Table(args.out, 2, ["data", "seed", *args.methods, *ways])
    for here in (Collection(name, args) for name in args.data):
        for seed in args.seeds:
            table.row([here.name, str(seed)], partial(_fusion, here, seed))
    return table


def _fusion(here: Collection, seed: int) -> list[str]:
    models = [here.model(method, seed) for method in here.args.methods]
    learned = FusionModel.of(models, here.data, cache=here.encoder.cache)
    asked: list[tuple[Model, Any]] = [(model, 0) for model in models]
    asked += [(FusionModel.of(models), 0), (learned, 0), (FusionModel.of(models, weights="rrf"), 0)]
    found = [
        here.ndcg(Index.build(here.data.corpus, model).rank(here.texts, 10, lexical=weight).ids)
        for model, weight in [*asked, (learned, "auto")]
    ]
    return [*(f"{value:.4f}" for value in found), " : ".join(f"{w:.2f}" for w in learned.config.weights)]


def rerank(args: argparse.Namespace) -> Table:
    """The best documents of a first search, ranked anew: by the method alone, and by words too."""
    ways = ["as found", "method", "and words, rare among these", "and words, rare in all"]
    table = Table(args.out, 4, ["data", "method", "seed", "first search", *ways])
    for here in (Collection(name, args) for name in args.data):
        for method in args.methods:
            for seed in args.seeds:
                for first in ("encoder", "BM25"):
                    table.row(
                        [here.name, method, str(seed), first], partial(_rerank, here, method, seed, first)
                    )
    return table


def _rerank(here: Collection, method: str, seed: int, first: str) -> list[str]:
    model, rows = here.model(method, seed), {document.key: document for document in here.data.corpus}
    index = Index.build(here.data.corpus, model)
    runs: list[list[list[str]]] = [here.firsts[first], [], [], []]
    for query, found in zip(here.texts, runs[0], strict=True):
        given = [rows[id] for id in found]
        for run, weight in zip(runs[1:3], (0.0, "auto"), strict=True):
            scores = model.score(query, given, lexical=weight)
            run.append([found[at] for at in np.argsort(-np.array(scores), kind="stable")])
        among = index.rank([query], len(found), filter={"$id": found})
        runs[3].append(among.ids[0])
    return [f"{here.ndcg(run):.4f}" for run in runs]


def latency(args: argparse.Namespace) -> Table:
    """The median time of one search, encoding included, with and without words."""
    head = [
        "documents",
        "encoding (ms)",
        "method alone (ms)",
        "with words (ms)",
        "added",
        "of the search alone",
    ]
    table = Table(args.out, 1, head)
    for count in args.documents:
        table.row([f"{count:,}"], partial(_latency, count, args))
    return table


def made_up(count: int, args: argparse.Namespace) -> Index:
    """An index of documents that are pieces of the standard library's, anywhere in the tree."""
    corpus = sample_data("small")
    encoder = CachedEncoder(load_encoder(args.encoder), args.cache)
    model = TreeModel.fit(corpus, encoder=encoder, depth=8, steps=50)
    pool = " ".join(document.text for document in corpus.corpus).split()
    draw = np.random.default_rng(0)
    index = Index.in_memory(model)
    with index.backend.write() as writer:
        for start in range(0, count, 1000):
            places = draw.integers(0, len(pool) - 50, (min(1000, count - start), 2))
            texts = [" ".join(pool[a : a + 50] + pool[b : b + 50]) for a, b in places]
            documents = [Document(id=str(start + place), text=text) for place, text in enumerate(texts)]
            leaves = draw.dirichlet(np.full(model.config.leaves, 0.05), len(documents)).astype(np.float32)
            arrays = {
                spec.name: np.zeros((len(documents), *spec.shape), spec.dtype) for spec in model.arrays()
            }
            arrays["leaves"] = to_fixed(leaves)
            writer.put(documents, arrays)
    return index


def _latency(count: int, args: argparse.Namespace) -> list[str]:
    return timed(made_up(count, args))


def timed(index: Index) -> list[str]:
    """Medians over questions of the least of three runs; the kinds take turns, so that load meets all alike.

    Processor time, which others on the machine change less; with one thread it is what an idle machine takes.
    """
    asked = list(sample_data("small").split("test").queries.values())[:TIMED]
    options = index.model.search_options({})
    kinds: list[Callable[[str], Any]] = [
        lambda query: index.model.encode_queries([query], options),
        lambda query: index.search(query, 10, lexical=0),
        lambda query: index.search(query, 10, lexical=0.5),
    ]
    times: list[list[float]] = [[], [], []]
    for query in asked[:3] + asked:
        runs: list[list[float]] = [[], [], []]
        for _ in range(3):
            for kind, taken in zip(kinds, runs, strict=True):
                begun = time.process_time()
                kind(query)
                taken.append(1000 * (time.process_time() - begun))
        for kept, taken in zip(times, runs, strict=True):
            kept.append(min(taken))
    cells = []
    for of in (median, fmean):
        encoding, pure, hybrid = (of(taken[3:]) for taken in times)
        cells += [
            *(f"{value:.1f}" for value in (encoding, pure, hybrid)),
            f"{100 * (hybrid / pure - 1):+.0f} %",
        ]
    return cells


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["quality", "fusion", "rerank", "latency"])
    parser.add_argument("data", nargs="*", help="BEIR folders, or python")
    parser.add_argument("--methods", nargs="+", default=["tree"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--split", default="test")
    parser.add_argument("--steps", type=int, help="of trees")
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000])
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument(
        "--no-titles", nargs="*", default=["squad"], help="collections without titles in the texts"
    )
    parser.add_argument("--cache", type=Path, help="where encodings are kept")
    parser.add_argument("--models", type=Path, help="where trained models are kept")
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    made = {"quality": quality, "fusion": fusion, "rerank": rerank, "latency": latency}[args.what](args)
    print("\n".join(made.lines))


if __name__ == "__main__":
    main()
