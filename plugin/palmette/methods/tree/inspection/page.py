"""An inspection as one HTML file: data, style and script inside, nothing fetched, every text escaped.

Documents are strangers' texts. They enter the page only as JSON inside an inert ``<script type="application/json">``
whose ``<`` are escaped, and the script puts them into text nodes, never into markup. A content security policy
names the hashes of the one style and the one script, so that nothing else can run or load.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from dataclasses import asdict
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palmette.methods.tree.inspection.inspection import Route, TreeInspection

__all__ = ["frame", "page", "route_json"]

FRAMED = 600
"""Documents that a notebook's cell keeps."""


def page(inspection: TreeInspection, *, live: bool = False, listed: int | None = None) -> str:
    """The page.

    Args:
        inspection: What to show.
        live: Whether a server at the page's own address answers ``route?q=``.
        listed: Keep only so many documents, evenly.
    """
    style, script = _asset("page.css"), _asset("page.js")
    own = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; "
        f"form-action 'none'; connect-src {own}"
    )
    return Template(_asset("page.html")).substitute(
        policy=policy,
        title=f"Tree of {inspection.documents:,} documents",
        style=style,
        script=script,
        data=_inert(_data(inspection, live, listed)),
    )


def frame(inspection: TreeInspection) -> str:
    """The page in a frame of its own, so that two cells of a notebook do not meet."""
    inner = escape(page(inspection, listed=FRAMED), quote=True)
    return (
        f'<iframe srcdoc="{inner}" sandbox="allow-scripts" title="Tree" '
        'style="width:100%;height:640px;border:1px solid #8884;border-radius:8px"></iframe>'
    )


def route_json(route: Route) -> dict[str, Any]:
    """A route as the page reads it."""
    found = [[d.id, d.title, d.text, d.leaf, round(d.score, 4)] for d in route.found]
    return {"query": route.query, "path": route.path, "reached": dict(route.reached), "found": found}


def _data(inspection: TreeInspection, live: bool, listed: int | None) -> dict[str, Any]:
    step = 1 if listed is None else max(1, -(-len(inspection.listed) // listed))
    titles = ("Is a node like its descendants?", "Are documents that part late alike?")
    congruence = zip(titles, (inspection.node_congruence, inspection.text_congruence), strict=True)
    return {
        "documents": inspection.documents,
        "leaves": len(inspection.leaves),
        "nodes": [
            [
                n.name,
                round(n.share, 6),
                n.documents,
                None if n.decided is None else round(n.decided, 4),
                n.words,
            ]
            for n in inspection.nodes
        ],
        "listed": [[d.id, d.title, d.text, d.leaf, d.reached] for d in inspection.listed[::step]],
        "routes": [route_json(route) for route in inspection.routes],
        "balance": asdict(inspection.balance),
        "congruence": [asdict(c) | {"title": title} for title, c in congruence if c is not None],
        "live": live,
    }


def _inert(data: object) -> str:
    """JSON in ASCII that no HTML parser takes for markup."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _asset(name: str) -> str:
    return (files("palmette.methods.tree.inspection") / name).read_text(encoding="utf-8")
