"""Every public call, from sixteen threads beside a sync: each gives what it gives alone.

``PALMETTE_THREADS_SECONDS`` sets the seconds of a run. docs/threads.md lists what threads share, and by which rule.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document as LangDocument
from llama_index.core.schema import Document as LlamaDocument
from llama_index.core.schema import TextNode

import langchain_palmette
import llama_index.retrievers.palmette as llama_palmette
from palmette import Document, Index, Model, RetrievalData, TreeModel
from palmette.data.listing import list_source
from palmette.ranking.second_stage import Reranker
from palmette.service.callers import Token
from palmette.service.calls import ENDPOINTS
from palmette.service.indexes import ServedIndex
from support import tiny
from support.services import Running, running
from support.threads import search_threads

THREADS = 16
SECONDS = float(os.environ.get("PALMETTE_THREADS_SECONDS", "12"))
QUESTION, OTHER = "where does the red owl live?", "which golden hen sings in house 17?"
STABLE = {"kind": "stable"}
"""Filter of the documents that nobody changes; behind it also the statistics of words are their own."""
READER, WRITER = "a reader's token, long enough", "a writer's token, long enough"
QUIET: dict[str, Any] = {"progress": False}
_numbers = count()


@dataclass
class World:
    """An index of documents that stay, beside which documents come and go, its retrievers, and a service of it."""

    whole: Index
    model: Model
    folder: Path
    service: Running

    @cached_property
    def stable(self) -> Index:
        """The documents that stay."""
        return self.whole.filtered(STABLE)

    @cached_property
    def langchain(self) -> langchain_palmette.PalmetteRetriever:
        return langchain_palmette.PalmetteRetriever.from_index(self.stable, k=5)

    @cached_property
    def llama(self) -> llama_palmette.PalmetteRetriever:
        return llama_palmette.PalmetteRetriever.from_index(self.stable, similarity_top_k=5)

    def fresh(self) -> Path:
        """A new path."""
        return self.folder / f"fresh-{next(_numbers)}"


def stable_documents() -> list[Document]:
    """Short documents, and two of many passages."""
    parts = [f"## Part {n}\n\n" + f"{d.text} It is part {n} of a report. " * 4 for n, d in enumerate(tiny.documents())]
    code = "def owl():\n    return 'red'\n\n\n" * 60
    documents = [*tiny.documents(), Document("long", "\n\n".join(["# Report", *parts])), Document("code", code)]
    return [replace(d, metadata={**d.metadata, "kind": "stable", "date": "2025-11-03"}) for d in documents]


@contextmanager
def world(model: Model, folder: Path) -> Iterator[World]:
    with Index.create(folder / "index", model, lock_timeout=300) as whole:
        whole.add(stable_documents(), **QUIET)
        tokens = (Token(name="reader", token=READER, filter=STABLE), Token(name="writer", token=WRITER, write=True))
        served = ServedIndex("index", str(folder / "index"), lock_timeout=300)
        with running(served, tokens=tokens, rate=1e6, timeout=300.0) as service:
            service.http.timeout = 300
            made = World(whole, model, folder, service)
            made.stable.copy_to(folder / "persisted", **QUIET).close()
            yield made


# -- Calls: each gets the world, and returns what must be the same at every time -------------------------------------


def own(text: str = "A note of one thread.") -> Document:
    """A document that one call adds and deletes."""
    return Document(f"own-{next(_numbers)}", text, {"kind": "own"})


def hits(found: Any) -> Any:
    return [[(hit.id, hit.score, hit.text) for hit in hits] for hits in ([found] if hasattr(found[0], "id") else found)]


def lang(documents: Any) -> Any:
    return [(document.id, document.page_content, document.metadata.get("relevance_score")) for document in documents]


def nodes(found: Any) -> Any:
    return [(each.node.node_id, each.node.get_content(), each.score) for each in found]


def search(w: World) -> Any:
    return (
        hits(w.stable.search(QUESTION, 5)),
        hits(w.stable.search([QUESTION, OTHER, "report"], 7, filter={"animal": {"$exists": True}})),
        hits(w.stable.search(QUESTION, 3, group_by="document", distinct="near")),
        [hit.explain().to_dict() for hit in w.stable.search(OTHER, 2, lexical=0.3)],
        # scores depend on how many documents there are, the order of these does not
        [hit.id for hit in w.whole.search(QUESTION, 5, filter=STABLE, lexical=0, sentences=False)],
    )


def write(w: World) -> Any:
    """Add, replace, ask about and delete a document."""
    document = own()
    added = w.whole.add([document], **QUIET) == [document.id]
    changed = w.whole.upsert([replace(document, text="Written anew.")], **QUIET).updated == [document.id]
    [read] = w.whole.get([document.id])
    asked = w.whole.add_questions(RetrievalData("asked", [read], {"q": "by whom?"}, {"train": {"q": {document.id: 1}}}))
    return (
        added,
        changed,
        asked,
        read and read.text,
        w.whole.delete([document.id]) == [document.id],
        document.id in w.whole,
    )


def sync(w: World) -> Any:
    """Sync a source of one's own, and empty it again."""
    source = f"source-{next(_numbers)}"
    first = w.whole.sync([own("a"), own("b")], source, **QUIET)
    last = w.whole.sync_listing(source, list_source([], source), batch_size=8, **QUIET)
    return len(first.added), len(last.removed)


