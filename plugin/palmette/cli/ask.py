"""The commands ``search`` and ``answer``: they use a running service, or else open the index."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import palmette
from palmette.cli.arguments import CHECKPOINT, describe, search_options
from palmette.machine.compiled import without_compiled_loops
from palmette.machine.text import shorten
from palmette.service.local import MOST_HITS, MOST_QUERIES, index_folder, request

if TYPE_CHECKING:
    from palmette.index.written import WrittenAnswer

ASKING = ("index", "--lexical", "--filter", "--boost", "--rerank", "--encoder", "--device", "--json")
"""Arguments of every command that asks an index."""


def _add_search(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "INDEX QUERY ...",
        'palmette search my-index "how do I copy a folder?" -k 5 --explain\n'
        'palmette search my-index "copy a folder" --level 6            a coarser level of the tree\n'
        """palmette search my-index "copy" --filter '{"module": "shutil"}'\n"""
        'palmette search my-index "error 0x80070005" --lexical 0.8      words count more\n'
        'palmette search my-index "first question" "second question" --json\n\n'
        "Options of the method, such as --level for a tree, are passed on.",
        *ASKING,
        "--explain",
    )
    add("query", nargs="+", help="one query, or several")
    add("-k", type=int, default=5, help="number of documents")
    add("--threshold", type=float, help="leave out documents that are less probable (0.2 is a good one)")
    add("--group-by", choices=["document"], help="the best documents, each by its best passage")
    add("--distinct", nargs="?", const=True, default=False, help="equal passages once; or near, for nearly equal ones")
    add("--engine", default="exact", help="exact, faiss, ivf, ivf:nlist=256,nprobe=8")


def _run_search(args: argparse.Namespace) -> None:
    options = search_options(args)
    names = ("threshold", "group_by", "distinct")
    shown = {name: getattr(args, name) for name in names}
    body = {"query": args.query, "explain": args.explain, **shown}
    reply = _from_service(args, "/v1/search", body, options, len(args.query)) if args.engine == "exact" else None
    if reply is not None:
        results = [result["hits"] for result in reply["results"]]
        _warn(reply["results"])
    else:
        with once(), _open(args, engine=args.engine) as index:
            hits_of_queries = index.search(args.query, args.k, **options, **shown)
            results = [[hit.to_dict(explain=args.explain) for hit in hits] for hits in hits_of_queries]
    if args.json:
        _print_json(results)
        return
    for query, hits in zip(args.query, results, strict=True):
        if len(args.query) > 1:
            print(f"\n? {query}")
        for rank, hit in enumerate(hits, 1):
            best = hit["text"][slice(*(hit["highlights"]["sentence"] or (0, None)))]
            print(f"{rank:>2}. {hit['score']:.3f}  {hit['citation']}\n      {shorten(best, 160)}")
            for other in hit.get("others", ()):
                print(f"      also {other['score']:.3f}  {other['citation']}")
            if copies := hit.get("copies"):
                print(f"      the same: {'; '.join(copies)}")
            if args.explain:
                print(f"      why: {hit['explanation']['text']}")
        if not hits:
            print("nothing found")


def _warn(replies: Sequence[dict[str, Any]]) -> None:
    """Repeat what a service notes about its replies."""
    for note in dict.fromkeys(reply["note"] for reply in replies if "note" in reply):
        print(f"palmette: {note}", file=sys.stderr)


@contextmanager
def once() -> Iterator[None]:
    """Disable what pays only after several questions: compiled loops, and pydantic's search for plugins."""
    if "pydantic" not in sys.modules:
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with without_compiled_loops():
        yield


def _open(args: argparse.Namespace, **options: Any) -> palmette.Index:
    """Open the index in this process, which ends after a few questions."""
    index = palmette.Index.open(index_folder(args.index), device=args.device, encoder=args.encoder, **options)
    index.reranker = args.rerank
    return index


def _from_service(
    args: argparse.Namespace, path: str, body: dict[str, Any], options: dict[str, Any], queries: int
) -> Any:
    """Send a request to the index's running service; ``None`` without one, or if the request is not for it."""
    too_large = args.k > MOST_HITS or queries > MOST_QUERIES
    if too_large or args.rerank or args.device is not None or args.encoder is not None:
        return None
    if args.rerank is False:
        body = {**body, "rerank": False}
    named: dict[str, Any] = {name: options[name] for name in ("filter", "lexical", "boost") if name in options}
    rest = {name: value for name, value in options.items() if name not in named}
    reply = request(args.index, path, {**body, "k": args.k, **named, "options": rest})
    if reply is not None and (part := reply.pop("indexing", None)):
        of = "" if part["total"] is None else f" of {part['total']:,}"
        print(f"palmette: the folder is being indexed: {part['done']:,}{of} documents so far", file=sys.stderr)
    return reply


def _print_json(results: list[Any]) -> None:
    """Print a list, or its only item."""
    print(json.dumps(results[0] if len(results) == 1 else results, ensure_ascii=False, indent=2))


