"""Train an index's model anew on what people said of its hits, and exchange it only where it is better.

The new index is built beside the old one. Held-out questions are searched in both; only a clear gain (two standard
errors of nDCG@10) exchanges the folders, in one step. The former index stays beside it, for the way back.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.config import check_path
from palmette.data import RetrievalData, load_data
from palmette.errors import InputError, NotFoundError, StoreError
from palmette.files import draft_beside, fsync_folder
from palmette.index import Index
from palmette.metrics import Judgements, query_scores
from palmette.model import Model
from palmette.store.local.feedback import Vote
from palmette.store.local.folder import COMMIT, OpenedFolder, write_lock

HELD_OUT = 0.3
"""Share of the judged questions that do not train, and decide."""
FEWEST = 20
"""Held-out questions below which nothing is exchanged."""
ERRORS = 2.0
"""Standard errors by which the new index must be better."""
DEPTH = 10
"""Depth of nDCG."""
LOCK_TIMEOUT = 60.0
"""Seconds to wait for a writer before the exchange."""
_HERE = -100
"""AT_FDCWD of renameat2: paths are not relative to an open folder."""
_EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2."""

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Refit:
    """Quality of the old and the new index, and whether they were exchanged."""

    questions: int
    """Judged questions: of feedback, and of pairs."""
    held_out: int
    before: float
    """nDCG@10 of the index that is in use, on the held-out questions."""
    after: float
    """nDCG@10 of the new one."""
    error: float
    """Standard error of the difference."""
    exchanged: bool
    former: Path | None
    """Where the former index lies."""
    reason: str


def feedback_data(index: Index, pairs: Any = None, *, seed: int = 0) -> RetrievalData:
    """Return an index's documents with what people said of them, and further pairs about them.

    A document that more votes call useful than not is relevant to the query; one that more call useless is a negative.
    The split ``test`` has the questions that decide; they are chosen by their text, so that a further refit holds out
    the same ones.
    """
    documents = list(index.documents())
    known = {document.key for document in documents}
    judged = count_votes(vote for vote in index.feedback_log.votes() if vote.document in known)
    if pairs is not None:
        by_text = {document.content: document.key for document in documents}
        given = load_data(pairs, dev_fraction=0.0, seed=seed)
        for query, rated in given.qrels.get("train", {}).items():
            for id, grade in rated.items():
                own = id if id in known else by_text.get(given.corpus[given.rows[id]].content)
                if own is not None:
                    judged.setdefault(given.queries[query], {})[own] = grade
    judged = {query: rated for query, rated in judged.items() if any(grade > 0 for grade in rated.values())}
    if not judged:
        raise InputError("nobody has said of a document that it was useful, and there are no pairs: nothing to learn")
    queries = {f"q{number}": query for number, query in enumerate(sorted(judged))}
    order = sorted(queries, key=lambda key: _digest(f"{seed} {queries[key]}"))
    held = set(order[: round(HELD_OUT * len(order))])
    qrels = {
        split: {key: judged[queries[key]] for key in queries if (key in held) == (split == "test")}
        for split in ("train", "test")
    }
    return RetrievalData("feedback", documents, queries, {name: part for name, part in qrels.items() if part})


