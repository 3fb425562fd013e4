"""Reads the documentation of the standard library by importing it: run as a script, in a child interpreter.

Importing some three hundred modules leaves traces (hooks, patches, memory), and what a user's process has
patched would show in the texts. So :mod:`palmette.sample` runs this file with ``python -I -S``:
isolated both ways, the same answer every time. It uses the standard library alone.

Prints one JSON array of entries, ordered by id.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import functools
import importlib
import inspect
import io
import json
import pkgutil
import re
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

SKIPPED = {
    # Importing these opens a browser, prints a poem, hooks the prompt.
    *("antigravity", "this", "rlcompleter"),
    # Not for users.
    *("encodings", "idlelib", "lib2to3", "macholib", "pydoc_data", "test", "tests", "tix", "turtledemo"),
    # The halves of os and os.path.
    *("genericpath", "nt", "ntpath", "nturl2path", "posix", "posixpath"),
    # Gone or going (PEP 594, PEP 632): no answer to give anybody.
    *("aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "distutils", "imghdr"),
    *("imp", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr", "spwd"),
    *("sre_compile", "sre_constants", "sre_parse", "sunau", "telnetlib", "uu", "xdrlib"),
}
ALIASES = {"socket.SocketType"}  # the C half of socket.socket, whose methods belong there
GENERATED_SIGNATURE = re.compile(r"\w+\(.*\)\Z")  # what @dataclass and namedtuple write
# How docstrings in C begin: the call, then an arrow, a colon, a dash or the end of the line.
CALL = r"(?:\w+\.)*{name}(\((?:[^()]|\([^()]*\))*\))[ \t]*(--?>|:| -|(?=\n|\Z))[ \t]*"
UNREADABLE = (AttributeError, NameError, TypeError, ValueError)  # what inspect.signature raises


def module_names() -> Iterator[str]:
    """All public modules, packages before their submodules; importing happens as it goes."""
    stack = sorted((n for n in sys.stdlib_module_names if is_public(n) and n not in SKIPPED), reverse=True)
    while stack:
        name = stack.pop()
        yield name
        if name == "os":
            stack.append("os.path")
        inner = {module.name for module in pkgutil.iter_modules(getattr(sys.modules.get(name), "__path__", ()))}
        stack += [f"{name}.{n}" for n in sorted(inner, reverse=True) if is_public(n) and n not in SKIPPED]


def is_public(name: str) -> bool:
    """Return True if no part of the dotted name is private."""
    return not any(part.startswith("_") for part in name.split("."))


def load(name: str) -> types.ModuleType | None:
    """Import quietly; a module that this build or platform lacks is ``None``."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, AttributeError, SystemExit):
            return None


