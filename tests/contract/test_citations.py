"""One question has one citation, place and probability on every surface, letter by letter."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palmette import Document, FakeEncoder, Index, Reader
from palmette.cli import main
from palmette.types import PLACES
from support import tiny

QUESTION = "do owls hunt by ear?"


def mixed_folder(folder: Path) -> Path:
    """A file of every kind that has places of its own, each with owls."""
    pptx, openpyxl = pytest.importorskip("pptx"), pytest.importorskip("openpyxl")
    backend, figures = pytest.importorskip("matplotlib.backends.backend_pdf"), pytest.importorskip("matplotlib.figure")
    folder.mkdir()
    with backend.PdfPages(folder / "birds.pdf") as book:
        for words in ("Larks sing in the morning.", "Owls hunt at night."):
            figure = figures.Figure()
            figure.text(0.1, 0.5, words)
            book.savefig(figure)
    slides = pptx.Presentation()
    for words in ("Larks sing.", "Owls hunt mice."):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = "Birds", words
    slides.save(folder / "birds.pptx")
    sheets = openpyxl.Workbook()
    sheets.active.title = "Hunters"
    for row in (["bird", "hour"], ["owl", 22], ["hawk", 9]):
        sheets.active.append(row)
    sheets.save(folder / "birds.xlsx")
    cells = [{"cell_type": "markdown", "source": source} for source in ("# Birds", "Owls hunt by ear.")]
    section = "Larks sing while they climb, and owls are silent. " * 30
    files = {
        "birds.ipynb": json.dumps({"cells": cells}),
        "birds.csv": "bird,hunts\nlark,by day\nowl,by night\n",
        "birds.jsonl": '{"text": "A lark."}\n\n{"text": "Two owls hunt."}\n',
        "birds.md": f"# Birds\n\n{section}\n\n## Owls\n\nOwls hunt at dusk.\n\n### At sea\n\n{section}\n",
        "birds.rst": "Birds\n=====\n\nOwls hunt from poles.\n",
        "birds.py": '"""Owls."""\n\n\ndef hunt(owl):\n    """Let an owl hunt."""\n    return owl\n',
        "odd \u00a0 name.txt": "Owls hunt\nin barns.\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


Found = list[tuple[str, dict[str, Any], float]]
"""Citation, place and probability of each hit."""


def described(cited: Sequence[Any], score: str = "score") -> Found:
    """What Python says of hits, excerpts or supports."""
    return [(str(one.citation), one.citation.to_dict(), getattr(one, score)) for one in cited]


def told(facts: list[dict[str, Any]], score: str = "score") -> Found:
    """What JSON says of them."""
    return [(one["citation"], one["place"], one[score]) for one in facts]


async def test_one_question_is_cited_alike_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mcp = pytest.importorskip("mcp")
    langchain = pytest.importorskip("langchain_palmette")
    llama_index = pytest.importorskip("llama_index.retrievers.palmette")
    from support.services import running

    path, folder = tmp_path / "birds", mixed_folder(tmp_path / "files")
    with Index.create(path, tiny.METHODS["space"](), passages={"tokens": 60}) as index:
        index.sync(folder, progress=False)
        hits, context = index.search(QUESTION, 50), index.context(QUESTION, 200)
        answer = Reader.untrained(index.model.encoder.plain).answer(QUESTION, hits[:5])
        found, given, said = described(hits), described(context.excerpts), described(answer.supports, "share")
        places = {place["kind"] for _, place, _ in found}
        assert places == {"page", "slide", "row", "cell", "record", "lines"}
        assert [citation for citation, *_ in said] == ["birds.ipynb, cell 2"], "the answer's place, not its passage's"
        # what a language model is given
        written = index.answer(QUESTION, lambda messages: "By ear [1].", tokens=200, threshold=0)
        assert described(written.excerpts) == told(written.to_dict()["excerpts"]) == given
        # both frameworks
        documents = langchain.PalmetteRetriever.from_index(index, k=50, score_key="score").invoke(QUESTION)
        assert told([document.metadata for document in documents]) == found
        nodes = llama_index.PalmetteRetriever.from_index(index, similarity_top_k=50).retrieve(QUESTION)
        assert told([{**one.node.metadata, "score": one.score} for one in nodes]) == found
        # answers from a framework's passages; of several pages, slides, cells or rows they have no line's number
        reader = Reader.untrained(index.model.encoder.plain)
        reading = langchain.PalmetteReader(reader=reader, threshold=0)
        synthesizer = llama_index.PalmetteSynthesizer(reader, threshold=0)
        for hit, document, node in zip(hits, documents, nodes, strict=True):
            (support,) = reader.answer(QUESTION, [hit], threshold=0).supports
            place = hit.citation
            if place.kind != "lines" and place.first != place.last:
                place = replace(place, start=support.citation.start, end=support.citation.end)
                expected = (str(place), place.to_dict(), support.share)
            else:
                [expected] = described([support], "share")
            reply = reading.invoke({"question": QUESTION, "documents": [document]})
            assert told(reply["supports"], "share") == [expected]
            assert reader.answer(QUESTION, [document], threshold=0).supports[0].citation.to_dict() == expected[1]
            response = synthesizer.synthesize(QUESTION, [node])
            assert told(response.metadata["answer"]["supports"], "share") == [expected]
    # the shell, in a process of its own and as it prints for people
    command = [sys.executable, "-m", "palmette", "search", str(path), QUESTION, "-k", "50", "--json"]
    shell = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told(json.loads(shell.stdout)) == found

    def printed(*words: str) -> str:
        assert main([words[0], str(path), QUESTION, *words[1:]]) == 0
        return capsys.readouterr().out

    lines = printed("search", "-k", "50").splitlines()[::2]
    assert lines == [f"{n:>2}. {score:.3f}  {citation}" for n, (citation, _, score) in enumerate(found, 1)]
    assert told(json.loads(printed("answer", "--json"))["supports"], "share") == said
    lines = printed("answer", "--explain").splitlines()
    assert f"  {answer.confidence:.0%}  {said[0][0]}" in lines
    assert [line for line in lines if line.startswith(f"    {said[0][2]:.0%} from {said[0][0]}: ")]
    assert told(json.loads(printed("context", "--tokens", "200", "--json"))["excerpts"]) == given
    assert printed("context", "--tokens", "200") == f"{context}\n"
    # HTTP, and agents of the same service
    with running(path, mcp=True) as service:
        assert told(service.post("search", query=QUESTION, k=50).json()["results"][0]["hits"]) == found
        [reply] = service.post("answer", question=QUESTION).json()["answers"]
        assert (told(reply["supports"], "share"), reply["confidence"]) == (said, answer.confidence)
        assert service.post("context", question=QUESTION, tokens=200).json() == context.to_dict()
        async with mcp.Client(f"{service.url}/mcp") as client:

            async def tool(name: str, **arguments: Any) -> tuple[list[str], Any]:
                reply = await client.call_tool(name, arguments)
                return [block.text for block in reply.content], reply.structured_content

            [text], reply = await tool("search", query=QUESTION, k=50)
            assert told(reply["passages"]) == found
            for line, passage, (citation, _, score) in zip(text.splitlines(), reply["passages"], found, strict=True):
                assert line.partition("] ")[2].startswith(f"{score:.0%}, {citation}: ")
                _, read = await tool("get", id=passage["id"])
                assert (read["citation"], read["place"]) == (passage["citation"], passage["place"])
            texts, reply = await tool("context", question=QUESTION, tokens=200)
            assert told(reply["excerpts"]) == given
            assert [head.partition("] ")[2] for head in texts[::2]] == [f"{s:.0%}, {c}:" for c, _, s in given]
            assert texts[1::2] == [excerpt.document.text for excerpt in context.excerpts]
            [text], reply = await tool("answer", question=QUESTION)
            assert (told(reply["sources"], "share"), reply["confidence"]) == (said, answer.confidence)
            assert f"] {said[0][0]}: " in text


OWN_PLACE = {"file": "a", "headings": 3, "first": "1"}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, "owls"),
        ({"source": "guide.md", "place": "Oslo", "citation": "[7]"}, "guide.md"),
        ({"file_name": "guide.pdf", "page_label": "12", "place": OWN_PLACE}, "guide.pdf, page 12"),
        ({"source": "guide.md", "place": {"file": "a", "headings": [], "kind": None}}, "guide.md"),
    ],
)
def test_passages_of_other_retrievers_are_cited_by_file_or_id(metadata: dict[str, Any], expected: str) -> None:
    schema = pytest.importorskip("llama_index.core.schema")
    langchain_core = pytest.importorskip("langchain_core.documents")
    langchain = pytest.importorskip("langchain_palmette")
    llama_index = pytest.importorskip("llama_index.retrievers.palmette")
    reader = Reader.untrained(FakeEncoder())
    document = langchain_core.Document(id="owls", page_content="Owls hunt by ear.", metadata=metadata)
    reply = langchain.PalmetteReader(reader=reader).invoke({"question": QUESTION, "documents": [document]})
    node = schema.NodeWithScore(node=schema.TextNode(id_="owls", text="Owls hunt by ear.", metadata=metadata))
    response = llama_index.PalmetteSynthesizer(reader).synthesize(QUESTION, [node])
    for supports in (reply["supports"], response.metadata["answer"]["supports"]):
        assert [support["citation"] for support in supports] == [expected]


def test_pages_of_a_hit_are_a_range() -> None:
    pages = {PLACES: {"kind": "page", "marks": [[1, 11], [2, 12]]}}
    with Index.in_memory(tiny.train_space()) as index:
        index.add([Document("a", "an owl\na fox", {"source": "handbook.pdf"}, payload=pages)])
        (hit,) = index.search("owl", 1)
        assert hit.to_dict()["citation"] == str(hit.citation) == "handbook.pdf, pages 11\u201312"
        (excerpt,) = index.context("owl").excerpts
        assert str(excerpt.citation).startswith("handbook.pdf, page")
