"""Passages of real manuals and of code: is the evidence ranked first, and in how few words is it given?

    python benchmarks/passages.py --data DATA [--npm FOLDER] [--sets uv npm python] [--tokens 280 350 420 560]
                                        [--above none text pass words]

Sets: ``uv``, the manual in DATA/manual_uv with forty questions; ``npm``, npm's own documentation (FOLDER is the
``docs/content`` of an installed npm); ``python``, 35 modules of the standard library. The questions of the last two lie
beside this file; they were written before any search. A set whose texts are not there is named and left out.

Measured: ``mrr``, the reciprocal rank, among ten, of the first passage that holds half of a string of evidence; the
share of questions whose evidence is within the first 300 and 600 words of the passages, and of excerpts of them
(:func:`palmette.index.excerpts.choose_excerpts`). ``--above``: title and headings are not read (none), stand in the
passage's text (text), are read before it and left out of the means (pass), are so and are looked for as words, too
(words).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logit

from common import ENCODER, number
from palmette import Document, Index, SpaceModel, load_encoder
from palmette.encoder import CachedEncoder, Encoder
from palmette.encoder.base import WrappedEncoder
from palmette.index.excerpts import Candidate, choose_excerpts
from palmette.sources.blocks import blocks_of
from palmette.sources.convert import SourceText, read_file
from palmette.sources.passages import Passage, PassageOptions, above, split

HERE = Path(__file__).parent
SETS, WAYS = ("uv", "npm", "python"), ("none", "text", "pass", "words")
BUDGETS = (300, 600)
MODULES = (
    "heapq copy functools tempfile logging/handlers textwrap shlex difflib graphlib queue contextlib configparser csv "
    "random dataclasses statistics urllib/parse shutil fnmatch getpass threading pprint secrets calendar bisect "
    "reprlib sched glob fileinput string base64 cmd netrc timeit weakref"
).split()
DEPTH, RANKED = 20, 10
MEASURES = ("mrr", *(f"{kind} {budget}" for kind in ("passages", "excerpts") for budget in BUDGETS))
Span = tuple[str, int, int]


@dataclass
class Manual:
    """Files, and questions with the places of their evidence."""

    files: dict[str, SourceText]
    questions: list[str] = field(default_factory=list)
    evidence: list[list[Span]] = field(default_factory=list)

    def ask(self, row: dict[str, Any]) -> None:
        """Add a question; its evidence counts in the sections ``gold``, in ``file``, or wherever it stands."""
        places: list[Span] = []
        for words in row["evidence"]:
            if "gold" in row:
                for gold in row["gold"]:
                    places += self._places(words, gold["file"], gold["heading"])[:1]
            else:
                for name in self.files:
                    places += self._places(words, name) if row.get("file", name) == name else []
        assert places, row["text"]
        self.questions.append(row["text"])
        self.evidence.append(places)

    def _places(self, words: str, name: str, heading: str | None = None) -> list[Span]:
        source = self.files[name]
        blocks = [block for block in blocks_of(source.text, source.kind) if block.kind == "heading"]
        ends = [block.start for block in blocks[1:]] + [len(source.text)]
        sections = [(block.start, end) for block, end in zip(blocks, ends, strict=False) if block.name == heading]
        found = []
        for start, end in sections if heading is not None else [(0, len(source.text))]:
            at = source.text.lower().find(words.lower(), start, end)
            while at >= 0:
                found.append((name, at, at + len(words)))
                at = source.text.lower().find(words.lower(), at + 1, end)
        return found


def load(name: str, args: argparse.Namespace) -> Manual | None:
    """Read a set; nothing where its texts are not there."""
    if name == "python":
        root, paths = Path(os.__file__).parent, [Path(f"{module}.py") for module in MODULES]
    else:
        root = args.data / "manual_uv/docs" if name == "uv" else args.npm
        if root is None or not root.is_dir():
            return None
        paths = sorted(path.relative_to(root) for path in root.rglob("*.md"))
    manual = Manual({path.as_posix(): next(iter(read_file(root / path))) for path in paths})
    questions = args.data / "manual_uv/questions.jsonl" if name == "uv" else HERE / f"passages_{name}.jsonl"
    for line in questions.read_text(encoding="utf-8").splitlines():
        manual.ask(json.loads(line))
    return manual


class Recorder(WrappedEncoder):
    """Reads what stands above each text, and keeps the vectors of sentences."""

    def __init__(self, encoder: Encoder, titles: dict[str, str]) -> None:
        super().__init__(encoder)
        self.titles, self.sentences = titles, dict[str, tuple[Any, Any]]()

    forward = property(lambda self: self.encoder.forward)  # type: ignore[assignment]

    def encode_sentences(self, texts: Sequence[str], **options: Any) -> Any:
        options["above"] = [self.titles.get(text, "") for text in texts]
        pooled, found = self.encoder.encode_sentences(texts, **options)
        vectors = found.floats()
        for row, text in enumerate(texts):
            start, end = found.starts[row : row + 2]
            self.sentences[text] = found.spans[start:end], vectors[start:end]
        return pooled, found


@dataclass(frozen=True)
class Found:
    """A passage that a search gave, its log-odds, and its sentences with their cosines."""

    file: str
    passage: Passage
    candidate: Candidate


def search(manual: Manual, tokens: int, way: str, encoder: Encoder) -> tuple[int, list[list[Found]]]:
    """Cut and index a manual, and ask its questions: the number of passages, and for each question the first ones."""
    options, titles = PassageOptions(tokens=tokens), dict[str, str]()
    documents, places = [], list[tuple[str, Passage, int]]()
    for name, source in manual.files.items():
        for passage in split(source.text, source.kind, options, encoder.count_tokens):
            text = source.text[passage.start : passage.end]
            title = above(source.title or name, passage.headings, text)
            before = f"{title}\n\n" if way == "text" and title else ""
            if way in ("pass", "words"):
                titles[text] = title
            fields = {"above": title} if way == "words" and title else {}
            documents.append(Document(str(len(documents)), before + text, fields=fields))
            places.append((name, passage, passage.start - len(before)))
    recorder = Recorder(encoder, titles)
    index = Index.build(documents, SpaceModel.untrained(recorder), passages=None, progress=False)
    queries = encoder.encode_queries(manual.questions)
    answers = []
    for question, query in zip(manual.questions, queries, strict=True):
        row = []
        for hit in index.search(question, k=DEPTH):
            name, passage, shift = places[int(hit.id)]
            spans, vectors = recorder.sentences[hit.document.text]
            kept = [(int(start) + shift, int(end) + shift) for start, end in spans]
            inside = [(max(start, passage.start), end) for start, end in kept if end > passage.start]
            cosines = (vectors @ query)[len(kept) - len(inside) :].tolist()
            row.append(Found(name, passage, Candidate(name, float(logit(np.float64(hit.score))), inside, cosines)))
        answers.append(row)
    return len(documents), answers


def words_of(text: str) -> int:
    return len(text.split())


def cut(manual: Manual, spans: Sequence[Span], budget: int) -> list[Span]:
    """The spans within a budget of words: whole ones as long as they fit; a first one that is longer is cut."""
    kept: list[Span] = []
    for name, start, end in spans:
        text = manual.files[name].text[start:end]
        if words_of(text) > budget:
            if not kept:
                kept.append((name, start, start + len(" ".join(text.split(" ")[:budget]))))
            break
        budget -= words_of(text)
        kept.append((name, start, end))
    return kept


def covered(places: Sequence[Span], spans: Sequence[Span]) -> float:
    """The largest share of a piece of evidence that spans hold."""
    best = 0.0
    for name, start, end in places:
        held = {at for file, a, b in spans if file == name for at in range(max(a, start), min(b, end))}
        best = max(best, len(held) / (end - start))
    return best


def judge(manual: Manual, answers: Sequence[Sequence[Found]]) -> dict[str, float]:
    """Mean over the questions."""
    totals: dict[str, float] = dict.fromkeys(
        ("mrr", *(f"{kind} {n}" for kind in ("passages", "excerpts") for n in BUDGETS)), 0.0
    )
    for places, row in zip(manual.evidence, answers, strict=True):
        spans = [(one.file, one.passage.start, one.passage.end) for one in row]
        rank = next((n for n, span in enumerate(spans[:RANKED], 1) if covered(places, [span]) >= 0.5), 0)
        totals["mrr"] += 1 / rank if rank else 0.0
        for budget in BUDGETS:
            totals[f"passages {budget}"] += covered(places, cut(manual, spans, budget))
            chosen = choose_excerpts(
                [one.candidate for one in row], budget, lambda name, a, b: words_of(manual.files[name].text[a:b])
            )
            totals[f"excerpts {budget}"] += covered(places, [(one.document, one.start, one.end) for one in chosen])
    return {name: total / len(answers) for name, total in totals.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("PALMETTE_DATA"))
    parser.add_argument("--npm", type=Path, help="docs/content of an installed npm")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--tokens", nargs="+", type=int, default=[PassageOptions().tokens])
    parser.add_argument("--above", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--encoder", default=ENCODER)
    args = parser.parse_args(argv)
    args.data = Path(args.data or "missing")
    encoder = CachedEncoder(load_encoder(args.encoder))
    names = [
        "set",
        "tokens",
        "above",
        "passages",
        "mrr",
        *(f"{k} {n}" for k in ("passages", "excerpts") for n in BUDGETS),
    ]
    print(f"| {' | '.join(names)} |\n|{'---|' * 3}{'---:|' * (len(names) - 3)}")
    for name in args.sets:
        if (manual := load(name, args)) is None:
            print(f"| {name} | its texts are not there |", flush=True)
            continue
        for tokens in args.tokens:
            for way in args.above:
                count, answers = search(manual, tokens, way, encoder)
                figures = [number(value) for value in judge(manual, answers).values()]
                print(f"| {' | '.join([name, str(tokens), way, str(count), *figures])} |", flush=True)


if __name__ == "__main__":
    main()
