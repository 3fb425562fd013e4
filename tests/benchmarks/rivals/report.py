"""Tables and the figure, from the stored results."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, pstdev
from typing import Any

from recording import table

Result = dict[str, Any]
Rows = dict[str, dict[str, dict[str, list[float]]]]
"""Row → size → metric → values over the seeds."""
COLOURS = ("#0b7a75", "#d1495b", "#e09f3e", "#3d5a99", "#7b4f9d", "#6b8f3a", "#8a6d5b", "#4a9cc7")
MAIN = (
    "BM25",
    "encoder",
    "encoder, principal components",
    "linear adapter",
    "linear adapter, batches of 512",
    "Matryoshka adapter",
    "GMM, leaf probabilities",
    "tree",
    "tree, without labels",
    "no tree",
)
"""Rows of the first tables; other trees are variants."""
SIZES, VARIANT_SIZES, LEAVES = ("256", "64", "32", "16", "8"), ("1024", "32"), ("1024", "32")
METRIC = "ndcg@10"


def rows_of(results: Iterable[Result], kind: str, split: str) -> Rows:
    """The scores of one kind of representation."""
    rows: Rows = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for result in results:
        for name, row in result["rows"].items():
            if row["kind"] == kind:
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
    """Markdown: by data set nDCG@10 by size, then variants, leaf search and what training takes over all sets."""
    sets = {
        data: [r for r in results if r["data"] == data] for data in dict.fromkeys(r["data"] for r in results)
    }
    parts = []
    for data, here in sets.items():
        facts, rows = here[-1]["facts"], rows_of(here, "representation", split)
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
    every = {data: rows_of(here, "representation", split) for data, here in sets.items()}
    leaves = {data: rows_of(here, "leaves", split) for data, here in sets.items()}
    for title, found, names, sizes in (
        (
            "### Variants of the tree\n\nnDCG@10 by columns, means over the seeds.",
            every,
            [n for n in _names(every) if n == "tree" or (n.startswith("tree, ") and n not in MAIN)],
            VARIANT_SIZES,
        ),
        (
            "### Search within clusters\n\nnDCG@10 by leaves and, in brackets, the share of the documents compared.",
            leaves,
            _names(leaves),
            LEAVES,
        ),
    ):
        if len(names) > 1:
            head = ["", *(f"{data} {size}" for data in sets for size in sizes)]
            lines = [
                [name, *(_value(found[data].get(name, {}).get(size)) for data in sets for size in sizes)]
                for name in names
            ]
            parts += [title, table(head, lines)]
    systems = [name for name in (*MAIN, "k-means, leaf search") if any(r["system"] == name for r in results)]
    lines = [[name, *(_seconds(here, name) for here in sets.values())] for name in systems]
    parts += [
        "### Processor seconds to train\n\nMeans over the seeds; for the encoder: to encode the documents.",
        table(["", *sets], [line for line in lines if any(line[1:])]),
    ]
    return "\n\n".join(parts)


def _names(found: Mapping[str, Rows]) -> list[str]:
    return list(dict.fromkeys(name for rows in found.values() for name in rows))


def _value(measured: Mapping[str, list[float]] | None) -> str:
    if not measured:
        return ""
    compared = f" ({cell(measured['visited'])})" if "visited" in measured else ""
    return cell(measured[METRIC]) + compared


def _seconds(results: Sequence[Result], name: str) -> str:
    runs = [r["seconds"] for r in results if r["system"] == name]
    values = [run.get("train", run.get("encode", 0.0)) for run in runs]
    return f"{mean(values):.3g}" if values and any(values) else ""


# -- the figure -----------------------------------------------------------------------------------------------

PANEL_W, PANEL_H, LEFT, TOP, GAP, ROW_GAP = 340, 250, 52, 46, 62, 84


def figure(results: Sequence[Result], names: Sequence[str] | None = None, split: str = "test") -> str:
    """nDCG@10 over the logarithm of the columns, one panel a data set, as SVG that stands alone."""
    sets = list(dict.fromkeys(r["data"] for r in results))
    every = list(
        dict.fromkeys(n for r in results for n, row in r["rows"].items() if row["kind"] == "representation")
    )
    shown = [name for name in every if names is None or name in names]
    style = {
        name: (COLOURS[i % len(COLOURS)], ("", "5 3", "2 2")[i // len(COLOURS) % 3])
        for i, name in enumerate(shown)
    }
    columns = min(2, len(sets))
    width = LEFT + columns * (PANEL_W + GAP)
    height = (
        TOP + math.ceil(len(sets) / columns) * (PANEL_H + ROW_GAP) + 20 * math.ceil(len(shown) / columns) + 10
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12">',
        "<title>nDCG@10 by size of the representation</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for place, data in enumerate(sets):
        x0 = LEFT + place % columns * (PANEL_W + GAP)
        y0 = TOP + place // columns * (PANEL_H + ROW_GAP)
        rows = rows_of([r for r in results if r["data"] == data], "representation", split)
        parts += _panel(data, {name: rows[name] for name in shown if name in rows}, style, x0, y0)
    y0 = TOP + math.ceil(len(sets) / columns) * (PANEL_H + ROW_GAP) - 8
    for place, name in enumerate(shown):
        x, y = LEFT + place % columns * (PANEL_W + GAP), y0 + 20 * (place // columns)
        colour, dash = style[name]
        parts.append(
            f'<line x1="{x}" x2="{x + 26}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/><text x="{x + 34}" y="{y}" fill="#222">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    data: str, rows: Mapping[str, Any], style: Mapping[str, tuple[str, str]], x0: int, y0: int
) -> list[str]:
    high = max((mean(v["ndcg@10"]) for row in rows.values() for v in row.values()), default=1.0)
    top = math.ceil(high * 10) / 10

    def at(size: float, value: float) -> str:
        return f"{x0 + (math.log2(size) - 1) / 9 * PANEL_W:.1f},{y0 + (1 - value / top) * PANEL_H:.1f}"

    parts = [f'<text x="{x0}" y="{y0 - 14}" font-weight="600" fill="#111">{data}: nDCG@10</text>']
    for tick in range(round(top * 10) + 1):
        y = y0 + (1 - tick / 10 / top) * PANEL_H
        parts.append(f'<line x1="{x0}" x2="{x0 + PANEL_W}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e3e3"/>')
        parts.append(
            f'<text x="{x0 - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{tick / 10:.1f}</text>'
        )
    for power in range(1, 11):
        x = x0 + (power - 1) / 9 * PANEL_W
        parts.append(
            f'<text x="{x:.1f}" y="{y0 + PANEL_H + 17}" text-anchor="middle" fill="#555">{2**power}</text>'
        )
    parts.append(
        f'<text x="{x0 + PANEL_W / 2}" y="{y0 + PANEL_H + 34}" text-anchor="middle" fill="#555">columns</text>'
    )
    for name, row in rows.items():
        colour, dash = style[name]
        points = sorted((int(size), mean(values["ndcg@10"])) for size, values in row.items() if size)
        line = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        if not points:  # words have no columns: a line across
            value = mean(row[""]["ndcg@10"])
            points = [(2, value), (1024, value)]
        if len(points) == 1:
            x, y = at(*points[0]).split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"><title>{name}</title></circle>')
        else:
            track = " ".join(at(*point) for point in points)
            parts.append(f'<polyline points="{track}" {line}><title>{name}</title></polyline>')
    return parts
