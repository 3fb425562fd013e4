"""What every retriever takes besides the options of its method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar

from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import IndexNode, TransformComponent

from llama_index.retrievers.palmette.filters import Filters

__all__ = ["Options", "SearchOption", "given"]

T = TypeVar("T")


class Options(TypedDict, total=False):
    """Keyword options of every retriever; see :class:`PalmetteRetriever`."""

    similarity_top_k: int
    filters: Filters
    score_threshold: float | None
    lexical: float | Literal["auto"] | None
    explain: bool
    transformations: Sequence[TransformComponent] | None
    callback_manager: CallbackManager | None
    object_map: dict[str, Any] | None
    objects: list[IndexNode] | None
    verbose: bool


class _Searching(Protocol):
    """What has search options: a retriever."""

    search_options: dict[str, Any]


class SearchOption(Generic[T]):
    """A search option of the method as a typed attribute of its retriever."""

    def __set_name__(self, owner: type[_Searching], name: str) -> None:
        self.name = name

    def __get__(self, retriever: _Searching, owner: type[_Searching]) -> T | None:
        return retriever.search_options.get(self.name)

    def __set__(self, retriever: _Searching, value: T | None) -> None:
        retriever.search_options = {**retriever.search_options, self.name: value}


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are set."""
    return {name: value for name, value in options.items() if value is not None}
