"""No file of the package imports another that, by whatever way, imports it: inside functions and for types too."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx

import palmette

ROOT = Path(palmette.__file__).parent


def edges() -> nx.DiGraph:
    """Who imports whom; a package's ``__init__`` counts as nobody, since it hands on the names of others."""
    files = {
        ".".join(("palmette", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted(ROOT.rglob("*.py"))
    }
    graph = nx.DiGraph()
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("palmette"):
                for name in (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if name in files and name != module and files[name].name != "__init__.py":
                        graph.add_edge(module, name)
    return graph


def test_no_circles_of_files() -> None:
    graph = edges()
    assert len(graph) > 40, "no imports were found"
    circles = [sorted(some) for some in nx.strongly_connected_components(graph) if len(some) > 1]
    assert not circles, "\n".join(" ↔ ".join(circle) for circle in circles)
