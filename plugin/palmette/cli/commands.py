"""The commands ``index``, ``search``, ``answer``, ``evaluate``, ``inspect``, ``pull`` and ``push``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import palmette
from palmette.config import parse_json
from palmette.errors import ConfigError

CHECKPOINT = "checkpoint folder or Hub repository"


def read_lexical(text: str) -> float | str:
    """Weight of words, or ``auto``; the search checks its range."""
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, or auto, got {text!r}") from error


SHARED: dict[str, dict[str, Any]] = {
    "checkpoint": {"help": CHECKPOINT},
    "index": {"help": "index folder, or qdrant://host:6333/name"},
    "--revision": {"help": "branch, tag or commit of a Hub repository"},
    "--device": {"help": "cpu, cuda, mps; the best there is by default"},
    "--filter": {"help": "conditions on metadata, as JSON"},
    "--lexical": {"type": read_lexical, "help": "weight of words: 0 (the method alone) … 1, or auto"},
    "--no-titles": {"dest": "titles", "action": "store_false", "help": "leave titles out of the texts"},
    "--quiet": {"dest": "progress", "action": "store_const", "const": False, "help": "no progress bars"},
    "--json": {"action": "store_true", "help": "print JSON"},
    "--explain": {"action": "store_true", "help": "say why each document matched, or which gave the answer"},
}
"""Arguments of several commands."""


def describe(
    command: argparse.ArgumentParser, usage: str, examples: str, *shared: str
) -> Callable[..., argparse.Action]:
    """Set usage and examples, add shared arguments, and return the function that adds further ones."""
    command.usage = f"{command.prog} {usage} [options]"
    command.epilog = "examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines())
    for name in shared:
        command.add_argument(name, **SHARED[name])
    return command.add_argument


def read_value(text: str) -> Any:
    """JSON, a list without its brackets (``1,4``), or else a text."""
    for written in (text, f"[{text}]") if "," in text else (text,):
        with suppress(ValueError):
            return parse_json(written)
    return text


def read_options(words: Sequence[str]) -> dict[str, Any]:
    """``["--level", "5", "--layers=1,4", "--flat"]`` → ``{"level": 5, "layers": [1, 4], "flat": True}``."""
    options: dict[str, Any] = {}
    waiting = ""
    for word in words:
        if word.startswith("--"):
            flag, given, value = word.partition("=")
            name = flag[2:].replace("-", "_")
            if name in ("query", "k", "filter", "threshold", "explain"):
                raise ConfigError(f"{flag} is no option of this command")
            options[name], waiting = read_value(value) if given else True, "" if given else name
        elif waiting:
            options[waiting], waiting = read_value(word), ""
        else:
            raise ConfigError(f"unexpected argument {word!r}: method options are written --name value")
    return options


def _search_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of the method, weight of words and filter."""
    options = read_options(args.extra)
    if args.lexical is not None:
        options["lexical"] = args.lexical
    if (text := getattr(args, "filter", None)) is not None:
        try:
            options["filter"] = {**parse_json(text)}
        except (TypeError, ValueError) as error:
            raise ConfigError(f"--filter must be JSON, an object, got {text!r} ({error})") from error
    return options