def members(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Public classes and functions of a module."""
    listed = getattr(module, "__all__", None)
    for name in sorted(set(listed if listed is not None else vars(module))):
        try:
            value = getattr(module, name)
        except AttributeError:
            continue
        # A module without __all__ has what it defines, itself or by its private half written in C.
        home = getattr(value, "__module__", None) or ""
        own = home in (module.__name__, f"_{module.__name__}") or home.startswith(f"{module.__name__}._")
        if is_public(name) and is_documentable(value) and (own or listed is not None or module is builtins):
            yield name, value


def is_documentable(value: Any) -> bool:
    """Classes, functions and typing's special forms; not the instances and constants beside them."""
    if isinstance(value, types.GenericAlias | types.ModuleType) or hasattr(value, "__origin__"):
        return False
    return inspect.isclass(value) or inspect.isroutine(value) or value.__doc__ != type(value).__doc__


class Source(str):
    """Text that a signature shows as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def as_written(value: object) -> Source:
    """A default value that reads as in the source: no addresses, no machine."""
    if isinstance(value, enum.Enum):
        return Source(f"{type(value).__name__}.{value.name}")
    text = value.__name__ if inspect.isclass(value) or inspect.isroutine(value) else repr(value)
    return Source("..." if "<" in text and not isinstance(value, str) else text)


def signature(value: Any, name: str, doc: str) -> tuple[str, str]:
    """Signature, and the docstring without the calls that docstrings in C begin with."""
    calls, rest = leading_calls(name.rpartition(".")[2], doc)
    if calls and rest:
        return "\n".join(name + call for call in calls), rest
    try:
        full = inspect.signature(value)
    except UNREADABLE:
        return "", doc
    parameters = [p for at, p in enumerate(full.parameters.values()) if at or p.name not in ("self", "cls")]
    parameters = [p if p.default is p.empty else p.replace(default=as_written(p.default)) for p in parameters]
    return name + str(full.replace(parameters=parameters)), doc


def leading_calls(short: str, doc: str) -> tuple[list[str], str]:
    """Calls that a docstring begins with, and its text.

    After an arrow stands what is returned, in up to three words, or already the text::

        get(k[, d]) -> value.  Look k up.      zip(*iterables) --> Yield tuples until one is exhausted.
    """
    calls, rest = [], doc
    while match := re.match(CALL.format(name=re.escape(short)), rest):
        call, mark = match.groups()
        line, _, after = rest[match.end() :].partition("\n")
        returned, stop, text = line.partition(".  ")
        words = len(returned.split())
        if not line or (mark[-1:] == ">" and words <= 3 and (stop or words == 1 or line[-1] != ".")):
            calls.append(f"{call} -> {returned}" if line else call)
            rest = f"{text}\n{after}".strip()
        else:
            return [*calls, call], f"{line}\n{after}".strip()
    return calls, rest


class Catalogue:
    """All candidates first, then one entry per object, under its shortest public name."""

    def __init__(self) -> None:
        self.ranks: dict[int, list[tuple[int, bool, bool, int, str, str]]] = {}
        self.objects: dict[str, Any] = {}
        self.entries: dict[str, dict[str, str]] = {}
        self.texts: set[tuple[str, str, str]] = set()

    def offer(self, module: types.ModuleType, name: str, value: Any) -> None:
        """Note that ``value`` can be reached as ``name`` in ``module``, and in packages around it."""
        home = "os.path" if module.__name__ in ("posixpath", "ntpath") else module.__name__
        while home:
            full = name if home == "builtins" else f"{home}.{name}"
            renamed = getattr(value, "__name__", name) != name
            borrowed = getattr(value, "__module__", home) != home
            if full not in ALIASES:
                rank = (full.count("."), renamed, borrowed, len(full), full, home)
                self.ranks.setdefault(identity(value), []).append(rank)
                self.objects[full] = value
            home = home.rpartition(".")[0]
            if getattr(sys.modules.get(home), name, None) is not value:
                break

    def add(self, name: str, module: str, parent: str, kind: str, value: Any, doc: object) -> None:
        """Keep an entry with a docstring that no function of that name in its module has."""
        # The docstring without its indentation, trailing blanks and machine-dependent addresses.
        lines = inspect.cleandoc(doc).splitlines() if isinstance(doc, str) else []
        text, shown = re.sub(r" at 0x[0-9A-Fa-f]+", "", "\n".join(map(str.rstrip, lines))).strip(), ""
        if text and kind not in ("module", "property"):
            shown, text = signature(value, name, text)
        key = (module, name.rpartition(".")[2], text)
        generated = kind == "class" and GENERATED_SIGNATURE.match(text)
        if not text or generated or (kind == "method" and key in self.texts):
            return
        if kind == "function":
            self.texts.add(key)
        row = dict(id=name, module=module, parent=parent, kind=kind, signature=shown, doc=text)
        self.entries.setdefault(name, row)

    def resolve(self) -> None:
        """Give every object one name, and add it, then the members of the classes."""
        public, visited = set(self.ranks), set[int]()
        chosen = sorted(min(ranks)[-2:] for ranks in self.ranks.values())
        for full, module in chosen:
            value = self.objects[full]
            doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
            kind = "function" if inspect.isroutine(value) or hasattr(value, "__wrapped__") else "class"
            self.add(full, module, module, kind, value, doc)
        classes = [(full, module) for full, module in chosen if inspect.isclass(self.objects[full])]
        classes.sort(key=lambda row: (len(self.objects[row[0]].__mro__), len(row[0])))  # bases first
        for full, module in classes:
            for name, value in own_members(owner := self.objects[full], public):
                if (key := identity(value)) not in visited and (kind := member_kind(value)):
                    visited.add(key)
                    self.add(f"{full}.{name}", module, full, kind, getattr(owner, name, value), value.__doc__)


def identity(value: Any) -> int:
    """One number for a function, its bound method and its classmethod."""
    return id(getattr(value, "__func__", value))


def own_members(owner: type, public: set[int]) -> list[tuple[str, Any]]:
    """List the public members that a class defines, or inherits from private bases; members of ``public`` are left out.

    A member without a docstring is taken from the next such base that documents it.
    """
    members: dict[str, Any] = {}
    inherited: set[str] = set()
    for base in owner.__mro__:
        private = id(base) not in public and not (is_public(base.__name__) and is_public(base.__module__))
        if base is owner or private:
            for name, value in vars(base).items():
                if name not in inherited and not (name in members and members[name].__doc__):
                    members[name] = value
        else:
            inherited.update(vars(base))
    return sorted((n, v) for n, v in members.items() if is_public(n) and identity(v) not in public)


def member_kind(value: Any) -> str:
    """``method``, ``property`` or nothing."""
    if inspect.isroutine(value) or isinstance(value, classmethod | staticmethod):
        return "method"
    computed = isinstance(value, property | types.GetSetDescriptorType | functools.cached_property)
    return "property" if computed else ""


def main() -> None:
    """Print the catalogue."""
    warnings.simplefilter("ignore")
    catalogue = Catalogue()
    for name in module_names():
        if module := load(name):
            catalogue.add(name, name, name.rpartition(".")[0], "module", module, module.__doc__)
            for member, value in members(module):
                catalogue.offer(module, member, value)
    catalogue.resolve()
    json.dump(sorted(catalogue.entries.values(), key=lambda entry: entry["id"]), sys.stdout)


if __name__ == "__main__":
    main()
