"""``batch`` and ``abatch`` of a retriever: one search, with callbacks for each query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list

from palmette.config import check_kind
from palmette.errors import InputError
from palmette.threads import AsyncTwin

Result = list[Document] | Exception


class Batching(BaseRetriever, ABC):
    """A retriever whose ``batch`` is one encoding pass and one search.

    Every query has its own run, as with ``invoke``: start, then end or error. An invalid query fails alone.
    ``max_concurrency`` bounds the number of queries per search.
    """

    @abstractmethod
    def _retrieve(self, queries: list[str], **call: Any) -> list[list[Document]]:
        """The results of each query."""

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """The results of each query, in one search."""
        outcomes: list[Result] = []
        for queries, configs in _split(inputs, config):
            managers = [CallbackManager.configure(**self._callbacks(one, kwargs)) for one in configs]
            begun = zip(managers, queries, map(self._run_name, configs), strict=True)
            runs = [manager.on_retriever_start(None, query, **name) for manager, query, name in begun]
            results = self._results(queries, **kwargs)
            for run, result in zip(runs, results, strict=True):
                _end(run, result)
            outcomes += _raise_first(results, return_exceptions)
        return cast("list[list[Document]]", outcomes)

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """See :meth:`batch`."""
        outcomes: list[Result] = []
        for queries, configs in _split(inputs, config):
            managers = [AsyncCallbackManager.configure(**self._callbacks(one, kwargs)) for one in configs]
            begun = zip(managers, queries, map(self._run_name, configs), strict=True)
            runs = [await manager.on_retriever_start(None, query, **name) for manager, query, name in begun]
            results = await self._aresults(queries, **kwargs)
            for run, result in zip(runs, results, strict=True):
                await _end(run, result)
            outcomes += _raise_first(results, return_exceptions)
        return cast("list[list[Document]]", outcomes)

    def _results(self, queries: list[str], **call: Any) -> list[Result]:
        """Results or error of each query."""
        try:
            return list(self._retrieve(queries, **call))
        except InputError as error:  # perhaps of one query only
            return [error] if len(queries) == 1 else [self._results([query], **call)[0] for query in queries]
        except Exception as error:  # raised or returned by the caller
            return [error] * len(queries)

    _aresults = AsyncTwin(_results).method

    def _callbacks(self, config: RunnableConfig, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of a run's callback manager, as in ``invoke``."""
        return {
            "inheritable_callbacks": config.get("callbacks"),
            "inheritable_tags": config.get("tags"),
            "local_tags": self.tags,
            "inheritable_metadata": {**(config.get("metadata") or {}), **self._get_ls_params(**kwargs)},
            "local_metadata": self.metadata,
        }

    def _run_name(self, config: RunnableConfig) -> dict[str, Any]:
        return {"name": config.get("run_name") or self.get_name(), "run_id": config.get("run_id")}


def _split(
    inputs: list[str], config: RunnableConfig | list[RunnableConfig] | None
) -> Iterator[tuple[list[str], list[RunnableConfig]]]:
    """Split queries into those of one search, with their configs."""
    check_kind("inputs", inputs, (list, tuple), "a list of queries")
    if not inputs:
        return
    configs = get_config_list(config, len(inputs))
    size = configs[0].get("max_concurrency") or len(inputs)
    for start in range(0, len(inputs), size):
        yield list(inputs[start : start + size]), configs[start : start + size]


def _end(run: Any, result: Result) -> Any:
    """End a run; an awaitable for an asynchronous one."""
    return (run.on_retriever_error if isinstance(result, Exception) else run.on_retriever_end)(result)


def _raise_first(results: list[Result], return_exceptions: bool) -> list[Result]:
    for result in results:
        if isinstance(result, Exception) and not return_exceptions:
            raise result
    return results
