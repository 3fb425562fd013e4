"""Searching an index in PostgreSQL: the database finds candidates, the code that serves folders scores them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Rows
from palmette.config import parse_json
from palmette.errors import CorruptIndexError, InputError, NotFoundError, StoreError
from palmette.lexical.analyser import Analyser
from palmette.lexical.bm25 import QueryTerms, norms
from palmette.lexical.packed import to_text
from palmette.lexical.postings import COUNT_BITS
from palmette.search.plan import ArraySpec, Score, SearchPlan
from palmette.store.engine_view import NO_KEYS, EngineView
from palmette.store.filters import Condition, Filter, Scoped, matches
from palmette.store.local.database import stored_of
from palmette.store.protocols import StoredDocument
from palmette_postgres.database import Connection, Database
from palmette_postgres.filters import Sql, to_sql
from palmette_postgres.schema import (
    DIMENSIONS,
    Binary,
    State,
    escape,
    escaped_ids,
    integers,
    is_vector,
    sparse_vector,
    stored_column,
    unescape,
    unpacked,
    vector,
    vector_columns,
)

SMALL = 20_000
"""Passages up to which every vector is compared."""
SINGLE = 2000
"""Passages up to which vectors of half precision are compared with a question in single precision."""
FEW = 2000
"""Occurrences of a query's rarest words that are looked at first."""
MOST_CONDITIONS = 40
"""Conditions on terms in one statement."""
WIDER = 4
"""Candidates by words for each that is asked for: the database ranks by lengths as they were when passages came."""
DRIFT = 1.1
"""Factor of the most that a term adds to a score, since the mean length of passages changes."""
KEPT = 256
"""Facts (words of queries, keys of a filter) that are remembered until the next write."""
DOCUMENT = "id, text, exact_metadata, fields, payload, digest, places, source"
"""Columns of a document, in the order of a folder's."""
Weighed = tuple[Floats, list[float], Floats]
"""Weights of a query's terms, in how many passages each is, and the most that it adds to a score of its weight."""


