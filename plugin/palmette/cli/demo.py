"""``palmette demo``: questions about the standard library, answered without network or language model."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import palmette
from palmette.cli.arguments import describe, need_module
from palmette.machine.text import shorten

if TYPE_CHECKING:
    from palmette import Index, Reader, RetrievalData
    from palmette.encoder.cache import CachedEncoder

DEMO_ENCODER = "packaged:all-MiniLM-L6-v2"
DEMO_QUESTIONS = (
    "Walk through a whole directory tree, folder by folder",
    "The three most frequent elements",
    "Keep the name and docstring of the original function when I write a decorator",
    "Cut a prefix off a string if it is there",
    "Which team won the world cup?",
)
FOLDER = Path("palmette-demo")
"""Folder of the checkpoints and the index."""
SOURCES = 3
"""Sources of an answer."""
TOUR = """\
palmette: finds the passages that answer a question, and says why

from nothing to answers

  Index a folder of files of any kind, or JSONL with a "text" per line, and again whenever they change:
    palmette index notes/ --out my-index
  Ask, and see why:
    palmette search my-index "how do I …?" -k 5 --explain
  Have it answer in the documents' own words, with no language model:
    palmette answer my-index "how do I …?"
  Open it to people, programs and agents:
    palmette serve notes/ --mcp
  Use it in Python:
    Index.open("my-index").search("how do I …?")
  And in LangChain and LlamaIndex:
    langchain_palmette.PalmetteRetriever(index_path="my-index").invoke("how do I …?")
    llama_index.retrievers.palmette.PalmetteRetriever.from_index("my-index").retrieve("how do I …?")
  See it work, on documents every machine has:
    palmette demo

if you have questions with the documents that answer them, or want topics from coarse to fine

  Train, and make an index with the model:
    palmette train tree notes/ --out my-tree
    palmette index my-tree notes/ --out my-tree-index
  Measure it on questions of yours, and look inside:
    palmette evaluate my-tree questions/ --baselines
    palmette inspect my-tree-index --outline

commands

