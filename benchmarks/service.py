"""Many clients of one service while documents change, beside the same load in process.

    python benchmarks/service.py INDEX [--clients 64] [--seconds 120] [--every 4]

Slices of both alternate, so that whatever else the machine does slows both. Each client asks a question, waits for the
answer and pauses, so that it asks every ``--every`` seconds or so; meanwhile five documents change each second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np

from palmette import Document, Index

SLICES = 4
Ask = Callable[[str], Awaitable[None]]


class Client:
    """A connection that is kept, and no more of HTTP than it takes: the client must not be what is measured."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._post(path, body)
        except (ConnectionError, asyncio.IncompleteReadError):  # closed while nobody asked
            self.close()
            return await self._post(path, body)

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        reader, writer = self.streams
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        size = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
        reply: dict[str, Any] = json.loads(await reader.readexactly(size))
        if " 200 " not in lines[0]:
            raise RuntimeError(reply["detail"])
        return reply

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """``palmette serve`` in a process of its own; its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["-m", "palmette", "serve", str(folder), "--write", "--port", str(port), "--rate", "1e9"]
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    try:
        while True:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/ready") as reply:
                if reply.status == 200:
                    break
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait()


def megabytes(port: int) -> int:
    """Memory of the service."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return int(next(line for line in lines if line.startswith("process_resident_memory_bytes")).split()[1]) >> 20


async def load(
    clients: list[Ask], change: Callable[[int], Awaitable[None]], questions: list[str], seconds: float, every: float
) -> tuple[list[float], list[str]]:
    """Times and errors of all clients."""
    times, errors, end = list[float](), list[str](), time.monotonic() + seconds

    async def client(ask: Ask, seed: int) -> None:
        draw = random.Random(seed)
        await asyncio.sleep(draw.uniform(0, every))
        while time.monotonic() < end:
            begun = time.perf_counter()
            try:
                await ask(draw.choice(questions))
                times.append(time.perf_counter() - begun)
            except Exception as error:
                errors.append(repr(error))
            await asyncio.sleep(draw.uniform(0.5, 1.5) * every)

    async def writer() -> None:
        number = 0
        while time.monotonic() < end:
            try:
                await change(number)
            except Exception as error:
                errors.append(f"write: {error!r}")
            number += 1
            await asyncio.sleep(1)

    await asyncio.gather(writer(), *(client(ask, seed) for seed, ask in enumerate(clients)))
    return times, errors


def changes(number: int) -> list[dict[str, Any]]:
    return [
        {"id": f"changing-{n}", "text": f"Note {n} in state {number} of a service that is asked."} for n in range(5)
    ]


def questions_of(index: Index) -> list[str]:
    """Nine words in a row of each document."""
    draw, questions = random.Random(0), list[str]()
    for document in index.documents():
        words = document.content.split()
        start = draw.randrange(max(1, len(words) - 9))
        questions.append(" ".join(words[start : start + 9]))
    return questions


def over_http(client: Client) -> Ask:
    async def ask(question: str) -> None:
        assert (await client.post("/v1/search", {"query": question}))["results"]

    return ask


async def run(index: Index, port: int, args: argparse.Namespace) -> None:
    questions, writer = questions_of(index), Client(port)
    askers = [Client(port) for _ in range(args.clients)]

    async def in_process(question: str) -> None:
        assert await index.asearch(question)

    async def change_here(number: int) -> None:
        documents = [Document(one["id"], one["text"]) for one in changes(number)]
        await asyncio.to_thread(index.upsert, documents, progress=False)

    async def change_there(number: int) -> None:
        await writer.post("/v1/upsert", {"documents": changes(number)})

    times: dict[str, list[float]] = {"in process": [], "service": []}
    errors, memory = list[str](), [megabytes(port)]
    for _ in range(SLICES):
        for name, asks, change, share in (
            ("in process", [in_process] * args.clients, change_here, 0.5),
            ("service", [over_http(client) for client in askers], change_there, 1.0),
        ):
            some = await load(asks, change, questions, share * args.seconds / SLICES, args.every)
            times[name] += some[0]
            errors += some[1]
        memory.append(megabytes(port))
    for client in (writer, *askers):
        client.close()
    for name, all_times in times.items():
        p50, p95, p99 = 1e3 * np.percentile(all_times, [50, 95, 99])
        print(f"{name}: {len(all_times)} questions, p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms")
    print(f"errors: {len(errors)} {errors[:3]}")
    print(f"memory of the service: {memory} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120, help="of the service; half as many in process")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two questions of a client")
    args = parser.parse_args()
    with TemporaryDirectory() as place:
        here, there = Path(place) / "here", Path(place) / "there"
        for folder in (here, there):
            shutil.copytree(args.index, folder)
        with Index.open(here) as index, served(there) as port:
            asyncio.run(run(index, port, args))


if __name__ == "__main__":
    main()
