"""A day in the life of a service: four followed folders and an index of notes, people, kills and a full disk.

``python tests/damage/day.py --hours 24 --minute 2``: two seconds stand for a minute, so that a day takes 48 minutes. In
each hour the service is killed once at any moment, and stopped and started once; in every third one the disk is full
before the kill (as root, on a disk in memory). Afterwards each index must equal a fresh one of its folder, each
acknowledged write and vote must be there, and no log may tell of an error that is not palmette's own.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "plugin")]

import httpx

from palmette import FakeEncoder, Index, PalmetteError, SpaceModel
from support.odd_files import office_files, text_files

FOLLOWED = ("site", "code", "office", "log")
QUESTIONS = ("where does the owl sing at night?", "which page tells of hens?", "function of the garden", "house 7")
MEGABYTES = 64
MISS = {429, 503, 507}
"""Replies of a service that cannot do it now."""
FOREIGN = re.compile(r"Traceback|Exception\b|(ERROR|CRITICAL) (?!palmette)|Segmentation|never awaited")


def sentences(draw: random.Random, count: int) -> str:
    """Some sentences, of which no two are alike."""
    words = "owl hen garden house night page song red green old new quick door roof letter".split()
    return " ".join(f"The {' '.join(draw.choices(words, k=8))} {draw.randrange(10**6)}." for _ in range(count))


# -- four folders, each changed as such folders are --------------------------------------------------------------------


def build_site(folder: Path, draw: random.Random) -> None:
    """Remove the site and build it anew, a page after the other; sometimes beside, and put in its place."""
    beside = draw.random() < 0.5
    new = folder.with_name("site.new") if beside else folder
    shutil.rmtree(new, ignore_errors=True)
    if beside:
        new.mkdir()
    fixed = random.Random(7)
    for number in range(40):
        text = sentences(fixed if number % 4 else draw, 6)
        page = new / f"part{number % 5}" / f"page{number}.{'html' if number % 3 else 'md'}"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"<h1>Page {number}</h1><p>{text}</p>" if number % 3 else f"# Page {number}\n\n{text}")
    if beside:
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)


def git(folder: Path, *command: str) -> None:
    who = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    names = ("-c", "user.name=day", "-c", "user.email=day@localhost", "-c", "gc.auto=0")
    (folder / ".git" / "index.lock").unlink(missing_ok=True)  # of a command that found no room
    subprocess.run(["git", *names, *command], cwd=folder, env=os.environ | who, capture_output=True, check=True)


def edit_code(folder: Path, draw: random.Random) -> None:
    """Edit, add, rename or delete modules, commit, and switch between two branches."""
    if not (folder / ".git").exists():
        folder.mkdir(exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
        (folder / "readme.md").write_text("# Code\n\nFunctions of the garden.")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "begin")
        git(folder, "branch", "other")
    for _ in range(3):
        file = folder / f"module{draw.randrange(15)}.py"
        chance = draw.random()
        if file.exists() and chance < 0.2:
            file.unlink()
        elif file.exists() and chance < 0.4:
            file.rename(folder / f"module{draw.randrange(15)}.py")
        else:
            functions = (
                f'def garden{n}():\n    """{sentences(draw, 3)}"""\n\n\n' for n in range(draw.randrange(1, 30))
            )
            file.write_text("".join(functions))
    if draw.random() < 0.5:
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "edit", "--allow-empty")
        git(folder, "checkout", "-qf", draw.choice(["main", "other"]))


def share_files(odd: dict[str, bytes], folder: Path, draw: random.Random) -> None:
    """Save letters, also by a file beside, put a broken file down, and take others away."""
    folder.mkdir(exist_ok=True)
    letter = folder / f"letter{draw.randrange(30)}.md"
    draft = letter.with_suffix(".tmp") if draw.random() < 0.5 else letter
    draft.write_text(f"---\nby: person {draw.randrange(9)}\n---\n{sentences(draw, 12)}")
    draft.rename(letter)
    there = sorted({path.name for path in folder.iterdir()} & odd.keys())
    name = draw.choice(sorted(odd))
    (folder / name).write_bytes(odd[name])
    for old in draw.sample(there, max(0, len(there) - 8)):
        (folder / old).unlink()


def grow_log(folder: Path, draw: random.Random) -> None:
    """Append lines; a day's file is followed by another."""
    folder.mkdir(exist_ok=True)
    with (folder / f"day{len(list(folder.iterdir())) // 9}-{draw.randrange(4)}.txt").open("a") as file:
        for _ in range(draw.randrange(1, 40)):
            file.write(f"{time.time():.3f} INFO {sentences(draw, 1)}\n")


# -- the service and its people ----------------------------------------------------------------------------------------


