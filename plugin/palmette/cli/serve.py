"""The commands ``serve``, ``mcp``, ``stats``, ``alias`` and ``compare``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

from palmette.cli.arguments import CHECKPOINT, describe, need_module, read_encoder
from palmette.machine.text import printable
from palmette.service.local import index_folder, request


def _add_service(add: Any) -> None:
    add("places", nargs="+", metavar="INDEX_OR_FOLDER", help="index, folder of documents, or NAME=PATH")
    add("--timeout", type=float, default=30.0, help="seconds that a question may take")
    add("--model", help=f"of a new index of a folder: {CHECKPOINT} (default: the default encoder, untrained)")
    add("--encoder", type=read_encoder, help="of a new index of a folder, and of indexes whose own is not to be used")
    add("--reader", help=f"for answers: a reader's {CHECKPOINT} (default: sentences, without training)")
    about = "second stage of every question, unless a request leaves it out: cross-encoder:FOLDER, "
    about += "rerank:MODEL@https://host/v1 (its key in PALMETTE_RERANK_KEY), or JSON of a model with options"
    add("--rerank", type=read_encoder, help=about)
    add("--device", help="cpu, cuda, mps; the best there is by default")


def _add_serve(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "INDEX_OR_FOLDER ...",
        "palmette serve my-index                        a page, HTTP and a socket for `palmette search`\n"
        "palmette serve notes/                          index a folder, and follow its changes\n"
        "palmette serve docs=docs-v2 notes/ --mcp       several, under names; agents under /mcp\n"
        "palmette serve my-index --llm openai:gpt-5       a language model writes answers (key: OPENAI_API_KEY)\n"
        "palmette serve my-index --host 0.0.0.0 --tokens tokens.json\n"
        "palmette serve my-index --rerank cross-encoder:my-reranker",
    )
    _add_service(add)
    add("--host", default="127.0.0.1", help="address to listen on; others than this machine's own need --tokens")
    add("--port", type=int, default=7411, help="port, 0 for a free one")
    add("--tokens", metavar="FILE", help="JSON list of bearer tokens, in a file that its owner alone can read")
    add("--allow-host", action="append", default=[], metavar="NAME", help="further name in the Host header (a proxy's)")
    add("--rate", type=float, default=6000.0, help="requests per minute of a caller")
    add("--max-body", type=int, default=16 * 2**20, help="bytes of the largest request")
    add("--llm", help="language model that writes answers: openai:MODEL, or openai:MODEL@https://host/v1")
    add("--llm-tokens", type=int, default=1000, help="tokens of a model's reply")
    add("--llm-timeout", type=float, default=60.0, help="seconds that a model may take for a reply")
    add("--write", action="store_true", help="let requests without a token change documents, where there are no tokens")
    add("--mcp", action="store_true", help="serve agents too, under /mcp")
    add("--open", action="store_true", help="show the page in a browser")


def _run_serve(args: argparse.Namespace) -> None:
    need_module("uvicorn", "serve", "palmette serve")
    from palmette.service.run import bind, serve

    service = _http_service(args)
    if args.mcp:
        need_module("mcp", "mcp", "palmette serve --mcp")
        from palmette.service.mcp import mount

        mount(service)
    tcp = bind(service.settings)
    host, port = tcp.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"palmette serves {', '.join(service.served)} on {url}", file=sys.stderr, flush=True)
    if args.open:
        import webbrowser

        webbrowser.open(url)
    serve(service, tcp)


def _http_service(args: argparse.Namespace) -> Any:
    """Open the indexes that are served over HTTP, to the holders of tokens, with answers of a language model."""
    from palmette.config import check_count, check_range
    from palmette.index.written import Limits
    from palmette.service.callers import read_tokens

    check_range("palmette serve", "--llm-timeout", args.llm_timeout, 1e-3)
    limits = Limits(check_count("--llm-tokens", args.llm_tokens), args.llm_timeout)
    tokens = [] if args.tokens is None else read_tokens(args.tokens)
    return _service(args, "host", "port", "rate", "max_body", "write", tokens=tokens, llm=args.llm, limits=limits)


def _service(args: argparse.Namespace, *settings: str, **more: Any) -> Any:
    """Open the indexes that a service serves, logging to standard error: standard output carries the protocol."""
    from palmette.service.app import Service
    from palmette.service.checks import Settings
    from palmette.service.run import parse_served

    logging.captureWarnings(True)  # such as of files that cannot be read
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    options: dict[str, Any] = {name: getattr(args, name) for name in ("model", "encoder", "reader", "device")}
    if args.rerank is not None:
        from palmette.ranking.second_stage import as_reranker

        options["rerank"] = as_reranker(args.rerank)  # a wrong name ends the command
    served = parse_served(args.places, **options)
    chosen = {name: getattr(args, name) for name in ("timeout", *settings)}
    return Service(served, Settings(**chosen, hosts=getattr(args, "allow_host", ())), **more)


class _Lines(logging.Formatter):
    """Lines of a log: further lines of an entry are indented, so that no file name passes for an entry."""

    def format(self, record: logging.LogRecord) -> str:
        """Write an entry."""
        return printable(super().format(record)).replace("\n", "\n  ")


def _add_mcp(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "INDEX_OR_FOLDER ...",
        "palmette mcp my-index             over standard input and output, as agents start it\n"
        "palmette serve my-index --mcp     over HTTP, at http://127.0.0.1:7411/mcp",
    )
    _add_service(add)


def _run_mcp(args: argparse.Namespace) -> None:
    need_module("mcp", "mcp", "palmette mcp")
    import asyncio

    from palmette.cli.ask import once

    with once():  # an agent starts this for each session: the first answer counts
        from palmette.service.mcp import run_stdio

        asyncio.run(run_stdio(_service(args)))


def _add_stats(command: argparse.ArgumentParser) -> None:
    describe(command, "INDEX", "palmette stats my-index\npalmette stats notes/ --json", "index", "--json")


def _run_stats(args: argparse.Namespace) -> None:
    # from the index's running service, if there is one
    if (reply := request(args.index, "/v1/indexes")) is not None:
        [facts] = reply["indexes"]
    else:
        from dataclasses import asdict

        import palmette
        from palmette.cli.ask import once

        with once(), palmette.Index.open(index_folder(args.index), device="cpu", verify=False) as index:
            facts = {**asdict(index.stats()), "encoder": index.model.encoder.name, "reranker": None}
    if args.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(
                f"{key} {item:.4g}" if isinstance(item, float) else f"{key} {item}" for key, item in value.items()
            )
        print(f"{name}: {value}")


def _add_alias(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "NAME [INDEX]",
        "palmette alias docs docs-v2          `docs` leads to docs-v2 from now on; a service picks it up\n"
        "palmette alias docs --back           to the index before\n"
        "palmette alias docs                  where it leads",
        "--json",
    )
    add("name", help="the name: a link beside the indexes")
    add("index", nargs="?", help="index folder it leads to")
    add("--back", action="store_true", help="lead to the index before")


def _run_alias(args: argparse.Namespace) -> None:
    from palmette.errors import ConfigError
    from palmette.service.alias import read_alias, restore_alias, set_alias

    if args.back and args.index:
        raise ConfigError("--back leads to the index before: give no index with it")
    alias = set_alias(args.name, args.index) if args.index else (restore_alias if args.back else read_alias)(args.name)
    facts = {"name": str(alias.name), "index": str(alias.target), "before": alias.former and str(alias.former)}
    if args.json:
        print(json.dumps(facts))
        return
    before = f" (before: {facts['before']})" if facts["before"] else ""
    print(f"{facts['name']} leads to {facts['index']}{before}")


def _add_compare(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "OLD NEW QUESTIONS",
        "palmette compare docs-v1 docs-v2 questions.txt          a question a line: how far the hits agree\n"
        "palmette compare docs-v1 docs-v2 pairs.jsonl -k 5       with their documents: which answers better",
        *("--device", "--json"),
    )
    add("old", help="index that is in use")
    add("new", help="index that is to replace it")
    add("questions", help="text file, a question a line; JSONL of pairs; BEIR folder")
    add("-k", type=int, default=10, help="hits of a question")


def _run_compare(args: argparse.Namespace) -> None:
    import palmette
    from palmette.evaluation.compare import compare, read_questions

    questions = read_questions(args.questions)
    with (
        palmette.Index.open(index_folder(args.old), device=args.device) as old,
        palmette.Index.open(index_folder(args.new), device=args.device) as new,
    ):
        result = compare(old, new, questions, args.k)
    if args.json:
        print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
        return
    print(f"{result.questions} questions: {result.overlap:.0%} of the first {result.k} hits are in both, and the first")
    print(f"hit is the same for {result.same_first:.0%} of them")
    if result.judged:
        even = result.judged - result.wins - result.losses
        print(f"{result.judged} judged: {args.new} wins {result.wins}, loses {result.losses}, {even} are even;")
        print(f"nDCG@{result.k} {result.score[0]:.3f} before, {result.score[1]:.3f} now")
        if not max(result.score):
            print(f"(none of the judged documents was found: {args.questions} may be about others than are indexed)")
    print(
        f"processor time of a question: {1e3 * result.seconds[0]:.1f} ms before, {1e3 * result.seconds[1]:.1f} ms now"
    )
    for question in result.changed:
        print(f"  differs: {question}")
