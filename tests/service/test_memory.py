"""Memory of a service: few heaps, and free pages given back."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from palmette.service.memory import free_pages_returned

GLIBC = hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
FILL = """
import ctypes, threading
from palmette.service.memory import use_few_heaps

use_few_heaps()
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
go = threading.Barrier(16)

def allocate():
    place = library.malloc(1000)
    go.wait(60)
    library.free(place)

threads = [threading.Thread(target=allocate) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library.malloc_stats()
"""


@pytest.mark.skipif(not GLIBC, reason="another C library")
@pytest.mark.parametrize(("chosen", "heaps"), [({}, 2), ({"MALLOC_ARENA_MAX": "5"}, 5)])
def test_few_heaps_unless_the_user_chose_otherwise(chosen, heaps):
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | chosen
    done = subprocess.run([sys.executable, "-c", FILL], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("Arena ") == heaps


def resident() -> int:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.mark.skipif(not GLIBC, reason="another C library")
async def test_free_pages_are_given_back():
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    places = [library.malloc(60_000) for _ in range(4_000)]
    for place in places:
        ctypes.memset(place, 1, 60_000)
    full = resident()
    for place in places[:-1]:  # the last one keeps the heap from shrinking by itself
        library.free(place)
    async with free_pages_returned(every=0.05):
        for _ in range(100):
            await asyncio.sleep(0.1)
            if resident() < full - 150:
                break
    library.free(places[-1])
    assert resident() < full - 150
