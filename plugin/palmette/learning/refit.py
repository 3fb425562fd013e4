"""Retrain an index's model on feedback, and replace the index only if the new one is better.

The new index is built beside the old one, and held-out questions are searched in both. Only a clear gain (two standard
errors of nDCG@10) exchanges the folders, in one step. The former index is kept, so that it can be restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.config import check_path
from palmette.data import RetrievalData, load_data
from palmette.data.metrics import judged_rows, query_scores
from palmette.errors import InputError, NotFoundError, StoreError
from palmette.index import Index
from palmette.index.copies import update_copy
from palmette.machine.devices import require_torch
from palmette.machine.files import fsync_folder
from palmette.machine.folders import between, draft_beside, exchange_folders
from palmette.methods.base import Model
from palmette.store.local.database import OpenedFolder
from palmette.store.local.feedback import FEEDBACK, Vote
from palmette.store.local.folder import COMMIT, write_lock

HELD_OUT_SHARE = 0.3
"""Share of the judged questions that are not trained on, and decide about the exchange."""
FEWEST_HELD_OUT = 20
"""Smallest number of held-out questions for an exchange."""
STANDARD_ERRORS = 2.0
"""Least gain for an exchange, in standard errors."""
NDCG_DEPTH = 10
"""Depth of nDCG."""
LOCK_TIMEOUT = 60.0
"""Seconds to wait for a writer before the exchange."""


@dataclass(frozen=True)
class Refit:
    """Quality of the old and the new index, and whether they were exchanged."""

    questions: int
    """Number of judged questions, from feedback and pairs."""
    held_out: int
    """Number of them that decided about the exchange."""
    before: float
    """nDCG@10 of the old index on the held-out questions."""
    after: float
    """nDCG@10 of the new index on the held-out questions."""
    error: float
    """Standard error of the difference."""
    exchanged: bool
    former: Path | None
    """Folder of the former index; ``None`` without an exchange."""
    reason: str


def feedback_data(index: Index, pairs: Any = None, *, seed: int = 0) -> RetrievalData:
    """Return an index's documents with judgements from feedback and, if there are any, further labelled pairs.

    A document with more useful than useless votes is relevant to the query; one with more useless votes is a negative.
    The split ``test`` holds out the questions that decide. They are chosen by a digest of their text, so that a later
    refit holds out the same ones.
    """
    documents = list(index.documents())
    known = {document.key for document in documents}
    judged = grades_of_votes(vote for vote in index.feedback_log.votes() if vote.document in known)
    if pairs is not None:
        by_text = {document.content: document.key for document in documents}
        labelled = load_data(pairs, dev_fraction=0.0, seed=seed)
        for query, grades in labelled.qrels.get("train", {}).items():
            question = " ".join(labelled.queries[query].split())  # as votes have it
            for id, grade in grades.items():
                indexed_id = id if id in known else by_text.get(labelled.corpus[labelled.rows[id]].content)
                if indexed_id is not None:
                    judged.setdefault(question, {})[indexed_id] = grade
    judged = {query: grades for query, grades in judged.items() if any(grade > 0 for grade in grades.values())}
    if not judged:
        raise InputError("nobody has said of a document that it was useful, and there are no pairs: nothing to learn")
    queries = {f"q{number}": query for number, query in enumerate(sorted(judged))}
    # A random order that is the same wherever the questions are: by the hash of their text.
    texts = {key: f"{seed} {query}".encode("utf-8", "surrogatepass") for key, query in queries.items()}
    order = sorted(queries, key=lambda key: hashlib.sha256(texts[key]).hexdigest())
    test_keys = set(order[: round(HELD_OUT_SHARE * len(order))])
    qrels: dict[str, dict[str, dict[str, int]]] = {"train": {}, "test": {}}
    for key, query in queries.items():
        qrels["test" if key in test_keys else "train"][key] = judged[query]
    qrels = {split: part for split, part in qrels.items() if part}
    return RetrievalData("feedback", documents, queries, qrels)


def refit(
    path: str | Path,
    pairs: Any = None,
    *,
    seed: int = 0,
    device: str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Refit:
    """Retrain the model of an index on feedback and pairs, and replace the index if the new one is better.

    Searches and writes can go on meanwhile; written documents are copied to the new index before the exchange. Open
    handles then raise, since the folder holds another index, and a service reopens it by itself.
    :func:`restore_former` restores the former index.

    Args:
        path: Folder of the index.
        pairs: Further labelled pairs about its documents, in any form that :func:`palmette.load_data` reads.
        seed: Seed of the held-out questions and of the training.
        device: Device to train on.
        progress: Progress bars; ``None`` shows them on a terminal.
        options: Options of the method and of the training that replace those of the model.
    """
    require_torch()
    place = _real_folder(path)
    former = _former(place)
    if former.is_symlink() or (former.exists() and not (former / COMMIT).is_file()):
        raise StoreError(f"{former} is no index, but refit keeps the former index there: move it elsewhere")
    with Index.open(place, device=device) as index:
        data = feedback_data(index, pairs, seed=seed)
        test = data.qrels.get("test", {})
        questions = len(data.queries)
        if len(test) < FEWEST_HELD_OUT:
            needed = f"and {FEWEST_HELD_OUT} must decide: wait, or give pairs"
            reason = f"{questions} judged questions hold out {len(test)}, {needed}"
            return Refit(questions, len(test), np.nan, np.nan, np.nan, False, None, reason)
        train = replace(data, qrels={"train": data.qrels["train"]})
        with draft_beside(place) as holder:
            # 1. Train a model of the same method and options over the same encoder.
            settings = own_options(index.model) | options
            encoder = index.model.encoder.plain
            model = type(index.model).fit(train, encoder=encoder, seed=seed, progress=progress, **settings)
            if model.fingerprint == index.model.fingerprint:
                return Refit(questions, len(test), np.nan, np.nan, np.nan, False, None, "training changed nothing")
            # 2. Build its index beside the old one, and ask both the held-out questions.
            with index.copy_to(holder / "index", model=model, progress=progress) as new:
                before, after = _ndcg(index, data.queries, test), _ndcg(new, data.queries, test)
                gains = after - before
                gain, error = float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))
                facts = questions, len(test), float(before.mean()), float(after.mean()), error
                if gain <= STANDARD_ERRORS * error or gain <= 0:
                    return Refit(*facts, False, None, "the new index is not clearly better")
                # 3. Exchange the folders.
                _exchange(index, new, place, holder / "index")
    return Refit(*facts, True, former, "the new index is better")


def restore_former(path: str | Path) -> Path:
    """Restore the index that a refit replaced; a second call restores the newer one."""
    place = _real_folder(path)
    former = _former(place)
    if not former.is_dir():
        raise NotFoundError(f"{former} is not there: no refit has replaced {place}")
    with (
        Index.open(place, device="cpu") as index,
        Index.open(former, device="cpu") as other,
        _brought_over(index, other, place, former),
    ):
        exchange_folders(place, former)
    (former / FEEDBACK).unlink(missing_ok=True)
    return place


def _ndcg(index: Index, queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, int]]) -> NDArray[np.float64]:
    """Return nDCG@10 of each held-out question: [Q]."""
    ranked_ids = index.rank([queries[key] for key in qrels], NDCG_DEPTH).ids
    rows, judgements = judged_rows(ranked_ids, list(qrels.values()), NDCG_DEPTH)
    return query_scores(rows, judgements, ks=(NDCG_DEPTH,))[f"ndcg@{NDCG_DEPTH}"]


def _exchange(index: Index, new: Index, place: Path, draft: Path) -> None:
    """Put the new index in the folder of the old one, and keep the old one as the former index.

    The index that was the former one until then stays so if the exchange fails.
    """
    former = _former(place)
    new.close()
    with Index.open(draft, new.model, verify=False) as other, _brought_over(index, other, place, draft):
        older = draft.with_name("older")
        if former.exists():
            former.rename(older)
        try:
            draft.rename(former)
            exchange_folders(place, former)
        except OSError:
            if former.exists():
                former.rename(draft)
            if older.exists():
                older.rename(former)
            raise
    (former / FEEDBACK).unlink(missing_ok=True)  # it was copied: what a person deletes must be gone everywhere


@contextmanager
def _brought_over(index: Index, other: Index, place: Path, folder: Path) -> Iterator[None]:
    """Copy changes of an index and its feedback to the folder of another, and keep writers out of the index."""
    update_copy(index.backend, other.backend, other.model)  # most changes, before writers have to wait
    opened = OpenedFolder(place)
    with closing(opened), write_lock(opened, LOCK_TIMEOUT), index.feedback_log.held():
        update_copy(index.backend, other.backend, other.model)
        index.feedback_log.copy_to(folder)
        yield


def _former(place: Path) -> Path:
    """Folder of the former index, beside the index."""
    return place.with_name(f"{place.name}.former")


def own_options(model: Model) -> dict[str, Any]:
    """Options that a model was trained with, without what training filled in."""
    chosen, choices = model.config.to_dict(), model.config.choices()
    return {name: value for name, value in chosen.items() if name in choices}


def _real_folder(path: str | Path) -> Path:
    """Return the folder of an index, with symbolic links resolved, after the end of an exchange that was killed."""
    place = check_path(path).absolute()
    waiting, free = between(place), [folder for folder in (place, _former(place)) if not folder.exists()]
    if free and waiting.is_dir():  # a folder that was being renamed gets its name back
        waiting.rename(free[0])
        fsync_folder(place.parent)
    if not (place / COMMIT).is_file():
        raise StoreError(f"{place} is no folder of an index: refit takes one")
    return place.resolve()


def grades_of_votes(votes: Iterable[Vote]) -> dict[str, dict[str, int]]:
    """Grade documents by query: 1 for more useful votes, 0 for more useless ones; a tie gives no grade.

    Queries get single spaces, so that a vote and a pair about it are of one question.
    """
    sums: dict[str, dict[str, int]] = {}
    for vote in votes:
        totals = sums.setdefault(" ".join(vote.query.split()), {})
        totals[vote.document] = totals.get(vote.document, 0) + (1 if vote.useful else -1)
    return {query: {id: int(total > 0) for id, total in totals.items() if total} for query, totals in sums.items()}