class PostgresView(EngineView):
    """One snapshot of the documents that pass a filter."""

    def __init__(
        self, db: Database, connection: Connection, state: State, analyser: Analyser, filter: Filter | None, memo: Any
    ) -> None:
        self.db, self.state, self.filter, self.analyser = db, state, filter, analyser
        self._connection, self._lock, self.is_open = connection, threading.RLock(), True
        self._specs = {spec.name: spec for spec in state.arrays}
        self._scope = filter.parts[0] if isinstance(filter, Scoped) else None
        self._memo: dict[tuple[Any, ...], Any] = memo
        """What views of this commit have learned."""
        self._owners: dict[int, int] = {}
        self._rows: dict[str, dict[int, bytes]] = {}
        """What was read of passages, by column and key; the owners of those that pass the filter."""
        self._matched: dict[object, Keys] = {}
        """What was found by words."""
        self._words: dict[object, dict[int, tuple[int, str]]] = {}
        """For each query lengths of passages, and which of its terms they have."""
        self._also: list[str] = []
        """Columns that a search is about to read of each of its candidates."""
        if filter is not None and state.documents:
            self._check_names(filter)
        self._where = self._condition(filter)
        self._behind = self._condition(self._scope)

    # -- statements ------------------------------------------------------------------------------------------

    def query(self, text: str, *values: Any) -> list[Any]:
        """Run a statement on the snapshot: return its rows."""
        if not self.is_open:
            raise StoreError("this view is closed: use it inside its `with backend.read() as view:` block")
        with self._lock, self.db.errors():
            try:
                return self._connection.execute(text, values, binary=True).fetchall()
            except psycopg.DataError as error:  # a value that no text or number of the database equals
                raise InputError(f"{self.db.url} cannot compare what was asked ({error!s:.200})") from error

    def _remember(self, *key: Any, read: Any) -> Any:
        """Call ``read`` once for a key, and keep its result until ``KEPT`` newer ones have come."""
        memo = self._memo  # other threads' views read and change it meanwhile
        try:
            return memo[key]
        except KeyError:
            pass
        found = read()
        if len(memo) >= KEPT:
            for oldest in list(memo)[: 1 + len(memo) - KEPT]:
                memo.pop(oldest, None)
        memo[key] = found
        return found

    def _condition(self, filter: Filter | None) -> Sql:
        """Condition on documents, and empty for all."""
        return ("", []) if filter is None else to_sql(filter, self._pass_in_python)

    def _among(self, condition: Sql, column: str = "document") -> Sql:
        """Turn a condition on documents into one on rows of passages or words, to follow another one.

        Few documents are listed by key, looked up once; many are found by a subquery.
        """
        text, values = condition
        if not text:
            return "", []

        def read() -> Binary | None:
            keys = [one for (one,) in self.query(f"SELECT key FROM documents WHERE {text} LIMIT {SMALL + 1}", *values)]
            return None if len(keys) > SMALL else integers(np.array(keys, np.int64))

        keys = self._remember("inside", text, repr(values), read=read)
        if keys is None:
            return f" AND {column} IN (SELECT key FROM documents WHERE {text})", values
        return f" AND {column} = ANY(%b::bigint[])", [keys]

    def _pass_in_python(self, condition: Condition) -> list[int]:
        """Keys of the documents that pass a condition, which Python evaluates."""

        def read() -> list[int]:
            name = escape(condition.name)
            rows = self.query('SELECT key, exact_metadata FROM documents WHERE "values" ? %s', name)
            return [key for key, metadata in rows if matches(condition, parse_json(metadata))]

        judged: list[int] = self._remember("judged", condition, read=read)
        return judged

    def _names(self, outer: Filter | None) -> list[str]:
        known = sorted(name for name, count in self.state.names.items() if count)
        return known if outer is None else [name for name in known if self._occurs(outer, name)]

    def _occurs(self, outer: Filter | None, name: str) -> bool:
        if outer is None or not self.state.names.get(name, 0):
            return self.state.names.get(name, 0) > 0
        text, values = self._condition(outer)
        found = "SELECT EXISTS (SELECT FROM documents WHERE \"values\" -> %s <> '[]' AND " + text + ")"
        return bool(self._remember("name", outer, name, read=lambda: self.query(found, escape(name), *values)[0][0]))

    # -- which passages there are ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count("passages", self._where)

    def _count(self, table: str, condition: Sql) -> int:
        if not condition[0]:
            return self.state.passages if table == "passages" else self.state.documents
        text, values = self._among(condition) if table == "passages" else (f" AND {condition[0]}", condition[1])
        statement = f"SELECT count(*) FROM {table} WHERE true{text}"
        key = "count", table, condition[0], repr(condition[1])
        return int(self._remember(*key, read=lambda: self.query(statement, *values)[0][0]))

    def _all_keys(self, condition: Sql) -> Keys:
        text, values = self._among(condition)
        rows = self.query(f"SELECT key, document FROM passages WHERE true{text} ORDER BY key", *values)
        if condition == self._where:
            self._owners.update(rows)
        return np.array([key for key, _ in rows], np.int64)

    def keys(self) -> Keys:
        """All keys that pass, ascending."""
        return self._all_keys(self._where)

    def scope_keys(self) -> Keys | None:
        """Keys of all passages in the scope."""
        return None if self._scope is None else self._all_keys(self._behind)

    def count_documents(self) -> int:
        """Number of documents that pass."""
        return self._count("documents", self._where)

    def _documents_where(self, columns: str, test: str, *values: Any) -> list[Any]:
        own = f" AND {self._where[0]}" if self._where[0] else ""
        return self.query(f"SELECT {columns} FROM documents WHERE {test}{own}", *values, *self._where[1])

    def keys_of(self, ids: Sequence[str]) -> dict[str, Sequence[int]]:
        """Keys of the passages of the documents of some ids that pass."""
        rows = self._documents_where("id, key, passages", "id = ANY(%s)", escaped_ids(ids))
        found = {unescape(id): range(key, key + count) for id, key, count in rows}
        return {id: found[id] for id in ids if id in found}

    def ids_of_source(self, source: str) -> dict[str, str]:
        """Ids and digests of the documents of a source that pass."""
        rows = self._documents_where("key, id, digest", "source <> '' AND source = %s", escape(source))
        return {unescape(id): digest for _, id, digest in sorted(rows)}

    def document_keys(self, keys: Sequence[int] | Keys) -> Keys:
        """Keys of passages' documents."""
        passage_keys = np.asarray(keys, np.int64).reshape(-1)
        self._read(passage_keys.tolist(), [])
        return np.array([self._owners[key] for key in passage_keys.tolist()], np.int64)

    # -- reading ---------------------------------------------------------------------------------------------

    def stored(self, keys: Sequence[int]) -> list[StoredDocument]:
        """Whole documents that passages belong to."""
        owners = self.document_keys(keys).tolist()
        found: dict[int, StoredDocument] = {}
        for key, *row in self._documents_where(f"key, {DOCUMENT}", "key = ANY(%s)", list(dict.fromkeys(owners))):
            found[key] = self._document(row)
        if missing := set(owners).difference(found):
            raise CorruptIndexError(f"{self.db.url} is damaged: document {min(missing)} has lost its row; copy it anew")
        return [found[key] for key in owners]

    def _document(self, row: Sequence[str]) -> StoredDocument:
        id, text, metadata, fields, payload, digest, places, source = row
        try:
            return stored_of(unescape(id), unescape(text), metadata, fields, payload, digest, places, unescape(source))
        except CorruptIndexError as error:
            raise CorruptIndexError(
                f"document {unescape(id)!r:.80} of {self.db.url} is not what was written"
            ) from error

    def ids(self, keys: Sequence[int]) -> list[str]:
        """Ids in the order of ``keys``."""
        owners = self.document_keys(keys).tolist()
        rows = dict(self._documents_where("key, id", "key = ANY(%s)", list(dict.fromkeys(owners))))
        return [unescape(rows[key]) for key in owners]

    def note(self, name: str) -> str | None:
        """Text that a writer noted of all documents; none in a scope."""
        if self._scope is not None:
            return None
        rows = self.query("SELECT value FROM notes WHERE name = %s", escape(name))
        return unescape(rows[0][0]) if rows else None

    def _read(self, keys: Sequence[int], columns: Sequence[str]) -> None:
        """Read columns of passages, unless they were; raises for keys that are not in this view."""
        distinct = dict.fromkeys(keys)
        lacking = [column for column in columns if not self._rows.setdefault(column, {}).keys() >= distinct.keys()]
        held: list[Any] = [self._rows[column] for column in lacking] or [self._owners]
        unknown = [key for key in distinct if not all(key in one for one in held)]
        if not unknown:
            return
        columns = list(dict.fromkeys([*lacking, *self._also])) if lacking else []
        among, values = self._unless_found(unknown)
        chosen = "".join(f", {column}" for column in columns)
        rows = self.query(f"SELECT key, document{chosen} FROM passages WHERE key = ANY(%s){among}", unknown, *values)
        self._take(rows, columns)
        if missing := set(unknown).difference(row[0] for row in rows):
            raise NotFoundError(f"key {min(missing)} is not in this view: it was never there, or fails its filter")

    def _unless_found(self, keys: Sequence[int]) -> Sql:
        """The view's condition on passages, none where they were found by it."""
        return ("", []) if all(key in self._owners for key in keys) else self._among(self._where)

    def _take(self, rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> None:
        held = [self._rows.setdefault(column, {}) for column in columns]
        for key, owner, *fields in rows:
            self._owners[key] = owner
            for one, field in zip(held, fields, strict=True):
                one[key] = field

    def _stored_bytes(self, spec: ArraySpec, keys: Sequence[int]) -> tuple[Rows, bytes]:
        """Read a stored array of passages: the number of bytes of each [n], and all on end."""
        column, columns = stored_column(spec), [stored_column(spec)]
        if spec.aligned:
            columns.append(stored_column(self._specs[spec.aligned]))
        self._read(keys, columns)
        head = 4 if is_vector(spec) else 0  # of pgvector's types, before numbers in big-endian order
        contents = [self._rows[column][key][head:] for key in keys]
        joined = b"".join(contents)
        if head:
            joined = np.frombuffer(joined, np.dtype(spec.dtype).newbyteorder(">")).astype(spec.dtype).tobytes()
        return np.array([len(content) for content in contents], np.int64), joined

    def _damaged(self, key: int | None, reason: object) -> CorruptIndexError:
        of = "" if key is None else f"passage {key} of "
        return CorruptIndexError(f"{of}{self.db.url} is damaged: {reason}; copy it anew")

    def _list_counts(self, array: str) -> dict[int, int]:
        text, values = self._among(self._where)
        counted = f"SELECT list, count(*) FROM passages, unnest(list_{array}) AS list WHERE true{text} GROUP BY list"
        counts: dict[int, int] = self._remember(
            "lists", array, text, repr(values), read=lambda: dict(self.query(counted, *values))
        )
        return counts

    # -- candidates by meaning -------------------------------------------------------------------------------

    def expect(self, plan: SearchPlan | None, k: int, texts: Sequence[str], arrays: Sequence[str]) -> None:
        """Read what one question is about to need beside its candidates along with them."""
        self._also = [stored_column(self._specs[name]) for name in arrays if name in self._specs]
        if plan is None or plan.only is not None or len(plan.first.queries) != plan.group or not len(self):
            return
        self._expected = plan, k, self._find(plan, k)

    def _is_exact(self, plan: SearchPlan) -> bool:
        """Return whether every vector is compared."""
        few = len(self) <= SMALL if self.db.options.exact is None else self.db.options.exact
        return few or plan.lists is not None or f"graph_{self._columns(plan.first)[0][0]}" not in self.state.indexed

    def _columns(self, score: Score) -> list[tuple[str, str, str]]:
        """Columns that a score compares: the best by any field's is among the best of that field."""
        columns = vector_columns(self._specs[score.array])
        if score.part_weights is not None:
            return [columns[part] for part in np.flatnonzero(score.part_weights)]
        return columns

    def _find(self, plan: SearchPlan, k: int) -> Keys:
        """Find the passages that may be among the ``k`` best of a plan, and read their arrays."""
        columns = [stored_column(self._specs[name]) for name in plan.arrays]
        if plan.only is not None:
            self._read(plan.only.tolist(), columns)
            return plan.only
        first, depth = plan.first, max(1, min(max(k, plan.fetch or 0), len(self)))
        depth += 16 + depth // 8  # single or half precision ranks nearly as the arrays themselves do
        read = list(dict.fromkeys([*self._also, *columns]))
        if first.fold != 1 or not self._columns(first):  # what no column holds is compared here
            if len(self) > SMALL:
                raise InputError(
                    f"{self.db.url} has {len(self):,} passages, and PostgreSQL compares no array {first.array!r} with "
                    f"fold={first.fold}: search another level, narrow the search by a filter, or copy it to a folder"
                )
            return self.keys()
        queries, width, keys = first.queries, self._specs[first.array].shape[-1], [NO_KEYS]
        if queries.shape[1] != width:
            return self.keys()[:1]  # the arrays' shape is told by whoever compares them
        exact = self._is_exact(plan)
        for row, query in enumerate(queries):
            among, values = self._among(self._where)
            if plan.lists is not None:
                chosen = plan.lists.chosen[row]
                among += f" AND list_{plan.lists.array} && %s::bigint[]"
                values = [*values, chosen[chosen >= 0].tolist()]
            for column in self._columns(first):
                keys += [self._nearest(column, query, depth, read, (among, values), exact=exact)]
        return np.unique(np.concatenate(keys))

    def _nearest(
        self, column: tuple[str, str, str], query: Floats, depth: int, read: Sequence[str], where: Sql, *, exact: bool
    ) -> Keys:
        """Find the passages nearest to a vector, by the graph or by comparing all, and read columns of them."""
        (name, kind, operator), (among, values), width = column, where, len(query)
        if exact:
            if kind == "halfvec" and len(self) <= SINGLE:
                name, kind = f"{name}::vector", "vector"
            # a sum is not what the graph has an index for, which would find some of the nearest alone
            order, given, ranked = f"({name} {operator} %b::{kind}) + 0", vector(query, kind), "2, 1"
        else:
            indexed = name if kind == "halfvec" else f"({name}::halfvec({width}))"
            order, given = f"{indexed} {operator} %b::halfvec({width})", vector(query, "halfvec")
            ranked, ef = "2", self.db.options.ef or min(1000, max(100, 2 * depth))
            self._set(
                f"SET LOCAL hnsw.ef_search = {ef}; SET LOCAL enable_seqscan = {'on' if among else 'off'}; "
                f"SET LOCAL hnsw.iterative_scan = {'strict_order' if among else 'off'}"
            )
        nearest = f"SELECT key, {order} AS distance FROM passages WHERE true{among} ORDER BY {ranked} LIMIT %s"
        chosen = "".join(f", p.{other}" for other in read)
        rows = self.query(
            f"WITH n AS MATERIALIZED ({nearest}) SELECT p.key, p.document{chosen} FROM n JOIN passages p USING (key)",
            given,
            *values,
            depth,
        )
        self._take(rows, read)
        return np.array([row[0] for row in rows], np.int64)

    def _set(self, settings: str) -> None:
        """Change settings of the transaction."""
        with self._lock, self.db.errors():
            self._connection.execute(settings)

    def forget(self) -> None:
        """Let go of what was read of passages."""
        self._rows.clear()
        self._words.clear()
        self._owners.clear()

    # -- words -----------------------------------------------------------------------------------------------

    def _counted(self) -> tuple[int, int]:
        """Passages of the scope, and the words in all of them."""
        if self._scope is None:
            return self.state.passages, self.state.length
        text, values = self._among(self._behind)
        counted = f"SELECT count(*), coalesce(sum(length), 0)::bigint FROM words WHERE true{text}"
        passages, length = self._remember("counted", self._scope, read=lambda: self.query(counted, *values)[0])
        return passages, length

    def _weigh(self, text: str, query: QueryTerms, k: int, find: bool) -> tuple[Floats, list[float], int, Keys]:
        """Weigh a query's terms once for each scope, and find passages of this view, as the base class says."""
        documents, most_found = self._counted()[0], max(k, 1)

        def weigh() -> Weighed:
            # 1. Document frequencies in the scope, and bounds of the scores.
            frequencies, most = self._counts([*query.terms, *query.skipped])

            def find_best(free: QueryTerms, scaled: Floats, reach: float) -> Keys:
                """Find the best passage of the scope: its sum stands for a score of 1 if it exceeds the ``reach``."""
                if not query.terms or not documents:
                    return NO_KEYS
                weighed = scaled, frequencies, most
                if not query.required and self._where == self._behind:  # no filter: step 3 needs the same search
                    return self._matching(free, weighed, most_found, self._behind)
                return self._matching(free, weighed, 1, self._behind, floor=reach)

            # 2. Weights with which the reach, or the best passage's sum, is 1.
            return self._scaled(query, frequencies, documents, find_best), frequencies, most

        weighed = self._remember("weights", self._scope, text, read=weigh)
        # 3. Candidates of this view.
        found = NO_KEYS
        if find and query.terms and documents:
            found = self._matching(query, weighed, most_found, self._where)
        return weighed[0], weighed[1], documents, found

    def _counts(self, terms: Sequence[int]) -> tuple[list[float], Floats]:
        """Number of passages in the scope with each term, and the most that it adds to a score of its weight."""
        counted = "SELECT term, passages, most FROM counts WHERE term = ANY(%s::bigint[])"
        counts = {term: (passages, most) for term, passages, most in self.query(counted, list(terms))}
        if self._scope is not None:
            among, values = self._among(self._behind)
            own = f"SELECT count(*) FROM words WHERE terms @> ARRAY[number]{among}"
            rows = dict(self._query_words(f"SELECT number, ({own}) FROM unnest(%s::integer[]) AS number",
                                          *values, _numbers(counts)))  # fmt: skip
            counts = {
                term: (rows[number], counts[term][1]) for term, number in zip(counts, _numbers(counts), strict=True)
            }
        most = np.array([counts.get(term, (0, 0.0))[1] for term in terms], np.float32)
        return [float(counts.get(term, (0, 0.0))[0]) for term in terms], np.minimum(DRIFT * most, 1)

    def _matching(self, query: QueryTerms, counted: Weighed, k: int, where: Sql, floor: float = 0.0) -> Keys:
        """Find passages that include the ``k`` best of more than ``floor`` by some weights, and read their words.

        The terms of most weight find them, as many as occur some thousands of times together. A passage without any
        of these scores no more than the others can add: where the ``k``-th best has less, a second search finds those
        that have enough of the others at once.
        """
        key = tuple(query.terms), query.required, k, repr(where), floor
        if key not in self._matched:
            self._matched[key] = self._searched(query, counted, k, where, floor)
        return self._matched[key]

    def _searched(self, query: QueryTerms, counted: Weighed, k: int, where: Sql, floor: float) -> Keys:
        """Run the one or two searches of :meth:`_matching`."""
        weight, frequencies, most = counted
        if query.required:
            return self._search_words(query, weight, "terms @> %s::integer[]", [query.required], k, where)
        # 1. terms in the order of their weights, and the most that each and all after it add
        order = np.argsort(-weight, kind="stable")
        order = order[np.array(frequencies)[order] > 0]
        if not len(order):
            return NO_KEYS
        bound = (weight * most[: len(weight)])[order].astype(np.float64)
        rest, terms = np.append(np.cumsum(bound[::-1])[::-1], 0.0), [query.terms[place] for place in order]
        found, used, least = NO_KEYS, 0, floor
        # 2. the rarest find most of the best, which tell how much others need; few passages are looked through
        if not floor:
            passages, occurrences = self._count("passages", where), np.cumsum(np.array(frequencies)[order])
            share = passages / max(1, self._count("passages", self._behind))
            used = int(np.searchsorted(occurrences, max(FEW, 8 * k), side="right"))
            used = min(max(used, 1 + int(np.searchsorted(share * occurrences, 2 * k))), len(order))
            if where[0] and passages <= max(FEW, occurrences[used - 1]):
                return self._search_words(query, weight, "true", [], k, where)
            found = self._search_words(query, weight, "terms && %s::integer[]", [terms[:used]], k, where)
            scores = np.sort(self._scores(query, weight, found, outside=True))[::-1]
            least = float(scores[k - 1]) if len(scores) >= k else 0.0
        # 3. a passage without these meets a condition on the others: on as many terms together as make few conditions
        for depth in (3, 2, 1):
            conditions = list(islice(_term_conditions(bound, rest, least, used, depth), MOST_CONDITIONS))
            if len(conditions) < MOST_CONDITIONS:
                break
        if conditions:
            tests = ["terms @> %s::integer[] AND terms && %s::integer[]" if every else "terms && %s::integer[]"
                     for every, _ in conditions]  # fmt: skip
            lists = [[terms[place] for place in part] for condition in conditions for part in condition if part]
            more = self._search_words(query, weight, f"({' OR '.join(tests)})", lists, k, where, least)
            found = np.union1d(found, more)
        return found

    def _search_words(
        self, query: QueryTerms, weight: Floats, test: str, terms: Sequence[Any], k: int, where: Sql, least: float = 0.0
    ) -> Keys:
        """Find the best of the passages whose terms pass a test and may score ``least``, and read their words."""
        # the index of terms is read, not that of the condition, which an expression has none for
        among, values = self._among(where, "document + 0" if terms else "document")
        sparse = sparse_vector(np.array(query.terms, np.int64) % DIMENSIONS, weight)
        enough = " AND impacts <#> %b::sparsevec <= %s" if least else ""
        rows = self._query_words(
            f"SELECT key, document, length, entries FROM words WHERE {test}{among}{enough} "
            "ORDER BY impacts <#> %b::sparsevec, key LIMIT %s",
            *map(_numbers, terms),
            *values,
            *([sparse, -least / DRIFT] if least else []),
            sparse,
            WIDER * k + 64,
        )
        self._keep_words(query, rows, where == self._where)
        return np.sort(np.array([row[0] for row in rows], np.int64))

    def _query_words(self, text: str, *values: Any) -> list[Any]:
        """Run a statement that finds terms, by their index where there is one: looking through all is dearer."""
        if "words_terms" not in self.state.indexed:
            return self.query(text, *values)
        self._set("SET LOCAL enable_seqscan = off")
        rows = self.query(text, *values)
        self._set("SET LOCAL enable_seqscan = on")
        return rows

    def _keep_words(self, query: QueryTerms, rows: Sequence[tuple[int, int, int, bytes]], passed: bool) -> None:
        """Keep lengths of passages, and which terms of a query each has, by key; owners of those that pass."""
        sizes = np.array([len(entries) for *_, entries in rows], np.int64)
        if (sizes % 6).any():
            key = rows[int((sizes % 6 > 0).argmax())][0]
            raise CorruptIndexError(f"passage {key} of {self.db.url} is damaged: its words are cut off; copy it anew")
        entries = unpacked(b"".join(entries for *_, entries in rows))
        wanted = np.array([*query.terms, *query.required], np.uint64)
        found = np.isin(entries >> np.uint64(COUNT_BITS), wanted)
        row = np.repeat(np.arange(len(rows)), sizes // 6)[found]
        text = to_text(entries[found])
        ends = np.searchsorted(row, np.arange(len(rows) + 1)) * (len(text) // max(1, len(row)))
        kept = self._words.setdefault((tuple(query.terms), query.required), {})
        for (key, _, length, _), start, end in zip(rows, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            kept[key] = length, text[start:end]
        if passed:
            self._owners.update((key, owner) for key, owner, *_ in rows)

    def _texts(self, query: QueryTerms, keys: Sequence[int] | Keys, outside: bool = False) -> tuple[list[str], Floats]:
        passage_keys = np.asarray(keys, np.int64).reshape(-1).tolist()
        kept = self._words.setdefault((tuple(query.terms), query.required), {})
        passed: Mapping[int, Any] = kept if outside else self._owners  # those found outside are kept too
        if unknown := [key for key in dict.fromkeys(passage_keys) if key not in kept or key not in passed]:
            among, values = ("", []) if outside else self._unless_found(unknown)
            statement = f"SELECT key, document, length, entries FROM words WHERE key = ANY(%s){among}"
            rows = self.query(statement, unknown, *values)
            self._keep_words(query, rows, not outside)
            if missing := set(unknown).difference(row[0] for row in rows):
                raise NotFoundError(f"key {min(missing)} is not in this view: it was never there, or fails its filter")
        read = [kept[key] for key in passage_keys]
        passages, words = self._counted()
        mean = max(1.0, words / max(1, passages))
        return [text for _, text in read], norms(np.array([length for length, _ in read], np.int64), mean)


def _term_conditions(
    bound: NDArray[Any], rest: NDArray[Any], least: float, at: int, depth: int, chosen: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Conditions on terms, one of which every passage meets that scores more than ``least`` by terms from ``at`` on.

    A condition is (every, some): the passage has all terms of ``every`` and at least one of ``some``, by place. Terms
    that add at most 5, 3 and 2, and ``least`` = 4, give two: ((), [0]), since term 0 is enough alone, and ((1,), [2]),
    since terms 1 and 2 are together. They become SQL, for an index of the terms.

    Args:
        bound: Most that each term adds to a score: 5, 3, 2 above.
        rest: Most that each term and all after it add together: 10, 5, 2.
        least: Score to exceed.
        at: First term that a condition may have besides ``chosen``.
        depth: Most terms that a passage must have together; fewer make fewer and weaker conditions.
        chosen: Terms that all conditions of this call have.
    """
    # 1. terms with which, or with which and later ones, a passage can score enough; those that are enough now
    total = float(bound[list(chosen)].sum())
    able = [place for place in range(at, len(bound)) if total + rest[place] > least]
    enough = [place for place in able if depth == 1 or total + bound[place] > least]
    if enough:
        yield chosen, enough
    # 2. each of the others needs more terms, which come after it
    for place in able:
        if place not in enough:
            yield from _term_conditions(bound, rest, least, place + 1, depth - 1, (*chosen, place))


def _numbers(terms: Iterable[int]) -> list[int]:
    """Terms as the index of words holds them."""
    return np.array([*terms], np.uint64).astype(np.uint32).view(np.int32).tolist()  # type: ignore[no-any-return]
