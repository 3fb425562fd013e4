"""Tables of an index in PostgreSQL, and values in the binary form in which COPY takes them.

    state      one row: what the index is, and what its writes have counted
    model      the checkpoint, in files
    notes      short texts that belong to all documents
    documents  one row each, under the key of its first passage: id, text, metadata (jsonb, to be read by SQL), and what
               gives it back to the bit
    passages   one row each, with its vectors and other arrays
    words      one row for each passage: its terms, what they add to a score, and their counts
    counts     in how many passages a term occurs, and the most that it adds to a score

Keys rise and are never reused; rows are inserted and deleted, never changed. ``values`` holds a document's metadata as
filters see it: flat names, each with a list of values. PostgreSQL has no text with a null character, which is written
as U+0001 U+0002 (and U+0001 as U+0001 U+0003).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.adapt import Dumper
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palmette.errors import CorruptIndexError, FormatError, NotFoundError
from palmette.lexical.packed import Entries
from palmette.lexical.postings import COUNT_BITS
from palmette.search.plan import ArraySpec
from palmette.store.filters import Scalar, plain_number

KIND = "palmette index"
"""How the state of an index calls itself."""
DRAFT = "palmette index, being copied"
"""How the state of an unfinished copy calls itself: only the writer that copies opens it."""
FORMAT = 1
"""Version of the tables."""
DIMENSIONS = 10**9
"""Dimensions of pgvector's sparse vectors, at most."""
MOST_TERMS = 16_000
"""Terms of pgvector's sparse vectors, at most."""
MOST_INDEXED = 4000
"""Dimensions of a vector that pgvector's graphs take, at most."""
INLINE = 1900
"""Numbers of a vector that may lie in the row itself."""
Count = Annotated[int, Field(ge=0)]

TABLES = """
CREATE TABLE state (one boolean PRIMARY KEY DEFAULT true CHECK (one), value text NOT NULL);
CREATE TABLE model (name text NOT NULL, content bytea NOT NULL);
CREATE TABLE notes (name text NOT NULL, value text NOT NULL, EXCLUDE USING hash (name WITH =));
CREATE TABLE documents (
    key bigint PRIMARY KEY, id text COLLATE "C" NOT NULL, text text NOT NULL, metadata jsonb NOT NULL,
    source text NOT NULL, passages integer NOT NULL, "values" jsonb NOT NULL, exact_metadata text NOT NULL,
    fields text NOT NULL, payload text NOT NULL, digest text NOT NULL, places text NOT NULL,
    EXCLUDE USING hash (id WITH =));
CREATE INDEX documents_source ON documents USING hash (source) WHERE source <> '';
CREATE TABLE words (
    key bigint PRIMARY KEY, document bigint NOT NULL, length integer NOT NULL,
    terms integer[] NOT NULL, impacts sparsevec NOT NULL, entries bytea NOT NULL) WITH (toast_tuple_target = 1200);
ALTER TABLE words ALTER terms SET STORAGE EXTERNAL, ALTER impacts SET STORAGE MAIN,
    ALTER entries SET STORAGE EXTERNAL;
CREATE INDEX words_document ON words (document);
CREATE TABLE counts (term bigint PRIMARY KEY, passages integer NOT NULL, most real NOT NULL) WITH (fillfactor = 80);
"""


class State(BaseModel):
    """What an index is, and what its writes have counted."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    kind: str
    format: int
    identity: str
    """Random name of this index, which tells it from another one in a schema of the same name."""
    fingerprint: str
    """Fingerprint of the model."""
    arrays: tuple[ArraySpec, ...]
    language: str | None
    tenant: str | None = None
    """Metadata name that separates tenants."""
    cut: dict[str, Any] | None = None
    """How documents are cut into passages; ``None``: they are not."""

    generation: Count = 0
    """Number of the last write."""
    next_key: Count = 1
    documents: Count = 0
    passages: Count = 0
    length: Count = 0
    """Words in all passages."""
    names: dict[str, Count] = {}
    """Metadata names, and the number of documents that have each."""
    indexed: tuple[str, ...] = ()
    """Indexes that were made once there was enough for them."""
    analysed: Count = 0
    """Passages when the planner's statistics were last brought up to date."""