def feedback(w: World) -> Any:
    person = f"person {next(_numbers)}"
    w.stable.feedback(QUESTION, "red-owl", useful=True, person=person)
    recorded = w.whole.record_search(QUESTION, ["red-owl"])
    return recorded, w.stable.feedback_log.recording, w.stable.feedback_log.delete(person=person)


def copy(w: World) -> Any:
    """Copy the index in each way, and read the copies."""
    copies = [w.fresh() for _ in range(4)]
    w.stable.copy_to(copies[0], **QUIET).close()
    w.whole.backup(copies[1])
    Index.restore(copies[1], copies[2]).close()
    assert not Index.repair(copies[1], copies[3], w.model, **QUIET).lost
    found = []
    for path in copies:
        with Index.open(path, w.model) as index:
            found.append(hits(index.filtered(STABLE).search(QUESTION, 3)))
    return found


def make(w: World) -> Any:
    """Make indexes with the same model in each way."""
    made, texts = [Index.in_memory(w.model), Index.build(tiny.documents()[:3], w.model, **QUIET)], tiny.documents()[:6]
    made += [Index.create(w.fresh(), w.model), Index.build([], w.model, w.fresh())]
    found = []
    for index in made:
        with index:
            index.upsert(texts, **QUIET)
            found.append(hits(index.search(QUESTION, 3)))
    return found


def open_and_close(w: World) -> Any:
    with Index.open(w.folder / "index", w.model, lock_timeout=300) as index:
        return hits(index.filtered(STABLE).search(QUESTION, 3))


def lang_write(w: World) -> Any:
    retriever = langchain_palmette.PalmetteRetriever.from_index(w.whole)
    document = LangDocument(id=f"own-{next(_numbers)}", page_content="Of LangChain.", metadata={"kind": "own"})
    added = retriever.add_documents([document], **QUIET) == [document.id]
    retriever.upsert([document.model_copy(update={"page_content": "Written anew."})], **QUIET)
    read = lang(retriever.get([document.id]))
    return added, [text for _, text, _ in read], retriever.delete([document.id])["num_deleted"]


def llama_write(w: World) -> Any:
    retriever, id, source = w.llama.from_index(w.whole), f"own-{next(_numbers)}", f"own-{next(_numbers)}"
    node, anew = (TextNode(id_=id, text=text, metadata={"kind": "own"}) for text in ("Of a node.", "Written anew."))
    page, later = (LlamaDocument(id_=source, text=text, metadata={"kind": "own"}) for text in ("A page.", "Later."))
    nodes_written = retriever.add([node]), retriever.upsert([anew]).updated, retriever.insert_nodes([anew]).unchanged
    read = [each.get_content() for each in retriever.get_nodes([id])]
    retriever.insert(page)
    pages_written = retriever.refresh_ref_docs([later]), retriever.refresh_ref_docs([later])
    retriever.update_ref_doc(later)
    gone = retriever.delete_nodes([id]), len(retriever.delete_ref_doc(source))
    return [written == [id] for written in nodes_written], read, pages_written, gone[0] == [id], gone[1]


