"""Words and structure together: quality on judged collections, and the time words add to a search.

    python tests/benchmarks/hybrid.py quality DATA [DATA …] [--methods tree taxonomy …] [--seeds 0 1 2] --out PAGE
    python tests/benchmarks/hybrid.py fusion DATA [DATA …] [--methods tree taxonomy] --out PAGE
    python tests/benchmarks/hybrid.py rerank DATA [DATA …] [--methods tree] --out PAGE
    python tests/benchmarks/hybrid.py latency [--documents 100000 1000000] --out PAGE

DATA are BEIR folders with train, dev and test judgements, or ``python`` for the standard library's. ``DATA:without``
are its questions without the words of their answers, ``DATA:decoys`` with three rare words of another document added.
Models, and how much words count (``auto``), learn from train and dev; the split named is only measured. Lines that
the store beside PAGE holds are not measured again; trained models are kept in the folder ``--models``, if given.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from recording import Line, append, find, read, table, write_part

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
from palmette.arrays import to_fixed
from palmette.encoder.cache import CachedEncoder
from palmette.evaluation import BM25, EncoderBaseline
from palmette.lexical.analyser import analyser_of
from palmette.methods import load_model, model_class
from palmette.metrics import score_run
from palmette.model import Model

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
        model = model_class(method).fit(
            self.data, encoder=self.encoder, cache=self.encoder.cache, progress=False, **options
        )
        if kept:
            model.save_pretrained(kept)
        return model


def measure(args: argparse.Namespace) -> None:
    """What is missing, a line each."""
    store = args.out.with_suffix(".jsonl")
    if args.what == "latency":
        for count in args.documents:
            if not find(store, part="latency", documents=count):
                print(append(store, {"part": "latency", "documents": count, **timed(made_up(count, args))}))
        return
    for here in (Collection(name, args) for name in args.data):
        for method in ["+".join(args.methods)] if args.what == "fusion" else args.methods:
            for seed in args.seeds:
                key = {"part": args.what, "data": here.name, "method": method, "seed": seed}
                if not find(store, **key):
                    found = {"quality": _quality, "fusion": _fusion, "rerank": _rerank}[args.what]
                    print(append(store, key | found(here, method, seed)), flush=True)


def report(page: Path, lines: Sequence[Line]) -> None:
    """The parts of the page that have lines."""
    kept = {
        part: [x for x in lines if x["part"] == part] for part in ("quality", "fusion", "rerank", "latency")
    }
    groups: dict[tuple[str, str], list[Line]] = {}
    for x in kept["quality"]:
        groups.setdefault((x["data"], x["method"]), []).append(x)
    rows = []
    for (data, method), some in groups.items():
        columns = zip(*([x["encoder"], x["BM25"], *x["lexical"]] for x in some), strict=True)
        weights = sorted({x["learned"] for x in some if x["learned"] is not None})
        gain = fmean(x["lexical"][-1] - max(x["encoder"], x["BM25"]) for x in some)
        cells = [
            *(_short(fmean(column)) for column in columns),
            "–".join(_short(w, 2) for w in weights[:: len(weights) - 1 or 1]),
        ]
        rows.append([f"{data}, {method}", str(len(some)), *cells, f"{gain:+.3f}".replace("0.", ".")])
    if rows:
        head = ["", "seeds", "encoder", "BM25", *map(str, WEIGHTS), "weight", "gain"]
        write_part(page, "quality", table(head, rows))
    rows = [
        [f"{x['data']}, {x['method']}, seed {x['seed']}", name, f"{value:.4f}"]
        for x in (*kept["fusion"], *kept["rerank"])
        for name, value in x["ndcg@10"].items()
    ]
    if rows:
        write_part(page, "several", table(["", "", "nDCG@10"], rows))
    rows = [
        [f"{x['documents']:,}", *(f"{ms:.1f}" for ms in x["median"]), _added(x["median"]), _added(x["mean"])]
        for x in kept["latency"]
    ]
    if rows:
        head = ["documents", "encoding, ms", "method alone", "with words", "added", "of the means"]
        write_part(page, "latency", table(head, rows))


def _short(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".replace("0.", ".")


def _added(ms: Sequence[float]) -> str:
    return f"{100 * (ms[2] / ms[1] - 1):+.0f} %"


def _quality(here: Collection, method: str, seed: int) -> Line:
    """A method alone, with fixed weights of words, and with what it has learned."""
    model = here.model(method, seed)
    index = Index.build(here.data.corpus, model)
    plain = [here.ndcg(ids) for ids in here.firsts.values()]
    found = [here.ndcg(index.rank(here.texts, 10, lexical=weight).ids) for weight in WEIGHTS]
    learned = model.lexical_weights[""].weight if "" in model.lexical_weights else None
    return {"encoder": plain[0], "BM25": plain[1], "lexical": found, "learned": learned}


def _fusion(here: Collection, method: str, seed: int) -> Line:
    """Several models as one: by equal and by learned weights."""
    models = {name: here.model(name, seed) for name in method.split("+")}
    learned = FusionModel.of(list(models.values()), here.data, cache=here.encoder.cache)
    ways: dict[str, tuple[Model, Any]] = {name: (model, 0) for name, model in models.items()}
    ways |= {"equal weights": (FusionModel.of(list(models.values())), 0), "learned weights": (learned, 0)}
    ways["learned weights, and words"] = (learned, "auto")
    return {
        "weights": list(learned.config.weights),
        "ndcg@10": {
            name: here.ndcg(Index.build(here.data.corpus, model).rank(here.texts, 10, lexical=weight).ids)
            for name, (model, weight) in ways.items()
        },
    }


def _rerank(here: Collection, method: str, seed: int) -> Line:
    """The best documents of the encoder's search, ranked anew: by the method alone, and by words too."""
    model, rows = here.model(method, seed), {document.key: document for document in here.data.corpus}
    index = Index.build(here.data.corpus, model)
    first = here.firsts["encoder"]
    runs: dict[str, list[list[str]]] = {
        "the encoder's first 50": first,
        "the method on them": [],
        "and words, rare among the 50": [],
        "and words, rare in all documents": [],
    }
    for query, found in zip(here.texts, first, strict=True):
        given = [rows[id] for id in found]
        for name, weight in zip(list(runs)[1:3], (0.0, "auto"), strict=True):
            scores = model.score(query, given, lexical=weight)
            runs[name].append([found[at] for at in np.argsort(-np.array(scores), kind="stable")])
        among = index.rank([query], len(found), filter={"$id": found})
        runs["and words, rare in all documents"].append(among.ids[0])
    return {"ndcg@10": {name: here.ndcg(run) for name, run in runs.items()}}


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


def timed(index: Index) -> Line:
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
    return {
        of.__name__.removeprefix("f"): [round(float(of(taken[3:])), 1) for taken in times]
        for of in (median, fmean)
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
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
    parser.add_argument("--out", type=Path, default=Path("hybrid.md"), help="the page; lines lie beside it")
    args = parser.parse_args(argv)
    measure(args)
    report(args.out, read(args.out.with_suffix(".jsonl")))


if __name__ == "__main__":
    main()
