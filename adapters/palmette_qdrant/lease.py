"""The right to write to a collection; ``state.py`` describes what a lease protects from."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import uuid4

from palmette.errors import LockedError, StoreError
from palmette_qdrant.client import Collection
from palmette_qdrant.state import State

LEASE_TTL = 60.0
"""Seconds without a renewal after which waiting writers take a lease over."""
TOMBSTONE_TTL = 60.0
"""Seconds that a deleted document stays for views that were opened before."""
POLL = 0.05
"""Seconds between two looks at another writer's lease."""
SPACING = TOMBSTONE_TTL / 16
"""Seconds between the commits whose ages the state keeps."""


class Lease:
    """A writer's lease, under a number that no other writer ever has."""

    def __init__(self, db: Collection, timeout: float) -> None:
        self.db, self.token = db, uuid4().hex
        try:
            self.state = self._acquire(timeout)
        except BaseException:
            with suppress(StoreError):
                self.release()
            raise
        self.number, self._beat = self.state.writes, self.state.beat
        self._renewed = now = db.clock()
        known = db.committed_at
        db.committed_at = {number: min(now - age, known.get(number, now - age)) for number, age in self.state.ages}

    def _acquire(self, timeout: float) -> State:
        """Take the lease, once it is free or has not moved for ``LEASE_TTL``; raises LockedError in time."""
        db, deadline = self.db, self.db.clock() + timeout
        known, since = None, 0.0
        while True:
            state, now = db.state(), db.clock()
            if (lease := (state.lease, state.beat, state.watched)) != known:
                known, since = lease, now
            watched = state.watched / 1000 + now - since
            if (not state.lease or watched >= LEASE_TTL) and (leased := self._take(state)) is not None:
                return leased
            if now > deadline:
                expected: dict[str, str | int] = {"lease": state.lease, "beat": state.beat, "watched": state.watched}
                db.update_state({"watched": int(1000 * watched)}, **expected)
                raise LockedError(
                    f"{db.url} is being written; retry (the lease of a killed writer expires after "
                    f"{max(0.0, LEASE_TTL - watched):.0f} s more of waiting)"
                )
            db.sleep(POLL)

    def _take(self, state: State) -> State | None:
        """Take the lease if nobody has changed it meanwhile; what its last holder left unfinished is abandoned."""
        unfinished = [state.writes] if state.pending else []
        changes: dict[str, Any] = {"lease": self.token, "beat": state.beat + 1, "watched": 0}
        changes |= {"writes": state.writes + 1, "pending": True, "abandoned": [*state.abandoned, *unfinished]}
        changes |= {"removed": state.removed or state.pending}
        self.db.update_state(changes, lease=state.lease, beat=state.beat, writes=state.writes)
        current = self.db.state()
        return current if current.lease == self.token else None

    def renew(self) -> None:
        """Tell waiting writers that this one is alive; raise if one of them took over."""
        if self.db.clock() < self._renewed + LEASE_TTL / 3:
            return
        self._beat += 1
        self.db.update_state({"beat": self._beat, "watched": 0}, lease=self.token)
        if self.db.state().lease != self.token:
            raise LockedError(f"{self.db.url}: another writer took over while this one paused; start again")
        self._renewed = self.db.clock()

    def age(self, generation: int) -> float:
        """Least number of seconds since a commit."""
        return self.db.clock() - self.db.committed_at[generation]

    def expired(self) -> int:
        """Last commit before which no view is served any more."""
        return max((number for number, _ in self.state.ages if self.age(number) > TOMBSTONE_TTL), default=0)

    def commit(self, changes: dict[str, Any]) -> None:
        """Count this write and end the lease, in one update; raise if the lease was taken over."""
        ages = [[number, round(self.age(number), 3)] for number, _ in self.state.ages if number >= self.expired()]
        if len(ages) > 1 and ages[-2][1] < SPACING:
            ages.pop()
        changes = {**changes, "generation": self.number, "ages": [*ages, [self.number, 0.0]]}
        self.release(changes)
        if not self.db.state().is_committed(self.number):
            raise LockedError(f"{self.db.url}: another writer took over, and this one was not committed; start again")
        self.db.committed_at[self.number] = self.db.clock()

    def release(self, changes: dict[str, Any] | None = None) -> None:
        """End the lease if it is still this writer's."""
        self.db.update_state({"lease": "", "pending": False, **(changes or {})}, lease=self.token)

    def abandon(self) -> State:
        """End the lease so that this write never counts, unless it does already; returns the state."""
        self.release({"removed": True, "abandoned": [*self.state.abandoned, self.number]})
        return self.db.state()