class Day:
    """The world of a day: a place, a service that comes and goes, threads, and what they saw."""

    def __init__(self, place: Path, minute: float, seed: int) -> None:
        self.place, self.minute, self.draw = place, minute, random.Random(seed)
        self.errors, self.seen = list[str](), Counter[str]()
        self.written: dict[str, str | None] = {}
        """Text of each note that the service acknowledged, by id; ``None`` where it was deleted."""
        self.unsure, self.votes = dict[str, set[str | None]](), set[str]()
        self.over, self.threads = threading.Event(), list[threading.Thread]()
        self.service: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = Path(tempfile.mkstemp(prefix="palmette-day-", suffix=".log")[1])

    def start(self) -> None:
        """Start the service, and wait until it answers."""
        places = [str(self.place / name) for name in (*FOLLOWED, "notes")]
        options = ["--write", "--port", str(self.port), "--encoder", "fake:32", "--rate", "1000000"]
        command = [sys.executable, "-m", "palmette", "serve", *places, *options]
        with self.log.open("a") as log:
            self.service = subprocess.Popen(command, stdout=log, stderr=log)
        self.wait(lambda: self.call("GET", "/health") == 200, "the service starts")
        self.wait(lambda: self.call("POST", "/v1/get", index="notes", ids=["none"]) == 200, "the notes can be read")

    def stop(self, sign: int) -> None:
        """Stop or kill the service."""
        if self.service is None or self.service.returncode is not None:
            return
        self.service.send_signal(sign)
        try:
            ended = self.service.wait(60)
        except subprocess.TimeoutExpired:
            self.service.kill()
            ended = self.service.wait()
        if ended != (0 if sign == signal.SIGTERM else -sign):
            self.errors.append(f"the service ended with {ended} on signal {sign}")

    def wait(self, true: Callable[[], Any], what: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds} s: {what}")
            time.sleep(0.1)

    def call(self, method: str, path: str, **body: Any) -> int | None:
        """Return the status of a reply, ``None`` where there is no service; note a reply that must not be."""
        try:
            reply = httpx.request(method, f"http://127.0.0.1:{self.port}{path}", json=body or None, timeout=90)
        except httpx.HTTPError:
            self.seen["no reply"] += 1
            return None
        self.seen[str(reply.status_code)] += 1
        if reply.status_code != 200 and reply.status_code not in MISS:
            self.errors.append(f"{method} {path} {body}: {reply.status_code} {reply.text[:300]}")
        return reply.status_code

    def ask(self, draw: random.Random) -> None:
        """Put a question to an index, in one of four ways."""
        index, question = draw.choice((*FOLLOWED, "notes")), f"{draw.choice(QUESTIONS)} {draw.randrange(99)}"
        name, body = draw.choice((("search", "query"), ("answer", "question"), ("context", "question")))
        self.call("POST", f"/v1/{name}", index=index, **{body: question})
        self.call("GET", draw.choice(("/v1/indexes", "/metrics", "/ready")))

    def note(self, draw: random.Random, owner: int) -> None:
        """Write or delete a note of one's own, or vote on one."""
        id, text = f"note {owner}-{draw.randrange(40)}", sentences(draw, 4)
        before = self.unsure.pop(id, None) or {self.written.get(id)}
        if draw.random() < 0.2:
            done, new = self.call("POST", "/v1/delete", index="notes", ids=[id]), None
        else:
            document = {"id": id, "text": text}
            done, new = self.call("POST", "/v1/upsert", index="notes", documents=[document]), text
        self.written[id] = new if done == 200 else self.written.get(id)
        if done != 200:
            self.unsure[id] = before | {new}
        elif new:
            question = f"{draw.choice(QUESTIONS)} {draw.getrandbits(40)}"
            if self.call("POST", "/v1/feedback", index="notes", query=question, id=id, useful=True) == 200:
                self.votes.add(question)

    def again(self, name: str, pause: float, act: Callable[[], object], seed: int) -> None:
        """Do something again and again, in a thread, until the day is over; ``pause`` in minutes."""
        draw = random.Random(seed)

        def run() -> None:
            while not self.over.wait(max(pause * self.minute, 0.2) * draw.uniform(0.5, 1.5)):
                try:
                    act()
                except (OSError, subprocess.CalledProcessError) as error:  # no room, or a folder on its way
                    self.seen[f"{name}: {type(error).__name__}"] += 1
                except Exception as error:
                    self.errors.append(f"{name}: {error!r}")

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def hour(self, number: int, can_fill: bool) -> None:
        """An hour: a full disk now and then, a kill, a stop, and a start after each."""
        time.sleep(self.draw.uniform(5, 20) * self.minute)
        if can_fill and number % 3 == 0:
            with suppress(OSError), (self.place / ".fill").open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
            time.sleep(self.draw.uniform(3, 10) * self.minute)
        self.stop(signal.SIGKILL)
        time.sleep(self.draw.uniform(0, 2) * self.minute)
        self.start()
        (self.place / ".fill").unlink(missing_ok=True)
        time.sleep(self.draw.uniform(5, 20) * self.minute)
        self.stop(signal.SIGTERM)
        self.start()

    def end(self) -> None:
        """Let all threads come to their end."""
        self.over.set()
        for thread in self.threads:
            thread.join()

    # -- what must hold afterwards ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare each index with a fresh one, and the notes with what was acknowledged."""
        model = SpaceModel.untrained(FakeEncoder(32))
        for name in FOLLOWED:
            with Index.in_memory(model) as fresh, Index.open(self.place / name / ".palmette" / "index") as index:
                fresh.sync(self.place / name, progress=False)
                index.verify()
                expected, found = ({d.id: d.text for d in each.documents()} for each in (fresh, index))
                if expected != found:
                    other = [id for id in expected.keys() | found.keys() if expected.get(id) != found.get(id)]
                    self.errors.append(f"{name}: {len(other)} documents differ from a fresh index: {sorted(other)[:5]}")
                for question in QUESTIONS:
                    one, two = (ranks(each, question) for each in (fresh, index))
                    if one != two:
                        self.errors.append(f"{name}: {question!r} has other ranks: {one[:5]} {two[:5]}")
                self.seen[f"documents of {name}"] = len(found)
        with Index.open(self.place / "notes") as notes:
            notes.verify()
            found = {document.id: document.text for document in notes.documents()}
            for id in self.written.keys() | found.keys() | self.unsure.keys():
                if found.get(id) not in self.unsure.get(id, {self.written.get(id)}):
                    self.errors.append(f"{id}: {found.get(id)!r} in place of {self.written.get(id)!r}")
            kept = {vote.query for vote in notes.feedback_log.votes()}
            self.errors += [f"a vote was lost: {question}" for question in self.votes - kept]
            self.seen.update({"notes": len(found), "votes": len(self.votes)})


