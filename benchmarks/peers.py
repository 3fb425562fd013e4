"""Beside what people use: two real manuals, eighty questions, the same encoder.

    pip install langchain-chroma langchain-qdrant       # besides palmette[langchain,llama-index] and bm25s
    PALMETTE_DATA=DATA python benchmarks/peers.py --npm NPM

Every system gets the same files and answers the same questions with the first passages that it finds, by its defaults:
LlamaIndex's vector index over its default splitter and over its Markdown parser; LangChain's recursive splitter (1,000
characters, overlap 200) with Chroma, in an ensemble with BM25, and with Qdrant's hybrid search; ``Index.build``. The
last row ranks LangChain's pieces by palmette. ``DATA/manual_uv`` and ``docs/content`` of an installed npm are the
manuals (see passages.py).

Measured: *first five*, questions of forty whose evidence, in a section that answers, is at least half in one of the
first five passages; *mrr*, of the first such passage among ten; the share of questions whose evidence is in the first
300 and 600 words.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common import ENCODER, number
from langchain_palmette import PalmetteEmbeddings
from palmette import Document, Index, SpaceModel, load_encoder
from palmette.encoder import CachedEncoder, Encoder
from passages import BUDGETS, Manual, Span, covered, cut, load

SETS, RANKED, DEPTH = ("uv", "npm"), 10, 20
Ask = Callable[[str], list[Span]]
System = Callable[[Manual, Encoder], Ask]


def place(manual: Manual, name: str, text: str, start: int | None = None) -> Span:
    """Place of a passage in its file; without a start, where its text stands."""
    found = manual.files[name].text.find(text) if start is None else start
    return name, max(0, found), max(0, found) + len(text)


def llama_index(parser: Any) -> System:
    """LlamaIndex's vector index over a node parser's nodes."""

    def made(manual: Manual, encoder: Encoder) -> Ask:
        from llama_index.core import Document as Node
        from llama_index.core import VectorStoreIndex

        from llama_index.retrievers.palmette import PalmetteEmbedding

        nodes = [Node(text=one.text, metadata={"file_name": name}) for name, one in manual.files.items()]
        embed = PalmetteEmbedding(SpaceModel.untrained(encoder))
        index = VectorStoreIndex.from_documents(nodes, transformations=[parser()], embed_model=embed)
        retriever = index.as_retriever(similarity_top_k=DEPTH)

        def ask(question: str) -> list[Span]:
            found = [one.node for one in retriever.retrieve(question)]
            return [place(manual, n.metadata["file_name"], n.get_content(), n.start_char_idx) for n in found]

        return ask

    return made


def default_splitter() -> Any:
    from llama_index.core.node_parser import SentenceSplitter

    return SentenceSplitter()


def markdown_parser() -> Any:
    from llama_index.core.node_parser import MarkdownNodeParser

    return MarkdownNodeParser()


def pieces(manual: Manual) -> list[Any]:
    """LangChain's documents of 1,000 characters."""
    from langchain_core.documents import Document as Piece
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    splitter = RecursiveCharacterTextSplitter(chunk_size=1000, chunk_overlap=200, add_start_index=True)
    return splitter.split_documents(
        [Piece(page_content=one.text, metadata={"source": name}) for name, one in manual.files.items()]
    )


STORES: dict[int, Any] = {}


def chroma(manual: Manual, encoder: Encoder) -> Any:
    """Chroma over pieces, once for both systems that search it."""
    from langchain_chroma import Chroma

    if id(manual) not in STORES:
        embeddings = PalmetteEmbeddings(encoder=encoder)
        place = tempfile.mkdtemp(prefix="chroma")
        STORES[id(manual)] = Chroma.from_documents(pieces(manual), embeddings, persist_directory=place)
    return STORES[id(manual)].as_retriever(search_kwargs={"k": DEPTH})


def langchain_chroma(manual: Manual, encoder: Encoder) -> Ask:
    """Chroma over pieces."""
    retriever = chroma(manual, encoder)
    return lambda question: _places(manual, retriever.invoke(question))


def ensemble(manual: Manual, encoder: Encoder) -> Ask:
    """Chroma and BM25 over pieces, fused by reciprocal ranks."""
    import bm25s
    from langchain_classic.retrievers import EnsembleRetriever
    from langchain_core.runnables import RunnableLambda

    given = pieces(manual)
    words = bm25s.BM25()
    words.index(bm25s.tokenize([one.page_content for one in given], show_progress=False), show_progress=False)

    def by_words(question: str) -> list[Any]:
        rows, _ = words.retrieve(bm25s.tokenize(question, show_progress=False), k=DEPTH, show_progress=False)
        return [given[row] for row in rows[0].tolist()]

    both = EnsembleRetriever(retrievers=[chroma(manual, encoder), RunnableLambda(by_words)], weights=[0.5, 0.5])
    return lambda question: _places(manual, both.invoke(question))