COMMANDS
`palmette COMMAND --help` shows the options of a command, with examples."""


def tour(commands: Mapping[str, str]) -> str:
    """Text for ``palmette`` without a command: a short tutorial, and the list of commands."""
    width = max(map(len, commands))
    listed = "".join(f"  {name.ljust(width)}  {summary}\n" for name, summary in commands.items())
    return TOUR.replace("COMMANDS", listed)


def _add_demo(command: argparse.ArgumentParser) -> None:
    add = describe(command, "[QUESTION ...]", 'palmette demo\npalmette demo "how do I parse a date?" "remove a file"')
    add("question", nargs="*", help="ask these questions instead of the demo's own")
    add("--encoder", default=DEMO_ENCODER, help="sentence-transformers model")


def _run_demo(args: argparse.Namespace) -> None:
    for module in ("torch", "langchain_core", "llama_index.core"):
        need_module(module, "demo", "palmette demo")
    from palmette.reader import Reader, ReadingData, load_reading

    begun = time.monotonic()
    with _stage("Reading the standard library's documentation"):
        data = palmette.sample_data()
    print(f"  {len(data.corpus):,} entries of this Python, {len(data.queries):,} questions and summaries")
    folder = FOLDER / f"{data.name}-{Path(args.encoder).name}".replace(":", "-")
    questions = args.question or DEMO_QUESTIONS
    first, encoder = _first(folder, data, args.encoder, questions[0])
    title = "\nTraining a tree: a space from summaries and their entries, and topics"
    model = _trained(folder / "checkpoint", title, palmette.TreeModel, data, encoder)
    with _stage("Indexing"):
        index = palmette.Index.build(data.corpus, model, folder / "index")
    # a reader, trained on the handwritten questions that are not measured on
    questions_of_dev = load_reading(data).split("dev")
    judged = ReadingData(data.name, data.corpus, {"train": questions_of_dev, "dev": questions_of_dev})
    title = "Training a reader to choose the sentence that answers"
    reader: Reader = _trained(folder / "reader", title, Reader, judged, encoder, unit="sentence", passages=3)
    _measure(first, index, data)
    _langchain(index, reader, questions[::2])
    _llama_index(index, reader, questions[1::2] or questions)
    print(f"\nDone in {time.monotonic() - begun:.0f} s. Kept in {FOLDER}: ask again with")
    places = shlex.quote(str(index.path)), shlex.quote(str(folder / "reader"))
    print(f'  palmette search {places[0]} "your question" --explain')
    print(f'  palmette answer {places[0]} "your question" --reader {places[1]}')
    index.close()


@contextmanager
def _stage(title: str) -> Iterator[None]:
    print(f"{title} …", flush=True)
    begun = time.monotonic()
    yield
    print(f"  {time.monotonic() - begun:.1f} s", flush=True)


def _first(folder: Path, data: RetrievalData, name: str, question: str) -> tuple[Index, CachedEncoder]:
    """Build an index without training, and search it."""
    from palmette.encoder.cache import CachedEncoder

    # training reads the same texts
    encoder = CachedEncoder(palmette.load_encoder(name), folder / "encodings")
    with _stage("Indexing, with nothing trained"):
        index = palmette.Index.build(data.corpus, palmette.SpaceModel.untrained(encoder), folder / "first")
    print(f"\n  ? {question}")
    for hit in index.search(question, 2):
        _print_source(hit.id, hit.score, hit.explain().to_dict())
    return index, encoder


def _trained(folder: Path, title: str, cls: Any, data: Any, encoder: CachedEncoder, **options: Any) -> Any:
    """Return the model of an earlier demo, or train one."""
    if folder.is_dir():
        with _stage(f"\nLoading the {cls.method} in {folder}"):
            return cls.from_pretrained(folder, encoder=encoder)
    with _stage(title):
        model = cls.fit(data, encoder=encoder, cache=encoder.cache, **options)
        model.save_pretrained(folder)
    return model


def _measure(first: Index, index: Index, data: RetrievalData) -> None:
    """Print the quality before and after training, on questions that were not trained on."""
    from palmette.evaluation import evaluate_index

    judged, width = data.split("test"), first.model.encoder.dimension
    print(f"Measured on {len(judged.queries)} handwritten questions:")
    searches: list[tuple[str, Index, dict[str, Any]]] = [
        ("nothing trained, all evidence", first, {"lexical": "auto", "sentences": True}),
        ("trained, all evidence", index, {"lexical": "auto", "sentences": True}),
        (f"encoder alone, {width:,} columns", first, {}),
        (f"trained space alone, {width:,} columns", index, {}),
    ]
    for name, searched, options in searches:
        row = evaluate_index(searched, judged.queries, judged.qrels, **options)
        quality = f"nDCG@10 {row.metrics['ndcg@10']:.3f}  recall@10 {row.metrics['recall@10']:.3f}"
        print(f"  {name:<32}  {quality}  {row.latency_ms['p50']:.0f} ms a question")


def _langchain(index: Index, reader: Reader, questions: Sequence[str]) -> None:
    from langchain_core.runnables import RunnablePassthrough

    from langchain_palmette import PalmetteReader, TreeRetriever

    retriever = TreeRetriever.from_index(index, k=SOURCES, explain=True, score_key="score")
    chain = {"question": RunnablePassthrough(), "documents": retriever} | PalmetteReader(reader=reader)
    print("\nLangChain: TreeRetriever | PalmetteReader")
    for question in questions:
        state = chain.invoke(question)
        _print_answer(question, state)
        for document in state["documents"]:
            _print_source(str(document.id), document.metadata["score"], document.metadata["explanation"])


def _llama_index(index: Index, reader: Reader, questions: Sequence[str]) -> None:
    from llama_index.core.query_engine import RetrieverQueryEngine

    from llama_index.retrievers.palmette import PalmetteSynthesizer, TreeRetriever

    retriever = TreeRetriever.from_index(index, similarity_top_k=SOURCES)
    engine = RetrieverQueryEngine(retriever=retriever, response_synthesizer=PalmetteSynthesizer(reader))
    print("\nLlamaIndex: the same index and reader in a RetrieverQueryEngine")
    for question in questions:
        response = engine.query(question)
        _print_answer(question, (response.metadata or {})["answer"])
        for node in response.source_nodes:
            why = retriever.explain(question, node.node.node_id).to_dict()
            _print_source(node.node.node_id, node.score or 0.0, why)


def _print_answer(question: str, answer: dict[str, Any]) -> None:
    print(f"\n  ? {question}")
    if not answer["supports"]:
        print(f"  > no answer in these sources ({answer['no_answer']:.0%})")
        return
    best, words = answer["supports"][0]["id"], shorten(answer["answer"], 240)
    print(f"  > {words}\n    ({answer['confidence']:.0%}, {best})")


def _print_source(name: str, score: float, why: dict[str, Any]) -> None:
    print(f"    {score:.3f}  {name}\n           {shorten(why['text'], 200)}")
