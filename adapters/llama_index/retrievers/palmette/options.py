"""What every retriever takes besides the options of its method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar

from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import IndexNode, TransformComponent

from llama_index.retrievers.palmette.filters import Filters

__all__ = ["Options", "SearchOption"]

T = TypeVar("T")


class Options(TypedDict, total=False):
    """Keyword options of every retriever; see :class:`PalmetteRetriever`."""

    similarity_top_k: int
    """How many nodes to return."""
    filters: Filters
    """Conditions on metadata, applied before ranking; a query can only narrow them."""
    score_threshold: float | None
    """Leave out nodes that score less."""
    lexical: float | Literal["auto"] | None
    """How much words count beside the method: 0 … 1, or ``"auto"`` for what the checkpoint has learned."""
    explain: bool
    """Return :class:`ExplainedNode`, which carries why it was found."""
    transformations: Sequence[TransformComponent] | None
    """What documents (not nodes) go through before they are indexed, such as a splitter."""
    callback_manager: CallbackManager | None
    """LlamaIndex's callbacks."""
    object_map: dict[str, Any] | None
    """What index nodes refer to, by index id."""
    objects: list[IndexNode] | None
    """The same as index nodes."""
    verbose: bool
    """Print what index nodes lead to."""


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