def qdrant_hybrid(manual: Manual, encoder: Encoder) -> Ask:
    """Qdrant's hybrid search over pieces: vectors and BM25, each deep, fused by reciprocal ranks in the engine.

    BM25's weights of words in documents are sparse vectors, and the engine multiplies them by IDF, as Qdrant advises.
    """
    import bm25s
    from langchain_qdrant import QdrantVectorStore, RetrievalMode, SparseEmbeddings, SparseVector

    given = pieces(manual)
    tokens = bm25s.tokenize([one.page_content for one in given], show_progress=False, return_ids=False)
    mean = float(np.mean([len(words) for words in tokens]))
    numbers = {word: n for n, word in enumerate(sorted({word for words in tokens for word in words}))}

    class Words(SparseEmbeddings):
        """Words of documents by BM25's saturation (k1 = 1.2, b = .75), words of questions by one."""

        def embed_documents(self, texts: list[str]) -> list[SparseVector]:
            return [self._vector(text, 1.2) for text in texts]

        def embed_query(self, text: str) -> SparseVector:
            return self._vector(text, 0.0)

        def _vector(self, text: str, k1: float) -> SparseVector:
            words = bm25s.tokenize([text], show_progress=False, return_ids=False)[0]
            counts = Counter(numbers[word] for word in words if word in numbers)
            norm = k1 * (0.25 + 0.75 * len(words) / mean)
            weights = [count * (k1 + 1) / (count + norm) for count in counts.values()]
            return SparseVector(indices=list(counts), values=weights)

    store = QdrantVectorStore.from_documents(
        given,
        embedding=PalmetteEmbeddings(encoder=encoder),
        sparse_embedding=Words(),
        sparse_vector_params={"modifier": "idf"},
        retrieval_mode=RetrievalMode.HYBRID,
        location=":memory:",
        collection_name="pieces",
    )
    retriever = store.as_retriever(search_kwargs={"k": DEPTH})
    return lambda question: _places(manual, retriever.invoke(question))


def _places(manual: Manual, found: Sequence[Any]) -> list[Span]:
    return [place(manual, d.metadata["source"], d.page_content, d.metadata["start_index"]) for d in found]


def palmette(manual: Manual, encoder: Encoder) -> Ask:
    """An index of the files as they are."""
    documents = [
        Document(name, one.text, {"source": name} | ({"title": one.title} if one.title else {}))
        for name, one in manual.files.items()
    ]
    index = Index.build(documents, SpaceModel.untrained(encoder), progress=False)
    return lambda question: [
        (hit.id, hit.passage.start, hit.passage.end) for hit in index.search(question, DEPTH) if hit.passage
    ]


def palmette_over_pieces(manual: Manual, encoder: Encoder) -> Ask:
    """An index of LangChain's pieces."""
    parts = [Document(str(n), one.page_content, one.metadata) for n, one in enumerate(pieces(manual))]
    index = Index.build(parts, SpaceModel.untrained(encoder), passages=None, progress=False)

    def ask(question: str) -> list[Span]:
        found = [hit.document for hit in index.search(question, DEPTH)]
        return [place(manual, d.metadata["source"], d.text, d.metadata["start_index"]) for d in found]

    return ask


SYSTEMS: dict[str, System] = {
    "LlamaIndex, its default splitter": llama_index(default_splitter),
    "LlamaIndex, its Markdown parser": llama_index(markdown_parser),
    "LangChain, Chroma, 1,000 characters": langchain_chroma,
    "LangChain, ensemble with bm25s": ensemble,
    "LangChain, Qdrant's hybrid search": qdrant_hybrid,
    "palmette": palmette,
    "palmette over 1,000 characters": palmette_over_pieces,
}


def judge(manual: Manual, answers: Sequence[Sequence[Span]]) -> list[float]:
    """First five (a count), mrr, and evidence within 300 and 600 words."""
    ranks, held = [], []
    for places, spans in zip(manual.evidence, answers, strict=True):
        ranks.append(next((n for n, span in enumerate(spans[:RANKED], 1) if covered(places, [span]) >= 0.5), 0))
        held.append([covered(places, cut(manual, spans, budget)) for budget in BUDGETS])
    found = np.array(ranks)
    mrr = float(np.where(found > 0, 1 / np.maximum(found, 1), 0).mean())
    return [float(((found > 0) & (found <= 5)).sum()), mrr, *np.mean(held, axis=0).tolist()]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("PALMETTE_DATA", "missing"))
    parser.add_argument("--npm", type=Path, help="docs/content of an installed npm")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--encoder", default=ENCODER)
    args = parser.parse_args(argv)
    encoder = CachedEncoder(load_encoder(args.encoder))
    manuals = {name: load(name, args) for name in args.sets}
    heads = [f"{name} {head}" for name in manuals for head in ("first five", "mrr", "300 words", "600 words")]
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for system in args.systems:
        cells = list[str]()
        for manual in manuals.values():
            if manual is None:
                cells += [""] * 4
                continue
            ask = SYSTEMS[system](manual, encoder)
            first, *shares = judge(manual, [ask(question) for question in manual.questions])
            cells += [f"{first:.0f}", *map(number, shares)]
        print(f"| {system} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
