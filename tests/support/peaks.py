"""Peak memory of one call in this process, beyond what it held before: run as a program, which has a model loaded."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTS = {
    "letters": "x", "words": "", "rare words": "", "short words": "a ", "sentences": ". ", "camelCase": "fooBar",
    "dotted": "a.", "marks": "e\u0301", "only marks": "\u0301", "mixed marks": "a\u0301\u0327", "han": "語",
    "emoji": "😀", "lines": "a\n", "paragraphs": "a\n\n", "fences": "```\nx = 1\n```\n\n", "open fence": "```\nx\n",
    "items": "- a\n", "nested items": "", "quotes": "> > > a\n", "rows": "|a|b|\n", "table": "", "headings": "# a\n\n",
    "code": "def a(x):\n    return x\n\n", "control signs": "a\x01", "hyphens": "a-", "open tags": "<div>\n",
}  # fmt: skip
"""Texts by the part that is repeated; those without one are made below."""


def text_of(name: str, size: int) -> str:
    """Return a text of about ``size`` bytes of UTF-8."""
    draw = random.Random(0)
    if name == "words":
        known = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20_000)]
        return " ".join(draw.choice(known) + "." * (number % 12 == 11) for number in range(size // 6))
    if name == "rare words":
        return " ".join(f"{number:x}" for number in range(size // 6))
    if name == "nested items":
        return "".join("  " * (number % 40) + "- a\n" for number in range(size // 44))
    if name == "table":
        return "|a|b|\n|-|-|\n" + "|cell|word word word|\n" * (size // 22)
    return PARTS[name] * (size // len(PARTS[name].encode()))


def vectors(texts: list[str]) -> Any:
    """An encoder that takes no memory of its own: 384 numbers by the hash of a text."""
    import numpy as np

    rows = [hashlib.shake_128(text.encode("utf-8", "surrogatepass")).digest(384) for text in texts]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 384) / np.float32(255) + np.float32(0.01)


def _memory(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def measured(call: Callable[[], object]) -> dict[str, Any]:
    """Peak in MB beyond the memory before, processor time, and the error where a call is refused."""
    from palmette.errors import PalmetteError

    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, begun, error = _memory("VmRSS"), time.process_time(), ""
    try:
        call()
    except PalmetteError as refused:
        error = str(refused)
    return {"peak": _memory("VmHWM") - before, "seconds": time.process_time() - begun, "error": error}


def _calls(index: Any, folder: Path, text: str) -> dict[str, Callable[[], object]]:
    from palmette import Document, Reader

    reader = Reader.untrained(index.model.encoder.plain)

    def file(name: str, content: str) -> Callable[[], object]:
        def sync() -> object:
            (folder / name).parent.mkdir()
            (folder / name).write_text(content, "utf-8", "surrogatepass")
            report = index.sync(folder / name.partition("/")[0])
            return report

        return sync

    return {
        "add": lambda: index.add([Document("long", text)]),
        "search": lambda: index.search(text),
        "explain": lambda: index.explain(text, "doc"),
        "context": lambda: index.context(text),
        "answer": lambda: reader.answer("some words of it?", [Document("long", text)]),
        "question": lambda: reader.answer(text, [Document("doc", "some words of it. " * 9)]),
        "file.md": file("md/a.md", text),
        "file.txt": file("txt/a.txt", text),
        "file.py": file("py/a.py", text),
        "file.html": file("html/a.html", f"<html><body>{text}</body></html>"),
        "file.jsonl": file("jsonl/a.jsonl", json.dumps({"text": text})),
        "file.ipynb": file("ipynb/a.ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": text}]})),
    }


def main(call: str, name: str, size: str) -> None:
    """Print the measurement of a call with a text as JSON."""
    from palmette import Document, Index, SpaceModel

    with tempfile.TemporaryDirectory() as folder:
        texts = ["some words of it. " * 9, "# A\n\nMore words. " * 200, "```\nx\n```\n| a |\n|-|\n| b |\n"]
        documents = [Document("doc" if not number else f"doc{number}", text) for number, text in enumerate(texts)]
        index = Index.build(documents, SpaceModel.untrained(vectors), Path(folder) / "index")
        index.search("words")
        print(json.dumps(measured(_calls(index, Path(folder), text_of(name, int(size)))[call])))
        index.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
