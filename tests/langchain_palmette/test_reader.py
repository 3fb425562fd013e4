"""Answers in a chain, with no language model."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.load import dumps
from langchain_core.runnables import RunnablePassthrough

from langchain_palmette import PalmetteReader, TreeRetriever
from palmette.errors import InputError, NotFoundError
from palmette.reader import Reader
from support import readers
from support.recorder import Recorder

QUESTION = "where does the green owl live?"


@pytest.fixture(scope="module")
def reader() -> Reader:
    return readers.sentence_reader()


@pytest.fixture
def found() -> list[Document]:
    return [Document(page_content=text, metadata={"when": object()}) for text in readers.texts()[8:12]]


def test_a_chain_of_retriever_and_reader_answers(reader: Reader, retriever: TreeRetriever) -> None:
    answering = PalmetteReader(reader=reader, threshold=0)
    chain = {"question": RunnablePassthrough(), "documents": retriever} | answering
    told = chain.invoke(QUESTION)
    expected = reader.answer(QUESTION, [one.page_content for one in told["documents"]], threshold=0)
    assert told["question"] == QUESTION
    assert told["documents"] == retriever.invoke(QUESTION)
    assert told["answer"] == expected.text
    assert told["confidence"] == pytest.approx(expected.confidence)
    support = told["supports"][0]
    assert (
        told["documents"][support["passage"]].page_content[support["start"] : support["end"]]
        == support["text"]
    )
    assert support["id"] == told["documents"][support["passage"]].id
    assert (chain | (lambda state: state["answer"])).invoke(QUESTION) == expected.text


async def test_sync_async_and_batch_agree(reader: Reader, found: list[Document], recorder: Recorder) -> None:
    answering = PalmetteReader(reader=reader)
    asked = [{"question": QUESTION, "documents": found}, {"question": "the red cat?", "documents": []}]
    one = [answering.invoke(each) for each in asked]
    assert await answering.ainvoke(asked[0]) == one[0]
    assert answering.batch(asked, {"callbacks": [recorder]}) == one
    assert await answering.abatch(asked) == one
    assert one[1]["answer"] is None
    broken = answering.batch([asked[0], {"question": QUESTION}], return_exceptions=True)
    assert broken[0] == one[0]
    assert isinstance(broken[1], InputError)
    with pytest.raises(InputError, match="'documents'"):
        await answering.abatch([asked[0], {"question": QUESTION}])


def test_copies_and_other_keys(reader: Reader, found: list[Document], tmp_path: Path) -> None:
    path = reader.save_pretrained(tmp_path / "reader")
    answering = PalmetteReader(reader=path, question_key="input", documents_key="context", output="text")
    asked = {"input": QUESTION, "context": found}
    expected = answering.invoke(asked)
    for other in (
        copy.deepcopy(answering),
        PalmetteReader(**answering.model_dump()),
        answering.with_config(tags=["x"]),
    ):
        assert other.invoke(asked) == expected
    assert str(path) in dumps(answering)
    unknown = {"input": "who invented the telephone?", "context": found}
    assert answering.invoke(unknown) == "I found no answer."
    assert PalmetteReader(**answering.model_dump() | {"no_answer": "?"}).invoke(unknown) == "?"


def test_wrong_input_and_settings_are_named(reader: Reader, found: list[Document]) -> None:
    answering = PalmetteReader(reader=reader)
    with pytest.raises(InputError, match="'documents'"):
        answering.invoke({"question": QUESTION})
    with pytest.raises(InputError, match="'question'"):
        answering.invoke(QUESTION)
    with pytest.raises(InputError, match="list of documents"):
        answering.invoke({"question": QUESTION, "documents": found[0]})
    for wrong in ({"thresold": 0.1}, {"output": "json"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PalmetteReader(reader=reader, **wrong)
    with pytest.raises(NotFoundError, match="nowhere"):
        PalmetteReader(reader="./nowhere").invoke({"question": QUESTION, "documents": found})
