"""Inside a running loop nothing blocks it, nothing starts another; pickles open their index once, as it was."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from langchain_palmette import PalmetteEmbeddings, PalmetteReranker
from palmette import FakeEncoder, Index, TreeModel
from palmette.machine.threads import AsyncTwin
from support import tiny
from support.frameworks import FRAMEWORKS, Given
from support.stores import run_python

QUESTION = "The green owl lives in house 10 and sings at night."
QUERIES = [QUESTION, "black hen", "golden bee"]


@pytest.fixture
def retriever(framework: Any) -> Any:
    return framework.build("TreeRetriever", tiny.documents(), tiny.tree(), k=4)


async def test_the_same_as_sync(framework: Any, retriever: Any) -> None:
    how: dict[str, Any] = {"k": 3, "filter": {"animal": "owl"}, "level": 4, "score_threshold": 0.1}
    for given in ({}, how):  # also sync inside a running loop
        expected = [one.id for one in framework.ask(retriever, QUESTION, **given)]
        assert await framework.aask(retriever, QUESTION, **given) == expected
    found = framework.batch(retriever, QUERIES)
    assert found == await framework.abatch(retriever, QUERIES)
    assert found == [[one.id for one in framework.ask(retriever, query)] for query in QUERIES]
    assert framework.batch(retriever, []) == await framework.abatch(retriever, []) == []
    framework.write(retriever, [Given("1", "an owl")])
    assert framework.held(retriever, ["1"]) == ["1"]


async def test_searches_and_votes_are_recorded(framework: Any, retriever: Any) -> None:
    log = retriever.index.feedback_log
    framework.ask(retriever, QUESTION)
    assert log.searches() == [], "recording is off"
    log.recording = True
    first, second, *others = (one.id for one in framework.ask(retriever, QUESTION))
    [batched] = await framework.abatch(retriever, QUERIES[1:2])
    last = await framework.aask(retriever, QUERIES[2])
    expected = [(QUESTION, (first, second, *others)), (QUERIES[1], tuple(batched)), (QUERIES[2], tuple(last))]
    assert [(one.query, one.documents) for one in log.searches()] == expected
    retriever.feedback(QUESTION, first, useful=True, person="ada")
    await retriever.afeedback(QUESTION, second, useful=False)
    votes = [(vote.document, vote.useful, bool(vote.person)) for vote in log.votes()]
    assert votes == [(first, True, True), (second, False, False)]


async def test_the_loop_stays_free(framework: Any, retriever: Any) -> None:
    """Work that only goes on once the loop has run would wait for ever if it were done on the loop."""
    loop, free = asyncio.get_running_loop(), threading.Event()

    class Patient(FakeEncoder):
        def forward(self, *args: Any) -> Any:
            loop.call_soon_threadsafe(free.set)
            assert free.wait(10), "the event loop was blocked"
            free.clear()
            return super().forward(*args)

    patient = TreeModel(tiny.tree().config, Patient(48), tiny.tree().module)
    waiting = framework.over("TreeRetriever", Index(patient, retriever.index.backend), k=4)
    assert len(await framework.aask(waiting, QUESTION)) == 4
    assert len(await framework.abatch(waiting, [QUESTION, QUESTION])) == 2
    if framework.package.__name__ == "langchain_palmette":
        assert len(await waiting.asimilarity_search_with_score(QUESTION)) == 4
        assert len(await PalmetteEmbeddings(encoder=patient.encoder).aembed_query(QUESTION)) == 48
        assert len(await PalmetteEmbeddings(model=patient).aembed_documents([QUESTION])) == 1
        given = framework.documents(tiny.documents()[:3])
        assert len(await PalmetteReranker(model=patient).acompress_documents(given, QUESTION)) == 3


def test_every_async_method_is_the_twin_of_its_own() -> None:
    """As tests/test_threads.py says, a twin calls the method that it was made of in a thread."""
    made, found = AsyncTwin(len).method.__code__, set[str]()
    for package in (framework.package for framework in FRAMEWORKS.values()):
        for kind in (getattr(package, name) for name in package.__all__):
            for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
                if getattr(method, "__code__", None) is made:
                    twins = [
                        getattr(kind, own, None) for own in (name[1:], f"_{name[2:]}", name.removeprefix("async_"))
                    ]
                    assert getattr(kind, method.__wrapped__.__name__) in twins, (kind, name)
                    found.add(f"{kind.__name__}.{name}")
    of_stores = {f"PalmetteVectorStore.{name}" for name in ("adelete", "asimilarity_search", "async_add", "aget_nodes")}
    assert found > of_stores | {"TreeRetriever.aadd_documents", "TreeRetriever.aadd", "TreeRetriever.aget"}


async def test_an_unpickled_retriever_is_opened_once(
    framework: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"index_path": tmp_path / "index", "k": 1}
    made = framework.build("TreeRetriever", tiny.documents(), tiny.tree(), **how)
    kept = pickle.dumps(made)
    assert len(kept) < 2_000, "no model in it"
    made.index.close()
    opened, real = [], Index.open.__func__
    monkeypatch.setattr(Index, "open", classmethod(lambda cls, *a, **o: opened.append(a) or real(cls, *a, **o)))
    again = pickle.loads(kept)
    assert not opened
    found = await asyncio.gather(*(framework.aask(again, QUESTION) for _ in range(16)))
    assert found == [["green-owl"]] * 16
    assert len(opened) == 1
    again.index.close()


def test_pickles_keep_the_engine_and_share_the_model(framework: Any, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    path = tmp_path / "index"
    with Index.build(tiny.documents(), tiny.tree(), path, engine="faiss", progress=False) as index:
        made = framework.over("TreeRetriever", index, k=4)
        first = pickle.loads(pickle.dumps(made))
        assert framework.ask(first, QUESTION) == framework.ask(made, QUESTION)
        second = pickle.loads(pickle.dumps(first))
        assert first.index is not index
        assert first.index.engine == second.index.engine == "faiss"
        assert first.index.model is second.index.model
    first.index.close()
    second.index.close()


def test_pickles_in_another_process(tmp_path: Path) -> None:
    """Torch waits for the first search; an index in memory is not there."""
    kept = []
    for name, framework in FRAMEWORKS.items():
        how = {"index_path": tmp_path / name, "k": 1}
        kept.append(framework.build("TreeRetriever", tiny.documents(), tiny.tree(), **how))
    kept.append(FRAMEWORKS["LangChain"].build("TreeRetriever", [], tiny.tree()))
    (tmp_path / "pickled").write_bytes(pickle.dumps(kept))
    script = f"""if True:
        import pickle, sys
        one, two, three = pickle.load(open(sys.argv[1], "rb"))
        print("torch" in sys.modules)
        print(one.invoke({QUESTION!r})[0].id, two.retrieve({QUESTION!r})[0].node_id)
        three.invoke("owl")
    """
    done = run_python(script, tmp_path / "pickled", timeout=300)
    assert done.stdout == "False\ngreen-owl green-owl\n", done.stderr
    assert "NotFoundError" in done.stderr
