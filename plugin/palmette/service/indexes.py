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
from typing import Any, ParamSpec, TypeVar

from palmette.data.listing import list_source
from palmette.errors import InputError, LockedError, NotFoundError, PalmetteError, StoreError
from palmette.index import Index
from palmette.index.languages import language_of_sources
from palmette.machine.compiled import compile_loops, compiles_loops
from palmette.machine.files import write_anew
from palmette.machine.folders import draft_beside
from palmette.machine.threads import run_in_thread, submit
from palmette.ranking.second_stage import Rerank, as_reranker
from palmette.reader import Reader
from palmette.service.local import HOME
from palmette.sources.walk import file_stamps
from palmette.store.engines import is_url
from palmette.store.local.backend import LocalBackend
from palmette.store.local.database import DATABASE
from palmette.store.protocols import READ_LIMIT

P = ParamSpec("P")
T = TypeVar("T")
Stamp = tuple[int, int]
"""Device and inode of a database, which identify an index."""
State = tuple[dict[Path, tuple[int, ...]], Stamp | None]
"""What tells that files of a followed folder, or its index, are others than before."""

log = logging.getLogger("palmette.service")
POLL = 2.0
"""Seconds between two checks of a followed folder."""
MOST_LOOKS = 5
"""Checks for which vanished files, or a vanished index, wait for a folder to come to rest."""
PASSAGES_PER_COMMIT = 64
"""Number of documents of a followed folder that become visible together."""
EXCHANGE_AGAIN_AFTER = 1.0
"""Seconds after which a replaced index that could not be opened is tried again."""
MOST_CHARACTERS = 2**26
"""Characters of all passages that a call reads."""
UNCOMPILED_UP_TO = 20_000
"""Documents up to which a service that was started without compiled loops does without them."""


class PerCallerLimit:
    """Runs calls in threads, at most ``limit`` at a time of one caller; further ones of that caller wait.

    A running call counts until its thread ends, also after its client has disconnected or its time is over.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        """Largest number of threads of a caller; ``None`` for all."""
        self._semaphores: dict[str, asyncio.Semaphore] = {}

    async def run(self, caller: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in a thread once its caller is below the limit."""
        if self.limit is None:
            return await asyncio.wrap_future(submit(call, *args, **kwargs))
        semaphore = self._semaphores.setdefault(caller, asyncio.Semaphore(self.limit))
        await semaphore.acquire()
        loop = asyncio.get_running_loop()

        def end(_: object) -> None:
            with suppress(RuntimeError):  # the service has stopped meanwhile
                loop.call_soon_threadsafe(semaphore.release)

        try:
            running = submit(call, *args, **kwargs)
        except BaseException:
            semaphore.release()
            raise
        running.add_done_callback(end)  # of a thread that ends, or of a call that was dropped before it began
        return await asyncio.wrap_future(running)


@dataclass(eq=False)
class OpenIndex:
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
        """Close a replaced index once its last user is done."""
        if self.retired and not self.users:
            self.index.close()


@dataclass
class Progress:
    """Progress of indexing a followed folder."""

    done: int = 0
    total: int | None = None
    error: str = ""


