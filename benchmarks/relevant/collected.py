"""Collections made from the texts of a machine: headings and summaries as questions, what they head as documents.

A question is never part of its document; texts and questions that occur twice are left out. What a machine lacks is
skipped.
"""

from __future__ import annotations

import email
import gzip
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from palmette import sample_data
from palmette.sample import library_entries, summarise

Headed = Iterable[tuple[str | None, str]]
"""Headings that can be asked (``None``: cannot), and the texts under them."""
SHARE, SITE = Path("/usr/share"), f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
SHORTEST, ASKED, MIN_WORDS = 120, 300, 3
"""Characters of the shortest document; questions at most; words of the shortest question."""


class Texts(NamedTuple):
    """Documents, questions, and per question the relevant rows with their grades."""

    documents: list[str]
    questions: list[str]
    judged: list[dict[int, float]]


def how_to() -> Texts:
    """Handwritten questions about the standard library."""
    data = sample_data()
    asked = {**data.qrels["dev"], **data.qrels["test"]}
    judged = [{data.rows[key]: float(grade) for key, grade in graded.items()} for graded in asked.values()]
    return Texts([d.text for d in data.corpus], [data.queries[query] for query in asked], judged)


def docstrings() -> Headed:
    """First sentences of the standard library's docstrings; signatures with the rest."""
    for entry in library_entries():
        summary, body = summarise(entry["doc"])
        if len(body) >= 80:
            named = summary in entry["signature"]
            yield None if named else summary, f"{entry['signature'] or entry['id']}\n{body[:700]}"


def man_pages() -> Headed:
    """What a manual page's name line says; its description. At most 25 pages of one family (``git-``, ``gcloud_``)."""
    families = defaultdict(list)
    for path in (path for section in (1, 5, 7, 8) for path in sorted(SHARE.glob(f"man/man{section}/*.gz"))):
        families[re.split(r"[-_.0-9]", path.name)[0]].append(path)
    draw = random.Random(0)
    for path in [path for paths in families.values() for path in draw.sample(paths, min(25, len(paths)))]:
        found = roff(gzip.decompress(path.read_bytes()).decode("utf-8", "ignore"))
        line = re.match(r".*?\s+[-—]+\s+(.*)", found.get("NAME", ""), re.DOTALL)
        if line and len(description := found.get("DESCRIPTION", "")) > 150:
            yield " ".join(line[1].split()), description[:1000]


def roff(source: str) -> dict[str, str]:
    """Sections of a manual page as plain text."""
    source = re.sub(r"\\f\[?[A-Z]+\]?|\\f.|\\[&|,/^]|\\c", "", source)
    for mark, meant in ((r"\-", "-"), (r"\e", "\\"), (r"\(aq", "'"), (r"\(bu", "*")):
        source = source.replace(mark, meant)
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in re.sub(r"\\\*?\(..|\\\*?\[[^\]]*\]|\\s[-+]?\d", "", source).splitlines():
        if heading := re.match(r'\.\s*S[Hh]\s+"?([^"]*)', line):
            lines = sections[heading[1].strip().upper()] = []
        elif shown := re.match(r"\.(?:[BI]|BR|IR|BI|IB|RB|RI|SS|Nm|Fl|Ar|Xr|Dq|Pa|Nd|Em|Sy|Cm)\s+(.*)", line):
            lines.append(shown[1].replace('"', ""))
        elif re.match(r"\.(?:P|PP|LP|TP|IP|Pp)(?:\s|$)", line):
            lines.append("\n")
        elif not line.startswith((".", "'")):
            lines.append(line)
    return {name: re.sub(r" ?\n ?", "\n", plain(" ".join(lines))) for name, lines in sections.items()}


def command_examples() -> Headed:
    """What examples of a cloud's command line do; the commands with their output."""
    for path in sorted(Path(sys.base_prefix, SITE, "awscli/examples").rglob("*.rst")):
        parts = re.split(r"^\*\*(.+?)\*\*\s*$", read(path), flags=re.MULTILINE)
        for title, body in zip(parts[1::2], parts[2::2], strict=True):
            yield re.sub(r"^Example \d+:?\s*", "", title).strip().rstrip(":."), plain(body)[:600]


