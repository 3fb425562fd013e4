"""How well probabilities hold on a collection of one's own, by the number of judged questions.

    PALMETTE_DATA=FOLDER python tests/benchmarks/certainty.py squad scifact cosqa medquad fairytaleqa

An untrained index of all documents, calibrated on some judged questions of the training (or dev) split by
:func:`palmette.learning.probability.calibrate_index`, ten draws each; expected calibration error of the first hits of
300 test questions, in ten groups of equal size. *Chance* is the error that probabilities which are right would have.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
from common import number, parse_with_data
from curve import Recorded
from scipy.special import expit

from palmette import Index, RetrievalData, SpaceModel, load_data
from palmette.learning.probability import calibrate_index
from palmette.ranking.score import SLOPE

ASKED = 300
"""Test questions."""
DRAWS = 10
"""Draws of judged questions of each size."""
SIZES = (10, 20, 50, 100)
"""Judged questions."""
GROUPS = 10
"""Groups of questions, by their probability, whose mean is compared with the share of relevant hits."""


def error(probabilities: Any, relevant: Any) -> float:
    """Expected calibration error."""
    groups = np.array_split(np.argsort(probabilities), GROUPS)
    gaps = [len(rows) * abs(probabilities[rows].mean() - relevant[rows].mean()) for rows in groups]
    return float(sum(gaps) / len(probabilities))


def measure(index: Index, asked: dict[str, dict[str, int]], known: dict[str, dict[str, int]]) -> list[str]:
    """Cells of a collection: chance, the shipped probabilities, and means and worst of draws by size."""
    draw = np.random.default_rng(0)
    hits = [found[0] for found in index.search(list(asked), k=1, threshold=0.0)]
    logits = np.array([hit.explain().detail["logit"] for hit in hits])
    shipped = np.array([next(part.value for part in hit.explain().parts if part.name == "prior") for hit in hits])
    evidence = (logits - shipped) / SLOPE
    relevant = np.array([float(grades.get(hit.id, 0) > 0) for hit, grades in zip(hits, asked.values(), strict=True)])
    plain = expit(logits)
    chance = np.mean([error(plain, draw.random(len(plain)) < plain) for _ in range(100)])
    cells = [number(float(chance)), number(error(plain, relevant))]
    for size in SIZES:
        errors = []
        for _ in range(DRAWS if size < len(known) else 0):
            chosen = [list(known)[row] for row in draw.permutation(len(known))[:size]]
            fitted = calibrate_index(index, {question: known[question] for question in chosen}).calibrations[""]
            errors.append(error(expit(fitted.slope * evidence + fitted.prior), relevant))
        cells.append(f"{number(float(np.mean(errors)))} ({number(max(errors))})" if errors else "")
    return cells


def judged(data: RetrievalData, split: str, known: Container[str], most: int) -> dict[str, dict[str, int]]:
    """Some questions of a split at random, by their text, with their judgements."""
    queries = [query for query in data.qrels.get(split, {}) if data.queries[query] in known]
    rows = np.random.default_rng(1).permutation(len(queries))[:most].tolist()
    return {data.queries[queries[row]]: dict(data.qrels[split][queries[row]]) for row in rows}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+")
    args = parse_with_data(parser, argv)
    heads = ["", "chance", "shipped", *(f"{size} questions" for size in SIZES)]
    print(f"| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}")
    for name in args.sets:
        data = load_data(args.data / name, dev_fraction=0.0)
        encoder = Recorded(data, np.load(args.data / "encodings" / f"{name}.npz"))
        train, dev, test = (judged(data, split, encoder.known, ASKED) for split in ("train", "dev", "test"))
        with Index.build(data.corpus, SpaceModel.untrained(encoder), passages=None, progress=False) as index:
            print(f"| {name} | {' | '.join(measure(index, test, train or dev))} |", flush=True)


if __name__ == "__main__":
    main()
