"""Draws docs/assets/palmette.svg, the picture of the README, and logo.svg: `python docs/picture.py`."""

from __future__ import annotations

from html import escape
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
GREEN, DARK, LIGHT, ORANGE, CREAM, WIRE = "#2f5d3a", "#1f3a28", "#7fa886", "#c8622f", "#fbf8f1", "#d9d2c3"
WIDTH, HEIGHT, DEPTH = 1200, 620, 4
LEFT, RIGHT = 150, 900
TIER = [500, 420, 345, 275, 210]
"""Height of each level's wire, from the root up."""
FOUND = "LRRL"
FONT = 'font-family="ui-sans-serif, Segoe UI, Helvetica, Arial, sans-serif"'


def place(name: str) -> float:
    """Where a node stands, by its turns from the root."""
    low, high = float(LEFT), float(RIGHT)
    for turn in name:
        middle = (low + high) / 2
        low, high = (low, middle) if turn == "L" else (middle, high)
    return (low + high) / 2


def branch(name: str, stroke: str, width: float) -> str:
    """From a node's parent along the wire and up, as branches on an espalier are led."""
    x0, x1 = place(name[:-1]), place(name)
    y0, y1 = TIER[len(name) - 1], TIER[len(name)]
    bend = min(22.0, abs(x1 - x0)) * (1 if x1 > x0 else -1)
    path = f"M{x0:.1f} {y0} H{x1 - bend:.1f} Q{x1:.1f} {y0} {x1:.1f} {y0 - abs(bend):.1f} V{y1}"
    return f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{width}" stroke-linecap="round"/>'


def text(x: float, y: float, words: str, size: int = 17, fill: str = DARK, more: str = "") -> str:
    """A line of text."""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" {FONT} {more}>{escape(words)}</text>'


def leaf(x: float, y: float, fill: str, scale: float = 1.0) -> str:
    """A pair of leaves at a tip."""
    side = (f"M0 0 C {12 * s} -4 {14 * s} -16 {10 * s} -26 C 0 -22 {-2 * s} -10 0 0 Z" for s in (-1, 1))
    shapes = "".join(f'<path d="{path}"/>' for path in side)
    return f'<g transform="translate({x:.1f} {y}) scale({scale})" fill="{fill}">{shapes}</g>'


def card(x: float, y: float, found: bool) -> str:
    """A document."""
    edge, line = (ORANGE, ORANGE) if found else (LIGHT, "#b9c9bb")
    lines = "".join(
        f'<rect x="{x - 11:.1f}" y="{y + 8 + 6 * row}" width="{width}" height="2.4" rx="1.2" fill="{line}"/>'
        for row, width in enumerate((22, 17, 20, 12))
    )
    box = (
        f'<rect x="{x - 17:.1f}" y="{y}" width="34" height="36" rx="5" fill="#fff" stroke="{edge}" '
        f'stroke-width="{2.6 if found else 1.4}"/>'
    )
    return box + lines


def picture() -> str:
    """The tree with its wires, a question below and what it finds above."""
    names = [format(n, f"0{d}b").replace("0", "L").replace("1", "R") for d in range(1, 5) for n in range(2**d)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="A question climbs a trained tree to the documents that answer it">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="18" fill="{CREAM}"/>',
        text(60, 62, "palmette", 34, GREEN, 'font-weight="700"'),
        text(240, 61, "a tree, trained flat in tiers. Here: trained on your documents.", 19, "#5b6a5f"),
    ]
    for level in range(1, DEPTH + 1):
        y = TIER[level]
        parts.append(f'<path d="M60 {y} H940" stroke="{WIRE}" stroke-width="2" stroke-dasharray="2 7"/>')
        fill = GREEN if level == DEPTH else "#5b6a5f"
        parts.append(text(962, y + 5, f"level {level}: {2**level} columns", 17, fill))
    parts.append(text(962, TIER[1] + 34, "fast and small", 16, "#8a8471", 'font-style="italic"'))
    parts.append(text(962, TIER[4] - 26, "fine; up to 2¹⁴ columns", 16, "#8a8471", 'font-style="italic"'))
    root = place("")
    parts.append(f'<path d="M{root} 540 V{TIER[0]}" stroke="{ORANGE}" stroke-width="11" stroke-linecap="round"/>')
    parts += [branch(name, GREEN, 8.5 - 1.5 * len(name)) for name in names if not FOUND.startswith(name)]
    parts += [branch(FOUND[:n], ORANGE, 10 - 1.2 * n) for n in range(1, 5)]
    for name in (name for name in names if len(name) == DEPTH):
        found = name == FOUND
        parts.append(leaf(place(name), TIER[4], ORANGE if found else LIGHT))
        parts.append(card(place(name), TIER[4] - 76, found))
    x = place(FOUND)
    parts += [
        f'<rect x="{x - 205:.1f}" y="86" width="410" height="40" rx="20" fill="{ORANGE}"/>',
        text(
            x,
            112,
            "shutil.copytree · 0.83 · left, right, right, left",
            17,
            "#fff",
            'text-anchor="middle" font-weight="600" textLength="384" lengthAdjust="spacingAndGlyphs"',
        ),
        f'<rect x="{root - 150:.1f}" y="540" width="300" height="46" rx="23" fill="#fff" stroke="{ORANGE}" '
        f'stroke-width="2.6"/>',
        text(root, 569, "How do I copy a folder?", 19, DARK, 'text-anchor="middle"'),
        text(60, 569, "no LLM · no GPU · no labels needed", 17, "#5b6a5f"),
        text(1140, 569, "LangChain · LlamaIndex · Hub", 17, "#5b6a5f", 'text-anchor="end"'),
        "</svg>",
    ]
    return "\n".join(parts)


def logo() -> str:
    """The tree alone, two tiers."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" fill="none">',
        f'<rect width="64" height="64" rx="14" fill="{CREAM}"/>',
        f'<path d="M32 57 V47" stroke="{GREEN}" stroke-width="4.6" stroke-linecap="round"/>',
    ]
    for low, high, y, top, width in ((18, 46, 47, 36, 4.2), (10, 26, 33, 25, 3.4), (38, 54, 33, 25, 3.4)):
        path = f"M{low} {top} V{y - 6} Q{low} {y} {low + 6} {y} H{high - 6} Q{high} {y} {high} {y - 6} V{top}"
        parts.append(f'<path d="{path}" stroke="{GREEN}" stroke-width="{width}" stroke-linecap="round"/>')
    parts += [leaf(x, 25, ORANGE if x == 26 else LIGHT, 0.5) for x in (10, 26, 38, 54)]
    return "\n".join([*parts, "</svg>"])


if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    (ASSETS / "palmette.svg").write_text(picture() + "\n", encoding="utf-8")
    (ASSETS / "logo.svg").write_text(logo() + "\n", encoding="utf-8")
