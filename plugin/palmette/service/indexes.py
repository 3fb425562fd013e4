"""Open indexes of a service: reopened when their folder is replaced, and synchronized with a followed folder."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from palmette.data.listing import list_source
from palmette.errors import InputError, LockedError, PalmetteError, StoreError
from palmette.index import Index
from palmette.machine.compiled import compile_loops, compiles_loops
from palmette.machine.files import write_anew
from palmette.machine.threads import run_in_thread
from palmette.reader import Reader
from palmette.service.local import HOME
from palmette.service.turns import Turns
from palmette.sources.walk import file_stamps
from palmette.store.local.database import DATABASE
from palmette.store.qdrant.url import is_url

T = TypeVar("T")
Stamp = tuple[int, int]
"""Device and inode of a database, which identify an index."""

log = logging.getLogger("palmette.service")
POLL = 2.0
"""Seconds between two checks of a followed folder."""
BATCH = 64
"""Number of documents of a followed folder that become visible together."""
RETRY_AFTER = 1.0
"""Seconds after which a replaced index that could not be opened is tried again."""
SMALL = 20_000
"""Documents up to which a service that was started without compiled loops does without them."""


@dataclass(eq=False)
class Handle:
    """An open index, and its filtered views for callers."""

    index: Index
    reader: Reader
    stamp: Stamp | None
    folder: Path | None
    users: int = 0
    retired: bool = False
    views: dict[str, Index] = field(default_factory=dict)

    def view(self, name: str, filter: Mapping[str, Any] | None) -> Index:
        """Return the index restricted by a caller's filter."""
        if filter is None:
            return self.index
        if name not in self.views:
            self.views[name] = self.index.filtered(filter)
        return self.views[name]

    @property
    def is_current(self) -> bool:
        """False if another index has replaced the folder since it was opened."""
        return self.folder is None or stamp_of(self.folder) == self.stamp

    def release(self) -> None:
        """Close a retired handle once its last user is done."""
        if self.retired and not self.users:
            self.index.close()


@dataclass
class Progress:
    """Progress of indexing a followed folder."""

    done: int = 0
    total: int | None = None
    error: str = ""