def refit(
    path: str | Path,
    pairs: Any = None,
    *,
    seed: int = 0,
    device: str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Refit:
    """Train the model of an index anew from its documents, feedback and pairs; exchange the index where it is better.

    Searches go on meanwhile, and writes too: what was written is brought over before the exchange. Handles that are
    open say that the folder holds another index; a service opens it by itself. :func:`restore_former` is the way back.

    Args:
        path: Folder of the index.
        pairs: Further labelled pairs about its documents; anything that :func:`palmette.load_data` reads.
        seed: Of the held-out questions and of the training.
        device: Where to train.
        progress: Progress bars; ``None`` shows them on a terminal.
        options: Options of the method and of the training, instead of those that the model was trained with.
    """
    place = _real_folder(path)
    with Index.open(place, device=device) as index:
        data = feedback_data(index, pairs, seed=seed)
        held = data.qrels.get("test", {})
        questions = len(data.queries)
        if len(held) < FEWEST:
            told = f"{questions} judged questions hold out {len(held)}, and {FEWEST} must decide: wait, or give pairs"
            return Refit(questions, len(held), np.nan, np.nan, np.nan, False, None, told)
        train = RetrievalData(data.name, data.corpus, data.queries, {"train": data.qrels["train"]})
        with draft_beside(place) as holder:
            model = _train(index.model, train, seed, progress, options)
            if model.fingerprint == index.model.fingerprint:
                return Refit(questions, len(held), np.nan, np.nan, np.nan, False, None, "training changed nothing")
            with index.copy_to(holder / "index", model=model, progress=progress) as new:
                before, after = (_ndcg(one, data.queries, held) for one in (index, new))
                gain, error = _gain(before, after)
                facts = questions, len(held), float(before.mean()), float(after.mean()), error
                if gain <= ERRORS * error or gain <= 0:
                    return Refit(*facts, False, None, "the new index is not clearly better")
                former = _exchange(index, new, place, holder / "index")
    return Refit(*facts, True, former, "the new index is better")


def restore_former(path: str | Path) -> Path:
    """Bring back the index that a refit replaced; once more brings back the new one."""
    place = _real_folder(path)
    former = _former(place)
    if not former.is_dir():
        raise NotFoundError(f"{former} is not there: no refit has replaced {place}")
    with Index.open(place, device="cpu") as index, Index.open(former, device="cpu") as other:
        _bring_over(index, other, place, former)
    return place


def _train(model: Model, data: RetrievalData, seed: int, progress: bool | None, options: Mapping[str, Any]) -> Model:
    """Train a model of the same method and options over the same encoder."""
    settings = model.config.to_dict() | dict(options)
    return type(model).fit(data, encoder=model.encoder.plain, seed=seed, progress=progress, **settings)


def _ndcg(index: Index, queries: Mapping[str, str], held: Mapping[str, Mapping[str, int]]) -> Scores:
    """Return nDCG@10 of each held-out question [Q]."""
    ranked = index.rank([queries[key] for key in held], DEPTH).ids
    rows = {id: row for row, id in enumerate(dict.fromkeys(id for judged in held.values() for id in judged))}
    judgements = Judgements.of_queries(list(held.values()), rows, len(rows))
    places = np.full((len(held), DEPTH), -1, np.int64)
    for place, ids in zip(places, ranked, strict=True):
        place[: len(ids)] = [rows.get(id, -1) for id in ids]
    return query_scores(places, judgements, ks=(DEPTH,))[f"ndcg@{DEPTH}"]


def _gain(before: Scores, after: Scores) -> tuple[float, float]:
    """Return the mean difference, and its standard error."""
    difference = after - before
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def _exchange(index: Index, new: Index, place: Path, draft: Path) -> Path:
    """Let the new index take the folder of the old one, which becomes the former index."""
    former = _former(place)
    if former.exists():
        shutil.rmtree(former)
    new.close()
    draft.rename(former)
    with Index.open(former, new.model, verify=False) as other:
        _bring_over(index, other, place, former)
    return former


def _bring_over(index: Index, other: Index, place: Path, former: Path) -> None:
    """Bring the other index up to date with this one, and exchange their folders while nobody writes."""
    other.upsert(list(index.documents()), progress=False)  # most of it before others have to wait
    opened = OpenedFolder(place)
    with closing(opened), write_lock(opened, LOCK_TIMEOUT), index.feedback_log.held():
        documents = list(index.documents())
        kept = {document.key for document in documents}
        gone = [document.key for document in other.documents() if document.key not in kept]
        other.upsert(documents, delete=gone, progress=False)
        index.feedback_log.copy_to(former)
        _exchange_folders(place, former)


def _exchange_folders(one: Path, other: Path) -> None:
    """Exchange two folders: in one step where the system can, else in three renames."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        names = os.fsencode(one), os.fsencode(other)
        if hasattr(libc, "renameat2") and libc.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0:
            fsync_folder(one.parent)
            return
    between = one.with_name(f".{one.name}.between")
    one.rename(between)
    other.rename(one)
    between.rename(other)
    fsync_folder(one.parent)


def _former(place: Path) -> Path:
    return place.with_name(f"{place.name}.former")


def _real_folder(path: str | Path) -> Path:
    """Return the folder of an index, behind any links."""
    place = check_path(path).absolute()
    if not (place / COMMIT).is_file():
        raise StoreError(f"{place} is no folder of an index: refit takes one")
    return place.resolve()


def count_votes(votes: Iterable[Vote]) -> dict[str, dict[str, int]]:
    """Return for each query its documents' grades: 1 where more votes say useful, 0 where more say not."""
    sums: dict[str, dict[str, int]] = {}
    for vote in votes:
        of_query = sums.setdefault(" ".join(vote.query.split()), {})
        of_query[vote.document] = of_query.get(vote.document, 0) + (1 if vote.useful else -1)
    return {query: {id: int(total > 0) for id, total in rated.items() if total} for query, rated in sums.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
