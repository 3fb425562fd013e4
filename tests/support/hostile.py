"""Index folders as a stranger could make them: anything inside is changed, and every sum is made right again."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import socket
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from functools import wraps
from pathlib import Path
from tokenize import TokenError
from typing import Any

import apsw
import numpy as np

from palmette.hub.checkpoint import LAYOUT, Entry, dump_manifest
from palmette.store.local.database import DATABASE, TABLES, connect
from palmette.store.local.folder import json_digest, note_commit
from palmette.types import content_digest

Harm = Callable[[Path, random.Random], str]
"""Changes an index folder; returns what was done."""

EXTREME = [
    0, 1, -1, 2, 5, 63, 64, 255, 256, 2**16, 2**26 - 1, 2**26, 2**31 - 1, 2**32 - 1, -(2**31), 2**53, 2**62, 2**63 - 1,
    -(2**63),
]  # fmt: skip
FLOATS = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e38, 1e-45, -3e38]


# -- sums ---------------------------------------------------------------------------------------------------


def seal(folder: Path) -> None:
    """Write sizes and sums of the arrays into the database, and the note of the last commit, as they are now."""
    with suppress(apsw.Error), closing(connect(folder / DATABASE, "mode=rw")) as connection:
        for name, files in connection.execute("SELECT name, files FROM segments").fetchall():
            listed = {}
            with suppress(ValueError, TypeError, AttributeError, RecursionError, OSError):
                for file, facts in json.loads(files).items():
                    path = folder / "segments" / str(name) / file
                    listed[file] = facts
                    if path.is_file():
                        content = path.read_bytes()
                        listed[file] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                connection.execute("UPDATE segments SET files = ? WHERE name = ?", [json.dumps(listed), name])
        with suppress(Exception):
            note_commit(connection, folder, durable=False)


def write_array(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array(file, array)


def raw(folder: Path) -> apsw.Connection:
    """A connection that may change the schema itself."""
    connection = connect(folder / DATABASE, "mode=rw")
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 1)
    return connection


# -- arrays -------------------------------------------------------------------------------------------------


def numbers(array: np.ndarray, draw: random.Random) -> np.ndarray:
    """Change some numbers of an array, or their order."""
    flat = array.copy().reshape(-1)
    kind = draw.choice(["some", "some", "some", "all", "reverse", "shuffle", "roll", "shift", "repeat"])
    if not flat.size:
        return array
    if kind == "some":
        for _ in range(draw.choice([1, 1, 2, 8])):
            flat[draw.randrange(flat.size)] = number(flat.dtype, flat, draw)
    elif kind == "all":
        flat[:] = number(flat.dtype, flat, draw)
    elif kind == "reverse":
        flat = flat[::-1].copy()
    elif kind == "shuffle":
        np.random.default_rng(draw.randrange(2**32)).shuffle(flat)
    elif kind == "roll":
        flat = np.roll(flat, 1)
    elif kind == "shift":
        with np.errstate(all="ignore"):
            flat = (flat + number(flat.dtype, flat, draw)).astype(flat.dtype)
    else:
        flat[1:] = flat[:-1].copy()
    return flat.reshape(array.shape)


def number(kind: np.dtype, flat: np.ndarray, draw: random.Random) -> Any:
    if kind.kind == "f":
        with np.errstate(all="ignore"):
            return np.array(draw.choice(FLOATS)).astype(kind)
    near = int(draw.choice(flat.tolist())) if flat.size else 0
    value = draw.choice([*EXTREME, near, near + 1, near - 1, near + 64, len(flat), draw.randrange(2**32)])
    return np.array(value % 2**64, np.uint64).astype(kind)


def spoil_array(folder: Path, draw: random.Random) -> str:
    """Change one to three arrays: their numbers, length, shape or type."""
    told = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        path = draw.choice(sorted(folder.glob("segments/*/*.npy")))
        array = np.load(path)
        kind = draw.choice(["numbers"] * 6 + ["shorter", "longer", "empty", "shape", "dtype", "order", "header"])
        if kind == "numbers":
            array = numbers(array, draw)
        elif kind == "shorter":
            array = array[: draw.randrange(len(array) + 1)]
        elif kind == "longer":
            array = np.concatenate([array, array[-draw.randrange(1, 9) :]])
        elif kind == "empty":
            array = array[:0]
        elif kind == "shape":
            array = array.reshape(draw.choice([(-1, 1), (1, -1), (1, 1, -1)]))
        elif kind == "dtype":
            array = array.astype(draw.choice(["int8", "int64", "float32", "uint16", ">i8", "bool"]))
        elif kind == "order":
            array = np.asfortranarray(array.reshape(len(array), -1))
        write_array(path, array)
        if kind == "header":
            spoil_header(path, draw)
        told.append(f"{path.name} {kind}")
    seal(folder)
    return ", ".join(told)


def spoil_header(path: Path, draw: random.Random) -> None:
    """Describe an array otherwise than it is."""
    content = path.read_bytes()
    size = struct.unpack("<H", content[8:10])[0]
    described = eval(content[10 : 10 + size])
    described |= draw.choice(
        [{"shape": (10**18,)}, {"shape": (-1,)}, {"descr": "|O"}, {"shape": ()}, {"descr": "<V16"}, {"more": 1},
         {"shape": (2**62, 2**62)}, {"shape": "x"}, {"descr": [("a", "<i4")]}, {"fortran_order": 3}]
    )  # fmt: skip
    text = draw.choice([repr(described), "(" * 4000, "{" * 200, "1" * 5000, "\0", "__import__('os')"])
    data = text.encode("latin1")[:60_000]
    path.write_bytes(content[:8] + struct.pack("<H", len(data)) + data + content[10 + size :])


# -- the database -------------------------------------------------------------------------------------------

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i"
SCHEMAS = [
    *(f"ALTER TABLE {name} RENAME TO moved; CREATE VIEW {name} AS {ENDLESS} name, 1 value FROM n" for name in TABLES),
    f"ALTER TABLE segments RENAME TO moved; CREATE VIEW segments AS {ENDLESS} position, 'a' name, 1 count, '[]' files"
    " FROM n",
    f"ALTER TABLE dead RENAME TO moved; CREATE VIEW dead AS {ENDLESS} AS key FROM n",
    "ALTER TABLE meta RENAME TO moved; CREATE VIEW meta AS SELECT name, value FROM moved",
    *(f"CREATE TRIGGER t AFTER INSERT ON {name} BEGIN DELETE FROM documents; {ENDLESS} FROM n; END" for name in TABLES),
    "CREATE TRIGGER t AFTER DELETE ON documents BEGIN DELETE FROM meta; END",
    "ALTER TABLE documents ADD COLUMN more TEXT",
    "ALTER TABLE documents ADD COLUMN more TEXT AS (hex(zeroblob(1000000000)))",
    "ALTER TABLE meta ADD COLUMN more AS (value || value)",
    "CREATE TABLE more(x)",
    "CREATE INDEX more ON documents(text)",
    "CREATE UNIQUE INDEX more ON documents(key) WHERE length(hex(text)) > 5",
    "DROP TABLE dead; CREATE TABLE dead(key TEXT PRIMARY KEY)",
    "DROP TABLE dead; CREATE TABLE dead(key INTEGER PRIMARY KEY, CHECK(key > 0))",
    "DROP TABLE metadata; CREATE TABLE metadata(name, value, key)",
    "DROP TABLE segments",
    "DROP TABLE dead; CREATE VIRTUAL TABLE dead USING rtree(key, a, b)",
    "DROP TABLE meta; CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT) STRICT",
]  # fmt: skip


def spoil_schema(folder: Path, draw: random.Random) -> str:
    """Put views, triggers, columns or other tables in place of the ones that were made."""
    statement = draw.choice(SCHEMAS)
    with closing(raw(folder)) as connection, suppress(apsw.Error):
        connection.execute(statement).fetchall()
    return statement


NESTED = "[" * 100_000
ODD = [
    None, b"\xff\x00", b"text", "", "x", "null", "[]", "[1]", "{}", '"a"', "1", "Infinity", "1e999", "NaN", NESTED, 0,
    -1, '{"a": Infinity}', '{"a": 1e999}', '{"documents": "x"}', 2**62, 2**63 - 1, -(2**63), 1e308, 1.5, "\0",
    "9" * 5000, '{"a": ' * 50_000, "é" * 100, '{"a": ' * 500 + "1" + "}" * 500, '{"n": ' + "9" * 4000 + "}",
    '{"a.b": {"": {"": 1}}}',
]  # fmt: skip
COLUMNS_OF = {
    "meta": ["value"],
    "documents": ["key", "id", "text", "metadata", "fields", "payload", "digest"],
    "metadata": ["name", "value", "key"],
    "segments": ["position", "name", "count", "files"],
    "dead": ["key"],
}
NOTES = [*ODD, '{"own": {}}', '{"own": {"unit": 0}}', '{"own": {"unit": 1e-300, "zero": 1e300}, "documents": 5}']


def spoil_rows(folder: Path, draw: random.Random) -> str:
    """Store any value, NULL and bytes among them, in any column, whatever its type or condition."""
    table = draw.choice(sorted(COLUMNS_OF))
    column, value = draw.choice(COLUMNS_OF[table]), draw.choice(ODD)
    some = draw.choice(["", " LIMIT 1"])
    name = draw.choice(["note units", "note units", "generation", "next_key", "fingerprint", "stemmer"])
    if table == "meta" and draw.random() < 0.5:
        value = draw.choice(NOTES)
    set_values(folder, table, column, value, some, name if table == "meta" else "")
    return f"{table}.{column} {name} {some} = {str(value)[:40]!r}"


def set_values(folder: Path, table: str, column: str, value: Any, some: str, name: str = "") -> None:
    """Set a column of all rows, or of ``some``, or the value of one ``name`` of the table meta."""
    with closing(raw(folder)) as connection:
        kept = connection.execute("SELECT name, sql FROM sqlite_schema").fetchall()
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '')")
    with closing(raw(folder)) as connection, suppress(apsw.Error, OverflowError):
        if name:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [name, value])
        else:
            where = f"WHERE {COLUMNS_OF[table][0]} IN (SELECT {COLUMNS_OF[table][0]} FROM {table}{some})"
            connection.execute(f"UPDATE OR REPLACE {table} SET {column} = ? {where}", [value])
    with closing(raw(folder)) as connection, suppress(apsw.Error):
        connection.execute("PRAGMA writable_schema=ON")
        for table_name, sql in kept:
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", [sql, table_name])
    seal(folder)


PARTS: list[Any] = [
    {}, {"a": 10**30}, {"a": 1e308}, {"": {"": 1}}, {"a": {"b": {"c": [1, [2, [3]]]}}}, {"$and": 1}, {"a": None},
    {"a": [1] * 3000}, {"a.b": 1, "a": {"b": 2}}, {"house": "x"}, {"colour": True}, {"x" * 5000: 1}, {"a": "\x00"},
]  # fmt: skip


def spoil_documents(folder: Path, draw: random.Random) -> str:
    """Change documents, with digests that belong to them."""
    told = []
    with closing(connect(folder / DATABASE, "mode=rw")) as connection:
        rows = connection.execute("SELECT key, text, metadata, fields, payload FROM documents").fetchall()
        for key, text, *parts in draw.sample(rows, draw.choice([1, len(rows)])):
            parts = [json.loads(part) for part in parts]
            kind = draw.choice(["text", 0, 1, 2])
            if kind == "text":
                text = draw.choice(["", "x" * 100_000, "\0", "é\u0301" * 50, "red " * 20_000, "<img onerror=1>"])
            else:
                parts[kind] = draw.choice(PARTS)
            told.append(f"{kind}: {str(parts[kind] if kind != 'text' else text)[:40]!r}")
            stored = [json.dumps(part) for part in parts]
            values = [text, *stored, content_digest(text, *parts), key]
            statement = "UPDATE documents SET text = ?, metadata = ?, fields = ?, payload = ?, digest = ? WHERE key = ?"
            connection.execute(statement, values)
    seal(folder)
    return told[0]


def knot_pages(folder: Path, draw: random.Random) -> str:
    """Knot the pages of a table of the index."""
    table = draw.choice(["dead", "segments", "documents", "sqlite_schema", "meta", "metadata"])
    path = folder / DATABASE
    with closing(connect(path, "mode=rw")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema").fetchall())
        pages = connection.execute("PRAGMA page_count").fetchall()[0][0]
    root = roots.get(table, 1)
    if path.read_bytes()[(root - 1) * 4096 + (100 if root == 1 else 0)] not in (13, 10):
        return f"{table} is no leaf"
    levels = draw.choice([3, 4, 5])
    if root == 1:
        return "schema"
    changed = knot(path, root, pages, levels, draw)
    for number in changed:
        with path.open("r+b") as file:
            file.seek((number - 1) * 4096)
            page = file.read(4096)
            file.seek((number - 1) * 4096)
            file.write(page[:-8] + page_sum(page[:-8]))
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    return f"{table} {levels} levels"


def knot(path: Path, root: int, pages: int, levels: int, draw: random.Random) -> list[int]:
    """Let every child of a page of a table be the same page, several levels deep: few pages, billions of rows.

    Returns the numbers of the pages that were written.
    """
    content = bytearray(path.read_bytes())
    leaf = content[(root - 1) * 4096 : root * 4096]
    content += leaf
    made = below = pages + 1
    for level in range(levels):
        page = interior(leaf[0], below, draw, leaf)
        if level == levels - 1:
            content[(root - 1) * 4096 : root * 4096] = page
        else:
            content += page
            made += 1
            below = made
    content[28:32] = struct.pack(">I", made)
    path.write_bytes(bytes(content))
    return [*range(pages + 1, made + 1), root, 1]


def interior(kind: int, child: int, draw: random.Random, leaf: bytes) -> bytes:
    """A page whose children are all one page."""
    table = kind == 13
    cells, cell = [], struct.pack(">I", child) + (b"\x01" if table else b"\x02\x01\x00")
    count = (4096 - 8 - 12) // (len(cell) + 2)
    body = bytearray(4096)
    body[0] = 5 if table else 2
    place = 4096 - 8
    for number in range(count):
        if table:
            cell = struct.pack(">I", child) + bytes([0x80 | (number >> 7) & 0x7F, number & 0x7F])
        place -= len(cell)
        if place < 12 + 2 * (number + 1):
            break
        body[place : place + len(cell)] = cell
        cells.append(place)
    body[3:5] = struct.pack(">H", len(cells))
    body[5:7] = struct.pack(">H", cells[-1])
    body[8:12] = struct.pack(">I", child)
    body[12 : 12 + 2 * len(cells)] = b"".join(struct.pack(">H", at) for at in cells)
    return bytes(body)


def page_sum(page: bytes) -> bytes:
    """The checksum that cksumvfs gives a page: two sums over pairs of words."""
    one = two = 0
    words = struct.unpack(f"<{len(page) // 4}I", page)
    for at in range(0, len(words), 2):
        one = (one + words[at] + two) & 0xFFFFFFFF
        two = (two + words[at + 1] + one) & 0xFFFFFFFF
    return struct.pack("<II", one, two)


# -- files --------------------------------------------------------------------------------------------------


def spoil_json(folder: Path, draw: random.Random) -> str:
    """Put other JSON, or none, into the manifest (its digest made right) or into the note of the last commit."""
    path = folder / draw.choice(["manifest.json", "manifest.json", "commit.json", ".owner.json"])
    texts = [
        NESTED,
        "Infinity",
        "[]",
        "null",
        "",
        "{",
        '{"a":' * 100_000,
        "9" * 5000,
        "\ufeff{}",
        '{"generation": 1e999, "digest": ""}',
    ]
    texts += [
        '{"generation": Infinity, "digest": "x"}',
        '{"generation": true, "digest": "x"}',
        '{"kind": "palmette index"}',
    ]
    texts += [" " * 3_000_000, '{"pid": {}, "host": [], "since": 1}']
    if path.name == "manifest.json" and draw.random() < 0.8:
        content = json.loads(path.read_text())
        name = draw.choice(sorted(content))
        odd: Any = [None, True, -1, 0, 10**12, 1e308, float("inf"), "", "x" * 200, [], {}, [[]], "english", 3, 5]
        if name == "arrays" and draw.random() < 0.8:
            spec = draw.choice(content["arrays"])
            key = draw.choice(sorted(spec))
            spec[key] = draw.choice(
                [*odd, "float16", "int8", "O", "vector", [1], [10**9], [2**40], [-1], ["x"], [1.5], [True]]
            )
        else:
            content[name] = draw.choice(odd)
        content.pop("digest", None)
        path.write_text(json.dumps({**content, "digest": json_digest(content)}))
        return f"manifest {name}"
    path.write_text(draw.choice(texts))
    return path.name


FILES = [
    *("commit.json", ".owner.json", ".lock", "commit.json.tmp"),
    *("index.sqlite3-wal", "index.sqlite3-shm", "manifest.json"),
]
"""Files of an index's folder beside its database."""