def parse_state(url: str, text: str, kind: str | None = KIND) -> State:
    """Check a state; raise for another version's or a damaged one, or one of another kind."""
    try:
        content = json.loads(text)
        version = content["format"]
        if isinstance(version, int) and version != FORMAT:
            advice = "upgrade palmette-postgres" if version > FORMAT else "index the documents anew"
            raise FormatError(f"{url} has format {version}, but this version reads format {FORMAT}: {advice}")
        state = State.model_validate(content)
    except (ValidationError, RecursionError, ValueError, TypeError, KeyError) as error:
        reason = f"{error!s:.200}"
        raise CorruptIndexError(f"the state of {url} is damaged ({reason}): restore a backup") from error
    if kind is not None and state.kind != kind:
        raise NotFoundError(
            f"{url} is not a palmette index: a copy to it has not ended; drop the schema, and copy anew"
        )
    return state


def state_text(state: State) -> str:
    """Write a state as JSON."""
    content = state.model_dump(mode="json")
    content["arrays"] = [asdict(spec) for spec in state.arrays]
    return json.dumps(content)


def passages_table(arrays: Sequence[ArraySpec]) -> str:
    """Write the statements that make the table of passages."""
    columns, storage = [], []
    for spec in arrays:
        for name, kind, _ in vector_columns(spec):
            columns.append(f"{name} {kind}({spec.shape[-1]}) NOT NULL")
            storage.append(f"ALTER {name} SET STORAGE {'PLAIN' if spec.shape[-1] <= INLINE else 'EXTERNAL'}")
        if spec.searched == "lists":
            columns.append(f"list_{spec.name} bigint[] NOT NULL")
        if not is_vector(spec):
            columns.append(f"array_{spec.name} bytea NOT NULL")
            storage.append(f"ALTER array_{spec.name} SET STORAGE EXTERNAL")
    defined = "".join(f", {column}" for column in columns)
    text = f"CREATE TABLE passages (key bigint PRIMARY KEY, document bigint NOT NULL{defined});"
    text += "CREATE INDEX passages_document ON passages (document);"
    return text + (f"ALTER TABLE passages {', '.join(storage)};" if storage else "")


def is_vector(spec: ArraySpec) -> bool:
    """Return whether one of pgvector's types holds an array's numbers as they are."""
    found = spec.searched == "inner_product" and len(spec.shape) == 1 and spec.scales is None and not spec.ragged
    return found and spec.dtype in ("float32", "float16")


def vector_columns(spec: ArraySpec) -> list[tuple[str, str, str]]:
    """List the columns that an array is searched by: name, type, and the operator of its distance."""
    if spec.searched == "inner_product":
        exact = is_vector(spec) and spec.dtype == "float32"
        names = [f"v_{spec.name}"] if len(spec.shape) == 1 else [f"v_{spec.name}_{n}" for n in range(spec.shape[0])]
        return [(name, "vector" if exact else "halfvec", "<#>") for name in names]
    return [(f"v_{spec.name}", "halfvec", "<+>")] if spec.searched == "overlap" else []


def stored_column(spec: ArraySpec) -> str:
    """Column that holds an array's numbers as they are."""
    return f"v_{spec.name}" if is_vector(spec) else f"array_{spec.name}"


def values_text(values: Iterable[tuple[str, Scalar]]) -> str:
    """Write metadata as filters see it: names with lists of values; the beginnings of nested names have none."""
    flat: dict[str, list[Scalar]] = {}
    for name, value in values:
        for place, sign in enumerate(name):
            if sign == ".":
                flat.setdefault(escape(name[:place]), [])
        flat.setdefault(escape(name), []).append(plain(value))
    return json.dumps(flat, ensure_ascii=False)


