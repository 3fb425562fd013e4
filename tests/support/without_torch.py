"""What palmette does where the extra ``train`` is not installed.

    python tests/support/without_torch.py ENCODER FOLDER       all that the base does, once
    python tests/support/without_torch.py pytest tests/…       tests, such as the contract of Index

In an environment that has those packages they are made unimportable first.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stderr
from importlib.machinery import PathFinder
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

LACKING = "torch transformers sentence_transformers accelerate sklearn scipy onnx".split()
"""Packages that the base does without."""


class Finder(PathFinder):
    """Finds none of the packages that are lacking."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in LACKING else super().find_spec(name, path, target)


def main(encoder: str, folder: Path) -> None:
    import numpy as np

    import palmette
    from palmette import FakeEncoder, Index, Reader, SpaceModel, load_encoder
    from palmette.errors import MissingExtraError

    texts = folder / "texts"
    texts.mkdir()
    for number, animal in enumerate(("cat", "dog", "bird", "owl", "fox", "hare") * 4):
        (texts / f"{number}.md").write_text(
            f"# The {animal} {number}\n\nThe {animal} sat on the mat of roof {number}.\n"
        )

    # an index of a folder, with the encoder by ONNX Runtime: made, opened, searched, changed
    path = folder / "index"
    with Index.build(str(texts), path=path, encoder=encoder) as index:
        assert index.search("where is the cat?", k=3)
    with Index.open(path) as index:
        hits = index.search(["the cat", "the dog", "a bird", "an owl", "the fox", "a hare"], k=3)
        assert len(hits) == 6
        (texts / "0.md").write_text("The cow is new here.\n")
        report = index.sync(str(texts), progress=False)
        assert [*report.changed, *report.added], report
        index.upsert([{"id": "more", "text": "a hare ran under the roof"}])
        index.delete(["more"])
        assert str(index.context("where is the cat?"))
        assert index.overview(topics=3).topics
        answer = Reader.untrained(index.model.encoder).answer("where did the dog sit?", index.search("the dog sat"))
        assert answer.no_answer < 1

    check_frameworks(path)
    check_service(path)

    # vectors of a function, and many of them: batches beside the exact search's codes
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((3000, 64)).astype(np.float32)
    known = {f"text {number}": row for number, row in enumerate(rows)}
    with Index.in_memory(encoder=lambda batch: np.array([known.get(text, rows[0]) for text in batch])) as index:
        index.add([{"id": text, "text": text} for text in known])
        found = index.search([f"text {number}" for number in range(40)], k=1, lexical=0)
        assert [each[0].id for each in found] == [f"text {number}" for number in range(40)]
    with Index.in_memory(encoder=FakeEncoder(16)) as index:
        index.add(["the owl sleeps", "the fox hunts"])
        assert index.search("owl", k=1)[0].document.content == "the owl sleeps"

    # what needs torch says so, and what to do
    for need in (
        lambda: SpaceModel.fit(folder / "no such data"),
        lambda: Reader.fit(folder / "no such data"),
        lambda: palmette.TreeModel,
        lambda: load_encoder(encoder, device="cuda"),
    ):
        told = ""
        try:
            need()
        except MissingExtraError as error:
            told = str(error)
        assert "pip install 'palmette[train]'" in told
    from palmette.cli import main as command

    told = StringIO()
    with redirect_stderr(told):
        assert command(["train", "space", str(folder / "no such data"), "--out", str(folder / "new")]) == 1
    assert "training needs 'torch'" in told.getvalue()
    assert command(["overview", str(path)]) == command(["inspect", str(path)]) == 0
    with redirect_stderr(told):
        assert command(["inspect", str(path), "--html", str(folder / "tree.html")]) == 1
    assert "only a tree can be inspected" in told.getvalue()
    assert not [name for name in LACKING if name in sys.modules]


def check_frameworks(path: Path) -> None:
    """Open the index by both frameworks' retrievers, where they are installed."""
    if find_spec("langchain_core") and find_spec("langchain_palmette"):
        from langchain_palmette import PalmetteRetriever

        assert PalmetteRetriever(index_path=str(path)).invoke("the cat", k=2)
    if find_spec("llama_index") and find_spec("llama_index.core"):
        from llama_index.retrievers.palmette import PalmetteRetriever as LlamaRetriever
        from palmette import Index

        assert LlamaRetriever(Index.open(path)).retrieve("the cat")


def check_service(path: Path) -> None:
    """Ask a service for hits, an answer and an overview, where its packages are installed."""
    if find_spec("starlette") and find_spec("uvicorn"):
        from support.services import running

        with running(path) as service:
            for call, asked in (("search", "query"), ("answer", "question"), ("overview", "query")):
                reply = service.post(call, **{asked: "where is the cat?"})
                assert reply.status_code == 200, reply.text
            assert service.http.get("/").status_code == 200


def block() -> None:
    """Make the packages unimportable."""
    sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]


if __name__ == "__main__":
    block()
    if sys.argv[1] == "pytest":
        import pytest

        sys.exit(pytest.main(sys.argv[2:]))
    main(sys.argv[1], Path(sys.argv[2]))
    print("as it should be")
