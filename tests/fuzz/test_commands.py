"""Whatever is typed, and whatever lies in a file: a command ends with 0, 1 or 2, and a reader with a PalmetteError."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants  # noqa: F401 - read before a test sets HF_HUB_OFFLINE, which would last
import pytest
from hypothesis import strategies as st

from fuzz.test_calls import use_functions
from palmette import Index, load_data
from palmette.cli import COMMANDS, main
from palmette.data import iter_documents
from palmette.reader import load_reading
from support import readers, tiny
from support.odd import TEXTS, many

SUFFIXES = [".jsonl", ".csv", ".tsv", ".md", ".txt", ".json", ".jsonl.gz", ".csv.gz", "", ".parquet"]
KEYS = "id _id text title query positive negatives question context answers metadata".split()
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
RECORDS = st.dictionaries(st.sampled_from(KEYS), TEXTS | NESTED, max_size=4)
DEEP = "[" * 100_000 + "]" * 100_000
ODD_LINES = ["", "{", DEEP, '{"text": NaN}', '{"text": "a"}{"text": "b"}', '{"text": "\\ud800"}', "\ufeff"]
ODD_LINES += ['{"id": ' + "9" * 5000 + ', "text": "a"}', "a\tb\tc", "a,b", '"', "# t\n\ntext"]
LINES = st.lists(RECORDS.map(json.dumps) | st.sampled_from(ODD_LINES) | st.text(max_size=20), max_size=5).map(
    lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")
)
CONTENT = (
    LINES
    | st.binary(max_size=40)
    | LINES.map(gzip.compress)
    | LINES.map(lambda data: gzip.compress(data)[:-5])
    | LINES.map(lambda data: data + b"\xff\xfe")
)


def lie(name: str, content: bytes) -> Path:
    """A file, perhaps of a BEIR folder."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def whole(files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        lie(f"beir/{name}", content)
    return Path("beir")


BEIR = st.fixed_dictionaries({name: CONTENT for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")})
NAMES = st.sampled_from([f"data{suffix}" for suffix in SUFFIXES])
FILES: list[tuple[Any, ...]] = [
    (lambda name, content: list(iter_documents(lie(name, content))), NAMES, CONTENT),
    (lambda name, content: load_data(lie(name, content)), NAMES, CONTENT),
    (lambda name, content: load_reading(lie(name, content)), NAMES, CONTENT),
    (lambda files: load_data(whole(files)), BEIR),
]
FLAGS = (
    "--out --filter --lexical --device --explain --json --engine --threshold -k --language "
    "--split --baselines --reader --passages --card --outline --query --clear --revision "
    "--cache-dir --tag --quiet --level --debug --steps --depth --encoder --preset --seed "
).split()
VALUES = "index-folder checkpoint reader docs.jsonl nothing tree space 0 1 -1 nan inf {} [ fake:16 owl".split()
VALUES += ['{"lang": "en"}', '{"$and": []}', "", "red fox", "\x00", "\udcff", "x" * 5000, "--" + "x" * 300]
WORDS = st.sampled_from([*COMMANDS, *FLAGS, *VALUES]) | st.text(max_size=5)
ELSEWHERE = ("demo", "train", "ask", "push", "pull", "serve", "mcp")
"""Commands that take long, reach a hub or a model, or serve until they are told to stop; other tests run them."""
COMMAND = st.sampled_from([name for name in COMMANDS if name not in ELSEWHERE])


def typed(command: str, *first: str) -> st.SearchStrategy:
    """A command whose first words are right."""
    return st.tuples(st.just(command), st.lists(WORDS, max_size=4).map(lambda words: [*first, *words]))


LINES_TYPED = [
    st.tuples(COMMAND, st.lists(WORDS, max_size=6)),
    typed("search", "index-folder", "owl"),
    typed("answer", "index-folder", "owl", "--reader", "reader"),
    typed("index", "checkpoint", "docs.jsonl", "--out", "made"),
    typed("train", "space", "docs.jsonl", "--encoder", "fake:16", "--out", "trained"),
    typed("inspect", "index-folder"),
]


def run(command: str, words: list[str]) -> None:
    """Run a command in this process."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = main([command, *words])
        except SystemExit as end:
            code = end.code
    assert code in (0, 1, 2), code
    assert "Traceback" not in said.getvalue()


TYPED: list[tuple[Any, ...]] = [(lambda given: run(*given), line) for line in LINES_TYPED]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with documents, an index, a checkpoint and a reader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path / "cache"))
    docs = tiny.documents()[:8]
    facts = ({"id": d.id, "text": d.text, "metadata": dict(d.metadata)} for d in docs)
    Path("docs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in facts))
    Index.build(docs, tiny.tree(), "index-folder", progress=False).close()
    tiny.tree().save_pretrained("checkpoint")
    readers.sentence_reader().save_pretrained("reader")


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("uses", [pytest.param(FILES, id="files"), pytest.param(TYPED, id="commands")])
@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_nothing_else_is_raised(uses: list[tuple[Any, ...]], examples: int) -> None:
    many(use_functions, uses, examples)
