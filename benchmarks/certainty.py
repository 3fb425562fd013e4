"""How well probabilities hold on a collection of one's own, by the number of judged questions.

    PALMETTE_DATA=FOLDER python benchmarks/certainty.py squad scifact cosqa medquad fairytaleqa

An untrained index of all documents, calibrated on some judged questions of the training (or dev) split as
:func:`palmette.learning.probability.calibrate_index` does, a hundred draws each; expected calibration error of the
first hits of 300 test questions, in ten groups of equal size. *Chance* is the error that right probabilities would
have. *Floor* is the error where the slope is right and fifty questions like those of the test estimate the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from common import number, parse_with_data
from curve import Recorded
from palmette import Index, RetrievalData, SpaceModel, load_data
from palmette.ranking.calibration import fit_probability
from palmette.ranking.score import SLOPE

ASKED = 300
"""Test questions."""
DRAWS = 100
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


def first_hits(index: Index, questions: dict[str, dict[str, int]]) -> tuple[Any, Any, Any]:
    """Sums of evidence, shipped logits and relevance of the first hits [Q]."""
    hits = [found[0] for found in index.search(list(questions), k=1, threshold=0.0, explain=True)]
    logits = np.array([hit.explain().detail["logit"] for hit in hits])
    shipped = np.array([next(part.value for part in hit.explain().parts if part.name == "prior") for hit in hits])
    graded = zip(hits, questions.values(), strict=True)
    relevant = np.array([float(grades.get(hit.id, 0) > 0) for hit, grades in graded])
    return (logits - shipped) / SLOPE, logits, relevant


def measure(index: Index, asked: dict[str, dict[str, int]], known: dict[str, dict[str, int]]) -> list[str]:
    """Cells of a collection: chance, floor, the shipped probabilities, and means and worst of draws by size."""
    draw = np.random.default_rng(0)
    evidence, logits, relevant = first_hits(index, asked)
    known_evidence, _, known_relevant = first_hits(index, known)
    slope, prior = fit_probability(evidence, relevant)
    right, chances, floors = expit(slope * evidence + prior), [], []
    for _ in range(DRAWS):
        answers = (draw.random(len(right)) < right).astype(float)
        chances.append(error(right, answers))
        some = draw.permutation(len(known_evidence))[:50]
        seen = (draw.random(len(some)) < expit(slope * known_evidence[some] + prior)).mean()
        priors = np.linspace(prior - 3, prior + 3, 301)
        means = expit(slope * known_evidence[some] + priors[:, None]).mean(axis=1)
        floors.append(error(expit(slope * evidence + priors[np.abs(means - seen).argmin()]), answers))
    cells = [number(float(np.mean(chances))), number(float(np.mean(floors))), number(error(expit(logits), relevant))]
    for size in SIZES:
        errors = []
        for _ in range(DRAWS if size < len(known) else 0):
            rows = draw.permutation(len(known))[:size]
            slope, prior = fit_probability(known_evidence[rows], known_relevant[rows])
            errors.append(error(expit(slope * evidence + prior), relevant))
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
    heads = ["", "chance", "floor", "shipped", *(f"{size} questions" for size in SIZES)]
    print(f"| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}")
    for name in args.sets:
        data = load_data(args.data / name, dev_fraction=0.0)
        encoder = Recorded(data, np.load(args.data / "encodings" / f"{name}.npz"))
        train, dev, test = (judged(data, split, encoder.known, ASKED) for split in ("train", "dev", "test"))
        with Index.build(data.corpus, SpaceModel.untrained(encoder), passages=None, progress=False) as index:
            print(f"| {name} | {' | '.join(measure(index, test, train or dev))} |", flush=True)


if __name__ == "__main__":
    main()
