"""Tables, from the stored results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, pstdev
from typing import Any

from recording import table

Result = dict[str, Any]
Rows = dict[str, dict[str, dict[str, list[float]]]]
"""Row → size → metric → values over the seeds."""
MAIN = (
    "BM25",
    "encoder",
    "encoder, principal components",
    "linear adapter",
    "linear adapter, batches of 512",
    "Matryoshka adapter",
    "tree",
    "tree, without labels",
    "no tree",
)
"""Rows of the first tables; other trees are variants."""
SIZES, VARIANT_SIZES = ("256", "64", "32", "16", "8"), ("1024", "32")
METRIC = "ndcg@10"


def rows_of(results: Iterable[Result], split: str) -> Rows:
    """The scores of all rows."""
    rows: Rows = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for result in results:
        for name, row in result["rows"].items():
            for size, values in row["scores"][split].items():
                for metric, value in values.items():
                    rows[name][size][metric].append(value)
    return rows


def cell(values: Sequence[float], spread: bool = False) -> str:
    """``.731``, with ``± .004`` where there are several seeds and it is asked for."""
    if not values:
        return ""
    more = f" ± {pstdev(values):.3f}" if spread and len(values) > 1 else ""
    return (f"{mean(values):.3f}" + more).replace("0.", ".")


def full(row: Mapping[str, Any]) -> str:
    """The largest size of a row; words have none."""
    return max(row, key=lambda size: int(size or 0))


def tables(results: Sequence[Result], split: str = "test") -> str:
    """Markdown: by data set nDCG@10 by size, then variants and what training takes over all sets."""
    sets = {
        data: [r for r in results if r["data"] == data] for data in dict.fromkeys(r["data"] for r in results)
    }
    parts = []
    for data, here in sets.items():
        facts, rows = here[-1]["facts"], rows_of(here, split)
        parts.append(
            f"### {data}\n\n{facts['documents']:,} documents, {facts['train pairs']:,} training pairs, "
            f"{facts[split]:,} {split} questions; nDCG@10 by columns, and recall@10 of all columns."
        )
        lines = []
        for name in (name for name in MAIN if name in rows):
            row, most = rows[name], full(rows[name])
            lines.append(
                [
                    name,
                    cell(row[most][METRIC], spread=True),
                    *(cell(row[size][METRIC]) if size in row else "" for size in SIZES),
                    cell(row[most]["recall@10"]),
                ]
            )
        parts.append(table(["", "all", *SIZES, "recall"], lines))
    every = {data: rows_of(here, split) for data, here in sets.items()}
    names = [n for n in dict.fromkeys(n for rows in every.values() for n in rows) if n.startswith("tree")]
    names = [n for n in names if n == "tree" or n not in MAIN]
    if len(names) > 1:
        head = ["", *(f"{data} {size}" for data in sets for size in VARIANT_SIZES)]
        lines = [
            [
                name,
                *(
                    cell(every[d].get(name, {}).get(size, {}).get(METRIC, []))
                    for d in sets
                    for size in VARIANT_SIZES
                ),
            ]
            for name in names
        ]
        parts += ["### Variants of the tree\n\nnDCG@10 by columns, means over the seeds.", table(head, lines)]
    systems = [name for name in MAIN if any(r["system"] == name for r in results)]
    lines = [[name, *(_seconds(here, name) for here in sets.values())] for name in systems]
    parts += [
        "### Processor seconds to train\n\nMeans over the seeds; for the encoder: to encode the documents.",
        table(["", *sets], [line for line in lines if any(line[1:])]),
    ]
    return "\n\n".join(parts)


def _seconds(results: Sequence[Result], name: str) -> str:
    runs = [r["seconds"] for r in results if r["system"] == name]
    values = [run.get("train", run.get("encode", 0.0)) for run in runs]
    return f"{mean(values):.3g}" if values and any(values) else ""
