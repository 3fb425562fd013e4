"""PalmetteReader: answers from retrieved documents, without a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from pydantic import ConfigDict, Field

from langchain_palmette.loading import Loading, ReaderName
from palmette.config import check_kind
from palmette.errors import InputError, shown
from palmette.index.frameworks import answer_facts, check_reader, passage
from palmette.machine.threads import AsyncTwin

Inputs = Mapping[str, Any]
Configs = RunnableConfig | list[RunnableConfig] | None


class PalmetteReader(Loading, RunnableSerializable[Inputs, Any]):
    """Answers a question in the words of retrieved documents, or reports that they have no answer.

    .. code-block:: python

        reader = PalmetteReader(reader="me/reader")
        found = reader.invoke({"question": "When did it begin?", "documents": documents})
        found["answer"], found["confidence"], found["supports"][0]["sentence"]

        chain = {"question": RunnablePassthrough(), "documents": retriever} | reader
        chain.invoke("When did it begin?")

    The output is the input with ``answer`` (``None`` where there is none), ``confidence``, ``supports`` (the documents
    that give the answer, with citation, sentence, characters and share of the confidence) and ``alternatives``.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    reader: ReaderName = Field(frozen=True)
    """A reader's checkpoint, by repository or folder, or a loaded reader."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Least probability that there is an answer; 0 answers always, ``None`` takes the threshold learned in training."""
    output: Literal["dict", "text"] = "dict"
    """``dict``, or ``text`` for the answer alone."""
    no_answer: str = "I found no answer."
    """Text of ``output="text"`` where there is no answer."""
    question_key: str = "question"
    """Key of the question in the input."""
    documents_key: str = "documents"
    """Key of the documents in the input."""

    def model_post_init(self, context: Any, /) -> None:
        """Refuse objects that are no readers."""
        super().model_post_init(context)
        if "reader" in self._objects:
            check_reader(self._objects["reader"])

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Fields are JSON."""
        return True

    def invoke(self, input: Inputs, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Answer one question."""
        return self._call_with_config(self._answer, input, config, **kwargs)

    async def ainvoke(self, input: Inputs, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """See :meth:`invoke`."""
        return await self._acall_with_config(self._aanswer, input, config, **kwargs)

    def batch(
        self, inputs: list[Inputs], config: Configs = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> list[Any]:
        """Answer several questions in one pass; an input that cannot be answered fails alone."""
        kwargs["return_exceptions"] = return_exceptions
        return self._batch_with_config(self._answer_each, inputs, config, **kwargs)

    async def abatch(
        self, inputs: list[Inputs], config: Configs = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> list[Any]:
        """See :meth:`batch`."""
        kwargs["return_exceptions"] = return_exceptions
        return await self._abatch_with_config(self._aanswer_each, inputs, config, **kwargs)

    def _answer(self, input: Inputs) -> Any:
        return self._answer_all([input])[0]

    def _answer_each(self, inputs: list[Inputs]) -> list[Any]:
        """Return an answer or an error for each input, as LangChain's batches expect."""
        try:
            return self._answer_all(inputs)
        except InputError as error:  # possibly of one input only
            return [error] if len(inputs) == 1 else [self._answer_each([single])[0] for single in inputs]

    _aanswer = AsyncTwin(_answer).method
    _aanswer_each = AsyncTwin(_answer_each).method

    def _answer_all(self, inputs: list[Inputs]) -> list[Any]:
        questions = [self._value(input, self.question_key) for input in inputs]
        documents = [_passages(self._value(input, self.documents_key)) for input in inputs]
        answers = self.loaded("reader").answer(questions, documents, threshold=self.threshold)
        if self.output == "text":
            return [answer.text if answer else self.no_answer for answer in answers]
        facts = [answer_facts(answer) | {"answer": answer.text if answer else None} for answer in answers]
        return [{**input, **fact} for input, fact in zip(inputs, facts, strict=True)]

    def _value(self, input: Inputs, key: str) -> Any:
        try:
            return input[key]
        except (IndexError, KeyError, TypeError) as error:
            raise InputError(
                f"PalmetteReader reads {self.question_key!r} and {self.documents_key!r}, got {shown(input, 120)}: "
                "give a dict with both, or set question_key and documents_key"
            ) from error


def _passages(documents: Any) -> list[Any]:
    """Convert documents to passages of their texts and ids, cited by their metadata."""
    check_kind("documents", documents, (list, tuple), "a list of documents")
    return [
        passage(one.id or str(row), one.page_content, one.metadata) if isinstance(one, Document) else one
        for row, one in enumerate(documents)
    ]
