"""Filters as SQL: each condition yields keys from the (name, value, key) index, and NumPy combines them."""

from __future__ import annotations

import json
from difflib import get_close_matches
from itertools import islice

import apsw
import numpy as np

from palmette.arrays import Keys
from palmette.store.filters import And, Condition, Filter, Ids, Not, Or, Scalar, matches, names_in, unknown_name
from palmette.store.local.database import KEYS_PER_STATEMENT, keys_of, parsed, rows_among

_FEW_TO_READ = 256  # documents that are quicker read and judged one by one
_FEW_TO_LOOK_UP = 4096  # documents that are quicker looked up in a condition's index entries than found among them
_PROBES = (256, 2048, 16_384)  # index rows counted to find the narrowest condition
_COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def select_keys(connection: apsw.Connection, node: Filter, within: Keys) -> Keys:
    """Select the keys, out of some (rising), whose documents pass a filter."""
    if len(within) <= _FEW_TO_READ:  # evaluate the filter's definition
        query = "SELECT key, id, metadata FROM documents WHERE key IN (SELECT value FROM json_each(?)) ORDER BY key"
        read = connection.execute(query, [json.dumps(within.tolist())])
        passing = [key for key, id, metadata in read if matches(node, parsed(metadata), id)]
        return np.array(passing, np.int64)
    match node:
        case And(parts):
            for most in _PROBES:  # the narrowest part first, counted no further than needed
                sizes = {part: _estimate(connection, part, most) for part in parts}
                if min(sizes.values()) < most:
                    break
            for part in sorted(parts, key=sizes.__getitem__):
                within = select_keys(connection, part, within)
            return within
        case Or(parts):
            chosen = np.zeros(len(within), bool)
            for part in parts:
                chosen |= np.isin(within, select_keys(connection, part, within), assume_unique=True)
            return within[chosen]
        case Not(part):
            return within[~np.isin(within, select_keys(connection, part, within), assume_unique=True)]
        case Ids(ids):
            rows = rows_among(connection, "SELECT key FROM documents WHERE id IN ({})", sorted(ids))
            return within[np.isin(within, keys_of(rows))]
    return _select_condition(connection, node, within)


def _select_condition(connection: apsw.Connection, node: Condition, within: Keys) -> Keys:
    """Select the keys of ``within`` whose documents fulfil one condition, by SQL."""
    name, op, values = node.name, node.op, node.values
    if op == "all":
        each = tuple(Condition(name, "in", (value,)) for value in values)
        return select_keys(connection, And(each), within)
    if len(values) > KEYS_PER_STATEMENT:
        chunks = (
            Condition(name, op, values[i : i + KEYS_PER_STATEMENT]) for i in range(0, len(values), KEYS_PER_STATEMENT)
        )
        return select_keys(connection, Or(tuple(chunks)), within)
    query, arguments = _sql(node)
    if op == "in" and len(within) <= _FEW_TO_LOOK_UP and _estimate(connection, node, len(within)) == len(within):
        # the condition alone would yield more keys than these: look these up in its index
        lookup = f"SELECT value FROM json_each(?) AS wanted WHERE EXISTS ({query} AND key = wanted.value)"
        return keys_of(connection.execute(lookup, [json.dumps(within.tolist()), *arguments]))
    # One long text is several times quicker to hand over than a row object per key.
    [(text,)] = connection.execute(f"SELECT group_concat(key) FROM ({query})", arguments)
    return within[np.isin(within, np.fromstring(text, dtype=np.int64, sep=","))] if text else within[:0]


def _estimate(connection: apsw.Connection, node: Filter, most: int) -> int:
    """Roughly how many documents pass, ``most`` at most."""
    match node:
        case Ids(ids):
            return min(len(ids), most)
        case And(parts):
            return min(_estimate(connection, part, most) for part in parts)
        case Or(parts):
            return min(sum(_estimate(connection, part, most) for part in parts), most)
        case Condition(name, "all", values):
            return min(_estimate(connection, Condition(name, "in", (value,)), most) for value in values)
        case Condition(_, "in" | "gt" | "gte" | "lt" | "lte", values) if len(values) <= KEYS_PER_STATEMENT:
            query, arguments = _sql(node)
            [(count,)] = connection.execute(f"SELECT count(*) FROM ({query} LIMIT {most})", arguments)
            return int(count)
    return most + 1  # complements and text searches look at everything: last


def _sql(condition: Condition) -> tuple[str, list[Scalar]]:
    """Write the query for the keys of a condition, some perhaps twice. '' parts numbers from text."""
    name, op, values = condition.name, condition.op, list(condition.values)
    start = "SELECT key FROM metadata WHERE name = ?"
    if op == "exists":
        inside = "SELECT key FROM metadata WHERE name = ? OR (name >= ? AND name < ?)"
        return inside, [name, name + ".", name + "/"]
    if op in ("contains", "icontains"):
        test = "instr(value, ?)" if op == "contains" else "folded_contains(value, ?)"
        needle = str(values[0]) if op == "contains" else str(values[0]).casefold()
        return f"{start} AND value >= '' AND {test}", [name, needle]
    if op in _COMPARISONS:
        # Numbers sort before text. One bound on each side at most: SQLite would use only the first of two.
        text, upper = isinstance(values[0], str), op in ("lt", "lte")
        other = "AND value >= ''" if text and upper else "AND value < ''" if not text and not upper else ""
        return f"{start} AND value {_COMPARISONS[op]} ? {other}", [name, values[0]]
    return f"{start} AND value IN ({', '.join('?' * len(values))})", [name, *values]


def check_names(connection: apsw.Connection, filter: Filter, visible: Keys | None = None, *, hint: bool = True) -> None:
    """Raise for a name that no document (none of the ``visible`` ones) has."""
    for name in dict.fromkeys(names_in(filter)):
        if not _occurs(connection, name, visible):
            raise unknown_name(name, _suggest(connection, name, visible) if hint else "")


def _suggest(connection: apsw.Connection, name: str, visible: Keys | None) -> str:
    """Describe the metadata keys that exist, with those nearest to an unknown name first."""
    # leaps from name to name through the index
    leaps = """WITH RECURSIVE leap(name) AS (
        SELECT min(name) FROM metadata
        UNION ALL SELECT (SELECT min(name) FROM metadata WHERE name > leap.name) FROM leap
        WHERE leap.name IS NOT NULL)
        SELECT name FROM leap WHERE name IS NOT NULL"""
    stored = [name for (name,) in connection.execute(leaps)]
    known = [key for key in stored if visible is None or _occurs(connection, key, visible)]
    near = get_close_matches(name, known, n=3) or [key for key in known if key.startswith(name + ".")]
    hint = f" Did you mean {' or '.join(map(repr, near[:3]))}?" if near else ""
    listed = ", ".join(known[:30]) + (", …" if len(known) > 30 else "")
    return f"{hint} Names: {listed or 'none'}."


def _occurs(connection: apsw.Connection, name: str, visible: Keys | None) -> bool:
    rows = connection.execute("SELECT key FROM metadata WHERE name = ?", [name])
    if visible is None:
        return rows.fetchone() is not None
    while batch := [key for (key,) in islice(rows, _FEW_TO_LOOK_UP)]:
        if np.isin(batch, visible).any():
            return True
    return False
