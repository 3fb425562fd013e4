"""The commands that make training data: ``palmette ask`` lets a language model write questions."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from palmette.cli.arguments import describe
from palmette.cli.train import add_config_options
from palmette.config import without_none
from palmette.errors import ConfigError


def _add_ask(command: argparse.ArgumentParser) -> None:
    from palmette.learning.questions import QuestionOptions
    from palmette.methods.base import DEFAULT_ENCODER

    add = describe(
        command,
        "DOCUMENTS --llm openai:MODEL --out FOLDER",
        "palmette ask docs/ --llm openai:gpt-4.1-mini --out asked --estimate        what it would cost\n"
        "palmette ask docs/ --llm openai:gpt-4.1-mini --out asked --max-calls 500   a sample; run again to go on\n"
        "OPENAI_BASE_URL=http://localhost:11434/v1 palmette ask docs/ --llm openai:llama3 --out asked\n"
        "palmette train space asked --out ckpt\n"
        "palmette ask my-index --llm openai:gpt-4.1-mini --out asked --add        and find passages by the questions",
        *("--quiet", "--json"),
    )
    add("documents", help="folder, JSONL file, or an index")
    add("--llm", required=True, help="openai:MODEL: OpenAI's or any server of its protocol (OPENAI_BASE_URL)")
    add("--out", required=True, type=Path, help="folder of answers and pairs; a run goes on where the last one ended")
    add("--encoder", default=DEFAULT_ENCODER, help="encoder of the search that questions are tried on")
    add(
        "--add",
        action="store_true",
        help="add the questions to the index that is asked about, as words of its passages",
    )
    add("--estimate", action="store_true", help="say how many calls and tokens it takes, and ask nothing")
    add_config_options(command.add_argument_group("questions"), QuestionOptions, {})


def _asked_documents(args: argparse.Namespace) -> Any:
    """Return the documents to ask about: those of an index, or a path to read them from."""
    from palmette.index import Index
    from palmette.store.local.folder import COMMIT

    if (Path(args.documents) / COMMIT).exists():
        with Index.open(args.documents, device="cpu", verify=False) as index:
            return list(index.documents())
    if args.add:
        raise ConfigError(f"--add: {args.documents} is no index; make one by `palmette index`, and ask about it")
    return args.documents


def _run_ask(args: argparse.Namespace) -> None:
    from palmette.index import Index
    from palmette.learning.questions import QuestionOptions, estimate_questions, write_questions

    options = without_none({name: getattr(args, name, None) for name in QuestionOptions.choices()})
    documents = _asked_documents(args)
    estimate = estimate_questions(documents, args.out, args.llm, **options)
    estimated = f"{estimate.passages:,} passages: {estimate.calls:,} calls of about {estimate.tokens:,} tokens together"
    if args.estimate:
        print(json.dumps(asdict(estimate)) if args.json else estimated)
        return
    if args.progress is None:
        print(estimated, file=sys.stderr)
    data, report = write_questions(
        documents, args.llm, args.out, encoder=args.encoder, progress=args.progress, **options
    )
    added = None
    if args.add and report.kept:
        with Index.open(args.documents, device="cpu", verify=False) as index:
            added = index.add_questions(data)
    if args.json:
        facts = {"out": str(args.out), **asdict(report)} | ({} if added is None else {"added": added})
        print(json.dumps(facts, indent=2))
        return
    dropped = f"{report.repeated} repeated, {report.not_found} not found again"
    print(f"{report.kept:,} questions about {len(data.corpus):,} passages in {args.out} (dropped: {dropped})")
    print(f"{report.calls:,} calls, {report.tokens:,} tokens, {report.reused:,} answers from before; ", end="")
    print(f"{report.refused} refused, {report.unusable} unusable, {report.left:,} calls left")
    for error in report.errors:
        print(f"failed: {error}", file=sys.stderr)
    if added is not None:
        print(f"{added:,} passages of {args.documents} are found by the words of their questions")
    if report.kept:
        print(f"next: palmette train space {args.out} --out ckpt")
    elif not report.calls + report.reused:
        print("nothing to train on: no call was made; raise --max-calls, and run again")
    else:
        advice = "try another model or other --kinds, or --round-trip 0, which keeps questions that do not find again"
        print(f"nothing to train on: no question was kept; read {args.out / 'answers.jsonl'}, and {advice}")


def _add_refit(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "INDEX [PAIRS]",
        "palmette refit my-index                   train anew on feedback; exchange the index only if that is better\n"
        "palmette refit my-index asked/            and on pairs\n"
        "palmette refit my-index --back            the index before",
        *("--device", "--quiet", "--json"),
    )
    add("index", help="index folder")
    add("pairs", nargs="?", help="BEIR folder or JSONL of pairs about its documents")
    add("--seed", type=int, default=0, help="of the held-out questions and the training")
    add("--back", action="store_true", help="bring back the index before")


def _run_refit(args: argparse.Namespace) -> None:
    from palmette.learning.refit import refit, restore_former

    if args.back:
        place = restore_former(args.index)
        print(json.dumps({"restored": str(place)}) if args.json else f"{place}: the former index is back")
        return
    result = refit(args.index, args.pairs, seed=args.seed, device=args.device, progress=args.progress)
    if args.json:
        facts = asdict(result) | {"former": result.former and str(result.former)}
        print(json.dumps({name: None if value != value else value for name, value in facts.items()}))  # NaN is no JSON
        return
    done = "exchanged" if result.exchanged else "not exchanged"
    print(f"{args.index} is {done}: {result.reason}")
    if result.before == result.before:
        print(f"nDCG@10 of {result.held_out} held-out questions: {result.before:.3f} before, {result.after:.3f} now")
    if result.exchanged:
        print(f"the former index: {result.former} (`palmette refit {args.index} --back`)")


def _add_feedback(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "INDEX",
        "palmette feedback my-index                          what there is\n"
        "palmette feedback my-index --record on              record searches of retrievers and services, too\n"
        "palmette feedback my-index --export votes.jsonl     a vote a line\n"
        "palmette feedback my-index --delete-person ada",
        "--json",
    )
    add("index", help="index folder")
    add("--record", choices=("on", "off"), help="turn the recording of searches on or off")
    add("--export", type=Path, help="file to write votes to, as JSON lines")
    add("--delete-person", help="delete all that a person said and searched for")
    add("--delete-document", help="delete all that was said of a document")
    add("--delete-before", type=float, metavar="DAYS", help="delete what is older than so many days")


def _run_feedback(args: argparse.Namespace) -> None:
    import time

    from palmette.config import check_range
    from palmette.errors import ConfigError
    from palmette.index import Index

    check_range("palmette feedback", "--delete-before", args.delete_before, 0, 36_500)
    with Index.open(args.index, device="cpu", verify=False) as index:
        log = index.feedback_log
        if args.record is not None:
            log.recording = args.record == "on"
        if args.export is not None:
            lines = (json.dumps(asdict(vote), ensure_ascii=False) for vote in log.votes())
            try:
                args.export.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            except OSError as error:
                what = error.strerror or error
                raise ConfigError(f"--export {args.export}: {what}; name a file that can be written") from error
        before = None if args.delete_before is None else max(0.0, time.time() - 86_400 * args.delete_before)
        if (args.delete_person, args.delete_document, before) != (None, None, None):
            count = log.delete(person=args.delete_person, document=args.delete_document, before=before)
            print(f"{count} entries are deleted", file=sys.stderr)
        votes = log.votes()
        facts: dict[str, Any] = {
            "votes": len(votes),
            "useful": sum(vote.useful for vote in votes),
            "searches": len(log.searches()),
        }
        facts |= {"recorded": "on" if log.recording else "off"}
    print(json.dumps(facts) if args.json else ", ".join(f"{name}: {value}" for name, value in facts.items()))
