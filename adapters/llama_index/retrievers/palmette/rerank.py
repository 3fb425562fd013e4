"""PalmetteRerank: nodes from anywhere, rescored by a palmette model."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index_instrumentation import get_dispatcher

from llama_index.retrievers.palmette.loading import loaded, reloadable, source
from llama_index.retrievers.palmette.nodes import mode_of
from palmette.errors import ConfigError, InputError
from palmette.lexical.analyser import check_language
from palmette.lexical.weight import check_lexical
from palmette.threads import run_in_thread
from palmette.types import Document

if TYPE_CHECKING:
    from palmette.model import Model

__all__ = ["PalmetteRerank"]

dispatcher = get_dispatcher(__name__)


class PalmetteRerank(BaseNodePostprocessor):
    """Rescores retrieved nodes with a palmette model and the words they share with the query, and keeps the best.

    The nodes given stay as they are: results are fresh wrappers around them, of the same class.

    Args:
        model: A loaded model (shared, not copied), a checkpoint folder or a Hub repository.
        top_n: How many nodes to keep.
        revision: Branch, tag or commit of a repository.
        model_options: More of :func:`palmette.load_model`: ``token``, ``device``, ``dtype``, ….
        lexical: How much words count beside the method: 0 (not at all) … 1 (words alone), ``"auto"`` for what the
            model has learned. Which words are rare is told by the nodes given, so scores are to be compared with each
            other only; with 0 they are the method's, whatever is beside them.
        language: Whose word endings are cut off; ``None`` for nobody's.
        callback_manager: LlamaIndex's callbacks; not pickled.
        search_options: Options of the model's method, such as ``level=6`` for a tree.
    """

    model_name: str = Field(description="The checkpoint.")
    top_n: int = Field(description="How many nodes to keep.")
    lexical: float | Literal["auto"] = Field(default="auto", description="How much words count.")
    language: str | None = Field(default="english", description="Whose word endings are cut off.")
    search_options: dict[str, Any] = Field(default_factory=dict, description="Options of the model's method.")
    _model: Any = PrivateAttr()
    _source: str | None = PrivateAttr()

    def __init__(
        self,
        model: Model | str | Path,
        *,
        top_n: int = 2,
        revision: str | None = None,
        model_options: dict[str, Any] | None = None,
        lexical: float | Literal["auto"] = "auto",
        language: str | None = "english",
        callback_manager: CallbackManager | None = None,
        **search_options: Any,
    ) -> None:
        if top_n < 1:
            raise ConfigError(f"PalmetteRerank: top_n must be at least 1, got {top_n!r}")
        given, model = model, loaded(model, revision=revision, **(model_options or {}))
        model.search_options(search_options)
        options: dict[str, Any] = dict(
            model_name=source(given, model) or model.fingerprint[:12],
            top_n=top_n,
            lexical=check_lexical(lexical),
            language=check_language(language),
            search_options=search_options,
            callback_manager=callback_manager or CallbackManager(),
        )
        super().__init__(**options)
        self._model = model
        self._source = source(given, model)

    @classmethod
    def class_name(cls) -> str:
        """Name in serialized form."""
        return "PalmetteRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("PalmetteRerank compares nodes with a query: give query_bundle or query_str")
        if not nodes:
            return []
        dispatcher.event(
            ReRankStartEvent(query=query_bundle, nodes=nodes, top_n=self.top_n, model_name=self.model_name)
        )
        payload: dict[str, Any] = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: self.model_name,
            EventPayload.QUERY_STR: query_bundle.query_str,
            EventPayload.TOP_K: self.top_n,
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            scores = self._scores(query_bundle.query_str, [scored.node for scored in nodes])
            lowest = min([0.0, *scores.values()])
            best = sorted(range(len(nodes)), key=lambda place: -scores.get(place, -inf))[: self.top_n]
            kept = [nodes[place].model_copy(update={"score": scores.get(place, lowest)}) for place in best]
            event.on_end(payload={EventPayload.NODES: kept})
        dispatcher.event(ReRankEndEvent(nodes=kept))
        return kept

    def _scores(self, query: str, nodes: list[BaseNode]) -> dict[int, float]:
        """Scores by place, without the blank texts, which no encoder takes: those come last."""
        texts = [node.get_content(mode_of(self._model)) for node in nodes]
        filled = [place for place, text in enumerate(texts) if text.strip()]
        documents = [Document(str(place), texts[place], nodes[place].metadata) for place in filled]
        how: dict[str, Any] = {"lexical": self.lexical, "language": self.language, **self.search_options}
        found = self._model.score(query, documents, **how) if documents else ()
        return dict(zip(filled, map(float, found), strict=True))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return await run_in_thread(self._postprocess_nodes, nodes, query_bundle)

    def __reduce__(self) -> tuple[Any, ...]:
        words = {"lexical": self.lexical, "language": self.language}
        options = {"top_n": self.top_n, **words, **self.search_options}
        return _again, (type(self), reloadable(self, self._source), self._model.revision, options)


def _again(
    cls: type[PalmetteRerank], origin: str, revision: str | None, options: dict[str, Any]
) -> PalmetteRerank:
    return cls(origin, revision=revision, **options)