def manuals() -> Headed:
    """Headings of manuals in Markdown, reStructuredText and Vim's format; their sections."""
    node, cloud = SHARE / "doc/nodejs", Path("/usr/lib/google-cloud-sdk/platform/gsutil")
    for root in (node / "api", node / "contributing", Path("/usr/lib/node_modules/npm/docs"), cloud):
        for path in sorted(root.rglob("*.md")):
            text = re.sub(r"```.*?```", lambda code: code[0].replace("\n#", "\n //"), read(path), flags=re.DOTALL)
            parts = re.split(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", text, flags=re.MULTILINE)
            for head, body in zip(parts[1::2], parts[2::2], strict=True):
                body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
                yield None if "`" in head else head, body.strip()[:900]
    for path in sorted(SHARE.glob("vim/vim*/doc/*.txt")):
        for section in re.split(r"^={20,}$", read(path), flags=re.MULTILINE)[1:]:
            head, _, body = section.strip().partition("\n")
            head = re.sub(r"^[\d.]+", "", re.sub(r"\*[^*\s]+\*", "", head).strip()).strip()
            yield head.capitalize() if head.isupper() else head, plain(body)[:900]
    for path in sorted(SHARE.glob("cmake-*/Help/**/*.rst")):
        parts = re.split(r"^(.+)\n[-=^~#*.\"]{4,}\n", read(path), flags=re.MULTILINE)
        for head, body in zip(parts[1::2], parts[2::2], strict=True):
            yield None if re.search("[`_]", head) else head, body.strip()[:900]


def packages() -> Headed:
    """Summaries of installed packages, Python's and npm's; their descriptions without them."""
    for folder in (Path(sys.prefix, SITE), Path(sys.base_prefix, SITE), Path("/usr/lib/python3/dist-packages")):
        for path in [*sorted(folder.glob("*-info/METADATA")), *sorted(folder.glob("*-info/PKG-INFO"))]:
            message = email.message_from_string(read(path))
            body = str(message.get_payload() or message["Description"] or "")
            if message["Summary"] and body:
                yield message["Summary"], without(body, message["Summary"])
    for path in sorted(Path("/usr/lib/node_modules").rglob("package.json")):
        readme = next((path.with_name(n) for n in ("README.md", "readme.md") if path.with_name(n).exists()), None)
        summary = readme and json.loads(read(path) or "{}").get("description")
        if readme and summary:
            yield summary, without(read(readme), summary)


def without(text: str, summary: str) -> str:
    """Return a description without links, markup and its summary."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|<[^>]+>|https?://\S+", lambda found: found[1] or "", text)
    text = text.replace(summary, "").replace(summary.rstrip("."), "")
    return re.sub(r"\n\s*\n+", "\n\n", plain(text))[:1500]


def read(path: Path) -> str:
    """Return a file's text."""
    return path.read_text("utf-8", "ignore")


def plain(text: str) -> str:
    """Return a text without runs of blanks."""
    return re.sub(r"[ \t]+", " ", text).strip()


def headed(pairs: Headed, most: int) -> Texts:
    """Draw documents from headed texts, and as questions the headings that are there once."""
    kept: dict[str, tuple[str | None, str]] = {}
    for head, text in pairs:
        kept.setdefault(" ".join(text.split()), (head, text))
    kept = {key: pair for key, pair in kept.items() if len(key) >= SHORTEST}
    shared = Counter(head.lower() for head, _ in kept.values() if head)
    rows = list(kept.values())
    draw = random.Random(0)
    draw.shuffle(rows)
    rows = rows[:most]
    known = [
        row
        for row, (head, _) in enumerate(rows)
        if head and shared[head.lower()] == 1 and len(head.split()) >= MIN_WORDS
    ]
    draw.shuffle(known)
    chosen = sorted(known[:ASKED])
    return Texts([text for _, text in rows], [str(rows[row][0]) for row in chosen], [{row: 1.0} for row in chosen])


def collected() -> Iterator[tuple[str, Texts]]:
    """Make every collection that this machine has the texts for."""
    yield "python", how_to()
    makers = {docstrings: 1300, man_pages: 1200, command_examples: 1300, manuals: 1500, packages: 600}
    for maker, most in makers.items():
        found = headed(maker(), most)
        if len(found.questions) >= 50:
            yield maker.__name__, found
