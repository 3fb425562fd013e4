"""``palmette demo``: ask your Python. From documents to answers in both frameworks, with no network and no LLM."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.cli.parser import example
from palmette.errors import MissingExtraError

if TYPE_CHECKING:
    from palmette.data import RetrievalData
    from palmette.index import Index
    from palmette.reader import Reader

ENCODER = "packaged:all-MiniLM-L6-v2"
QUESTIONS = (
    "Walk through a whole directory tree, folder by folder",
    "The three most frequent elements",
    "Keep the name and docstring of the original function when I write a decorator",
    "Cut a prefix off a string if it is there",
    "Which team won the world cup?",
)
ABOVE = ("a function that opens a gzip file", "join two paths")


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments."""
    command.add_argument("question", nargs="*", help="ask these questions instead of the demo's own")
    command.add_argument(
        "--dir", type=Path, default=Path("palmette-demo"), help="where checkpoint and index are kept"
    )
    command.add_argument("--steps", type=int, default=300, help="training steps")
    command.add_argument(
        "--size", choices=["small", "full"], default="small", help="how much of the standard library"
    )
    command.add_argument("--encoder", default=ENCODER, help="sentence-transformers model")
    command.add_argument("-k", type=int, default=3, help="sources per answer")
    example(command, 'palmette demo\npalmette demo "how do I parse a date?" "remove a file"')


def run(args: argparse.Namespace) -> None:
    """Collect, train, index, measure, ask."""
    for module in ("langchain_core", "llama_index.core"):
        if not _installed(module):
            raise MissingExtraError(module, "demo", "palmette demo")
    from palmette.sample import sample_data

    begun = time.monotonic()
    with _stage("Reading the standard library's documentation"):
        data = sample_data(args.size)
    print(f"  {len(data.corpus):,} entries of this Python, {len(data.queries):,} questions and summaries")
    folder = args.dir / f"{data.name}-{args.steps}-{Path(args.encoder).name}".replace(":", "-")
    index = _prepare(folder, data, args.encoder, args.steps)
    reader = _reader(folder / "reader", data, index)
    _measure(index, data)
    questions = args.question or QUESTIONS
    _langchain(index, reader, questions[::2], args.k)
    _llama_index(index, reader, questions[1::2] or questions, args.k)
    _taxonomy(folder / "taxonomy", data, index, args.question or ABOVE, args.steps)
    print(f"\nDone in {time.monotonic() - begun:.0f} s. Kept in {args.dir}: ask again with")
    places = shlex.quote(str(index.path)), shlex.quote(str(folder / "reader"))
    print(f'  palmette search {places[0]} "your question" --explain')
    print(f'  palmette answer {places[0]} "your question" --reader {places[1]}')
    index.close()


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def _stage(title: str) -> Iterator[None]:
    print(f"{title} …", flush=True)
    begun = time.monotonic()
    yield
    print(f"  {time.monotonic() - begun:.1f} s", flush=True)


def _prepare(folder: Path, data: RetrievalData, encoder: str, steps: int) -> Index:
    """Train and index; what an earlier demo left is used again."""
    from palmette.cache import CachedEncoder
    from palmette.encoder import load_encoder
    from palmette.index import Index
    from palmette.methods.tree import TreeModel
    from palmette.registry import load_model

    coder = CachedEncoder(
        load_encoder(encoder), folder / "encodings"
    )  # training and indexing read the same texts
    checkpoint, place = folder / "checkpoint", folder / "index"
    if checkpoint.is_dir():
        with _stage(f"Loading the tree in {checkpoint}"):
            model = load_model(checkpoint, encoder=coder)
    else:
        with _stage("Training a tree on summaries and their entries"):
            model = TreeModel.fit(data, encoder=coder, steps=steps, cache=coder.cache)
            model.save_pretrained(checkpoint)
    with _stage("Indexing"):
        index = Index.open_or_create(place, model)
        index.upsert(data.corpus)
    return index


def _reader(folder: Path, data: RetrievalData, index: Index) -> Reader:
    """What answers: trained on the handwritten questions that nothing is measured by."""
    from palmette.cache import CachedEncoder
    from palmette.reader import Reader, ReadingData, load_reading

    if folder.is_dir():
        return Reader.from_pretrained(folder, encoder=index.model.encoder)
    with _stage("Training a reader to choose the sentence that answers"):
        asked = load_reading(data).split("dev")
        lessons = ReadingData(data.name, data.corpus, {"train": asked, "dev": asked})
        encoder = index.model.encoder
        cache = encoder.cache if isinstance(encoder, CachedEncoder) else None
        reader = Reader.fit(lessons, encoder=encoder, unit="sentence", passages=3, cache=cache)
        reader.save_pretrained(folder)
    return reader


