"""Quality against speed: trees from gentle to sharp, each measured both ways, and the curve they lie on.

    python tests/benchmarks/sharpness.py DATA --out tests/benchmarks/results/sharpness.md

DATA is a BEIR folder with train, dev and test judgements. A tree is trained for each ``--points`` (sharpness:growth)
with all else at its default, judged on dev and test, and timed over so many documents grown from the data (as
``speed.py`` grows them) beside FAISS's flat inner product on the same numbers, in the same process, on one thread.
Sharpness is to be chosen by dev; test only says what came of it. Finished points are lines of the ``.jsonl`` beside
``--out``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from rivals.bench import Bench, fold, overlaps
from rivals.report import append, curve, read
from speed import corpus, ours, theirs, timed

from palmette import TreeModel
from palmette.arrays import as_floats, to_fixed
from palmette.methods.tree import init
from palmette.search import set_threads

POINTS = ("0.1:1.414", "0.3:1.414", "1:1.414", "3:1.414", "10:1.414", "1:1.5", "3:1.5")
MARK = "<!-- What follows is written by sharpness.py; what stands above is kept. -->"
SIZES = {"leaves": None, "32 columns": 32}


def quality(model: TreeModel, bench: Bench) -> dict[str, dict[str, float]]:
    """Split → leaves, and 32 columns → nDCG@10, of leaves in fixed point, as an index keeps them."""
    sizes = {name: min(size or model.config.leaves, model.config.leaves) for name, size in SIZES.items()}
    documents = held(model.embed([document.content for document in bench.data.corpus]))
    queries = {split: held(model.embed(bench.texts(split), kind="query")) for split in bench.queries}
    scores = bench.judge(queries, documents, list(sizes.values()), fold, overlaps)
    return {
        split: {name: by[str(size)]["ndcg@10"] for name, size in sizes.items()}
        for split, by in scores.items()
    }


def held(leaves: np.ndarray) -> np.ndarray:
    """What is left of probabilities in an index."""
    return as_floats(to_fixed(leaves))


def pace(model: TreeModel, bench: Bench, count: int) -> dict[str, Any]:
    """Milliseconds of ours and of FAISS's flat inner product, one question and in a batch, in turns; what is read."""
    texts = bench.encoder.encode_queries(bench.texts("dev")[:64])
    grown = corpus(model, bench.documents, texts, count, 0.6, "uint16")
    mine, flat = next(ours(grown)), next(theirs(grown, 0))
    rounds: dict[str, list[tuple[float, float]]] = {"ours": [], "flat": []}
    for _ in range(3):
        for name, way in (("ours", mine), ("flat", flat)):
            rounds[name].append(timed(way.ask, grown.queries, 1, 3))
    best = {name: np.min(spent, axis=0) for name, spent in rounds.items()}
    read, compared = (part.strip() for part in mine.touched.split("|"))
    return {
        "effective": round(grown.effective),
        "ms": [round(float(ms), 3) for ms in best["ours"]],
        "flat ms": [round(float(ms), 3) for ms in best["flat"]],
        "read": read,
        "compared": compared,
    }


def measure(bench: Bench, point: str, count: int, seed: int) -> dict[str, Any]:
    """One tree."""
    sharpness, growth = map(float, point.split(":"))
    begun = time.perf_counter()
    init.GROWTH = growth
    options: dict[str, Any] = {"sharpness": sharpness, "seed": seed, "progress": False}
    model = TreeModel.fit(
        bench.data,
        encoder=bench.encoder,
        cache=bench.encoder.cache,
        steps=bench.steps,
        depth=bench.depth,
        **options,
    )
    result = {"ndcg@10": quality(model, bench), **pace(model, bench, count)}
    print(f"  {bench.data.name}: {point}: {time.perf_counter() - begun:.0f} s", flush=True)
    return result


def written(results: list[dict[str, Any]]) -> str:
    """The tables, one a data set."""
    parts = []
    for data in dict.fromkeys(r["data"] for r in results):
        here = [r for r in results if r["data"] == data]
        parts += [
            f"## {data}, {here[0]['documents']:,} documents grown from it\n",
            "| sharpness | growth | effective leaves | dev, leaves | dev, 32 columns | test, leaves | test, 32 "
            "| one question, ms | in a batch | FAISS flat IP, ms | times faster, one / in a batch "
            "| read a document | compared |",
            "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for r in sorted(here, key=lambda r: [float(part) for part in r["system"].split(":")][::-1]):
            scores = [f"{r['ndcg@10'][split][size]:.3f}"[1:] for split in ("dev", "test") for size in SIZES]
            times = faster(r)
            cells = [*r["system"].split(":"), str(r["effective"]), *scores]
            cells += [f"{r['ms'][0]:.2f}", f"{r['ms'][1]:.2f}", f"{r['flat ms'][0]:.1f}"]
            cells += [f"{times[0]:.1f} / {times[1]:.1f}", r["read"], r["compared"]]
            parts.append("| " + " | ".join(cells) + " |")
        parts.append("")
    return "\n".join(parts)


def faster(result: dict[str, Any]) -> tuple[float, float]:
    """Times faster than FAISS, one question and in a batch."""
    one, many = (theirs / mine for mine, theirs in zip(result["ms"], result["flat ms"], strict=True))
    return one, many


def drawn(results: list[dict[str, Any]]) -> str:
    """The curve: times faster than FAISS by nDCG@10 on test, a line for each growth."""
    panels: dict[str, dict[str, list[tuple[float, float, str]]]] = {}
    for r in sorted(results, key=lambda r: float(r["system"].partition(":")[0])):
        sharpness, growth = r["system"].split(":")
        for size in SIZES:
            title = f"{r['data']}: nDCG@10 on test, {size}"
            line = panels.setdefault(title, {}).setdefault(f"slopes grow by {growth}", [])
            line.append((faster(r)[0], r["ndcg@10"]["test"][size], f"{float(sharpness):g}"))
    return curve(panels, "times faster than FAISS, one question; at each point its sharpness")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="BEIR folders")
    parser.add_argument("--points", nargs="+", default=POINTS, help="sharpness:growth")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--cache", type=Path, help="where encodings are kept")
    parser.add_argument("--out", type=Path, default=Path("sharpness.md"))
    args = parser.parse_args(argv)
    set_threads(1)
    faiss.omp_set_num_threads(1)
    store = args.out.with_suffix(".jsonl")
    for folder in args.data:
        name = Path(folder).name
        done = {r["system"] for r in read(store) if (r["data"], r["seed"]) == (name, args.seed)}
        missing = [point for point in args.points if point not in done]
        bench = (
            Bench.load(folder, args.encoder, args.cache, steps=args.steps, depth=args.depth)
            if missing
            else None
        )
        for point in missing:
            assert bench is not None
            about = {"data": name, "system": point, "seed": args.seed, "documents": args.documents}
            append(store, about | measure(bench, point, args.documents, args.seed))
    results = read(store)
    if not results:
        raise SystemExit(f"nothing is stored in {store}: give a data folder")
    kept = (
        args.out.read_text("utf-8").partition(MARK)[0]
        if args.out.exists()
        else "# Quality, sharpness and speed\n\n"
    )
    args.out.write_text(f"{kept}{MARK}\n\n{written(results)}", encoding="utf-8")
    args.out.with_suffix(".svg").write_text(drawn(results), encoding="utf-8")


if __name__ == "__main__":
    main()
