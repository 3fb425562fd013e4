"""What half of a collection's questions teach about the other half, which asks about the same passages.

    PALMETTE_DATA=FOLDER python benchmarks/halves.py squad fairytaleqa

People's questions stand for those of a language model: half of each passage's questions are known, 1,000 of the others
are asked. Known questions train a space, are words of their passages
(:meth:`palmette.Index.add_questions`), or both. nDCG@10 through an index with default options, words and
sentences in; vectors come from ``FOLDER/encodings``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from common import number, parse_with_data
from curve import K, Recorded
from palmette import Index, RetrievalData, SpaceModel, load_data
from palmette.data.metrics import score_run

ASKED = 1000
"""Questions that are asked."""
HEADS = ("passages", "known questions", "neither", "as words", "trained", "both", "space alone", "trained alone")


def halve(data: RetrievalData, known: set[str]) -> tuple[RetrievalData, list[str]]:
    """Split the questions of each passage in two: data of the known ones, and a sample of the others."""
    judged = {query: grades for split in data.qrels.values() for query, grades in split.items()}
    relevant = {query: {id: g for id, g in grades.items() if g > 0} for query, grades in judged.items()}
    about: dict[str, list[str]] = {}
    for query, grades in relevant.items():
        if grades and data.queries[query] in known:
            about.setdefault(min(grades), []).append(query)
    draw, teaching, asked = np.random.default_rng(0), list[str](), list[str]()
    for queries in about.values():
        order = [queries[row] for row in draw.permutation(len(queries))]
        half = len(order) // 2
        teaching += order[:half]
        asked += order[half : 2 * half]
    asked = [asked[row] for row in draw.permutation(len(asked))[:ASKED]]
    both = {split: {query: relevant[query] for query in part} for split, part in (("train", teaching), ("test", asked))}
    return RetrievalData(data.name, data.corpus, data.queries, both), asked


def ndcg(
    data: RetrievalData, model: SpaceModel, asked: Sequence[str], known: RetrievalData | None = None, **options: Any
) -> float:
    """Index the documents, with known questions as words, and measure the questions that are asked."""
    with Index.build(data.corpus, model, passages=None, progress=False) as index:
        if known is not None:
            index.add_questions(known)
        ranked = index.rank([data.queries[query] for query in asked], K, **options)
    run = dict(zip(asked, ranked.ids, strict=True))
    return score_run(run, data.qrels["test"], ks=(K,))[f"ndcg@{K}"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+")
    args = parse_with_data(parser, argv)
    print(f"| | {' | '.join(HEADS)} |\n|---|{'---:|' * len(HEADS)}")
    for name in args.sets:
        loaded = load_data(args.data / name, dev_fraction=0.0)
        encoder = Recorded(loaded, np.load(args.data / "encodings" / f"{name}.npz"))
        data, asked = halve(loaded, set(encoder.known))
        train = RetrievalData(name, data.corpus, data.queries, {"train": data.qrels["train"]})
        plain, trained = SpaceModel.untrained(encoder), SpaceModel.fit(train, encoder=encoder, progress=False)
        cells = [ndcg(data, model, asked, known) for model in (plain, trained) for known in (None, train)]
        cells += [ndcg(data, model, asked, lexical=0.0, sentences=False) for model in (plain, trained)]
        counts = [f"{len(data.corpus):,}", f"{len(data.qrels['train']):,}"]
        print(f"| {name} | {' | '.join([*counts, *map(number, cells)])} |", flush=True)


if __name__ == "__main__":
    main()
