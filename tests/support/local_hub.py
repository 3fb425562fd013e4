"""A Hugging Face Hub on the loopback: enough of its HTTP protocol for the real client to push, tag and pull.

    with LocalHub() as hub:
        os.environ["HF_ENDPOINT"] = hub.url  # the client itself reads it only when imported
        ...
        print(hub.requests)

Repositories live in memory. Nothing leaves the machine, and what real servers do to their clients can be done
at will: change the stored ``files``, gate a repository (``repos``), ``fail`` every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

TOKEN, READ_TOKEN = "hf_local_write", "hf_local_read"
USER = "me"

Parts = Mapping[str, str]
Token = str | None
Answer = tuple[dict[str, str], bytes]


class Request(NamedTuple):
    method: str
    path: str
    status: int


class Refusal(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass
class Repo:
    """Commits by id, and the names that point at them."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: Mapping[str, bytes]) -> str:
        history = json.dumps([len(self.commits), branch, self.branches.get(branch), sorted(files)])
        sha = hashlib.sha1(history.encode() + b"".join(files[name] for name in sorted(files))).hexdigest()
        self.commits[sha] = dict(files)
        self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> str:
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        if sha not in self.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha


class LocalHub:
    """The server; starts on ``with``, stops after it."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: list[Request] = []
        self.down: int | None = None
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    # -- what a test does behind the client's back ---------------------------------------------

    def put(self, repo_id: str, files: Mapping[str, bytes], *, private: bool = False) -> str:
        """Commit these files, alone, to a repository's main branch, as if somebody had pushed them."""
        return self.repos.setdefault(repo_id, Repo(private)).commit("main", files)

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """The stored files themselves: changing the dict changes the repository."""
        repo = self.repos[repo_id]
        return repo.commits[repo.resolve(revision)]

    def fail(self, status: int | None = 503) -> None:
        """Answer everything with this status, until ``fail(None)``."""
        self.down = status

    # -- the protocol --------------------------------------------------------------------------------

    def answer(self, method: str, path: str, token: Token, body: bytes) -> Answer:
        if self.down is not None:
            raise Refusal(self.down, "out of order")
        if token not in (None, TOKEN, READ_TOKEN):
            raise Refusal(401, "Invalid credentials in Authorization header")
        for verb, pattern, action in _ROUTES:
            if verb == ("GET" if method == "HEAD" else method) and (match := re.fullmatch(pattern, path)):
                if verb == "POST" and token != TOKEN and not path.endswith("validate-yaml"):
                    reason = "You don't have the rights for this: a write token is needed"
                    raise Refusal(403 if token else 401, reason)
                parts = {name: unquote(value) for name, value in match.groupdict().items() if value}
                with self._lock:
                    return action(self, parts, token, body)
        raise Refusal(404, f"no such page: {path}")

    def _repo(self, parts: Mapping[str, str], token: str | None) -> Repo:
        repo = self.repos.get(parts["repo"])
        if repo is None or (repo.private and token is None):
            raise Refusal(404 if token else 401, "Repository not found", "RepoNotFound")
        return repo

    def _create(self, parts: Parts, token: Token, body: bytes) -> Answer:
        asked = json.loads(body)
        repo_id = f"{asked.get('organization') or USER}/{asked['name']}"
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        exists = repo_id in self.repos
        if not exists:
            self.put(repo_id, {".gitattributes": b"*.safetensors filter=lfs\n"}, private=private)
        answer = {"url": f"{self.url}/{repo_id}", "error": "You already created this model repo"}
        headers, content = _json(answer)
        return ({":status": "409"} if exists else {}) | headers, content

    def _validate(self, parts: Parts, token: Token, body: bytes) -> Answer:
        return _json({"errors": [], "warnings": []})

    def _preupload(self, parts: Parts, token: Token, body: bytes) -> Answer:
        repo = self._repo(parts, token)
        head = repo.commits[repo.resolve(parts["revision"])]
        names = [item["path"] for item in json.loads(body)["files"]]
        oids = {name: _blob(head[name]) if name in head else None for name in names}
        mode = {"uploadMode": "regular", "shouldIgnore": False}
        return _json({"files": [{"path": name, "oid": oid, **mode} for name, oid in oids.items()]})

    def _commit(self, parts: Parts, token: Token, body: bytes) -> Answer:
        repo = self._repo(parts, token)
        if parts["revision"] not in repo.branches:
            raise Refusal(404, f"no branch {parts['revision']}", "RevisionNotFound")
        files = dict(repo.commits[repo.branches[parts["revision"]]])
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        sha = repo.commit(parts["revision"], files)
        url = f"{self.url}/{parts['repo']}/commit/{sha}"
        return _json({"success": True, "commitOid": sha, "commitUrl": url})

    def _name(self, parts: Parts, token: Token, body: bytes) -> Answer:
        """Give a commit a tag, or begin a branch at one."""
        repo, asked = self._repo(parts, token), json.loads(body or b"{}")
        names, name, at = repo.branches, parts["revision"], asked.get("startingPoint") or "main"
        if "tag" in asked:
            names, name, at = repo.tags, asked["tag"], parts["revision"]
        if name in names:
            raise Refusal(409, f"{name} exists already")
        names[name] = repo.resolve(at)
        return _json({})

    def _info(self, parts: Parts, token: Token, body: bytes) -> Answer:
        repo = self._repo(parts, token)
        sha = repo.resolve(parts.get("revision") or "main")
        names = [{"rfilename": name} for name in sorted(repo.commits[sha])]
        facts = {"id": parts["repo"], "sha": sha, "private": repo.private, "tags": [], "siblings": names}
        return _json(facts)

    def _tree(self, parts: Parts, token: Token, body: bytes) -> Answer:
        repo = self._repo(parts, token)
        files = repo.commits[repo.resolve(parts["revision"])]
        facts = ((name, len(data), _blob(data)) for name, data in sorted(files.items()))
        return _json([{"type": "file", "path": name, "size": size, "oid": oid} for name, size, oid in facts])

    def _file(self, parts: Parts, token: Token, body: bytes) -> Answer:
        repo = self._repo(parts, token)
        sha = repo.resolve(parts["revision"])
        if repo.gated:
            raise Refusal(403 if token else 401, "Access to this model is restricted", "GatedRepo")
        if parts["path"] not in repo.commits[sha]:
            raise Refusal(404, "Entry not found", "EntryNotFound")
        data = repo.commits[sha][parts["path"]]
        headers = {"ETag": f'"{_blob(data)}"', "X-Repo-Commit": sha}
        return headers | {"Content-Type": "application/octet-stream"}, data


