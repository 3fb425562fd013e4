"""How much do words count, what is a unit of meaning, and when is a hit relevant? Chosen over many collections.

    PALMETTE_DATA=FOLDER python benchmarks/relevance.py choose --cache CACHE --out PAGE
    PALMETTE_DATA=FOLDER python benchmarks/relevance.py index [COLLECTION …] --cache CACHE --out PAGE
    PALMETTE_DATA=FOLDER python benchmarks/relevance.py cost --cache CACHE --out PAGE

``choose`` fits the shipped numbers, leaving one collection out, from vectors and words alone; ``index`` measures an
index as it is, over the same vectors; ``cost`` what sentences and words cost. Collections are the BEIR folders of
PALMETTE_DATA, and those that ``relevant/collected.py`` makes of the machine's own texts. CACHE keeps vectors and
candidates; vectors may also lie in FOLDER, as ``encodings/NAME.npz``. Nothing is trained on labels; test questions (600
at most) are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from common import ENCODER, command_line, number, parse_with_data
from palmette import load_encoder
from palmette.lexical.analyser import LANGUAGE, analyser_of
from palmette.lexical.bm25 import WordCollection
from recording import Line, append, find, read, table, write_part
from relevant.candidates import GRID, WEIGHT, Floats, Found, candidates, encoded, everything, group, rounded, texts_of
from relevant.product import costs, measured

DOMAINS = {"encyclopedia": ("squad", "hotpot_mini"), "medicine": ("scifact", "medquad")}
DOMAINS |= {"stories": ("fairytaleqa",), "products": ("chorus_icecat",)}  # all others: software
SLOPE, PRIOR, THRESHOLD = 5.5, -3.9, 0.2
"""What is shipped."""
OFF_TOPIC = 0.2
"""Share of off-topic questions in what slope and prior are fitted on."""

# -- what is chosen -------------------------------------------------------------------------------------------------

Fact, Hits = dict[str, Line], dict[str, dict[str, Found]]


def domain(name: str) -> str:
    return next((domain for domain, names in DOMAINS.items() if name in names), "software")


def best_weight(facts: Fact, names: Iterable[str]) -> float:
    """The weight with the highest mean nDCG@10; a collection counts once, with its samples."""
    groups: dict[str, list[Any]] = {}
    for name in names:
        groups.setdefault(group(name), []).append(facts[name]["sum"])
    return float(GRID[np.mean([np.mean(curves, axis=0) for curves in groups.values()], axis=0).argmax()])


def weight_table(facts: Fact, found: Hits) -> str:
    """The sum beside the best fixed fusion and hindsight, with the weight that is shipped and that others choose."""
    rows, values = [], []
    for whole in (True, False):
        names = [name for name in facts if (name == group(name)) == whole]
        for name in names:
            line, curve = facts[name], np.array(facts[name]["sum"])
            chosen = best_weight(facts, [other for other in facts if group(other) != group(name)])
            at = at_weight(curve, WEIGHT)
            values.append([line["fusion 0.3"], line["hindsight"], at, line["hindsight"] - at])
            values[-1] += [chosen, line["hindsight"] - at_weight(curve, chosen), float(curve.max())]
            rows.append([name, f"{line['documents']:,}", *map(number, values[-1])])
        means = np.mean(values[-len(names) :], axis=0)
        rows.append([f"mean of {len(names)} {'collections' if whole else 'samples'}", "", *map(number, means)])
    head = ["", "documents", "fusion", "hindsight", "sum", "regret", "left out: weight", "regret", "at its best weight"]
    return table(head, rows)


def at_weight(curve: Sequence[float], weight: float) -> float:
    return float(np.interp(weight, GRID, curve))


# -- spread ---------------------------------------------------------------------------------------------------------


def spread_table(facts: Fact, found: Hits) -> str:
    """The spread of questions over documents and over best sentences, and by that of sentences asked as questions."""
    spreads = {name: {kind: np.array(of) for kind, of in facts[name]["spreads"].items()} for name in found}
    values = [[*of["questions"], *(of["questions"] / of["sentences"])] for of in spreads.values()]
    named = [*zip(found, values, strict=True), ("mean", np.mean(values, 0)), ("standard deviation", np.std(values, 0))]
    rows = [[name, *(f"{value:.4f}" for value in row)] for name, row in named]
    return table(["", "documents", "best sentences", "by sentences: documents", "best sentences"], rows)


# -- probability ----------------------------------------------------------------------------------------------------


class First(NamedTuple):
    """Sums [Q] of the best hits, and whether they are relevant."""

    total: Floats
    right: NDArray[np.bool_]


def first(found: Found) -> First:
    total = found.total()
    rows, best = np.arange(len(total)), total.argmax(axis=1)
    return First(total[rows, best], found.grade[rows, best] > 0)


def auroc(higher: Floats, lower: Floats) -> float:
    """How often a value of the first list is above one of the second."""
    lower = np.sort(lower)
    below = np.searchsorted(lower, higher, "left") + np.searchsorted(lower, higher, "right")
    return float(below.mean() / (2 * len(lower)))


def calibration_error(given: Floats, right: NDArray[Any], bins: int = 10) -> float:
    """Expected calibration error in equal bins of probability."""
    at = np.minimum((given * bins).astype(int), bins - 1)
    parts = [(at == place) for place in range(bins)]
    return float(sum(abs(given[part].mean() - right[part].mean()) * part.mean() for part in parts if part.any()))


def noise(given: Floats) -> float:
    """Calibration error that as many questions have by chance where every probability is exact."""
    rng = np.random.default_rng(0)
    return float(np.mean([calibration_error(given, rng.random(len(given)) < given) for _ in range(20)]))


def fit(x: Floats, right: Any, weights: Floats, towards: Sequence[float] = (5, -4), trust: float = 0) -> Floats:
    """Slope of x [n] and prior of a logistic function; ``trust`` draws them towards others."""

    def loss(given: Floats) -> float:
        logits = given[0] * x + given[1]
        distance = trust * ((given - towards) ** 2).sum()
        return float((weights * (np.logaddexp(0, logits) - right * logits)).sum() + distance)

    return np.asarray(minimize(loss, np.array(towards, float), method="BFGS").x)


class Scored(NamedTuple):
    """Best sums of own and of off-topic questions, and whether the first hit is right."""

    own: Floats
    right: NDArray[np.bool_]
    off: Floats
    by_source: list[Floats]

    def weighed(self, share: float) -> tuple[Floats, NDArray[Any], Floats]:
        """Sums, relevance and weights for :func:`fit`, where ``share`` of the questions are off topic."""
        right = np.concatenate([self.right, np.zeros(len(self.off))])
        counts = ((1 - share) / len(self.own), share / len(self.off))
        weights = np.concatenate([np.full(len(self.own), counts[0]), np.full(len(self.off), counts[1])])
        return np.concatenate([self.own, self.off]), right, weights


def scored(found: Hits) -> dict[str, Scored]:
    """First hits of every collection, for its own questions and for those of collections of other domains."""
    every = {}
    for name, lists in found.items():
        others = {key: key.removeprefix("from ") for key in lists if key.startswith("from ")}
        sources = [first(lists[key]).total for key, other in others.items() if domain(other) != domain(name)]
        every[name] = Scored(*first(lists["test"]), np.concatenate(sources), sources)
    return every


def fitted(every: dict[str, Scored], but: str = "") -> Floats:
    """Slope and prior of all collections but one."""
    parts = [one.weighed(OFF_TOPIC) for name, one in every.items() if name != but]
    return fit(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def summary_table(facts: Fact, found: Hits) -> str:
    """The sum beside fusions, and its probability, at what is shipped."""
    every, rows, values = scored(found), [], []
    for name, one in every.items():
        line = facts[name]
        slope, prior = fitted(every, name)
        sums = [line["fusion 0.3"], line["hindsight"], at_weight(line["sum"], WEIGHT)]
        bar = (np.log(THRESHOLD / (1 - THRESHOLD)) - PRIOR) / SLOPE
        row = [*sums, one.right.mean(), calibration_error(expit(slope * one.own + prior), one.right)]
        row += [min(auroc(one.own, off) for off in one.by_source)]
        values.append([*row, (one.own[one.right] < bar).mean(), (one.off < bar).mean()])
        rows.append([name, f"{line['documents']:,}", *map(number, values[-1])])
    head = ["", "documents", "fusion", "hindsight", "sum", "right", "ECE", "AUROC", "lost", "empty"]
    return table(head, [*rows, ["mean", "", *map(number, np.mean(values, axis=0))]])


def dev_table(facts: Fact, found: Hits) -> str:
    """Calibration error by chance, and when slope and prior are fitted on first hits of 50 and of all dev questions."""
    every, rows = scored(found), []
    for name, lists in found.items():
        slope, prior = fitted(every, name)
        row = [noise(expit(slope * every[name].own + prior))]
        dev = first(lists["dev"]) if "dev" in lists else None
        for size in () if dev is None else (50, len(dev.total)):
            some = np.random.default_rng(0).permutation(len(dev.total))[:size]
            a, b = fit(dev.total[some], dev.right[some], np.ones(len(some)), (slope, prior), 0.2)
            row.append(calibration_error(expit(a * every[name].own + b), every[name].right))
        rows.append([name, *map(number, row), *[""] * (3 - len(row))])
    slope, prior = fitted(every)
    rows.append([f"fitted on all: slope {slope:.2f}, prior {prior:.2f}", "", "", ""])
    return table(["", "by chance", "50 of dev", "all of dev"], rows)


def sizes_table(data: Path, cache: Path) -> str:
    """Samples of few documents: first hits right, their mean probability, and what the threshold does."""
    loaded = {name: encoded(name, texts, data, cache) for name, texts in texts_of(data)}
    rows = []
    for size in (10, 50, 200, 1000):
        values = []
        for name, whole in loaded.items():
            others = [loaded[other].asked["test"] for other in loaded if domain(other) != domain(name)]
            own, right, off = [], [], []
            for seed in range(max(1, min(6, 300 // size))) if len(whole.texts) > 1.5 * size else ():
                some = whole.sample(size, seed)
                words, draw = WordCollection(analyser_of(LANGUAGE), some.texts), np.random.default_rng(seed)
                if some.asked["test"].texts:
                    hits = first(candidates(some, words, some.asked["test"]))
                    own.append(hits.total)
                    right.append(hits.right)
                for asked in others:
                    few = asked.take(draw.permutation(len(asked.texts))[:15].tolist())
                    few = few._replace(judged=[{}] * len(few.texts))
                    off.append(first(candidates(some, words, few)).total)
            if sum(map(len, own)) >= 20:
                found, correct, other = (np.concatenate(parts) for parts in (own, right, off))
                p, q = (expit(SLOPE * sums + PRIOR) for sums in (found, other))
                values.append([correct.mean(), p.mean(), (p[correct] < THRESHOLD).mean(), (q < THRESHOLD).mean()])
        if values:
            worst = np.max(values, axis=0)[2], np.min(values, axis=0)[3]
            rows.append([f"{size:,} ({len(values)} collections)", *map(number, [*np.mean(values, axis=0), *worst])])
    return table(["documents", "right", "mean P", "lost", "empty", "most lost", "least empty"], rows)


def shortlists_table(facts: Fact, found: Hits) -> str:
    """Two shortlists of 100 against the sum of all documents."""
    rows = []
    for name, lists in found.items():
        whole, short = at_weight(facts[name]["sum"], WEIGHT), lists["test"].ndcg(lists["test"].total())
        rows.append([name, f"{facts[name]['documents']:,}", f"{whole:.4f}", f"{short:.4f}", f"{short - whole:+.4f}"])
    means = np.mean([[float(value) for value in row[2:]] for row in rows], axis=0)
    rows.append(["mean", "", f"{means[0]:.4f}", f"{means[1]:.4f}", f"{means[2]:+.4f}"])
    return table(["", "documents", "all", "two shortlists", "difference"], rows)


# -- the product ----------------------------------------------------------------------------------------------------


def index_lines(data: Path, names: Sequence[str], cache: Path, store: Path) -> str:
    """Measure an index of each collection with default options beside the sums; 50 questions of each other domain."""
    loaded = {name: encoded(name, splits, data, cache) for name, splits in texts_of(data)}
    sums, rng = {x["data"]: x["sum"] for x in read(store) if x["part"] == "collection"}, np.random.default_rng(7)
    for name in names or loaded:
        if find(store, part="index", data=name):
            continue
        others = [one.asked["test"] for other, one in loaded.items() if domain(other) != domain(name)]
        off = [asked.take(rng.permutation(len(asked.texts))[:50].tolist()) for asked in others]
        line, own, right, other = measured(loaded[name], off, data)
        line |= {"AUROC": auroc(own, other), "ECE": calibration_error(own, right)}
        line |= {"lost": float((own[right] < THRESHOLD).mean()), "empty": float((other < THRESHOLD).mean())}
        append(store, {"part": "index", "data": name} | rounded(line))
        print(f"  {name}: {line}", flush=True)
    lines = [line for line in read(store, "part", "data") if line["part"] == "index"]
    keys = ["nDCG@10", "ECE", "AUROC", "lost", "empty"]
    rows = [[line[key] for key in keys] for line in lines]
    chosen = [number(at_weight(sums[line["data"]], WEIGHT)) if line["data"] in sums else "" for line in lines]
    shown = [[line["data"], own, *map(number, row)] for line, own, row in zip(lines, chosen, rows, strict=True)]
    return table(["", "sum", *keys], [*shown, ["mean", "", *map(number, np.mean(rows, axis=0))]])


def cost_lines(data: Path, cache: Path, store: Path) -> str:
    """Costs of evidence in an index of 100,000 documents, drawn from all collections."""
    line = find(store, part="cost")
    if line is None:
        found = costs([encoded(name, splits, data, cache) for name, splits in texts_of(data)], load_encoder(ENCODER))
        line = append(store, rounded({"part": "cost"} | found))
    return table(["", "measured"], [[key, f"{value:,.2f}"] for key, value in line.items() if key != "part"])


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    parser = command_line(__doc__, "relevance.md")
    parser.add_argument("what", choices=["choose", "index", "cost"])
    parser.add_argument("collections", nargs="*", help="of index; all by default")
    parser.add_argument("--cache", type=Path, default=Path("build/relevance"), help="vectors and candidates")
    args = parse_with_data(parser, argv)
    store = args.out.with_suffix(".jsonl")
    if args.what == "index":
        print(index_lines(args.data, args.collections, args.cache, store))
    if args.what == "cost":
        print(cost_lines(args.data, args.cache, store))
    if args.what == "choose":
        facts, found = everything(args.data, args.cache, store)
        write_part(args.out, "collections", summary_table(facts, found))
        for made in (weight_table, spread_table, shortlists_table, dev_table):
            print(f"\n{made.__doc__}\n\n{made(facts, found)}")
        print(f"\n{sizes_table.__doc__}\n\n{sizes_table(args.data, args.cache)}")


if __name__ == "__main__":
    main()
