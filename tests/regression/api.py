"""The calls of palmette that the record makes, over its fixtures."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from palmette import Document, Hit, Index, Model, load_encoder, load_model
from palmette.reader import Reader
from regression import vectors
from support import taxonomies, tiny

FIXTURES = Path(__file__).parent / "fixtures"
TRAINED_ENCODER = {"fields", "reader-span"}


def documents(name: str) -> list[Document]:
    """What is indexed under a fixture."""
    if name == "zoo":
        return taxonomies.zoo()
    return tiny.with_fields() if name == "fields" else tiny.documents()


def _encoder(name: str) -> dict[str, Any]:
    if name not in TRAINED_ENCODER:
        return {}
    return {"encoder": load_encoder(FIXTURES / "encoder", device="cpu", dtype="float32")}


def open_model(name: str) -> Model:
    """The model of a fixture's checkpoint, beside it or in its index; the model of fields has recorded vectors."""
    kept = FIXTURES / name / "index" / "model"
    model = load_model(kept if kept.exists() else FIXTURES / name / "model", **_encoder(name))
    if name == "fields":
        model.module.encode = vectors.RecordedVectors(recorded_vectors(), model.module)
    return model


@cache
def recorded_vectors() -> dict[str, vectors.Row]:
    """The recorded vectors of texts, which a run of ``make.py`` adds to."""
    return vectors.load()


def open_index(name: str, folder: Path) -> Index:
    """A fixture's index, copied to ``folder``; its own model but where the encoder lies elsewhere."""
    shutil.copytree(FIXTURES / name / "index", folder)
    return Index.open(folder, open_model(name) if name in TRAINED_ENCODER else None)


def new_index(model: Model, some: Sequence[Document], segments: int = 1) -> Index:
    """An index in memory, in one segment or in three that are too unequal to be merged."""
    index = Index.in_memory(model)
    fill(index, some, segments)
    return index


def fill(index: Index, some: Sequence[Document], segments: int = 1) -> None:
    """Add documents, in one segment or in three that are too unequal to be merged."""
    for part in [some] if segments == 1 else [some[:-14], some[-14:-3], some[-3:]]:
        index.add(part, progress=False)


def change(index: Index, some: Sequence[Document]) -> None:
    """Replace the text of one document, add one, and delete two."""
    told = replace(some[-2], text=f"{some[5].text} and {some[20].text}")
    added = replace(some[0], id="added", text=f"{some[7].text} It is not alone.", fields={})
    index.upsert([told, added], progress=False)
    index.delete([some[9].key, some[30].key])


def search(index: Index, queries: Sequence[str], k: int, **how: Any) -> list[list[tuple[str, float]]]:
    """Ids and scores; without words the method's own."""
    alone = how.get("lexical") == 0
    found = index.search(list(queries), k=k, sentences=not alone, **how)
    return [[(h.id, h.evidence["method_score"] if alone else h.score) for h in hits] for hits in found]


def parts(index: Index, query: str, **how: Any) -> list[tuple[str, float]]:
    """Parts of the explanation of the first hit, which adds up to its score."""
    alone = how.get("lexical") == 0
    found: list[Hit] = index.search(query, k=1, sentences=not alone, **how)
    told = [hit.explain().method if alone else hit.explain() for hit in found]
    return [(part.name, part.value) for one in told if one is not None for part in one.parts]


def answers(name: str, questions: Sequence[str], passages: Sequence[str]) -> list[tuple[str, float]]:
    """What a reader answers, also where it would rather not, and its confidence."""
    reader = Reader.from_pretrained(FIXTURES / name, **_encoder(name))
    found = reader.answer(list(questions), [list(passages)] * len(questions), threshold=0)
    return [(answer.text, answer.confidence) for answer in found]


def langchain(folder: Path, queries: Sequence[str]) -> list[list[tuple[str, float]]]:
    """The tree's retriever for LangChain, over an index folder."""
    from langchain_palmette import TreeRetriever

    retriever = TreeRetriever(index_path=str(folder), k=5, score_key="score")
    return [[(str(d.id), d.metadata["score"]) for d in retriever.invoke(query)] for query in queries]


def llama_index(index: Index, queries: Sequence[str]) -> list[list[tuple[str, float]]]:
    """The tree's retriever for LlamaIndex."""
    from llama_index.retrievers.palmette import TreeRetriever

    retriever = TreeRetriever(index, similarity_top_k=5)
    return [[(node.node_id, float(node.score or 0)) for node in retriever.retrieve(query)] for query in queries]
