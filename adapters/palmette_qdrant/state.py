"""The state of a collection: the one point that decides which writes count and who may write.

Every writer holds a *lease* under a number of its own, which only grows. Its points carry the number: ``born`` in the
points that it inserts, ``died`` in those that it replaces or deletes. A number is *committed* when the state's
``generation`` has reached it and ``abandoned`` does not list it; a point is visible when its ``born`` is committed and
its ``died`` is not. Each change of the state names the lease that it expects, and the server changes nothing when
another one is there.

A writer may be paused at any step, or its request may arrive late. Nothing that it does then counts:

=================  ============================================================================================
late step          why it changes nothing
=================  ============================================================================================
insert points      the next writer listed their number as abandoned in the same update that took the lease over;
                   a key that exists is never written again
mark as deleted    the server refuses a number below the one that is there; an abandoned one is ignored
commit             the server refuses it: the lease is another's
undo               removes only points of its own number, after the state lists that number as abandoned
remove the dead    removes only points that died in a committed write, which no later write can undo
=================  ============================================================================================

Machines' clocks are never compared. A lease has expired when waiting writers have watched it for ``LEASE_TTL`` seconds
without a renewal, each by its own monotonic clock; a writer that stops waiting adds its time to ``watched``, so that
short tries add up. In the same way ``ages`` keeps seconds that writers have watched pass since a commit.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palmette.errors import CorruptIndexError, FormatError, NotFoundError
from palmette.search.plan import ArraySpec

STATE = 0
"""Key of the point that holds the state."""
KIND = "palmette index"
"""How the state of an index calls itself."""
DRAFT = "palmette index, being copied"
"""How the state of an unfinished copy calls itself: only the writer that copies opens it."""
FORMAT = 3
"""Version of the payloads."""

Count = Annotated[int, Field(ge=0)]


class State(BaseModel):
    """Payload of the state."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    kind: str
    format: int
    fingerprint: str
    """Fingerprint of the model."""
    arrays: tuple[ArraySpec, ...]
    language: str | None
    tenant: str | None = None
    """Metadata name that separates tenants."""
    cut: dict[str, Any] | None = None
    """How documents are cut into passages; ``None``: they are not."""
    folds: dict[str, list[Annotated[int, Field(ge=1)]]]
    """Levels of each array of distributions that can be searched, as numbers of columns summed."""
    pieces: Count
    """Points 1 … ``pieces`` hold the model's checkpoint."""
    notes: dict[str, str]
    indexed: list[str]
    """Metadata names that the engine indexes."""
    born: Annotated[int, Field(ge=0, le=0)] = 0
    """Makes the state a point that every count of words includes."""

    lease: str
    """Random name of the writer that may write; empty when nobody does."""
    beat: Count
    """Renewals of leases so far."""
    watched: Count
    """Milliseconds that waiting writers have watched the lease without a renewal."""
    writes: Count
    """Number of the last lease."""
    pending: bool
    """Whether the write of that number has neither been committed nor abandoned."""
    abandoned: list[int]
    """Numbers below ``writes`` that were never committed although points may carry them, now or later."""

    generation: Count
    """Number of the last write that was committed."""
    ages: list[tuple[int, float]]
    """Recent commits, and the least number of seconds since each."""
    documents: Count
    """Whole documents."""
    passages: Count
    """Points of documents."""
    length: Count
    """Words in all documents."""
    dead: Count
    """Points that died in a committed write and still lie in the collection."""
    removed: bool
    """Whether the engine's own word counts may include invisible points."""

    def is_committed(self, number: int) -> bool:
        """Return whether the write of a number counts."""
        return 1 <= number <= self.generation and number not in self.abandoned

    def shows(self, born: int, died: int | None) -> bool:
        """Return whether a point is visible."""
        return self.is_committed(born) and (died is None or not self.is_committed(died))


def parse_state(url: str, payload: dict[str, Any] | None) -> State:
    """Check the payload of the state; raise for another program's, another version's or a damaged one."""
    if not isinstance(payload, dict) or payload.get("kind") not in (KIND, DRAFT):
        raise NotFoundError(f"{url} is not a palmette index: another program's collection, or half created")
    version = payload.get("format")
    if isinstance(version, int) and version != FORMAT:
        advice = "upgrade palmette" if version > FORMAT else "index the documents anew"
        raise FormatError(f"{url} has format {version}, but this version reads format {FORMAT}: {advice}")
    try:
        return State.model_validate(payload)
    except (ValidationError, RecursionError) as error:
        reason = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "nested too deeply"}
        place = ".".join(map(str, reason["loc"]))
        raise CorruptIndexError(f"the state of {url} is damaged ({place}: {reason['msg']}): copy it anew") from error
