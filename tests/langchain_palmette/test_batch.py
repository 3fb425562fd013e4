"""Many queries: one search, with each query's callbacks and errors its own; async twins."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_palmette import TreeRetriever
from palmette import Index
from palmette.errors import ConfigError, InputError
from support.recorder import Recorder

QUERIES = ["where does the red cat live?", "black hen", "golden bee", "white fox at night"]


class Counted(Index):
    """An index that notes how many queries every search had."""

    searches: list[int]

    def search(self, query: Any, *args: Any, **how: Any) -> Any:
        self.searches.append(len(query))
        return super().search(query, *args, **how)


@pytest.fixture
def counted(retriever: TreeRetriever) -> tuple[TreeRetriever, list[int]]:
    index = Counted(retriever.index.model, retriever.index.backend)
    index.searches = []
    return TreeRetriever.from_index(index, k=2, score_key="score"), index.searches


def ids(answers: list[Any]) -> list[list[str | None]]:
    """The answers without their scores, whose last bits depend on how many queries are encoded together."""
    return [[document.id for document in answer] for answer in answers]


async def both(retriever: Any, queries: list[str], config: Any = None, **how: Any) -> list[Any]:
    """The answer of ``batch``, having checked that ``abatch`` gives the same."""
    answers: list[Any] = retriever.batch(queries, config, **how)
    again: list[Any] = await retriever.abatch(queries, config, **how)
    assert [*map(repr, answers)] == [*map(repr, again)]
    return answers


async def test_one_search_gives_what_single_calls_give(counted: tuple[TreeRetriever, list[int]]) -> None:
    retriever, searches = counted
    assert await both(retriever, []) == []
    assert searches == []
    how: dict[str, Any] = {"k": 3, "filter": {"house": {"$lt": 40}}, "level": 4, "explain": True}
    answers = await both(retriever, QUERIES, **how)
    assert searches == [4, 4]
    singles = [retriever.invoke(query, **how) for query in QUERIES]
    assert ids(answers) == ids(singles)
    assert answers[0][0].metadata["score"] == pytest.approx(singles[0][0].metadata["score"], abs=1e-5)
    searches.clear()
    assert ids(await both(retriever, QUERIES, {"max_concurrency": 3}, **how)) == ids(singles)
    assert searches == [3, 1, 3, 1]
    searches.clear()
    chain = RunnableLambda(str.upper) | retriever.bind(k=1) | RunnableLambda(lambda documents: documents[0].id)
    upper = retriever.batch([query.upper() for query in QUERIES], k=1)
    assert await both(chain, QUERIES) == [found[0].id for found in upper]
    assert searches == [4, 4, 4]


async def test_batch_and_invoke_tell_the_same(retriever: TreeRetriever) -> None:
    config: RunnableConfig = {"tags": ["t"], "metadata": {"m": 1}}
    tagged = TreeRetriever.from_index(retriever.index, tags=["own"], metadata={"team": "x"}, name="mine")
    recorders = [Recorder() for _ in range(4)]
    configs: list[RunnableConfig] = [{**config, "callbacks": [one]} for one in recorders]
    tagged.invoke(QUERIES[0], configs[0])
    tagged.batch([QUERIES[0]], configs[1])
    await tagged.ainvoke(QUERIES[0], configs[2])
    await tagged.abatch([QUERIES[0]], configs[3])
    for recorder in recorders:
        recorder.told[0].pop("run_id")
        assert recorder.events == recorders[0].events
        assert recorder.told == recorders[0].told
    [told] = recorders[0].told
    assert (told["name"], sorted(told["tags"])) == ("mine", ["own", "t"])
    expected = {"m": 1, "team": "x", "ls_retriever_name": "palmette_tree", "ls_vector_store_provider": "palmette"}
    assert told["metadata"].items() >= (expected | {"ls_embedding_model": "fake:48:3"}).items()


async def test_a_config_per_query(retriever: TreeRetriever) -> None:
    one, two = Recorder(), Recorder()
    configs: list[RunnableConfig] = [{"callbacks": [one], "run_name": "ask"}, {"callbacks": [two]}]
    retriever.batch(QUERIES[:2], configs)
    await retriever.abatch(QUERIES[:2], configs)
    assert one.events == [("start", QUERIES[0]), ("end", QUERIES[0])] * 2
    assert two.events == [("start", QUERIES[1]), ("end", QUERIES[1])] * 2
    assert [told["name"] for told in one.told] == ["ask", "ask"]
    assert len({told["run_id"] for told in one.told + two.told}) == 4
    with pytest.raises(ValueError, match="length"):
        retriever.batch(QUERIES, configs)


async def test_a_bad_query_fails_alone(retriever: TreeRetriever, recorder: Recorder) -> None:
    queries = [QUERIES[0], " ", QUERIES[1]]
    answers = await both(retriever, queries, return_exceptions=True)
    assert isinstance(answers[1], InputError)
    assert ids([answers[0], answers[2]]) == ids(retriever.batch([QUERIES[0], QUERIES[1]]))
    with pytest.raises(InputError, match="empty"):
        retriever.batch(queries, {"callbacks": [recorder]})
    with pytest.raises(InputError, match="empty"):
        await retriever.abatch(queries, {"callbacks": [recorder]})
    ends = [("end", queries[0]), ("error", queries[1]), ("end", queries[2])]
    assert recorder.events == ([("start", query) for query in queries] + ends) * 2


async def test_a_bad_option_fails_all(retriever: TreeRetriever, recorder: Recorder) -> None:
    answers = await both(retriever, QUERIES, {"callbacks": [recorder]}, return_exceptions=True, lvl=3)
    assert all(isinstance(answer, ConfigError) for answer in answers)
    assert [event for event, _ in recorder.events] == (["start"] * 4 + ["error"] * 4) * 2
    with pytest.raises(ConfigError, match="lvl"):
        retriever.batch(QUERIES, lvl=3)
