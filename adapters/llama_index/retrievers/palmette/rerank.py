"""PalmetteRerank: ranks other retrievers' nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index_instrumentation import get_dispatcher

from llama_index.retrievers.palmette.loading import OfCheckpoint
from llama_index.retrievers.palmette.nodes import metadata_mode, text_of
from palmette.errors import InputError
from palmette.index.frameworks import check_size, public_name, rerank
from palmette.lexical.analyser import check_language
from palmette.machine.threads import AsyncTwin
from palmette.methods.base import DEFAULT_ENCODER
from palmette.ranking.score import check_lexical

if TYPE_CHECKING:
    from palmette import Model

dispatcher = get_dispatcher(__name__)


class PalmetteRerank(OfCheckpoint, BaseNodePostprocessor):
    """Ranks nodes by a palmette model's score, and the words they share with the query, and keeps the best.

    The nodes given stay unchanged: results are new wrappers of them, of the same class.

    Args:
        model: A loaded model (shared, not copied), a checkpoint folder or a Hub repository; by default the default
            encoder, untrained.
        top_n: Number of nodes to keep.
        revision: Branch, tag or commit of a repository.
        model_options: More of :func:`palmette.load_model`: ``token``, ``device``, ``dtype``, ….
        lexical: Weight of words beside the method: 0 (none) … 1 (words alone), ``"auto"`` for the weight that the
            model has learned. IDF is computed on the nodes given, so scores of different calls must not be compared,
            except with 0.
        language: Language of the stemmer; ``None`` for no stemming.
        callback_manager: LlamaIndex's callbacks; not pickled.
        search_options: Options of the model's method, such as ``level=6`` for a tree.
    """

    model_name: str = Field(description="Name of the checkpoint, for events.")
    top_n: int = Field(description="Number of nodes to keep.")
    lexical: float | Literal["auto"] = Field(default="auto", description="Weight of words.")
    language: str | None = Field(default="english", description="Language of the stemmer.")
    search_options: dict[str, Any] = Field(default_factory=dict, description="Options of the model's method.")

    def __init__(
        self,
        model: Model | str | Path = DEFAULT_ENCODER,
        *,
        top_n: int = 2,
        revision: str | None = None,
        model_options: dict[str, Any] | None = None,
        lexical: float | Literal["auto"] = "auto",
        language: str | None = "english",
        callback_manager: CallbackManager | None = None,
        **search_options: Any,
    ) -> None:
        check_size("top_n", top_n)
        loaded, place = self._loaded(model, revision, model_options)
        loaded.search_options(search_options)
        options: dict[str, Any] = dict(
            model_name=public_name(place["checkpoint"] or loaded.fingerprint[:12]),
            **place,
            top_n=top_n,
            lexical=check_lexical(lexical),
            language=check_language(language),
            search_options=search_options,
            callback_manager=callback_manager or CallbackManager(),
        )
        super().__init__(**options)
        self._model = loaded

    @classmethod
    def class_name(cls) -> str:
        """Name in serialized form."""
        return "PalmetteRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        """Rerank nodes for a query, and report it to LlamaIndex's events and callbacks."""
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
            mode = metadata_mode(self._model)
            texts = [text_of(scored.node, mode) for scored in nodes]
            metadata = [scored.node.metadata for scored in nodes]
            ids = [scored.node.node_id for scored in nodes]
            options: dict[str, Any] = {"lexical": self.lexical, "language": self.language, **self.search_options}
            best = rerank(self._model, query_bundle.query_str, texts, metadata, ids, self.top_n, **options)
            reranked = [nodes[row].model_copy(update={"score": score}) for row, score in best]
            event.on_end(payload={EventPayload.NODES: reranked})
        dispatcher.event(ReRankEndEvent(nodes=reranked))
        return reranked

    _apostprocess_nodes = AsyncTwin(_postprocess_nodes).method