def ranks(index: Index, question: str) -> list[tuple[float, str]]:
    """Hits above the last one's score, by the method alone: other scores depend on when scales were measured."""
    hits = index.search(question, 20, lexical=0, sentences=False, group_by="document")
    scores = sorted((-round(hit.evidence["method_score"], 4), hit.id) for hit in hits)
    return [pair for pair in scores if pair[0] < scores[-1][0]]


@contextmanager
def disk(size: int) -> Iterator[tuple[Path, bool]]:
    """A place on a disk of its own, where one can be mounted, and whether it is one."""
    place = Path(tempfile.mkdtemp(prefix="palmette-day-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(place)]
    mounted = os.name == "posix" and shutil.which("mount") and not subprocess.run(mount, capture_output=True).returncode
    try:
        yield place, bool(mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", place], check=True)
        shutil.rmtree(place, ignore_errors=True)


def live(hours: int, minute: float, seed: int) -> Day:
    """Live through a day; returns what was seen, and the errors."""
    odd = {name: content for name, (content, _) in (*text_files(), *office_files())}
    with disk(MEGABYTES) as (place, is_own):
        day = Day(place, minute, seed)
        Index.create(place / "notes", SpaceModel.untrained(FakeEncoder(32))).close()
        changes = (build_site, edit_code, partial(share_files, odd), grow_log)
        for number, (name, change) in enumerate(zip(FOLLOWED, changes, strict=True)):
            act = partial(change, place / name, random.Random(f"{seed} {name}"))
            act()
            day.again(name, 6 if name == "site" else 1, act, number)
        for number in range(3):
            day.again("ask", 0.1, partial(day.ask, random.Random(10 + number)), number)
        for number in range(2):
            day.again("note", 0.1, partial(day.note, random.Random(20 + number), number), number)
        try:
            day.start()
            for hour in range(hours):
                day.hour(hour, is_own)
            day.end()
            time.sleep(7)  # three looks of what follows a folder
            day.wait(lambda: day.call("GET", "/ready") == 200, "all folders are indexed", 300)
            day.stop(signal.SIGTERM)
            day.check()
        except (TimeoutError, PalmetteError) as error:
            day.errors.append(repr(error))
        finally:
            day.end()
            day.stop(signal.SIGKILL)
    lines = day.log.read_text(errors="replace").splitlines()
    day.errors += [f"log: {line}" for line in lines if FOREIGN.search(line)]
    if not is_own:
        day.seen["no full disk: none can be mounted here"] = 1
    return day


def main() -> int:
    """Print what a day has shown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--minute", type=float, default=2.0, help="seconds of a minute")
    parser.add_argument("--seed", type=int, default=1)
    day = live(**vars(parser.parse_args()))
    for what, count in sorted(day.seen.items()):
        print(f"{count:8} {what}")
    for error in dict.fromkeys(day.errors):
        print(f"ERROR {error}")
    print(f"{len(day.errors)} errors; the service's log is {day.log}")
    return bool(day.errors)


if __name__ == "__main__":
    sys.exit(main())