def posted(path: str, *drop: str, **body: Any) -> Callable[[World], Any]:
    def call(w: World) -> Any:
        reply = w.service.post(path, READER, **body)
        return reply.status_code, {name: value for name, value in reply.json().items() if name not in drop}

    return call


def posted_writes(w: World) -> Any:
    body: dict[str, Any] = {"id": f"own-{next(_numbers)}", "text": "Over HTTP.", "metadata": {"kind": "own"}}
    source = f"source-{next(_numbers)}"
    replies = [
        w.service.post("add", WRITER, documents=[body]),
        w.service.post("upsert", WRITER, documents=[body | {"text": "Written anew."}]),
        w.service.post("delete", WRITER, ids=[body["id"]]),
        w.service.post("sync", WRITER, source=source, documents=[body]),
        w.service.post("sync", WRITER, source=source, documents=[]),
    ]
    return [reply.status_code for reply in replies]


def status(w: World) -> Any:
    pages = ("/v1/indexes", "/metrics", "/ready")
    return [w.service.http.get(page, headers={"authorization": f"Bearer {WRITER}"}).status_code for page in pages]


RERANKER = Reranker(lambda question, texts: [float(len(text) % 7) for text in texts], weight=0.5, within=99)


def owls_alone(messages: Any) -> str:
    """A language model whose name, unlike a nameless function's, is the same each time."""
    return "Owls [1]."