def shortened(text: str, limit: int) -> str:
    """One line of so many characters at most."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]}…"


def _add_index(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "[CKPT] DOCUMENTS --out DIR",
        "palmette index notes/ --out my-index              no model: the default encoder, nothing to train\n"
        "palmette index ckpt docs.jsonl --out my-index\n"
        "palmette index me/ckpt notes/ --out my-index --revision v1\n\n"
        "Run it again with changed documents: only those are encoded and replaced.",
        *("--revision", "--device", "--no-titles", "--quiet", "--json"),
    )
    add("checkpoint", nargs="?", help=f"{CHECKPOINT}; none for the default encoder, or an index's own model")
    add("documents", help="JSONL or table of documents, BEIR folder, or folder of .md and .txt files")
    add("--out", required=True, help="index to make, or to update: a folder, or qdrant://host:6333/name")
    add("--prune", action="store_true", help="delete what is in the index and not in DOCUMENTS")
    add("--batch-size", type=int, default=256, help="documents encoded at a time")
    add("--language", default="english", help="language of a new index's stemmer, or none")


def _run_index(args: argparse.Namespace) -> None:
    from palmette.data import iter_documents

    language = None if args.language == "none" else args.language
    documents = list(iter_documents(args.documents, titles=args.titles))
    how = {"revision": args.revision, "device": args.device}
    model = None if args.checkpoint is None else palmette.load_model(args.checkpoint, **how)
    with palmette.Index.open_or_create(args.out, model, language=language) as index:
        given = {document.key for document in documents}
        absent = [document.key for document in index.documents() if document.key not in given]
        gone = absent if args.prune else ()
        changes = index.upsert(documents, delete=gone, batch_size=args.batch_size, progress=args.progress)
        total = len(index)
    counts = {name: len(getattr(changes, name)) for name in ("added", "updated", "unchanged", "deleted")}
    if args.json:
        print(json.dumps({"index": str(args.out), "documents": total, **counts}))
        return
    print(f"{args.out}: {total} documents ({', '.join(f'{count} {name}' for name, count in counts.items())})")
    if absent and not args.prune:
        print(f"{len(absent)} more were there before and stay, such as {absent[0]!r}; --prune deletes them")
    print(f'next: palmette search {shlex.quote(str(args.out))} "your question" --explain')


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
        *("index", "--lexical", "--filter", "--device", "--explain", "--json"),
    )
    add("query", nargs="+", help="one query, or several")
    add("-k", type=int, default=5, help="number of documents")
    add("--threshold", type=float, help="leave out documents that are less probable (0.2 is a good one)")
    add("--engine", default="exact", help="exact, faiss, ivf, hnsw, ivf:nlist=256,nprobe=8")


def _run_search(args: argparse.Namespace) -> None:
    how = _search_options(args) | {"threshold": args.threshold}
    with palmette.Index.open(args.index, device=args.device, engine=args.engine) as index:
        results = index.search(args.query, args.k, **how)
        if args.json:
            _print_json([[_hit_facts(hit, args.explain) for hit in hits] for hits in results])
            return
        for query, hits in zip(args.query, results, strict=True):
            if len(args.query) > 1:
                print(f"\n? {query}")
            for rank, hit in enumerate(hits, 1):
                shown = hit.document.content[slice(*(hit.sentence or (0, None)))]
                print(f"{rank:>2}. {hit.score:.3f}  {hit.id}\n      {shortened(shown, 160)}")
                if args.explain:
                    print(f"      why: {hit.explain()}")
            if not hits:
                print("nothing found")


def _hit_facts(hit: Any, explain: bool) -> dict[str, Any]:
    document = hit.document
    facts = {"id": hit.id, "score": hit.score, "text": document.content, "metadata": dict(document.metadata)}
    facts |= {"evidence": dict(hit.evidence), "highlights": hit.highlights.to_dict()}
    return facts | ({"explanation": hit.explain().to_dict()} if explain else {})


def _print_json(found: list[Any]) -> None:
    """Print a list, or its only item."""
    print(json.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False, indent=2))


def _add_answer(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "INDEX QUESTION [QUESTION ...] [--reader READER]",
        'palmette answer my-index "when did it begin?" --explain\n'
        'palmette answer my-index "when did it begin?" --reader me/reader -k 10 --threshold 0\n\n'
        "Without a reader, which `palmette train reader` trains, the answer is the sentence that fits best. Options\n"
        "of the index's method, such as --level for a tree, are passed on.",
        *("index", "--lexical", "--filter", "--revision", "--device", "--explain", "--json"),
    )
    add("question", nargs="+", help="one question, or several")
    add("--reader", help=f"the reader: {CHECKPOINT} (default: sentences, without training)")
    add("-k", type=int, default=5, help="number of documents read")
    threshold = "least probability of there being an answer, 0 to answer always (default: as trained)"
    add("--threshold", type=float, help=threshold)


def _run_answer(args: argparse.Namespace) -> None:
    options = _search_options(args)
    reader = args.reader and palmette.Reader.from_pretrained(args.reader, revision=args.revision, device=args.device)
    with palmette.Index.open(args.index, device=args.device) as index:
        reader = reader or palmette.Reader.untrained(index.model.encoder.plain)
        found = index.search(args.question, args.k, **options)
        answers = reader.answer(args.question, found, threshold=args.threshold)
    if args.json:
        _print_json([answer.to_dict() for answer in answers])
        return
    for answer in answers:
        if len(answers) > 1:
            print(f"\n? {answer.question}")
        if not answer:
            print(f"no answer found (probability that there is none: {answer.confidence:.0%})")
        for support in answer.supports[:1]:
            print(f"{shortened(answer.text, 200)}\n  {answer.confidence:.0%}  {support.document.key}")
        if args.explain:
            for support in answer.supports:
                sentence = shortened(support.sentence, 200)
                print(f"    {support.share:.0%} from {support.document.key}: {sentence}")
            for text, confidence in answer.alternatives.items():
                print(f"    or {confidence:.0%}: {shortened(text, 200)}")


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "CKPT DATA",
        "palmette evaluate ckpt squad/ --split test --baselines\n"
        "palmette evaluate ckpt squad/ --split dev --level 6 --json\n"
        "palmette evaluate ckpt squad/ --reader my-reader --passages 10",
        *("checkpoint", "--revision", "--device", "--lexical", "--no-titles", "--quiet", "--json"),
    )
    command.set_defaults(lexical=0.0)
    add("data", help="BEIR folder, or a JSONL of pairs; for a reader, of questions")
    add("--split", default="test", help="split whose judgements count")
    add("--baselines", action="store_true", help="beside it: the same before training, the encoder, BM25")
    add("--reader", help=f"answer the questions too: a reader's {CHECKPOINT}")
    add("--passages", type=int, default=5, help="number of documents the reader is given")
    add("--card", action="store_true", help="write the table into the checkpoint's README.md")


def _run_evaluate(args: argparse.Namespace) -> None:
    from palmette.reader import Reader, load_reading

    model = palmette.load_model(args.checkpoint, revision=args.revision, device=args.device)
    reader = None if args.reader is None else Reader.from_pretrained(args.reader, device=args.device)
    load: Any = palmette.load_data if reader is None else load_reading
    names = ("split", "baselines", "passages", "progress")
    how = {name: getattr(args, name) for name in names} | _search_options(args)
    report = palmette.evaluate(model, load(args.data, titles=args.titles), reader=reader, **how)
    if args.card:
        card = Path(args.checkpoint) / "README.md"
        if not card.parent.is_dir():
            raise ConfigError(f"--card writes into a checkpoint folder; {args.checkpoint!r} is none: pull it")
        text = model.card(report)
        card.unlink(missing_ok=True)  # never through a link, into the Hub's cache for instance
        card.write_text(text, encoding="utf-8")
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.table())


def _add_inspect(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "CKPT_OR_INDEX",
        "palmette inspect ckpt\npalmette inspect my-index --json\npalmette inspect me/ckpt --revision v1\n"
        'palmette inspect my-index --html tree.html --query "how do I …?"',
        *("--revision", "--json"),
    )
    add("what", help="checkpoint folder, Hub repository or index folder")
    add("--html", type=Path, metavar="FILE", help="draw the tree of an index as one page")
    add("--query", action="append", default=[], metavar="TEXT", help="light up its way on the page")


def _run_inspect(args: argparse.Namespace) -> None:
    from palmette.index import MODEL
    from palmette.methods.tree import TreeInspection
    from palmette.store.qdrant.client import is_url

    if is_url(args.what) or (Path(args.what) / MODEL).is_dir():
        with palmette.Index.open(args.what, device="cpu") as index:
            about = dataclasses.asdict(index.stats()) | index.survey()
            facts: dict[str, Any] = {"index": about, "model": _model_facts(index.model)}
            if args.html:
                drawn = TreeInspection.of(index, queries=args.query)
                facts["html"] = str(drawn.save_html(args.html))
                if not args.json:
                    print(f"{facts['html']}: {drawn.documents:,} documents on {len(drawn.leaves):,} leaves")
                    return
    elif args.html:
        raise ConfigError(f"--html draws an index; {args.what} is none: see `palmette index`")
    else:
        model = palmette.load_model(args.what, revision=args.revision, device="cpu")
        facts = {"model": _model_facts(model)}
    print(json.dumps(facts, indent=2) if args.json else "\n".join(_lines(facts)))


def _model_facts(model: Any) -> dict[str, Any]:
    encoder = model.encoder
    return {
        "method": model.method,
        "fingerprint": model.fingerprint,
        "origin": model.origin,
        "revision": model.revision,
        "encoder": {"name": encoder.name, "revision": encoder.revision, "width": encoder.dimension},
        "options": model.config.to_dict(),
        "structure": model.describe(),
        "trained": model.record.to_dict(),
    }


def _lines(facts: Mapping[str, Any], indent: int = 0) -> list[str]:
    """Nested facts as indented text."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            lines += [" " * indent + f"{name}:", *_lines(value, indent + 2)] if value else []
        elif value is not None:
            lines.append(" " * indent + f"{name}: {value}")
    return lines


