"""Files from strangers: whatever a checkpoint or an index folder holds, it loads, or raises a PalmetteError."""

from __future__ import annotations

import gc
import gzip
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palmette import FakeEncoder, Index, SpaceModel, load_data, load_model
from palmette.encoder.sentences.splitting import estimate_tokens, split_sentences
from palmette.errors import CheckpointError, CorruptIndexError, InputError
from palmette.hub.checkpoint import LAYOUT, Entry, dump_manifest
from palmette.lexical.analyser import Analyser
from palmette.reader import Reader, load_reading
from palmette.sources import convert, records
from palmette.sources.passages import PassageOptions, split
from support import readers, tiny
from support.effort import little_work
from support.hostile import spoiled
from support.odd import attempt
from support.stores import sql

MODEL = SpaceModel.untrained(FakeEncoder(16))


def rewrite(folder: Path, name: str, data: bytes) -> None:
    """Put other content under a name, with the sums that belong to it."""
    (folder / name).write_bytes(data)
    listed = json.loads((folder / LAYOUT.manifest).read_bytes())["files"]
    entries = {name: Entry.of((folder / name).read_bytes()) for name in {*listed, name}}
    (folder / LAYOUT.manifest).write_bytes(dump_manifest(entries))


METHODS = [pytest.param("fields", marks=pytest.mark.exhaustive), *"layers paths space taxonomy tree reader".split()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_a_checkpoint_with_right_sums_and_impossible_content(method: str, count: int, tmp_path: Path) -> None:
    model: Any = readers.sentence_reader() if method == "reader" else tiny.METHODS[method]()
    whole = model.save_pretrained(tmp_path / "whole")
    names = sorted(path.name for path in whole.glob("*.json") if path.name != LAYOUT.manifest)
    draw = random.Random(method)

    def use(folder: Path) -> None:
        if method == "reader":
            Reader.from_pretrained(folder).answer("where?", ["The red cat lives in house 1."])
            return
        with Index.build(tiny.documents()[:3], load_model(folder), progress=False) as index:
            assert [hit.explain() for hit in index.search("red cat", k=2)]

    for _ in range(count):
        name = draw.choice([*names, LAYOUT.config])
        made = spoiled(json.loads((whole / name).read_bytes()), draw)
        shutil.rmtree(tmp_path / "odd", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "odd")
        rewrite(tmp_path / "odd", name, json.dumps(made).encode())
        attempt(use, tmp_path / "odd")


def test_fields_without_limits_are_refused() -> None:
    model: Any = tiny.METHODS["fields"]()
    with pytest.raises(CheckpointError, match="fields need as many limits, got 0"):
        type(model).module_for(model.config.replace(limits=()), model.encoder)


def test_sizes_that_a_header_declares_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    whole = tiny.tree().save_pretrained(tmp_path / "checkpoint")
    config = json.loads((whole / LAYOUT.config).read_bytes())
    wide = {**config, "config": {**config["config"], "width": 10**12}}
    rewrite(whole, LAYOUT.config, json.dumps(wide).encode())
    with pytest.raises(CheckpointError, match="instead of"):
        load_model(whole)
    rewrite(whole, LAYOUT.config, json.dumps(config).encode())
    header = json.dumps({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    rewrite(whole, LAYOUT.weights, len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="safetensors"):
        load_model(whole)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Index.build(tiny.documents()[:4], MODEL, tmp_path / "index", progress=False) as index:
        assert index.path is not None
        return index.path


def test_links_and_paths_out_of_a_folder(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (".owner.json", ".lock", "model/config.json"):
        kept = (folder / name).read_bytes() if (folder / name).exists() else None
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(victim)
        with pytest.raises(CorruptIndexError, match="symbolic link"):
            Index.open(folder)
        (folder / name).unlink()
        if kept is not None:
            (folder / name).write_bytes(kept)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    shutil.rmtree(folder / "segments")
    (folder / "segments").symlink_to(other / "segments")  # a writer would sweep what it does not know there
    with pytest.raises(CorruptIndexError, match="symbolic link"):
        Index.open(folder)
    sql(other, "UPDATE segments SET name = '../../victim'")
    with pytest.raises(CorruptIndexError, match="names of its own files"):
        Index.open(other)
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "note.md").symlink_to(victim)
    with pytest.raises(InputError, match="link out of"):
        load_data(texts)
    saved = MODEL.save_pretrained(tmp_path / "saved")
    (saved / ".palmette-ready").symlink_to(other)
    with pytest.raises(CheckpointError, match="symbolic link"):
        MODEL.save_pretrained(saved)
    assert victim.read_text() == "precious"


def test_files_that_unpack_to_more_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST_LINE", 10_000)
    monkeypatch.setattr(convert, "_MOST_BYTES", 50_000)
    monkeypatch.setattr(records, "SMALL", 50_000)
    monkeypatch.setattr(records, "RATIO", 2)
    for name, content, told in (
        ("line.jsonl", b'{"text": "' + b"x" * 20_000 + b'"}', "longer than"),
        ("line.csv", b"text\n" + b"x" * 20_000, "longer than"),
        ("text.md", b"x" * 60_000, "may have 50,000: split it"),
        ("many.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 10**6), "unpacks to"),
        ("squad.json.gz", gzip.compress(b" " * 10**6), "unpacks to"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=told):
            load_reading(tmp_path / name) if "squad" in name else load_data(tmp_path / name)


@pytest.mark.parametrize("name", ["docs.jsonl.gz", "docs.csv.gz", "squad.json.gz"])
@pytest.mark.parametrize("line", [b"\n", b" \r\n"])
def test_small_files_that_unpack_to_many_lines(name: str, line: bytes, tmp_path: Path) -> None:
    """38 kB of packed blank lines took half a minute."""
    begin = b"text\n" if "csv" in name else b""
    (tmp_path / name).write_bytes(gzip.compress(begin + line * (38_000_000 // len(line))))
    with little_work(2), pytest.raises(InputError):
        load_reading(tmp_path / name) if "squad" in name else load_data(tmp_path / name)


ADVERSE = {
    "one word": "x", "camelCase": "fooBar", "dots": ".", "dotted": "a.", "marks": "e\u0301", "only marks": "\u0301",
    "mixed marks": "\u0301\u0327", "musical notes": "\U0001d160", "letters with marks": "a\u0301\u0327",
    "commas": "1,", "han": "語", "hyphens": "a-", "blanks": " ", "lines": "\n", "fences": "```\n", "headings": "# a\n",
    "quotes": '."', "ligatures": "\ufdfa", "code": "def a(\n",
    "items": "- a\n", "rows": "|a|\n|-|\n", "returns": "\r", "rules": "---\n", "quoted": "> ", "open": "(",
}  # fmt: skip
READERS: dict[str, Callable[[str], Any]] = {
    "words": lambda text: Analyser().words(text),
    "highlights": lambda text: Analyser().matches("fox a", text),
    "sentences": split_sentences,
    **{
        f"passages of {kind}": lambda text, kind=kind: split(text, kind, PassageOptions(tokens=60), estimate_tokens)
        for kind in ("markdown", "rst", "text", "code:python", "code:java")
    },
}


def least(read: Callable[[str], Any], text: str, times: int) -> float:
    """Processor time of a reader, the least of several; the garbage of other tests is not collected meanwhile."""
    took = []
    gc.disable()
    for _ in range(times):
        begun = time.process_time()
        read(text)
        took.append(time.process_time() - begun)
    gc.enable()
    return min(took)


@pytest.mark.parametrize("size", [10_000, pytest.param(500_000, marks=pytest.mark.exhaustive)])
def test_texts_are_read_in_linear_time(size: int) -> None:
    """Twice the text takes about twice the time: four times would be a square."""
    slow = {}
    for name, part in ADVERSE.items():
        for reader, read in READERS.items():
            texts = [part * (length // len(part)) for length in (size, 4 * size)]
            for times in (1, 5):
                short, long = (least(read, text, times) for text in texts)
                if long <= 10 * short + size / 2e5:  # a square would take sixteen times
                    break
            else:
                slow[name, reader] = short, long
    assert not slow
