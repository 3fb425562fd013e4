"""``batch`` and ``abatch`` of a retriever: one search, with callbacks for each query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list

from palmette.config import check_kind
from palmette.errors import InputError
from palmette.machine.threads import AsyncTwin, run_in_thread

Configs = RunnableConfig | list[RunnableConfig] | None
Found = list[list[Document]]
Result = list[Document] | Exception


class Batching(BaseRetriever, ABC):
    """A retriever whose ``batch`` is one encoding pass and one search.

    Every query has its own run, as with ``invoke``: start, then end or error. An invalid query fails alone.
    ``max_concurrency`` bounds the number of queries per search.
    """

    @abstractmethod
    def _retrieve(self, queries: list[str], **call: Any) -> Found:
        """The results of each query."""

    @abstractmethod
    def _record(self, query: str, documents: Sequence[Document], run: Any) -> None:
        """Record the search of a run."""

    def batch(
        self, inputs: list[str], config: Configs = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> Found:
        """The results of each query, in one search."""
        outcomes: list[Result] = []
        for queries, starts in self._searches(CallbackManager, inputs, config, kwargs):
            runs, results = list(starts), self._results(queries, **kwargs)
            for query, run, result in zip(queries, runs, results, strict=True):
                if not isinstance(result, Exception):
                    self._record(query, result, run)
                _end(run, result)
            outcomes += _raise_first(results, return_exceptions)
        return cast("Found", outcomes)

    async def abatch(
        self, inputs: list[str], config: Configs = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> Found:
        """See :meth:`batch`."""
        outcomes: list[Result] = []
        for queries, starts in self._searches(AsyncCallbackManager, inputs, config, kwargs):
            runs, results = [await start for start in starts], await self._aresults(queries, **kwargs)
            for query, run, result in zip(queries, runs, results, strict=True):
                if not isinstance(result, Exception):
                    await run_in_thread(self._record, query, result, run)
                await _end(run, result)
            outcomes += _raise_first(results, return_exceptions)
        return cast("Found", outcomes)

    def _results(self, queries: list[str], **call: Any) -> list[Result]:
        """Results or error of each query."""
        try:
            return list(self._retrieve(queries, **call))
        except InputError as error:  # perhaps of one query only
            return [error] if len(queries) == 1 else [self._results([query], **call)[0] for query in queries]
        except Exception as error:  # raised or returned by the caller
            return [error] * len(queries)

    _aresults = AsyncTwin(_results).method

    def _searches(
        self, manager: Any, inputs: list[str], config: Configs, kwargs: dict[str, Any]
    ) -> Iterator[tuple[list[str], Iterator[Any]]]:
        """Split queries into those of one search; with them their runs, each started when it is taken."""
        check_kind("inputs", inputs, (list, tuple), "a list of queries")
        configs = get_config_list(config, len(inputs)) if inputs else []
        size = (configs[0].get("max_concurrency") if configs else None) or max(1, len(inputs))
        for start in range(0, len(inputs), size):
            queries = list(inputs[start : start + size])
            pairs = zip(queries, configs[start : start + size], strict=True)
            yield queries, (self._start(manager, query, run_config, kwargs) for query, run_config in pairs)

    def _start(self, manager: Any, query: str, config: RunnableConfig, kwargs: dict[str, Any]) -> Any:
        """Start a run as ``invoke`` does; an awaitable for an asynchronous manager."""
        callbacks = manager.configure(
            inheritable_callbacks=config.get("callbacks"),
            inheritable_tags=config.get("tags"),
            local_tags=self.tags,
            inheritable_metadata={**(config.get("metadata") or {}), **self._get_ls_params(**kwargs)},
            local_metadata=self.metadata,
        )
        name = config.get("run_name") or self.get_name()
        return callbacks.on_retriever_start(None, query, name=name, run_id=config.get("run_id"))


def _end(run: Any, result: Result) -> Any:
    """End a run; an awaitable for an asynchronous one."""
    return (run.on_retriever_error if isinstance(result, Exception) else run.on_retriever_end)(result)


def _raise_first(results: list[Result], return_exceptions: bool) -> list[Result]:
    error = next((result for result in results if isinstance(result, Exception)), None)
    if error is not None and not return_exceptions:
        raise error
    return results