def _add_pull(command: argparse.ArgumentParser) -> None:
    add = describe(command, "REPO", "palmette pull me/ckpt\npalmette pull me/ckpt --revision v1 --out ckpt")
    add("repo", help="Hub repository, such as me/ckpt")
    add("--revision", help="branch, tag or commit; pin a commit to be sure of the same weights")
    add("--out", type=Path, help="copy into this folder (default: keep it in the Hub's cache)")
    add("--cache-dir", type=Path, help="Hub cache to use")


def _run_pull(args: argparse.Namespace) -> None:
    from palmette.hub import pull

    print(pull(args.repo, args.out, revision=args.revision, cache_dir=args.cache_dir))


def _add_push(command: argparse.ArgumentParser) -> None:
    examples = "palmette push ckpt me/ckpt\npalmette push ckpt me/ckpt --private --tag v1"
    add = describe(command, "CKPT REPO", examples)
    add("checkpoint", type=Path, help="checkpoint folder")
    add("repo", help="Hub repository, such as me/ckpt; made when it is not there")
    add("--private", action="store_true", help="make the repository private")
    add("--branch", help="commit to this branch")
    add("--tag", help="tag the commit")
    add("--message", help="commit message")


def _run_push(args: argparse.Namespace) -> None:
    from palmette.hub import push_checkpoint

    how = {"branch": args.branch, "create_tag": args.tag, "commit_message": args.message}
    print(push_checkpoint(args.checkpoint, args.repo, private=args.private or None, **how))
