"""Many queries in one search, with the callbacks of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list

from palmette.errors import InputError
from palmette.threads import run_in_thread

__all__ = ["Batching"]

Answer = list[Document] | Exception


class Batching(BaseRetriever, ABC):
    """``batch`` and ``abatch`` as one encoding pass and one search.

    Every query has its own run, as under ``invoke``: start, then end or error. One that cannot be answered
    fails alone. ``max_concurrency`` bounds how many are searched at a time.
    """

    @abstractmethod
    def _found(self, queries: list[str], **call: Any) -> list[list[Document]]:
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
        outcomes: list[Answer] = []
        for queries, configs in _parts(inputs, config):
            managers = [CallbackManager.configure(**self._told(one, kwargs)) for one in configs]
            runs = [
                manager.on_retriever_start(None, query, **self._named(one))
                for manager, query, one in zip(managers, queries, configs, strict=True)
            ]
            answers = self._answers(queries, **kwargs)
            for run, answer in zip(runs, answers, strict=True):
                if isinstance(answer, Exception):
                    run.on_retriever_error(answer)
                else:
                    run.on_retriever_end(answer)
            outcomes += _settled(answers, return_exceptions)
        return cast("list[list[Document]]", outcomes)

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """The results of each query, in one search that leaves the event loop free."""
        outcomes: list[Answer] = []
        for queries, configs in _parts(inputs, config):
            managers = [AsyncCallbackManager.configure(**self._told(one, kwargs)) for one in configs]
            runs = [
                await manager.on_retriever_start(None, query, **self._named(one))
                for manager, query, one in zip(managers, queries, configs, strict=True)
            ]
            answers = await run_in_thread(self._answers, queries, **kwargs)
            for run, answer in zip(runs, answers, strict=True):
                if isinstance(answer, Exception):
                    await run.on_retriever_error(answer)
                else:
                    await run.on_retriever_end(answer)
            outcomes += _settled(answers, return_exceptions)
        return cast("list[list[Document]]", outcomes)

    def _answers(self, queries: list[str], **call: Any) -> list[Answer]:
        """Results or error of each query: callbacks and ``return_exceptions`` need both."""
        try:
            return list(self._found(queries, **call))
        except InputError as error:  # perhaps of one query only
            return [error] if len(queries) == 1 else [self._answers([query], **call)[0] for query in queries]
        except Exception as error:  # raised or returned by the caller
            return [error] * len(queries)

    def _told(self, config: RunnableConfig, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What configures a run's callbacks, as in ``invoke``."""
        return {
            "inheritable_callbacks": config.get("callbacks"),
            "inheritable_tags": config.get("tags"),
            "local_tags": self.tags,
            "inheritable_metadata": {**(config.get("metadata") or {}), **self._get_ls_params(**kwargs)},
            "local_metadata": self.metadata,
        }

    def _named(self, config: RunnableConfig) -> dict[str, Any]:
        return {"name": config.get("run_name") or self.get_name(), "run_id": config.get("run_id")}


def _parts(
    inputs: list[str], config: RunnableConfig | list[RunnableConfig] | None
) -> Iterator[tuple[list[str], list[RunnableConfig]]]:
    """The queries to search together, with their configs."""
    if not inputs:
        return
    configs = get_config_list(config, len(inputs))
    size = configs[0].get("max_concurrency") or len(inputs)
    for start in range(0, len(inputs), size):
        yield list(inputs[start : start + size]), configs[start : start + size]


def _settled(answers: list[Answer], return_exceptions: bool) -> list[Answer]:
    for answer in answers:
        if isinstance(answer, Exception) and not return_exceptions:
            raise answer
    return answers
