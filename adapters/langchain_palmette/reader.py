"""Answers from retrieved documents, with no language model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr

from langchain_palmette.fields import Loading
from langchain_palmette.live import find, name_of, open_reader
from palmette.errors import InputError
from palmette.threads import run_in_thread

if TYPE_CHECKING:
    from palmette.reader import Answer, Reader

    ReaderName = str | Path | Reader
else:
    ReaderName = Annotated[str, BeforeValidator(name_of)]

__all__ = ["PalmetteReader"]

Asked = Mapping[str, Any]


class PalmetteReader(Loading, RunnableSerializable[Asked, Any]):
    """Answers a question in the words of the documents it is given, or says that they have no answer.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import PalmetteReader

            reader = PalmetteReader(reader="me/reader")

    Usage:
        .. code-block:: python

            found = reader.invoke({"question": "When did it begin?", "documents": documents})
            found["answer"], found["confidence"], found["supports"][0]["sentence"]

    Use within a chain:
        .. code-block:: python

            from langchain_core.runnables import RunnablePassthrough

            chain = {"question": RunnablePassthrough(), "documents": retriever} | reader
            chain.invoke("When did it begin?")

    What comes out is a dict: ``answer`` (``None`` where there is none), ``confidence``, ``supports`` (which
    documents say it, with sentence, characters and share of the confidence), ``alternatives``, and what came in.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    reader: ReaderName = Field(frozen=True)
    """A reader's checkpoint, by repository or folder, or a reader."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """The least probability of there being an answer for one to be given; 0 answers always, ``None`` takes what was
    learned in training.
    """
    output: Literal["dict", "text"] = "dict"
    """``dict``, or ``text`` for the answer alone."""
    no_answer: str = "I found no answer."
    """What ``text`` is where there is no answer."""
    question_key: str = "question"
    """Where the question is in what comes in."""
    documents_key: str = "documents"
    """Where the documents are."""

    _reader: Reader | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        """Take hold of a reader that was given as an object."""
        super().model_post_init(context)
        self._reader = held = find(str(self.reader))
        if held is not None and getattr(held, "kind", None) != "reader":
            raise InputError(
                f"reader must be a palmette.reader.Reader, or where its checkpoint lies, got {held!r:.80}"
            )

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Its fields are JSON."""
        return True

    def invoke(self, input: Asked, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Answer one question."""
        return self._call_with_config(self._one, input, config, **kwargs)

    async def ainvoke(self, input: Asked, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """See :meth:`invoke`."""
        return await self._acall_with_config(self._aone, input, config, **kwargs)

    def batch(
        self,
        inputs: list[Asked],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Answer several questions, read together; one that cannot be answered fails alone."""
        return self._batch_with_config(
            self._each, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    async def abatch(
        self,
        inputs: list[Asked],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """See :meth:`batch`."""
        return await self._abatch_with_config(
            self._aeach, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def _one(self, asked: Asked) -> Any:
        return self._all([asked])[0]

    async def _aone(self, asked: Asked) -> Any:
        return await run_in_thread(self._one, asked)

    async def _aeach(self, inputs: list[Asked]) -> list[Any]:
        return await run_in_thread(self._each, inputs)

    def _each(self, inputs: list[Asked]) -> list[Any]:
        """Answer or error of each, as LangChain's batches want them."""
        try:
            return self._all(inputs)
        except InputError as error:  # perhaps of one of them only
            return [error] if len(inputs) == 1 else [self._each([asked])[0] for asked in inputs]

    def _all(self, inputs: list[Asked]) -> list[Any]:
        if self._reader is None:
            self._reader = open_reader(str(self.reader), self._loading())
        questions = [self._part(asked, self.question_key) for asked in inputs]
        documents = [_passages(self._part(asked, self.documents_key)) for asked in inputs]
        answers = self._reader.answer(questions, documents, threshold=self.threshold)
        return [self._told(asked, answer) for asked, answer in zip(inputs, answers, strict=True)]

    def _part(self, asked: Asked, key: str) -> Any:
        try:
            return asked[key]
        except (KeyError, TypeError) as error:
            raise InputError(
                f"PalmetteReader reads {self.question_key!r} and {self.documents_key!r}, got {asked!r:.120}: "
                "give a dict with both, or set question_key and documents_key"
            ) from error

    def _told(self, asked: Asked, answer: Answer) -> Any:
        if self.output == "text":
            return answer.text if answer else self.no_answer
        told = answer.to_dict()
        del told["question"]
        return {**asked, **told, "answer": answer.text if answer else None}


def _passages(documents: Any) -> list[Any]:
    """Documents as passages: their text and id, since metadata may be anything."""
    from palmette.types import Document as Passage

    if not isinstance(documents, list | tuple):
        raise InputError(
            f"documents must be a list of documents, got {type(documents).__name__}: {documents!r:.80}"
        )
    return [
        Passage(
            one.id or str(place), one.page_content, fields={} if one.page_content.strip() else {"text": ""}
        )
        if isinstance(one, Document)
        else one
        for place, one in enumerate(documents)
    ]