class Served:
    """A named index of a service."""

    def __init__(
        self, name: str, path: str, *, model: str | None = None, reader: str | None = None, **options: Any
    ) -> None:
        self.name, self._model, self._reader, self._options = name, model, reader, options
        self.source: Path | None = None
        """Folder of documents that the index follows, if any."""
        self.path = path if is_url(path) else str(Path(path).expanduser().absolute())
        folder, names = Path(self.path), (DATABASE, "manifest.json")
        if not is_url(path) and folder.is_dir() and not any((folder / name).exists() for name in names):
            self.source, self.path = folder, str(folder / HOME / "index")
        self.progress = Progress()
        self.turns = Turns()
        """Shares of the threads that read, of all indexes of a service."""
        self.handle: Handle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failed: tuple[float, Stamp | None] = (0.0, None)  # time and database of the last failure to reopen
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"palmette-write-{name}")
        self._stop, self._follower = threading.Event(), threading.Thread(target=self._follow, daemon=True)

    def open(self) -> None:
        """Open the index, or create that of a followed folder; blocks."""
        if self.source is not None:
            home = self.source / HOME
            if home.is_symlink():  # of a stranger's folder: nothing outside is written
                raise StoreError(f"{home} is a link: serve the index behind it by its own path, or remove it")
            with suppress(OSError):  # opening the index inside raises a better error
                home.mkdir(exist_ok=True)
                write_anew(home / ".gitignore", b"*\n")
            Index.open_or_create(self.path, self._model, encoder=self._options.get("encoder")).close()
        self.handle = self._load()
        if self.source is not None:
            self._follower.start()

    def close(self) -> None:
        """Finish a running write, and close the index; blocks."""
        self._stop.set()
        if self._follower.ident is not None:
            self._follower.join()
        self._writer.shutdown(cancel_futures=True)
        if self.handle is not None:
            self.handle.index.close()

    def _load(self) -> Handle:
        """Open index and reader, and search once, so that the loops of a search are compiled."""
        stamp = stamp_of(self.path)
        index = Index.open(self.path, **self._options)
        try:
            if len(index) > SMALL:
                compile_loops()
            encoder = index.model.encoder.plain
            reader = Reader.untrained(encoder) if self._reader is None else Reader.from_pretrained(self._reader)
            if len(index) and compiles_loops():
                reader.answer("first", index.search("first", 1))
        except BaseException:
            index.close()
            raise
        folder = getattr(index.backend, "path", None)
        return Handle(index, reader, stamp, folder)

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Handle]:
        """Provide the open index; if it is replaced meanwhile, it stays open until the block ends."""
        handle = await self._current()
        handle.users += 1
        try:
            yield handle
        finally:
            handle.users -= 1
            handle.release()

    async def _current(self) -> Handle:
        """Return the open index, reopened if its folder was replaced."""
        handle, stamp = self.handle, stamp_of(self.path)
        if handle is None:
            raise StoreError(f"index {self.name!r} is being opened: try again in a moment")
        if stamp is None or stamp == handle.stamp:
            return handle
        now = asyncio.get_running_loop().time()
        if self._opening is None and (stamp != self._failed[1] or now - self._failed[0] > RETRY_AFTER):
            self._opening = asyncio.create_task(self._exchange(stamp))
        opening = self._opening
        if opening is not None and not handle.is_current:
            await asyncio.shield(opening)
        current = self.handle
        return handle if current is None else current

    async def _exchange(self, stamp: Stamp) -> None:
        """Open the index that replaced the current one, and retire that."""
        try:
            former, self.handle = self.handle, await run_in_thread(self._load)
            log.info("%s: picked up the index that replaced it", self.name)
            if former is not None:
                former.retired = True
                former.release()
        except PalmetteError as error:
            self._failed = (asyncio.get_running_loop().time(), stamp)
            log.warning("%s: the index that replaced it cannot be opened: %s", self.name, error)
        finally:
            self._opening = None

    async def read(self, caller: str, filter: Mapping[str, Any] | None, call: Callable[[Index, Reader], T]) -> T:
        """Run a reading call in a thread; repeat it if the index was replaced during the call."""
        for attempt in range(2):
            async with self.use() as handle:
                try:
                    return await self.turns.run(caller, call, handle.view(caller, filter), handle.reader)
                except StoreError:
                    if attempt or handle.is_current:
                        raise
        raise AssertionError("unreachable")

    async def write(self, caller: str, filter: Mapping[str, Any] | None, call: Callable[[Index], T]) -> T:
        """Run a change after the earlier ones; a change that has begun is finished even if its client disconnects."""
        if self.source is not None:
            raise InputError(f"index {self.name!r} follows the folder {self.source.name!r}: change its files")
        async with self.use() as handle:
            view, loop = handle.view(caller, filter), asyncio.get_running_loop()
            return await loop.run_in_executor(self._writer, partial(call, view))

    # -- following a folder -----------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Synchronize the index whenever a file of the folder changes, until the service stops."""
        assert self.source is not None
        known: object = None
        while not self._stop.is_set():
            state: object = None
            try:
                state = file_stamps(self.source), stamp_of(self.path)
            except PalmetteError as error:
                self.progress.error = str(error)
            if state is not None and state != known:
                try:
                    self._bring_up_to_date(self.source)
                    self.progress.error, known = "", state
                except LockedError as error:
                    self.progress.error = str(error)
                except Exception as error:  # the next change of a file, or another index, is another attempt
                    self.progress.error, known = str(error), state
                    log.warning("%s: %s", self.name, error, exc_info=not isinstance(error, PalmetteError))
            self._stop.wait(POLL)

    def _bring_up_to_date(self, folder: Path) -> None:
        """Synchronize the index with the folder, and report progress."""
        assert self.handle is not None
        if not self.handle.is_current:  # replaced, and no request has made the service open it again
            with Index.open(self.path, **self._options) as index:
                self._synchronize(index, folder)
        else:
            self._synchronize(self.handle.index, folder)

    def _synchronize(self, index: Index, folder: Path) -> None:
        listing = list_source(folder, folder.name, progress=False)
        total = len(listing.documents)
        self.progress = Progress(0, total)

        def report_progress(done: int, fresh: int) -> bool:
            self.progress.done = total - fresh + done
            return not self._stop.is_set()

        report = index.sync_listing(
            folder.name, listing, batch_size=BATCH, per_commit=BATCH, progress=False, on_commit=report_progress
        )
        self.progress.done = total
        for path, reason in report.skipped:
            log.info("%s: skipped %s: %s", self.name, path, reason)


def stamp_of(path: str | Path) -> Stamp | None:
    """Identify the database of an index folder; ``None`` for a collection, and while folders are exchanged."""
    try:
        about = Path(path, DATABASE).stat()
    except (OSError, ValueError):
        return None
    return about.st_dev, about.st_ino
