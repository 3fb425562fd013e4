"""Tables and the figure, from the stored results."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

__all__ = ["append", "curve", "figure", "read", "tables"]

Result = dict[str, Any]
METRICS = {"ndcg@10": "nDCG@10", "recall@10": "Recall@10"}
COLOURS = ("#0b7a75", "#d1495b", "#e09f3e", "#3d5a99", "#7b4f9d", "#6b8f3a", "#8a6d5b", "#4a9cc7")


def read(path: Path) -> list[Result]:
    """One result a line; of the same data, system and seed the last counts."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    results = (json.loads(line) for line in lines if line.strip())
    return list({(r["data"], r["system"], r["seed"]): r for r in results}.values())


def append(path: Path, result: Result) -> None:
    """Add a line, so that several runs may write to one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def _rows(results: Iterable[Result], kind: str, split: str) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Row → size → metric → values over the seeds."""
    rows: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for result in results:
        for name, row in result["rows"].items():
            if row["kind"] == kind:
                for size, values in row["scores"][split].items():
                    for metric, value in values.items():
                        rows[name][size][metric].append(value)
    return rows


def _cell(values: Sequence[float], digits: int = 3) -> str:
    """``.731``, with ``± .004`` where there are several seeds."""
    if not values:
        return ""
    text = f"{mean(values):.{digits}f}"
    spread = f" ± {pstdev(values):.{digits}f}" if len(values) > 1 else ""
    return (text + spread).replace("0.", ".")


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join(["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(x) + " |" for x in lines)])


def _by_size(rows: Mapping[str, Any], metric: str, first: str) -> str:
    sizes = sorted({size for row in rows.values() for size in row if size}, key=int, reverse=True)
    columns = ["", *sizes] if any("" in row for row in rows.values()) else sizes
    head = [first, *(size or "words" for size in columns)]
    return _table(
        head,
        ([name, *(_cell(row[s][metric]) if s in row else "" for s in columns)] for name, row in rows.items()),
    )


def tables(results: Sequence[Result], split: str = "test") -> str:
    """Markdown: per data set the metrics by size, the searches by leaf, and what building took."""
    parts = []
    for data in dict.fromkeys(r["data"] for r in results):
        here = [r for r in results if r["data"] == data]
        facts = here[-1]["facts"]
        parts.append(f"## {data}")
        parts.append(
            f"{facts['documents']:,} documents, {facts['train pairs']:,} training pairs, {facts[split]:,} {split} "
            f"queries; {'titles and text' if facts['titles'] else 'text only'}; {facts['encoder']}."
        )
        for kind, first, title in (
            ("representation", "columns", "by columns of the representation"),
            ("leaves", "leaves", "by leaves, one or several searched and reranked by the encoder"),
        ):
            rows = _rows(here, kind, split)
            for metric, label in {
                **METRICS,
                **({"visited": "Documents compared"} if kind == "leaves" else {}),
            }.items():
                if rows:
                    parts += [
                        f"**{label}** {title}" if metric != "visited" else "**Share of documents compared**",
                        _by_size(rows, metric, first),
                    ]
        parts += [
            "**Building**: processor seconds (mean over the seeds), and memory above that of the loaded data",
            _building(here),
        ]
    return "\n\n".join(parts)


def _building(results: Sequence[Result]) -> str:
    by_system: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_system[result["system"]].append(result)
    lines = []
    for name, runs in by_system.items():
        seconds = [
            [run["seconds"][part] for run in runs if part in run["seconds"]]
            for part in ("encode", "train", "index")
        ]
        peaks = [run["peak_mib"] for run in runs if run["peak_mib"] is not None]
        notes = json.dumps(runs[0]["notes"], ensure_ascii=False)[1:-1].replace('"', "").replace("|", "/")
        cells = [f"{mean(values):.3g}" if values else "" for values in seconds]
        lines.append([name, *cells, f"{max(peaks):,.0f}" if peaks else "", str(len(runs)), notes])
    return _table(
        ["system", "encode", "train", "index", "peak MiB", "seeds", "chosen on dev, and notes"], lines
    )


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
        rows = _rows([r for r in results if r["data"] == data], "representation", split)
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


def curve(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, str]]]], label: str) -> str:
    """Named points (x, y, name) on lines in the order given, one panel a title, as SVG that stands alone."""
    columns = min(2, len(panels))
    width, height = (
        LEFT + columns * (PANEL_W + GAP),
        TOP + math.ceil(len(panels) / columns) * (PANEL_H + ROW_GAP),
    )
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 20}" width="{width}" '
        f'height="{height + 20}" font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{label}</title>",
        f'<rect width="{width}" height="{height + 20}" fill="#fff"/>',
    ]
    for place, (title, lines) in enumerate(panels.items()):
        x0, y0 = LEFT + place % columns * (PANEL_W + GAP), TOP + place // columns * (PANEL_H + ROW_GAP)
        right = math.ceil(max(x for line in lines.values() for x, _, _ in line) * 1.15)
        heights = [y for line in lines.values() for _, y, _ in line]
        tick = 0.1 if max(heights) - min(heights) > 0.2 else 0.02
        first = math.floor(min(heights) / tick)
        last = max(first + 1, math.ceil(max(heights) / tick))
        parts.append(f'<text x="{x0}" y="{y0 - 14}" font-weight="600" fill="#111">{title}</text>')
        for place_of in range(first, last + 1):
            y = y0 + (last - place_of) / (last - first) * PANEL_H
            parts.append(f'<line x1="{x0}" x2="{x0 + PANEL_W}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e3e3"/>')
            parts.append(
                f'<text x="{x0 - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{place_of * tick:.2g}</text>'
            )
        for step in range(0, right + 1, max(1, right // 6)):
            x = x0 + step / right * PANEL_W
            parts.append(
                f'<text x="{x:.1f}" y="{y0 + PANEL_H + 17}" text-anchor="middle" fill="#555">{step}</text>'
            )
        parts.append(
            f'<text x="{x0 + PANEL_W / 2}" y="{y0 + PANEL_H + 34}" text-anchor="middle" fill="#555">{label}</text>'
        )
        for name, line in lines.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            spots = [
                (x0 + x / right * PANEL_W, y0 + (last - y / tick) / (last - first) * PANEL_H, said)
                for x, y, said in line
            ]
            track = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in spots)
            parts.append(f'<polyline points="{track}" fill="none" stroke="{colour}" stroke-width="2"/>')
            for turn, (x, y, said) in enumerate(spots):
                below = 16 if turn % 2 else -6
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
                parts.append(
                    f'<text x="{x + 6:.1f}" y="{y + below:.1f}" fill="#333" font-size="10">{said}</text>'
                )
    for place, name in enumerate(names):
        x = LEFT + place * 200
        parts.append(
            f'<rect x="{x}" y="{height - 8}" width="14" height="14" fill="{COLOURS[place % len(COLOURS)]}"/>'
            f'<text x="{x + 22}" y="{height + 4}" fill="#222">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
