"""No file of the package imports another that, by whatever way, imports it: inside functions and for types too."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx

import palmette

ROOT = Path(palmette.__file__).parent


def test_no_circles_of_files() -> None:
    """A package's ``__init__`` counts as nobody, since it hands on the names of others."""
    files = {
        ".".join(("palmette", *path.relative_to(ROOT).with_suffix("").parts)): path
        for path in sorted(ROOT.rglob("*.py"))
        if path.name != "__init__.py"
    }
    graph = nx.DiGraph()
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                named = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                graph.add_edges_from((module, name) for name in named & files.keys() - {module})
    assert len(graph) > 40, "no imports were found"
    circles = [sorted(some) for some in nx.strongly_connected_components(graph) if len(some) > 1]
    assert not circles, "\n".join(" ↔ ".join(circle) for circle in circles)