def plain(value: Scalar) -> Scalar:
    """Write equal numbers in one form, and text without null characters."""
    return escape(value) if isinstance(value, str) else plain_number(value)


def escape(text: str) -> str:
    """Write a text without null characters."""
    if "\0" not in text and "\1" not in text:
        return text
    return text.replace("\1", "\1\3").replace("\0", "\1\2")


def unescape(text: str) -> str:
    """Read a text that :func:`escape` wrote."""
    return text.replace("\1\2", "\0").replace("\1\3", "\1") if "\1" in text else text


def escaped_ids(ids: Sequence[str]) -> list[str]:
    """Ids as the database has them; half a surrogate pair is in none."""
    return [escape(id) for id in ids if id.encode(errors="ignore").decode() == id]


def escaped_json(text: str) -> str:
    """Write JSON without null characters in its texts, which jsonb refuses."""
    if "\\u0000" not in text and "\\u0001" not in text:
        return text

    def clean(value: Any) -> Any:
        match value:
            case str():
                return escape(value)
            case dict():
                return {escape(name): clean(inner) for name, inner in value.items()}
            case list():
                return [clean(inner) for inner in value]
        return value

    return json.dumps(clean(json.loads(text)), ensure_ascii=False)


# -- values in binary form -----------------------------------------------------------------------------------


class Binary(bytes):
    """A value in the binary form of its column, or of the type that the statement names."""


class _BinaryDumper(Dumper):
    format = psycopg.pq.Format.BINARY
    oid = 0  # for the server to infer

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


psycopg.adapters.register_dumper(Binary, _BinaryDumper)


def jsonb(text: str) -> Binary:
    """Write JSON; 1 is the version of its form."""
    return Binary(b"\1" + text.encode())


def vector(row: NDArray[Any], kind: str) -> Binary:
    """Write a vector or halfvec."""
    return Binary(struct.pack(">hh", len(row), 0) + row.astype(">f2" if kind == "halfvec" else ">f4").tobytes())


def integers(numbers: NDArray[Any]) -> Binary:
    """Write int32 or int64 numbers as an array of integers or bigints, in PostgreSQL's binary format."""
    oid, kind = (20, ">i8") if numbers.dtype == np.int64 else (23, ">i4")  # the type's number in pg_type
    elements = np.empty(len(numbers), [("size", ">i4"), ("value", kind)])
    elements["size"], elements["value"] = np.dtype(kind).itemsize, numbers
    head = struct.pack(">iiiii", 1, 0, oid, len(numbers), 1) if len(numbers) else struct.pack(">iii", 0, 0, oid)
    return Binary(head + elements.tobytes())


def terms_of(entries: Entries) -> NDArray[np.int32]:
    """Terms of a passage as its index holds them: 32 of their 40 bits."""
    return (entries >> np.uint64(COUNT_BITS)).astype(np.uint32).view(np.int32)


def sparse_vector(places: NDArray[np.integer], values: NDArray[np.float32]) -> Binary:
    """Write a sparsevec; of terms that share a position the highest value counts."""
    if len(places) > MOST_TERMS:  # the terms that add most
        chosen = np.argsort(-values, kind="stable")[:MOST_TERMS]
        places, values = places[chosen], values[chosen]
    order = np.lexsort((-values, places))
    places, values = places[order], values[order]
    first = np.ones(len(places), bool)
    first[1:] = places[1:] != places[:-1]
    head = struct.pack(">iii", DIMENSIONS, int(first.sum()), 0)
    return Binary(head + places[first].astype(">i4").tobytes() + values[first].astype(">f4").tobytes())


def packed(entries: Entries) -> bytes:
    """Write entries, six bytes each (:mod:`palmette.lexical.packed`)."""
    return entries.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :6].tobytes()


def unpacked(content: bytes) -> Entries:
    """Read entries."""
    padded = np.zeros((len(content) // 6, 8), np.uint8)
    padded[:, :6] = np.frombuffer(content, np.uint8).reshape(-1, 6)
    return padded.view("<u8")[:, 0]