_Action = Callable[[LocalHub, Parts, Token, bytes], Answer]
_REPO, _REVISION = r"(?P<repo>[^/]+/[^/]+)", r"(?P<revision>[^/]+)"
_ROUTES: tuple[tuple[str, str, _Action], ...] = (
    ("POST", "/api/repos/create", LocalHub._create),
    ("POST", "/api/validate-yaml", LocalHub._validate),
    ("POST", f"/api/models/{_REPO}/preupload/{_REVISION}", LocalHub._preupload),
    ("POST", f"/api/models/{_REPO}/commit/{_REVISION}", LocalHub._commit),
    ("POST", f"/api/models/{_REPO}/(tag|branch)/{_REVISION}", LocalHub._name),
    ("GET", f"/api/models/{_REPO}(/revision/{_REVISION})?", LocalHub._info),
    ("GET", f"/api/models/{_REPO}/tree/{_REVISION}", LocalHub._tree),
    ("GET", f"/{_REPO}/resolve/{_REVISION}/(?P<path>.+)", LocalHub._file),
)


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _json(value: Any) -> Answer:
    return {"Content-Type": "application/json"}, json.dumps(value).encode()


def _handler(hub: LocalHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            path = urlsplit(self.path).path
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                headers, data = hub.answer(self.command, path, token, body)
                status = int(headers.pop(":status", HTTPStatus.OK))
            except Refusal as error:
                headers, data = _json({"error": error.message})
                headers |= {"X-Error-Message": error.message}
                headers |= {"X-Error-Code": error.code} if error.code else {}
                status = error.status
            hub.requests.append(Request(self.command, path, status))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = _serve

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet: ``hub.requests`` is the log."""

    return Handler