def spoil_files(folder: Path, draw: random.Random) -> str:
    """Put a pipe, a link, a folder, a socket, or a second name of the stranger's victim in place of a file."""
    names = [*FILES, "index.sqlite3", "index.sqlite3-journal", "model/config.json", "model/manifest.json"]
    names += ["model/README.md", "model/.palmette-ready", "manifest.json.tmp"]
    arrays = sorted(folder.glob("segments/*/*.npy"))
    path = draw.choice([*(folder / name for name in names), *draw.sample(arrays, 3)])
    kind = draw.choice(["pipe", "link", "hard link", "hard link", "folder", "socket", "empty"])
    victim = folder.parent / "victim"
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(victim)
    elif kind == "hard link":
        path.hardlink_to(victim)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        place = socket.socket(socket.AF_UNIX)
        with suppress(OSError):  # a long name
            place.bind(str(path))
        place.close()
    else:
        path.touch()
    return f"{path.relative_to(folder)} {kind}"


def spoil_model(folder: Path, draw: random.Random) -> str:
    """Change JSON or weights of the checkpoint inside, its sums made right."""
    model = folder / "model"
    listed = json.loads((model / LAYOUT.manifest).read_bytes())["files"]
    name = draw.choice([*listed, LAYOUT.config, LAYOUT.weights])
    if name == LAYOUT.weights:
        told = spoil_weights(model / name, draw)
    else:
        told, content = name, json.loads((model / name).read_bytes())
        for _ in range(draw.choice([1, 1, 3])):
            content = spoiled(content, draw)
        (model / name).write_text(json.dumps(content))
    entries = {name: Entry.of((model / name).read_bytes()) for name in listed}
    (model / LAYOUT.manifest).write_bytes(dump_manifest(entries))
    return f"model {told}"