def _measure(index: Index, data: RetrievalData) -> None:
    """Quality on questions that training did not see, at three levels of the one tree, and of the encoder alone."""
    from palmette.baselines import EncoderBaseline
    from palmette.evaluation import evaluate_index
    from palmette.metrics import score_run

    judged = data.split("test")
    print(f"Measured on {len(judged.queries)} handwritten questions:")
    for level in (10, 8, 6):
        row = evaluate_index(index, judged.queries, judged.qrels, level=level)
        metrics = row.metrics
        print(
            f"  level {level:>2} ({2**level:>4} columns)  nDCG@10 {metrics['ndcg@10']:.3f}  "
            f"recall@10 {metrics['recall@10']:.3f}  {row.latency_ms['p50']:.0f} ms a question"
        )
    encoder = index.model.encoder
    found = EncoderBaseline(encoder, data.corpus).search(list(judged.queries.values()), 10).ids
    alone = score_run(dict(zip(judged.queries, found, strict=True)), judged.qrels, ks=(10,))
    columns = f"({encoder.dimension:>4} columns)  nDCG@10 {alone['ndcg@10']:.3f}  recall@10 {alone['recall@10']:.3f}"
    print(f"  encoder  {columns}  (exact search, no tree)")


def _langchain(index: Index, reader: Reader, questions: Sequence[str], k: int) -> None:
    """A LangChain chain: retriever | reader."""
    from langchain_core.runnables import RunnablePassthrough

    from langchain_palmette import PalmetteReader, TreeRetriever

    retriever = TreeRetriever.from_index(index, k=k, explain=True)
    chain = {"question": RunnablePassthrough(), "documents": retriever} | PalmetteReader(reader=reader)
    print("\nLangChain: TreeRetriever | PalmetteReader")
    for question in questions:
        state = chain.invoke(question)
        _show(question, state)
        for document in state["documents"]:
            _source(str(document.id), document.metadata["score"], document.metadata["explanation"])


def _llama_index(index: Index, reader: Reader, questions: Sequence[str], k: int) -> None:
    """A LlamaIndex query engine over the same index."""
    from llama_index.core.query_engine import RetrieverQueryEngine

    from llama_index.retrievers.palmette import PalmetteSynthesizer, TreeRetriever

    retriever = TreeRetriever.from_index(index, similarity_top_k=k)
    engine = RetrieverQueryEngine(retriever=retriever, response_synthesizer=PalmetteSynthesizer(reader))
    print("\nLlamaIndex: the same index and reader in a RetrieverQueryEngine")
    for question in questions:
        response = engine.query(question)
        _show(question, (response.metadata or {})["answer"])
        for node in response.source_nodes:
            why = retriever.explain(question, node.node.node_id).to_dict()
            _source(node.node.node_id, node.score or 0.0, why)


def _taxonomy(folder: Path, data: RetrievalData, index: Index, questions: Sequence[str], steps: int) -> None:
    """The same entries as a hierarchy: a question, what answers it, and all that lies above that."""
    from palmette.cache import CachedEncoder
    from palmette.index import Index
    from palmette.methods.taxonomy import TaxonomyModel
    from palmette.registry import load_model

    encoder, ids = index.model.encoder, {entry.key for entry in data.corpus}
    if folder.is_dir():
        model = load_model(folder, encoder=encoder)
    else:
        with _stage("\nTraining a taxonomy: packages, their modules, and what is in those"):
            edges = [(e.key, e.metadata["parent"]) for e in data.corpus if e.metadata["parent"] in ids]
            cache = encoder.cache if isinstance(encoder, CachedEncoder) else None
            model = TaxonomyModel.fit(data, edges=edges, encoder=encoder, steps=steps, cache=cache)
            model.save_pretrained(folder)
    taxonomy = Index.build(data.corpus, model)
    print("\nTaxonomy: what answers as far as that is likely, and all that is known to lie above it")
    for question in questions:
        found = taxonomy.search(question, k=5, cut=0.5, order="specific", closed=True)
        chain = [step["id"] for step in found[0].explain().detail["chain"]] if found else []
        print(f"\n  ? {question}\n  > {' ▸ '.join(chain) or 'nothing here'}")
        if also := [str(hit.id) for hit in found if hit.id not in chain]:
            print(f"    also {', '.join(also)}")


def _show(question: str, told: dict[str, Any]) -> None:
    print(f"\n  ? {question}")
    if not told["supports"]:
        print(f"  > no answer in these sources ({told['confidence']:.0%})")
        return
    words = " ".join(told["answer"].split())
    best = told["supports"][0]
    print(f"  > {words[:240]}{'…' if len(words) > 240 else ''}\n    ({told['confidence']:.0%}, {best['id']})")


def _source(name: str, score: float, why: dict[str, Any]) -> None:
    path = why["detail"]["path"]
    best = max(why["parts"], key=lambda part: part["value"])
    print(f"    {score:.3f}  {name:<40} path {path}  (most from {best['name']}: {best['value']:.3f})")