def _add_answer(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "INDEX QUESTION [QUESTION ...] [--reader READER]",
        'palmette answer my-index "when did it begin?" --explain\n'
        'palmette answer my-index "when did it begin?" --reader me/reader -k 10 --threshold 0\n'
        'palmette answer my-index "when did it begin?" --llm openai:gpt-5\n\n'
        "Without a reader, which `palmette train reader` trains, the answer is the sentence that fits best. Options\n"
        "of the index's method, such as --level for a tree, are passed on.",
        *ASKING,
        *("--revision", "--explain"),
    )
    add("question", nargs="+", help="one question, or several")
    add("--reader", help=f"the reader: {CHECKPOINT} (default: sentences, without training)")
    add("--llm", help="language model that writes the answer: openai:MODEL, or openai:MODEL@https://host/v1")
    add("--tokens", type=int, default=1000, help="with --llm: tokens of the excerpts that it is given")
    add("--max-tokens", type=int, default=1000, help="with --llm: tokens of its reply")
    add("--timeout", type=float, default=60.0, help="with --llm: seconds that it may take")
    add("-k", type=int, help="number of documents found, of which the best five are read (default: 5, with --llm 20)")
    threshold = "least probability of there being an answer, 0 to answer always (default: as trained, with --llm 0.2)"
    add("--threshold", type=float, help=threshold)


def _run_answer(args: argparse.Namespace) -> None:
    options = search_options(args)
    if args.llm is not None:
        _write_answers(args, options)
        return
    args.k = 5 if args.k is None else args.k
    body = {"question": args.question, "threshold": args.threshold}
    reply = _from_service(args, "/v1/answer", body, options, len(args.question)) if args.reader is None else None
    answers = reply["answers"] if reply is not None else _read_answers(args, options)
    _warn(answers)
    if args.json:
        _print_json(answers)
        return
    for answer in answers:
        if len(answers) > 1:
            print(f"\n? {answer['question']}")
        if not answer["supports"]:
            print(f"no answer found (probability that there is none: {answer['no_answer']:.0%})")
        for support in answer["supports"][:1]:
            print(f"{answer['answer']}\n  {answer['confidence']:.0%}  {support['citation']}")
        if args.explain:
            for support in answer["supports"]:
                print(f"    {support['share']:.0%} from {support['citation']}: {shorten(support['sentence'], 200)}")
            for text, confidence in answer["alternatives"].items():
                print(f"    or {confidence:.0%}: {shorten(text, 200)}")


def _write_answers(args: argparse.Namespace, options: dict[str, Any]) -> None:
    """Print answers of a language model as they come, then their citations and what was not found in the sources."""
    chosen = {name: getattr(args, name) for name in ("k", "threshold") if getattr(args, name) is not None}
    options |= {"tokens": args.tokens, "max_tokens": args.max_tokens, "timeout": args.timeout} | chosen
    answers = []
    with once(), _open(args) as index:
        for question in args.question:
            if len(args.question) > 1 and not args.json:
                print(f"\n? {question}")
            for event in index.answer_stream(question, args.llm, **options):
                if event.kind == "text" and not args.json:
                    print(event.value, end="", flush=True)
            answers.append(event.value.to_dict())
            if not args.json:
                _print_sources(event.value)
    if args.json:
        _print_json(answers)


def _print_sources(answer: WrittenAnswer) -> None:
    """Print the excerpts that a written answer cites, and its sentences that they do not carry."""
    print("" if answer else f"no answer: {answer.reason}")
    cited = {citation.excerpt for sentence in answer.sentences for citation in sentence.citations}
    for number, excerpt in enumerate(answer.excerpts, 1):
        if number in cited:
            print(f"  [{number}] {excerpt.citation}")
    for sentence in answer.sentences:
        if not sentence.supported:
            print(f"  not found in the sources: {shorten(sentence.text, 160)}\n      {sentence.reason}")
    if answer.usage.is_cut:
        print("  the answer was cut at its budget of tokens: allow more with --max-tokens")


def _read_answers(args: argparse.Namespace, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer without a service."""
    with once(), _open(args) as index:
        reader = palmette.Reader.untrained(index.model.encoder.plain)
        if args.reader is not None:
            reader = palmette.Reader.from_pretrained(args.reader, revision=args.revision, device=args.device)
        passages = index.search(args.question, args.k, **options)
        return [answer.to_dict() for answer in reader.answer(args.question, passages, threshold=args.threshold)]


def _add_context(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "INDEX QUESTION",
        'palmette context my-index "how do I prune a cherry?" --tokens 500 | llm\n\n'
        "Options of the index's method, such as --level for a tree, are passed on.",
        *ASKING,
    )
    add("question", help="the question")
    add("--tokens", type=int, default=1000, help="tokens of all excerpts together")
    add("-k", type=int, default=20, help="number of passages whose sentences are read")
    add("--threshold", type=float, default=0.0, help="leave out passages that are less probable")


def _run_context(args: argparse.Namespace) -> None:
    options = search_options(args)
    body = {"question": args.question, "tokens": args.tokens, "threshold": args.threshold}
    context = _from_service(args, "/v1/context", body, options, 1)
    if context is None:
        settings = options | {"k": args.k, "threshold": args.threshold}
        with once(), _open(args) as index:
            context = index.context(args.question, args.tokens, **settings).to_dict()
    _warn([context])
    nothing = f"nothing found within {args.tokens:,} tokens"
    print(json.dumps(context, ensure_ascii=False, indent=2) if args.json else context["text"] or nothing)