def spoil_weights(path: Path, draw: random.Random) -> str:
    """Change numbers, shape, name or number of the tensors."""
    from safetensors.numpy import load, save

    tensors = load(path.read_bytes())
    name, kind = (
        draw.choice(sorted(tensors)),
        draw.choice(["numbers", "numbers", "shape", "dtype", "name", "lost", "more"]),
    )
    array = tensors[name]
    if kind == "numbers":
        tensors[name] = np.ascontiguousarray(numbers(array, draw))
    elif kind == "shape":
        tensors[name] = np.ascontiguousarray(array.reshape(-1)[: draw.randrange(array.size + 1)])
    elif kind == "dtype":
        tensors[name] = np.nan_to_num(array).astype(draw.choice(["int8", "float64", "float16", "bool", "int64"]))
    elif kind == "name":
        tensors[draw.choice(["x", "", "module.x", name + ".x"])] = tensors.pop(name)
    elif kind == "lost":
        del tensors[name]
    else:
        tensors["more"] = np.zeros((3, 3), np.float32)
    path.write_bytes(save(tensors))
    return f"{name} {kind}"


def spoiled(value: Any, draw: random.Random) -> Any:
    """A copy of a JSON value with something odd, or nothing, at a place of it."""
    if not value or not isinstance(value, dict | list) or draw.random() < 0.1:
        return draw.choice(IMPOSSIBLE)
    made, key = copy.copy(value), draw.choice(list(value) if isinstance(value, dict) else range(min(4, len(value))))
    if draw.random() < 0.1:
        del made[key]
    else:
        made[key] = spoiled(value[key], draw)
    return made