CALLS: Mapping[str, Callable[[World], Any]] = {
    "encoder: count_tokens": lambda w: [w.model.encoder.count_tokens(["owl " * 2000, QUESTION] * 4) for _ in range(4)],
    "encoder: encode": lambda w: w.model.encoder.encode([QUESTION, OTHER]),
    "encoder: encode_queries": lambda w: w.model.encoder.encode_queries([OTHER]),
    "encoder: encode_sentences": lambda w: w.model.encoder.encode_sentences([f"{QUESTION} {OTHER} " * 9])[1].floats(),
    "encoder: states": lambda w: next(w.model.encoder.iter_states([OTHER], outputs=("layers",), depth=1))[1].mask.shape,
    "encoder: layer_weights": lambda w: w.model.encoder.layer_weights(w.model.encoder.num_layers).heads,
    "Index: search": search,
    "Index: asearch": lambda w: hits(asyncio.run(w.stable.asearch(OTHER, 4, explain=True))),
    "Index: rank": lambda w: asdict(w.stable.rank([QUESTION, OTHER], 6)) | {"seconds": None},
    "Index: reranker": lambda w: (w.stable.reranker, hits(w.stable.search(QUESTION, 6, rerank=RERANKER))),
    "Index: explain": lambda w: w.stable.explain(QUESTION, "long").to_dict(),
    "Index: context": lambda w: w.stable.context(QUESTION, 120, k=6).to_dict(),
    "Index: answer answer_stream": lambda w: w.stable.answer(QUESTION, owls_alone, threshold=0).to_dict(),
    "Index: overview": lambda w: w.stable.overview().to_dict(),
    "Index: vectors": lambda w: w.stable.vectors(["red-owl", "long", "nobody"]).tolist(),
    "Index: get": lambda w: [document and document.text for document in w.whole.get(["red-owl", "long", "nobody"])],
    "Index: documents": lambda w: [document.id for document in w.stable.documents({"animal": "owl"})],
    "Index: stats": lambda w: (w.stable.stats().documents, w.stable.stats().passages, len(w.stable)),
    "Index: verify": lambda w: w.whole.verify(),
    "Index: within engine": lambda w: (str(w.stable.within), w.stable.engine),
    "Index: filtered": lambda w: hits(w.whole.filtered(STABLE).filtered({"animal": "owl"}).search(QUESTION, 3)),
    "Index: feedback record_search feedback_log": feedback,
    "Index: add upsert add_questions delete": write,
    "Index: sync sync_listing": sync,
    "Index: compact": lambda w: w.whole.compact(),
    "Index: backup copy_to restore repair": copy,
    "Index: build create in_memory": make,
    "Index: open close": open_and_close,
    "langchain: invoke ainvoke": lambda w: (
        lang(w.langchain.invoke(OTHER)),
        lang(asyncio.run(w.langchain.ainvoke(OTHER))),
    ),
    "langchain: batch": lambda w: [lang(found) for found in w.langchain.batch([QUESTION, OTHER])],
    "langchain: abatch": lambda w: [lang(found) for found in asyncio.run(w.langchain.abatch([OTHER, QUESTION]))],
    "langchain: similarity_search_with_score": lambda w: [
        (document.id, score) for document, score in w.langchain.similarity_search_with_score(QUESTION, k=3)
    ],
    "langchain: add_documents upsert get delete": lang_write,
    "langchain: feedback": lambda w: w.langchain.feedback(query=QUESTION, id="red-owl", useful=True),
    "langchain: index loaded": lambda w: (len(w.langchain.index), w.langchain.method),
    "langchain: from_index": lambda w: lang(w.langchain.from_index(w.stable).invoke(QUESTION)),
    "langchain: from_documents": lambda w: lang(
        w.langchain.from_documents(
            [LangDocument(id=d.id, page_content=d.text) for d in tiny.documents()[:5]], w.model
        ).invoke(QUESTION)
    ),
    "langchain: configurable_fields model_post_init is_lc_serializable": lambda w: w.langchain.model_copy().k,
    "llama: retrieve": lambda w: nodes(w.llama.retrieve(QUESTION)),
    "llama: aretrieve": lambda w: nodes(asyncio.run(w.llama.aretrieve(OTHER))),
    "llama: retrieve_batch": lambda w: [nodes(found) for found in w.llama.retrieve_batch([QUESTION, OTHER])],
    "llama: explain": lambda w: w.llama.explain(QUESTION, "red-owl").to_dict(),
    "llama: feedback": lambda w: w.llama.feedback(QUESTION, "red-owl", useful=True),
    "llama: add upsert get_nodes insert_nodes delete_nodes insert refresh_ref_docs update_ref_doc delete_ref_doc": (
        llama_write
    ),
    "llama: ref_doc_info index settings": lambda w: (len(w.llama.ref_doc_info), len(w.llama.index), w.llama.settings()),
    "llama: persist": lambda w: w.llama.from_index(w.whole).persist() == w.folder / "index",
    "llama: from_persist_dir": lambda w: nodes(
        w.llama.from_persist_dir(w.folder / "persisted", model=w.model).retrieve(QUESTION)
    ),
    "llama: from_index": lambda w: nodes(w.llama.from_index(w.stable).retrieve(QUESTION)),
    "llama: from_documents": lambda w: nodes(
        w.llama.from_documents([TextNode(id_=d.id, text=d.text) for d in tiny.documents()[:5]], w.model).retrieve(OTHER)
    ),
    "llama: as_query_engine as_chat_engine": lambda w: (
        w.llama.as_query_engine.__name__,
        w.llama.as_chat_engine.__name__,
    ),
    "service: search": posted("search", query=[QUESTION, OTHER], k=4, explain=True),
    "service: answer": posted("answer", question=QUESTION, k=4),
    "service: context": posted("context", question=QUESTION, tokens=90),
    "service: explain": posted("explain", query=QUESTION, id="red-owl"),
    "service: feedback": posted("feedback", query=QUESTION, id="red-owl", useful=True),
    "service: get": posted("get", ids=["red-owl", "nobody"]),
    "service: list": posted("list", filter={"animal": "owl"}),
    "service: fields": posted("fields"),
    "service: overview": posted("overview", "bytes", "log", "segments", "reclaimable"),
    "service: add upsert sync delete": posted_writes,
    "service: indexes metrics ready": status,
}
"""What calls which public names; those that load a model from the Hub are called by no thread."""
RARE = ("backup", "build", "compact", "verify", "from_persist_dir")
"""Calls that read or write whole indexes: one in ten rounds."""


def named(owner: str) -> set[str]:
    return {name for call in CALLS if call.startswith(f"{owner}: ") for name in call.split()[1:]}