class ServedIndex:
    """A named index of a service."""

    def __init__(
        self,
        name: str,
        path: str,
        *,
        model: str | None = None,
        reader: str | None = None,
        rerank: Rerank = None,
        **options: Any,
    ) -> None:
        self.name, self._model, self._reader, self._options = name, model, reader, options
        self._reranker = None if rerank is None else as_reranker(rerank)
        self.is_indexed = True
        """Whether a followed folder has been indexed as a whole since the service began."""
        self.source: Path | None = None
        """Folder of documents that the index follows, if any."""
        self.path = path if is_url(path) else str(Path(path).expanduser().absolute())
        self._find_source()
        self.progress = Progress()
        self.warning = ""
        """What keeps an index that answers from being up to date."""
        self.limit = PerCallerLimit()
        """Limit of a caller's reading calls, shared by all indexes of a service."""
        self.opened: OpenIndex | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failed: tuple[float, Stamp | None] = (0.0, None)  # time and database of the last failure to reopen
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"palmette-write-{name}")
        self._stop, self._follower = threading.Event(), threading.Thread(target=self._follow, daemon=True)

    def _find_source(self) -> None:
        """Follow the place if it is a folder of documents, and no index."""
        folder, names = Path(self.path), (DATABASE, "manifest.json")
        if not is_url(self.path) and folder.is_dir() and not any((folder / name).exists() for name in names):
            self.source, self.path, self.is_indexed = folder, str(folder / HOME / "index"), False

    def open(self) -> None:
        """Open the index, or create that of a followed folder; blocks."""
        if self.source is None:  # the folder may have been away until now
            self._find_source()
        if self.source is not None:
            make_home(self.source)
            language = None if Path(self.path).exists() else language_of_sources([self.source])
            encoder = self._options.get("encoder")
            Index.build([], self._model, self.path, encoder=encoder, language=language).close()
        self.opened = self._load()
        if self.source is not None:
            self.progress = Progress(len(self.opened.index))  # of an earlier run
            self._follower.start()

    @property
    def reranker_places(self) -> dict[str, str]:
        """Addresses and folders that name the reranker, each with what others than the machine's user see."""
        name = "" if self._reranker is None else self._reranker.name
        kind, _, place = name.partition(":")
        if kind == "rerank":
            return {f"http{name.rpartition('@http')[2]}": "the reranker's server"}
        if kind != "cross-encoder" or not place.startswith(("/", ".", "~")):
            return {}
        return {written: Path(place).name for written in (place, str(Path(place).expanduser()))}

    @property
    def unready(self) -> str:
        """Why the index cannot be searched, or not as a whole yet; empty where it can."""
        opened = self.opened
        if opened is None:
            return "is not open"
        if self.source is None and opened.folder is not None and stamp_of(self.path) is None:
            return "is no longer where it was opened"
        if self.is_indexed:
            return ""
        done, total = self.progress.done, self.progress.total
        return f"indexes its folder: {done:,}" + (" documents so far" if total is None else f" of {total:,}")

    @property
    def indexing(self) -> dict[str, int | None] | None:
        """Documents of a followed folder that can be found so far, and all of them; ``None`` once it was whole."""
        done, total = self.progress.done, self.progress.total
        return None if self.is_indexed or done == total else {"done": done, "total": total}

    def close(self) -> None:
        """Finish a running write, and close the index; blocks."""
        self._stop.set()
        if self._follower.ident is not None:
            self._follower.join()
        self._writer.shutdown(cancel_futures=True)
        if self.opened is not None:
            self.opened.index.close()

    def _load(self) -> OpenIndex:
        """Open index and reader, and search once, so that the loops of a search are compiled."""
        stamp = stamp_of(self.path)
        index = Index.open(self.path, **self._options)
        index.reranker = self._reranker
        try:
            if len(index) > UNCOMPILED_UP_TO:
                compile_loops()
            encoder = index.model.encoder.plain
            reader = Reader.untrained(encoder) if self._reader is None else Reader.from_pretrained(self._reader)
            if len(index) and compiles_loops():
                reader.answer("first", index.search("first", 1, rerank=False))
            if self.source is not None:
                outlast(index)
        except BaseException:
            index.close()
            raise
        folder = getattr(index.backend, "path", None)
        return OpenIndex(index, reader, stamp, folder)

    @asynccontextmanager
    async def use(self) -> AsyncIterator[OpenIndex]:
        """Provide the open index; if it is replaced meanwhile, it stays open until the block ends."""
        opened, stamp = self.opened, stamp_of(self.path)
        if opened is None:
            raise StoreError(f"index {self.name!r} is being opened: try again in a moment")
        # another index lies at the path: open it, unless that has just failed
        if stamp is not None and stamp != opened.stamp:
            now = asyncio.get_running_loop().time()
            if self._opening is None and (stamp != self._failed[1] or now - self._failed[0] > EXCHANGE_AGAIN_AFTER):
                self._opening = asyncio.create_task(self._exchange(stamp))
            if self._opening is not None and not opened.is_current:
                await asyncio.shield(self._opening)
            opened = self.opened or opened
        opened.users += 1
        try:
            yield opened
        finally:
            opened.users -= 1
            opened.release()

    async def _exchange(self, stamp: Stamp) -> None:
        """Open the index that replaced the current one, and retire that."""
        try:
            former, self.opened = self.opened, await run_in_thread(self._load)
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
        """Run a reading call in a thread; repeat it if the index was replaced during the call.

        If the passages that it reads have too many characters together, it raises InputError.
        """

        def bounded(index: Index, reader: Reader) -> T:
            token = READ_LIMIT.set(MOST_CHARACTERS)
            try:
                return call(index, reader)
            finally:
                READ_LIMIT.reset(token)

        for attempt in range(2):
            async with self.use() as opened:
                try:
                    return await self.limit.run(caller, bounded, opened.view(caller, filter), opened.reader)
                except StoreError:
                    if attempt or opened.is_current:
                        raise
        raise AssertionError("unreachable")

    async def write(self, caller: str, filter: Mapping[str, Any] | None, call: Callable[[Index], T]) -> T:
        """Run a change after the earlier ones; a change that has begun is finished even if its client disconnects."""
        if self.source is not None:
            raise InputError(f"index {self.name!r} follows the folder {self.source.name!r}: change its files")
        async with self.use() as opened:
            view, loop = opened.view(caller, filter), asyncio.get_running_loop()
            return await loop.run_in_executor(self._writer, partial(call, view))

    # -- following a folder -----------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Synchronize the index whenever a file of the folder changes, until the service stops.

        While the folder is away, what was indexed is searched. When it is back without the index that lay in it, a new
        one is made. That, and what follows from files that vanished, wait for a second look that finds the same: the
        folder may just be on its way out, or in.
        """
        assert self.source is not None
        indexed_state: State | None = None  # when the index was brought up to date
        last_state: State | None = None  # at the last look
        waited = 0
        while not self._stop.is_set():
            # 1. look at the folder
            state: State | None = None
            try:
                state, self.warning = (file_stamps(self.source), stamp_of(self.path)), ""
            except NotFoundError:
                indexed_state, self.progress.error = None, ""
                if not self.warning:
                    self.warning = "its folder is away: what was indexed is searched until it is back"
                    log.warning("%s: %s", self.name, self.warning)
            except PalmetteError as error:
                self.progress.error = str(error)
            # 2. wait for another look where files, or the index, have vanished since
            unsure = state is not None and (
                state[1] is None or bool(indexed_state and indexed_state[0].keys() - state[0])
            )
            waited = waited + 1 if unsure and state != last_state and waited < MOST_LOOKS else 0
            # 3. bring the index up to date, or make a new one
            if state is not None and state != indexed_state and not waited:
                try:
                    assert self.opened is not None
                    if state[1] is None:
                        self._index_anew(self.source, self.opened.index)
                    elif self.opened.is_current:
                        self._synchronize(self.opened.index, self.source)
                    else:  # replaced, and no request has made the service open it again
                        with Index.open(self.path, **self._options) as index:
                            self._synchronize(index, self.source)
                    self.progress.error, indexed_state = "", state
                    self.is_indexed = self.is_indexed or not self._stop.is_set()
                except LockedError as error:
                    self.progress.error = str(error)
                except Exception as error:  # the next change of a file, or another index, is another attempt
                    self.progress.error, indexed_state = str(error), state
                    log.warning("%s: %s", self.name, error, exc_info=not isinstance(error, PalmetteError))
            last_state = state
            self._stop.wait(POLL)

    def _index_anew(self, folder: Path, opened: Index) -> None:
        """Index a folder whose index is gone, and put the new index in its place once it is whole."""
        make_home(folder)
        with draft_beside(Path(self.path)) as draft:
            # its own model, which may have lain in the folder too
            with Index.create(draft / "index", opened.model, language=opened.backend.language) as index:
                self._synchronize(index, folder)
            if self._stop.is_set():
                return
            try:
                (draft / "index").rename(self.path)
            except OSError:
                if stamp_of(self.path) is None:
                    raise
                # the folder came back with its index meanwhile, which the next look brings up to date
                log.info("%s: its folder came back with an index", self.name)
            else:
                log.info("%s: indexed anew, since its folder was made anew", self.name)

    def _synchronize(self, index: Index, folder: Path) -> None:
        """Synchronize an index with the folder, and report progress."""
        listing = list_source(folder, folder.name, progress=False)
        if not folder.exists():  # it was removed while it was read
            raise NotFoundError(f"there is no folder {folder}")
        total = len(listing.documents)
        self.progress = Progress(min(len(index), total), total)

        def report_progress(done: int, fresh: int) -> bool:
            self.progress.done = total - fresh + done
            return not self._stop.is_set()

        report = index.sync_listing(
            folder.name,
            listing,
            batch_size=PASSAGES_PER_COMMIT,
            per_commit=PASSAGES_PER_COMMIT,
            progress=False,
            on_commit=report_progress,
        )
        self.progress.done = total
        outlast(index)
        for path, reason in report.skipped:
            log.info("%s: skipped %s: %s", self.name, path, reason)


def make_home(folder: Path) -> None:
    """Make the folder of the index inside a folder of documents."""
    home = folder / HOME
    if home.is_symlink():  # of a stranger's folder: nothing outside is written
        raise StoreError(f"{home} is a link: serve the index behind it by its own path, or remove it")
    with suppress(OSError):  # opening the index inside raises a better error
        home.mkdir(exist_ok=True)
        write_anew(home / ".gitignore", b"*\n")


def outlast(index: Index) -> None:
    """Let an index that lies in the folder it follows answer while that is away."""
    if isinstance(index.backend, LocalBackend):
        index.backend.outlast()


def stamp_of(path: str | Path) -> Stamp | None:
    """Identify the database of an index folder; ``None`` for a collection, and while folders are exchanged."""
    try:
        about = Path(path, DATABASE).stat()
    except (OSError, ValueError):
        return None
    return about.st_dev, about.st_ino
