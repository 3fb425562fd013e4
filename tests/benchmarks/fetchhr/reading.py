"""Exact match and F1 of one trained reader, by what retrievers find for it, at equal budgets.

A reader's score of a span depends on question and passage alone; what reads several passages shares one sum over all
of them. So each pair is read once, kept in a file, and every set of passages is judged from that, exactly as
``Reader.answer`` would.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fetchhr.bench import INDEXES, NLIST, TREE, Bench, FaissView, Questions, search
from fetchhr.quality import rows_of

from palmette import Index, LayersModel, TreeModel
from palmette.evaluation import BM25
from palmette.methods.layers.config import LayersSearch
from palmette.methods.layers.search import FUSED, LAYERS
from palmette.metrics import exact_match, f1, normalise
from palmette.reader import Reader

READ = ("flat", *(f"ivf, {p} of {NLIST} lists" for p in (1, 2, 4)))
MANY = 12
"""Documents beyond which one seed is read, and no rivals."""
FEW = 30
"""Documents up to which all indexes are read in turn."""
GIVEN = "the passage given"
CHUNK = 128


class Pairs:
    """What the reader makes of (question, passage): log Σ exp of all spans, and of those that say the same."""

    def __init__(self, path: Path) -> None:
        self.path, self._end = path, 0
        self.known: dict[tuple[int, int], tuple[float, dict[str, float]]] = {}

    def look(self) -> None:
        """Take in what was written since, perhaps by another process."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._end)
                lines = file.read().rpartition(b"\n")[0]
            self._end += len(lines) + bool(lines)
            for line in lines.splitlines():
                question, row, total, said = json.loads(line)
                self.known[question, row] = total, said

    def read(
        self,
        reader: Reader,
        questions: Questions,
        texts: Sequence[str],
        wanted: Sequence[tuple[int, int]],
        until: float,
    ) -> None:
        """Read those that are not known, in their order, as long as there is time."""
        self.look()
        missing = deque(pair for pair in wanted if pair not in self.known)
        while missing and time.perf_counter() < until:
            part: list[tuple[int, int]] = []
            while missing and len(part) < CHUNK:
                if (pair := missing.popleft()) not in self.known:
                    part.append(pair)
            begun = time.perf_counter()
            found = reader.candidates(
                [questions.texts[q] for q, _ in part], [[texts[row]] for _, row in part]
            )
            lines = []
            for (question, row), spans in zip(part, found, strict=True):
                total = -float(np.log(max(spans.none, 1e-300)))  # log(1 + Σ exp)
                said: dict[str, float] = defaultdict(float)
                for first, last, share in zip(spans.starts, spans.ends, spans.shares, strict=True):
                    if text := normalise(texts[row][first:last]):
                        said[text] += share * np.exp(total)
                kept = {text: float(f"{mass:.6g}") for text, mass in said.items()}
                lines.append(json.dumps([question, row, float(np.expm1(total)), kept]) + "\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(lines))
            self.look()
            each = (time.perf_counter() - begun) / max(1, len(part))
            print(f"{len(missing)} pairs left, {1000 * each:.0f} ms each", flush=True)

    def answer(self, question: int, rows: Sequence[int]) -> tuple[str, float]:
        """The answer from these passages, and the probability that there is one."""
        whole, said = 0.0, defaultdict[str, float](float)
        for row in rows:
            total, texts = self.known[question, row]
            whole += total
            for text, mass in texts.items():
                said[text] += mass
        return (max(said, key=lambda text: said[text]) if said else ""), whole / (1 + whole)


Lists = dict[tuple[str, str, int], np.ndarray]
"""Index, system, budget → rows of documents [Q, k], −1 where fewer were found."""


def lists_of(bench: Bench, questions: Questions, seed: int, budgets: Sequence[int]) -> Lists:
    """What every retriever finds."""
    model = bench.model(LayersModel, seed)
    asked = model.encode_queries(questions.texts, model.search_options({}))
    vectors = bench.encoder.encode(questions.texts, kind="query")
    own = {LAYERS: vectors[:, None], FUSED: vectors}
    lists: Lists = {}
    for name in READ:
        view: Any = FaissView.built(bench.vectors, seed, **INDEXES[name])
        for system, queries, layers, options in (
            ("encoder", own, (model.config.last,), LayersSearch(order="layer")),
            ("all layers", asked, model.config.query_layers, LayersSearch(order="layer")),
            ("all layers, fused", asked, model.config.query_layers, LayersSearch()),
        ):
            for k in budgets:
                found = search(view, queries[LAYERS], queries[FUSED], layers, k, options)
                lists[name, system, k] = found.keys
    return lists


def rivals_of(bench: Bench, questions: Questions, seed: int, budgets: Sequence[int]) -> Lists:
    """A tree, BM25, and layers with words mixed in, on all documents."""
    tree, model, corpus = (
        bench.model(TreeModel, seed, **TREE),
        bench.model(LayersModel, seed),
        bench.data.corpus,
    )
    most = max(budgets)
    found = {"BM25": BM25(corpus).search(questions.texts, most).ids}
    for system, one, options in (
        ("tree", tree, {"lexical": 0, "sentences": False}),
        ("tree, and words", tree, {}),
        ("all layers, fused, and words", model, {}),
    ):
        with Index.build(corpus, one) as index:
            found[system] = index.rank(questions.texts, most, **options).ids
    ranked = {system: rows_of(bench, ids, most) for system, ids in found.items()}
    return {("flat", system, k): rows[:, :k] for system, rows in ranked.items() for k in budgets}


def answers(
    bench: Bench,
    reader: Reader,
    seeds: Sequence[int],
    budgets: Sequence[int],
    count: int,
    minutes: float,
    backwards: bool = False,
) -> None:
    """Read what all retrievers find for the first ``count`` questions of a fixed draw, and write EM and F1 down.

    Where time is up, the rows are of those questions whose documents have been read by then.
    """
    assert bench.kept
    until = time.perf_counter() + 60 * minutes
    order = np.random.default_rng(0).permutation(len(bench.questions.texts))[:count]
    questions, texts = bench.questions.part(order), bench.data.texts
    found = {
        (seed, *key): keys
        for seed in seeds
        for key, keys in lists_of(bench, questions, seed, budgets).items()
        if key[2] <= MANY or seed == seeds[0]
    }
    if few := [k for k in budgets if k <= MANY]:
        for key, keys in rivals_of(bench, questions, seeds[-1], few).items():
            found[seeds[-1], *key] = keys
    found[0, GIVEN, "the passage that has the answer", 1] = questions.gold[:, None]
    pairs = Pairs(bench.kept / f"pairs-{reader.fingerprint[:12]}.jsonl")
    rows: list[dict[str, Any]] = []
    for index, k in turns(budgets):
        here = {key: keys for key, keys in found.items() if (key[1], key[3]) == (index, k)}
        wanted = [
            sorted({(q, int(row)) for keys in here.values() for row in keys[q] if row >= 0})
            for q in range(count)
        ]
        print(f"{index}, {k} documents: {sum(map(len, wanted))} pairs", flush=True)
        in_turn = wanted[::-1] if backwards else wanted
        pairs.read(reader, questions, texts, [pair for some in in_turn for pair in some], until)
        known = np.array(
            [q for q, some in enumerate(wanted) if all(pair in pairs.known for pair in some)], int
        )
        for (seed, _, system, _), keys in here.items() if len(known) else ():
            row = {"index": index, "system": system, "k": k, "seed": seed, "questions": len(known)}
            rows.append(row | judged(pairs, questions, known, keys, reader.threshold))
    (bench.kept / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def turns(budgets: Sequence[int]) -> list[tuple[str, int]]:
    """Indexes and budgets in the order they are read: small ones everywhere, then large ones where lists end soon."""
    small, large = ([k for k in budgets if (k <= FEW) == few] for few in (True, False))
    lists = [*READ[1:], READ[0]]
    return [
        (GIVEN, 1),
        *((name, k) for k in small for name in READ),
        *((name, k) for name in lists for k in large),
    ]


def judged(
    pairs: Pairs, questions: Questions, known: np.ndarray, keys: np.ndarray, threshold: float
) -> dict[str, Any]:
    """EM and F1 of every question that is known, always answering; how many the threshold would answer."""
    em, score, said = [], [], []
    for question in known.tolist():
        text, there = pairs.answer(question, [row for row in keys[question].tolist() if row >= 0])
        accepted = questions.answers[question]
        em.append(exact_match(text, accepted))
        score.append(round(f1(text, accepted), 4))
        said.append(there >= threshold)
    return {
        "accuracy": questions.part(known).accuracy(keys[known]),
        "read": float((keys[known] >= 0).sum(1).mean()),
        "em": [int(value) for value in em],
        "f1": score,
        "answered": float(np.mean(said)),
    }


def table(kept: Path) -> str:
    """Means over seeds, and by how much each is ahead of the encoder in EM, with its standard error over questions."""
    grouped: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in (kept / "answers.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        grouped[row["index"], row["system"], row["k"]].append(row)

    def mean(key: tuple[str, str, int], name: str) -> np.ndarray:
        """[Q] over seeds."""
        return 100 * np.mean([row[name] for row in grouped[key]], axis=0)

    lines = []
    for name in dict.fromkeys(index for index, _, _ in grouped):
        systems = list(dict.fromkeys(system for index, system, _ in grouped if index == name))
        most = max(rows[0]["questions"] for rows in grouped.values())
        shown = sorted(
            {key[2] for key, rows in grouped.items() if key[0] == name and rows[0]["questions"] > most / 2}
        )
        counts = {
            k: next(rows[0]["questions"] for key, rows in grouped.items() if key[2] == k) for k in shown
        }
        heads = [f"@{k} ({counts[k]} questions)" for k in shown]
        lines += [f"\n### {name}\n", "| system | " + " | ".join(heads) + " |", "|---|" + "---|" * len(shown)]
        for system in systems:
            cells = [""] * len(shown)
            for place, k in enumerate(shown):
                if (name, system, k) not in grouped:
                    continue
                em, score = mean((name, system, k), "em"), mean((name, system, k), "f1")
                found = np.mean([row["accuracy"] for row in grouped[name, system, k]])
                cells[place] = f"{found:.1f} · {em.mean():.1f} · {score.mean():.1f}"
                if system != "encoder" and (name, "encoder", k) in grouped:
                    ahead = em - mean((name, "encoder", k), "em")
                    cells[place] += f" ({ahead.mean():+.1f} ± {ahead.std() / len(ahead) ** 0.5:.1f})"
            lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