def public(kind: type, package: str) -> set[str]:
    """Public methods and properties that palmette gives a class, but for the ``a…`` twins of others."""
    ours = [vars(base) for base in kind.__mro__ if base.__module__.startswith(package)]
    is_call = lambda value: inspect.isfunction(value) or isinstance(value, classmethod | property)  # noqa: E731
    calls = {name for values in ours for name, value in values.items() if name[0] != "_" and is_call(value)}
    return {name for name in calls if name[1:] not in calls or name[0] != "a"}


def test_every_public_call_has_its_line() -> None:
    langchain = public(langchain_palmette.PalmetteRetriever, "langchain_palmette")
    llama = public(llama_palmette.PalmetteRetriever, "llama_index.retrievers.palmette")
    assert public(Index, "palmette") - named("Index") == set()
    assert langchain - named("langchain") == {"from_pretrained"}
    assert llama - named("llama") == {"from_pretrained"}
    assert {endpoint.path.removeprefix("/v1/") for endpoint in ENDPOINTS} - named("service") == set()


def same(alone: Any, beside: Any) -> bool:
    """Equal, but for the last digits of floats: queries that arrive together share a pass of the encoder."""
    if isinstance(alone, Mapping):
        return alone.keys() == beside.keys() and all(same(alone[name], beside[name]) for name in alone)
    if isinstance(alone, list | tuple):
        return len(alone) == len(beside) and all(map(same, alone, beside))
    if isinstance(alone, float | np.ndarray):
        return bool(np.allclose(alone, beside, atol=2e-3, rtol=2e-3))
    return bool(alone == beside)


def change(folder: Path, number: int) -> None:
    """Write, change and remove notes: Markdown and code of several passages."""
    folder.mkdir(exist_ok=True)
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
    """Threads that call everything, and one that syncs, until the time is over or a result differs."""

    def __init__(self, w: World, seconds: float) -> None:
        self.world, self.failures, self.called = w, dict[str, str](), set[str]()
        self.alone = {name: call(w) for name, call in CALLS.items()}
        self.end = time.monotonic() + seconds
        threads = [threading.Thread(target=self.work, args=(seed,)) for seed in range(THREADS)]
        threads.append(threading.Thread(target=self.follow))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def is_over(self) -> bool:
        return bool(self.failures) or time.monotonic() > self.end

    def work(self, seed: int) -> None:
        """Call in an order of one's own, again and again; the first thread calls the encoder alone."""
        chance = random.Random(seed)
        names = [name for name in CALLS if seed or name.startswith("encoder")]
        while not self.is_over:
            for name in chance.sample(names, len(names)):
                is_rare = name in self.called and name.split()[1] in RARE and chance.random() < 0.9
                if not self.is_over and not is_rare:
                    self.called.add(name)
                    self.compare(name, CALLS[name])

    def follow(self) -> None:
        """Change a folder and sync it, again and again."""
        notes = self.world.folder / "notes"
        for number in count():
            if self.is_over:
                return
            change(notes, number)
            self.compare("the sync", lambda w: bool(w.whole.sync(notes, metadata={"kind": "note"}, **QUIET).skipped))

    def compare(self, name: str, call: Callable[[World], Any]) -> None:
        """Note a result that differs from the one alone."""
        try:
            alone, beside = self.alone.get(name, False), call(self.world)
            if not same(alone, beside):
                self.failures[name] = f"alone:  {alone}\nbeside: {beside}"
        except Exception:
            self.failures[name] = traceback.format_exc()


@pytest.mark.timeout(5000)
@pytest.mark.parametrize("seconds", [SECONDS, pytest.param(3600.0, marks=pytest.mark.exhaustive)])
def test_every_call_gives_beside_others_what_it_gives_alone(seconds: float, tmp_path: Path) -> None:
    # a transformer whose tokenizer keeps its settings, and a method with every call
    model = TreeModel.fit(tiny.pairs(), encoder=tiny.learner(), **tiny.settings(depth=5))
    with search_threads(2), world(model, tmp_path) as made:
        failures = Beside(made, seconds).failures
    assert not failures, "\n\n".join(f"{name}\n{why}" for name, why in failures.items())
