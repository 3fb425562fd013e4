"""PalmetteSynthesizer: answers from retrieved nodes, without a language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.llms import MockLLM
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryType
from llama_index_instrumentation import get_dispatcher

from palmette.config import check_kind, check_range
from palmette.index.frameworks import answer_facts, check_reader, passage
from palmette.machine.threads import AsyncTwin

if TYPE_CHECKING:
    from palmette import Answer, Reader

dispatcher = get_dispatcher(__name__)

ANSWER = "answer"
"""Metadata key of a response for confidence, supporting nodes and alternatives."""


class PalmetteSynthesizer(BaseSynthesizer):
    """Answers a question in the words of the retrieved nodes, or finds that they have no answer.

        engine = RetrieverQueryEngine(retriever, response_synthesizer=PalmetteSynthesizer("me/reader"))
        response = engine.query("When did it begin?")
        response.response, response.source_nodes, response.metadata["answer"]["confidence"]

    No LLM is set or called (``RetrieverQueryEngine.from_args`` looks for one: use the constructor). All nodes are
    sources; ``metadata["answer"]["supports"]`` names those that give the answer.

    Args:
        reader: A reader (shared, not copied), its checkpoint's folder or a Hub repository.
        threshold: Least probability that there is an answer; 0 answers always, ``None`` takes the threshold learned in
            training.
        no_answer: Response where there is no answer.
        revision: Branch, tag or commit of a repository.
        reader_options: More of ``Reader.from_pretrained``: ``token``, ``device``, ``dtype``, ….
        callback_manager: LlamaIndex's callbacks.
    """

    def __init__(
        self,
        reader: Reader | str | Path,
        *,
        threshold: float | None = None,
        no_answer: str = "I found no answer.",
        revision: str | None = None,
        reader_options: dict[str, Any] | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        check_range("PalmetteSynthesizer", "threshold", threshold, 0, 1)
        super().__init__(  # without llm= it looks for one in the settings
            llm=MockLLM(), callback_manager=callback_manager, empty_response=no_answer
        )
        if isinstance(reader, str | Path):
            from palmette import Reader

            reader = Reader.from_pretrained(reader, revision=revision, **(reader_options or {}))
        check_reader(reader)
        self.reader, self.threshold, self.no_answer = reader, threshold, no_answer

    def answer(self, query: QueryType, nodes: Sequence[NodeWithScore]) -> Answer:
        """Answer of the reader; its passages are the nodes, by position and id, cited by their metadata."""
        question = query if isinstance(query, str) else query.query_str
        found = [scored.node for scored in nodes]
        passages = [passage(node.node_id, node.get_content(MetadataMode.NONE), node.metadata) for node in found]
        return self.reader.answer(question, passages, threshold=self.threshold)

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> Response:
        """Answer from nodes, which become the response's sources."""
        dispatcher.event(SynthesizeStartEvent(query=query))
        question = query if isinstance(query, str) else query.query_str
        payload: dict[str, Any] = {EventPayload.QUERY_STR: question}
        with self._callback_manager.event(CBEventType.SYNTHESIZE, payload=payload) as event:
            answer = self.answer(query, nodes)
            metadata = {scored.node.node_id: scored.node.metadata for scored in nodes}
            response = Response(
                answer.text or self.no_answer,
                source_nodes=[*nodes, *(additional_source_nodes or ())],
                metadata={**metadata, ANSWER: answer_facts(answer)},
            )
            event.on_end(payload={EventPayload.RESPONSE: response})
        dispatcher.event(SynthesizeEndEvent(query=query, response=response))
        return response

    asynthesize = AsyncTwin(synthesize).method

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> str:
        """Answer from texts."""
        check_kind("query_str", query_str, str, "a str")
        return self.reader.answer(query_str, text_chunks, threshold=self.threshold).text or self.no_answer

    aget_response = AsyncTwin(get_response).method

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        return None
