"""What LangChain's callbacks hear of retrievers."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler


class Recorder(BaseCallbackHandler):
    """What happened to retriever runs, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.runs: dict[Any, str] = {}
        self.told: list[dict[str, Any]] = []

    def on_retriever_start(self, serialized: Any, query: str, **told: Any) -> None:
        self.runs[told["run_id"]] = query
        self.told.append(told)
        self.events.append(("start", query))

    def on_retriever_end(self, documents: Any, **told: Any) -> None:
        self.events.append(("end", self.runs[told["run_id"]]))

    def on_retriever_error(self, error: BaseException, **told: Any) -> None:
        self.events.append(("error", self.runs[told["run_id"]]))
