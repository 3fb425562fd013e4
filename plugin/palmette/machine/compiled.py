"""Loops compiled by numba, or their NumPy versions in a process that answers one question and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_compiles = True


def compiles_loops() -> bool:
    """Return whether loops are compiled: numba takes .6 seconds to import, and is faster from the second search on."""
    return _compiles


@contextmanager
def without_compiled_loops() -> Iterator[None]:
    """Search by NumPy alone, in all threads of this process: the results are the same, bit for bit.

    Overlaps, lists and several vectors per document, whose methods need torch anyway, stay compiled.
    """
    global _compiles
    before, _compiles = _compiles, False
    try:
        yield
    finally:
        _compiles = before


def compile_loops() -> None:
    """Compile loops from now on, also where a caller does :func:`without_compiled_loops`."""
    global _compiles
    _compiles = True


def machine_code(loop: Callable[..., Any], *signature: str, **options: Any) -> Callable[..., Any]:
    """Compile a loop by numba, or read it from numba's cache; it runs without the GIL."""
    import numba

    njit: Any = numba.njit  # its type knows no options that are collected
    compiled: Callable[..., Any]
    try:
        compiled = njit(*signature, cache=True, nogil=True, **options)(loop)
    except (RuntimeError, OSError):  # no folder to keep the compiled loop in
        compiled = njit(*signature, nogil=True, **options)(loop)
    return compiled


def reraise_interrupt(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let what a signal raises (Ctrl-C) leave a compiled loop as itself.

    Where it arrives while numba makes Python objects of several results, Python reports a SystemError caused by it.
    """

    def run(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except SystemError as error:
            cause: BaseException = error
            while isinstance(cause, SystemError) and cause.__cause__ is not None:  # one for each function on the way
                cause = cause.__cause__
            raise cause from None

    return run