IMPOSSIBLE: list[Any] = [None, True, -1, 0, 10**7, 10**12, 2**63, 1e308, float("nan"), "", "x" * 200, "\ud800", [], {}]
IMPOSSIBLE += [[[]], {"a": {}}, [10**12] * 3, ["x"]]


def tried(harm: Harm) -> Harm:
    """Do nothing where an earlier harm leaves nothing to do."""

    @wraps(harm)
    def attempt(folder: Path, draw: random.Random) -> str:
        try:
            return harm(folder, draw)
        except (apsw.Error, OSError, ValueError, KeyError, IndexError, TypeError, SyntaxError, TokenError) as error:
            return f"{harm.__name__} failed: {type(error).__name__}"

    return attempt


EACH = [spoil_array, spoil_schema, spoil_rows, spoil_documents, knot_pages, spoil_json, spoil_files, spoil_model]
WEIGHTS = [6, 1, 2, 1, 1, 1, 2, 4]
HARMS: list[Harm] = [tried(harm) for harm, weight in zip(EACH, WEIGHTS, strict=True) for _ in range(weight)]


LAST = [spoil_schema.__name__, knot_pages.__name__, spoil_files.__name__]
"""Harms after which the making of another would never end: counting the rows of a view or a knot, reading a pipe."""


def drawn_harms(draw: random.Random) -> list[Harm]:
    """Draw one or two harms, in an order in which both can be made."""
    harms = draw.sample(HARMS, draw.choice([1, 1, 1, 2]))
    return sorted(harms, key=lambda harm: LAST.index(harm.__name__) if harm.__name__ in LAST else -1)
