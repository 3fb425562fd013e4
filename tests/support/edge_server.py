"""Qdrant's HTTP interface over the engine in this process: many clients, in processes that may be killed or paused.

    python -m support.edge_server FOLDER

prints the port that it listens on. It serves the calls that palmette makes, one at a time.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from qdrant_client.http import models as m

from support.edge import EdgeClient

SELECTOR = TypeAdapter(m.PointsSelector)


def plain(value: Any) -> Any:
    """The engine's answers as JSON."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "payload"):
        score = {"score": value.score} if hasattr(value, "score") else {}
        return {"id": value.id, "version": 0, "payload": value.payload, **score}
    return value


def selected(content: Any) -> Any:
    """Points of a change: a list of keys or a filter."""
    points = SELECTOR.validate_python(content)
    return points.points if isinstance(points, m.PointIdsList) else points.filter


class Calls:
    """One method a call of the interface, by its verb and path."""

    def __init__(self, engine: EdgeClient) -> None:
        self.engine = engine
        self.routes: list[tuple[str, Callable[[str, Any], Any]]] = [
            ("GET /exists", lambda name, _: {"exists": engine.collection_exists(name)}),
            ("PUT ", self.create),
            ("DELETE ", lambda name, _: engine.delete_collection(name) is None),
            ("PUT /index", self.index),
            ("PUT /points", self.upsert),
            ("POST /points", lambda name, one: plain(engine.retrieve(name, one["ids"], one.get("with_payload", True)))),
            ("POST /points/scroll", self.scroll),
            ("POST /points/count", lambda name, one: {"count": engine.count(name, where(one)).count}),
            ("POST /facet", self.facet),
            ("POST /points/query/batch", self.query),
            ("POST /points/payload", self.set_payload),
            ("POST /points/payload/delete", self.delete_payload),
            ("POST /points/delete", lambda name, one: engine.delete(name, selected(one))),
        ]

    def create(self, name: str, content: Any) -> bool:
        made = m.CreateCollection.model_validate(content)
        self.engine.create_collection(name, made.vectors, list(made.sparse_vectors or {}))
        return True

    def index(self, name: str, content: Any) -> None:
        made = m.CreateFieldIndex.model_validate(content)
        self.engine.create_payload_index(name, made.field_name, made.field_schema)

    def upsert(self, name: str, content: Any) -> None:
        made = m.PointsList.model_validate(content)
        self.engine.upsert(name, made.points, made.update_mode)

    def scroll(self, name: str, content: Any) -> Any:
        one = m.ScrollRequest.model_validate(content)
        points, after = self.engine.scroll(
            name, one.filter, limit=one.limit or 10, offset=one.offset, with_payload=one.with_payload
        )
        return {"points": plain(points), "next_page_offset": after}

    def facet(self, name: str, content: Any) -> Any:
        one = m.FacetRequest.model_validate(content)
        found = self.engine.facet(name, one.key, facet_filter=one.filter, limit=one.limit or 10, exact=True)
        return {"hits": [{"value": hit.value, "count": hit.count} for hit in found.hits]}

    def query(self, name: str, content: Any) -> Any:
        requests = m.QueryRequestBatch.model_validate(content).searches
        for request in requests:
            request.query = getattr(request.query, "nearest", request.query)
        return [{"points": plain(one.points)} for one in self.engine.query_batch_points(name, requests)]

    def set_payload(self, name: str, content: Any) -> None:
        one = m.SetPayload.model_validate(content)
        self.engine.set_payload(name, one.payload, one.points or one.filter)

    def delete_payload(self, name: str, content: Any) -> None:
        one = m.DeletePayload.model_validate(content)
        self.engine.delete_payload(name, one.keys, one.points or one.filter)


def where(content: Any) -> Any:
    return None if content.get("filter") is None else m.Filter.model_validate(content["filter"])


def serve(folder: str) -> None:
    """Serve until killed."""
    calls, lock = Calls(EdgeClient(folder)), threading.Lock()
    routes = dict(calls.routes)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            size = int(self.headers.get("content-length", 0))
            content = json.loads(self.rfile.read(size) or "null") if size else None
            split = re.match(r"/collections/([^/?]+)([^?]*)", self.path)
            assert split, self.path
            name, call = split[1], routes[f"{self.command} {split[2]}"]
            status, reply = 200, dict[str, Any](status="ok", time=0.0)
            with lock:
                if split[2] != "/exists" and self.command != "PUT" and not calls.engine.collection_exists(name):
                    status, reply["status"] = 404, {"error": "no such collection"}
                else:
                    result = call(name, content)
                    reply["result"] = {"operation_id": 0, "status": "completed"} if result is None else result
            body = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(exist_ok=True)
    serve(sys.argv[1])
