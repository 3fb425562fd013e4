"""The code blocks of Markdown pages, to be run as a reader would run them: from top to bottom, in one namespace."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.M | re.S)
NOT_RUN = re.compile(r'title="not run[^"]+"')


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    info: str
    code: str

    @property
    def runs(self) -> bool:
        """Whether it is code, and not marked, for the reader too, as not run."""
        return self.language in ("python", "sh") and not NOT_RUN.search(self.info)


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start()) + 1, m["language"], m["info"], dedent(m["code"]))
        for m in FENCE.finditer(text)
    ]


def run(block: Block, names: dict[str, Any]) -> None:
    """Run Python in a namespace (``await`` is welcome), and ``palmette`` commands of a shell block."""
    if block.language == "sh":
        for line in block.code.splitlines():
            _command(line)
        return
    source = "\n" * block.line + block.code  # so that a traceback names the page's line
    compiled = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def _command(line: str) -> None:
    from palmette.cli import build_parser, main, parse

    words = shlex.split(line, comments=True)
    if words[:1] != ["palmette"]:
        return
    if words[1] in ("serve", "mcp"):  # they end when they are told to
        parse(build_parser(words[1:]), words[1:])
        return
    quiet = ["--quiet"] if words[1] in ("train", "index", "evaluate") else []
    status = main([*words[1:], *quiet])
    assert status == 0, f"{line!r} ended with status {status}"


# id, title, text, topic, month
TABLE = """\
apples|Apples|Apples are picked in September and October. They keep until spring in a cold room.|fruit|9
pears|Pears|Pears are picked while they are hard. They ripen in a bowl and keep in a cool cellar.|fruit|10
cherries|Cherries|Cherries are picked with their stalks in June. Nets keep the birds away.|fruit|6
quinces|Quince jelly|Quinces are too hard to eat raw. Boil them for an hour to make jelly.|fruit|10
bees|Bees|Bees need flowers from March to October. A hive stands in the morning sun.|bees|3
honey|Honey|Honey is taken twice a year. It is ready when the bees have closed the cells with wax.|bees|7
sheep|Sheep|Sheep are shorn in May before it gets hot. They eat the grass under the trees.|wool|5
wool|Wool|Wash wool in lukewarm water. Never wring it; let it dry on a flat towel.|wool|5
wall|Palmettes|A palmette is a tree trained flat against a wall. Its branches lie in tiers.|trees|2
pruning|Pruning|Apple trees are pruned in late winter. A saw leaves a cleaner cut than an axe.|trees|2
scab|Scab|Scab makes brown spots on leaves and fruit. Rake up the fallen leaves in autumn.|trees|11
compost|Compost|Mix kitchen scraps with dry leaves. A heap that smells is too wet.|soil|4
"""
TEXTS = {
    id: (title, text, topic, int(month)) for id, title, text, topic, month in (r.split("|") for r in TABLE.splitlines())
}
QUESTIONS = {
    "q1": ("when is the harvest?", ["apples", "pears", "cherries"]),
    "q2": ("what do bees need?", ["bees"]),
    "q3": ("how is a tree trained against a wall?", ["wall"]),
    "q4": ("how do I wash wool?", ["wool"]),
    "q5": ("my compost stinks", ["compost"]),
    "q6": ("brown spots on the leaves", ["scab"]),
    "q7": ("when are sheep shorn?", ["sheep"]),
    "q8": ("how long are quinces boiled?", ["quinces"]),
}


def write_samples(folder: Path) -> None:
    """The files that pages speak of: ``docs.jsonl``, ``pairs.jsonl`` and the BEIR folder ``orchard``."""
    documents = [
        {"id": id, "text": f"{title}. {text}", "topic": topic, "month": month, "lang": "en", "year": 2024}
        for id, (title, text, topic, month) in TEXTS.items()
    ]
    _jsonl(folder / "docs.jsonl", documents)
    pairs = [{"query": q, "positive": TEXTS[gold][1]} for q, answers in QUESTIONS.values() for gold in answers]
    _jsonl(folder / "pairs.jsonl", pairs)
    orchard = folder / "orchard"
    (orchard / "qrels").mkdir(parents=True)
    _jsonl(orchard / "corpus.jsonl", [{"_id": id, "title": t, "text": text} for id, (t, text, *_) in TEXTS.items()])
    _jsonl(orchard / "queries.jsonl", [{"_id": id, "text": question} for id, (question, _) in QUESTIONS.items()])
    for split, ids in (("train", ["q5", "q6", "q7", "q8"]), ("dev", ["q4"]), ("test", ["q1", "q2", "q3"])):
        lines = [f"{id}\t{gold}\t1\n" for id in ids for gold in QUESTIONS[id][1]]
        (orchard / "qrels" / f"{split}.tsv").write_text("".join(lines))


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
