"""Answers without a language model: exact match, F1 and "no answer" of a trained reader.

    python benchmarks/reader.py spans DATA [--unanswerable FILE] [--seeds 0 1 2] [--work DIR]
    python benchmarks/reader.py demo INDEX                the demo's reader, over the index that the demo has made

DATA is a BEIR folder whose queries have ``answers``, with train, dev and test judgements; ``--unanswerable`` is a
JSONL of questions (``text``, ``passage_id``, ``split``) that their passage does not answer. Options of ``Reader.fit``
are given as name=value at the end. Readers learn from train, take their threshold from dev, and are measured on test:
with the passage that has the answer (the ceiling), and with the first 1, 5 and 10 that the encoder finds.

Every figure is a line of the ``.jsonl`` beside ``--out``; a reader whose training was broken off goes on in ``--work``,
and what is in the file is not measured again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from common import ENCODER, command_line
from palmette import Hit, Index, load_encoder, sample_data
from palmette.arrays import best
from palmette.data.metrics import exact_match, f1
from palmette.encoder.cache import CachedEncoder, EncodingCache
from palmette.reader import Example, Reader, ReadingData, load_reading
from recording import Line, append, find, read, table, write_part

DEPTHS = (1, 5, 10)
PART, UNANSWERABLE = 64, 0.4
"""Questions read at a time; share of the unanswerable training questions that are learned from."""
SHOWN = ["questions", "em", "f1", "em with threshold", "f1 with threshold", "silent"]
SHOWN += ["right entry among them", "first hit is right", "right entry", "answered", "right of the answered"]


def data_of(folder: str, unanswerable: str | None, seed: int) -> ReadingData:
    """The collection, with unanswerable questions in every split; of the training ones a share."""
    data = load_reading(folder)
    if unanswerable is None:
        return data
    rows = {passage.key: row for row, passage in enumerate(data.passages)}
    splits = {name: list(asked) for name, asked in data.splits.items()}
    opened = gzip.open if unanswerable.endswith(".gz") else open
    with opened(unanswerable, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    random.Random(seed).shuffle(records)
    room = round(UNANSWERABLE * sum(record["split"] == "train" for record in records))
    for record in records:
        if record["split"] == "train":
            room -= 1
        if record["split"] != "train" or room >= 0:
            splits[record["split"]].append(Example(record["text"], (), (rows[record["passage_id"]],)))
    return replace(data, splits=splits)


def found(data: ReadingData, asked: Sequence[Example], cache: EncodingCache) -> list[list[int]]:
    """For each question, rows of the passages that the encoder finds, best first."""
    encoder = load_encoder(ENCODER)
    vectors = cache.encode(encoder, [passage.content for passage in data.passages])
    queries = encoder.encode_queries([one.question for one in asked])
    return [best(vectors @ query, max(DEPTHS)).tolist() for query in queries]


def measure(
    reader: Reader, data: ReadingData, asked: Sequence[Example], rows: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Exact match and F1, the best answer given always or by the learned threshold, and how often none is."""
    scores: list[tuple[float, ...]] = []
    for start in range(0, len(asked), PART):
        part = asked[start : start + PART]
        passages = [[data.passages[row] for row in some] for some in rows[start : start + PART]]
        for one, answer in zip(part, reader.answer([a.question for a in part], passages, threshold=0), strict=True):
            accepted, quiet = one.answers or (), 1 - answer.no_answer < reader.threshold
            said = "" if quiet else answer.text
            found = [measured(text, accepted) for text in (answer.text, said) for measured in (exact_match, f1)]
            scores.append((*found, float(quiet)))
    names = ("em", "f1", "em with threshold", "f1 with threshold", "silent")
    return {"questions": len(asked), **dict(zip(names, np.mean(scores, axis=0).tolist(), strict=True))}


def spans(args: argparse.Namespace, options: dict[str, Any]) -> None:
    """Train readers of spans, and measure them."""
    cache = EncodingCache()
    for seed in args.seeds:
        name = " ".join([f"seed={seed}", *(f"{key}={value}" for key, value in sorted(options.items()))])
        folder = args.work / name.replace("/", "_").replace(" ", ",")
        data = data_of(args.data, args.unanswerable, seed)
        if not folder.is_dir():
            going = args.work / f"{folder.name}.training"
            trained = Reader.fit(data, encoder=ENCODER, seed=seed, output_dir=going, resume=True, **options)
            trained.save_pretrained(folder)
        reader, test = Reader.from_pretrained(folder), data.split("test")
        answerable = [one for one in test if one.answers]
        random.Random(0).shuffle(answerable)
        without = [one for one in test if not one.answers]
        sample = answerable[: args.retrieved]
        near = found(data, sample, cache)
        settings: dict[str, tuple[Sequence[Example], Sequence[Sequence[int]]]] = {
            "gold passage": (answerable, [one.passages for one in answerable]),
            **{f"encoder, first {k}": (sample, [some[:k] for some in near]) for k in DEPTHS},
            "no answer in the passage": (without, [one.passages for one in without]),
        }
        for setting, (asked, rows) in settings.items():
            if asked and not find(args.store, reader=name, setting=setting):
                line = {"reader": name, "setting": setting, **measure(reader, data, asked, rows)}
                print(append(args.store, line), flush=True)


def demo(args: argparse.Namespace, options: dict[str, Any]) -> None:
    """The demo's reader and index: trained on one half of the handwritten questions, measured on the other."""
    data = sample_data()
    read = load_reading(data)
    asked, test = read.split("dev"), read.split("test")
    gold = [{data.corpus[row].key for row in one.passages} for one in test]
    folder = Path(args.data)  # an index, or the folder of ``palmette demo``
    with Index.open(next(folder.glob("*/index"), folder)) as index:
        index.model.encoder = encoder = CachedEncoder(index.model.encoder)
        sources = index.search([one.question for one in test], 5)
    lessons = ReadingData("handwritten", data.corpus, {"train": asked, "dev": asked})
    for seed in args.seeds:
        name = f"demo seed={seed}"
        if all(find(args.store, reader=name, setting=f"first {k}") for k in (3, 5)):
            continue
        reader = Reader.fit(lessons, encoder=encoder, unit="sentence", passages=3, seed=seed, **options)
        for k in (3, 5):
            found = measure_entries(reader, test, [hits[:k] for hits in sources], gold)
            print(append(args.store, {"reader": name, "setting": f"first {k}", **found}), flush=True)


def measure_entries(
    reader: Reader, asked: Sequence[Example], sources: Sequence[Sequence[Hit]], gold: Sequence[set[str]]
) -> dict[str, float]:
    """How often the sentence is of a right entry: always answering, and by the learned threshold."""
    answers = reader.answer([one.question for one in asked], sources, threshold=0)
    right = np.array([a.document is not None and a.document.key in g for a, g in zip(answers, gold, strict=True)])
    said = np.array([1 - answer.no_answer >= reader.threshold for answer in answers])
    among = np.array([any(hit.id in g for hit in hits) for hits, g in zip(sources, gold, strict=True)])
    return {
        "questions": len(asked),
        "right entry among them": float(among.mean()),
        "first hit is right": float(np.mean([hits[0].id in g for hits, g in zip(sources, gold, strict=True)])),
        "right entry": float(right.mean()),
        "answered": float(said.mean()),
        "right of the answered": float(right[said].mean()) if said.any() else 0.0,
    }


def report(lines: Sequence[Line]) -> str:
    """All figures."""
    parts = []
    for reader in dict.fromkeys(line["reader"] for line in lines):
        mine = [line for line in lines if line["reader"] == reader]
        names = [name for name in SHOWN if any(name in line for line in mine)]
        rows = [[line["setting"], *(f"{line[name]:.3g}" if name in line else "" for name in names)] for line in mine]
        parts += [f"**{reader}**", table(["", *names], rows)]
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    parser = command_line(__doc__, "reader.md")
    parser.add_argument("what", choices=["spans", "demo"])
    parser.add_argument("data", help="a BEIR folder; for demo, an index")
    parser.add_argument("--unanswerable")
    parser.add_argument("--retrieved", type=int, default=400, help="test questions read in retrieved passages")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--work", type=Path, default=Path("reader-benchmark"))
    args, rest = parser.parse_known_args(argv)
    args.store = args.out.with_suffix(".jsonl")
    options = dict(word.split("=", 1) for word in rest)
    for key, value in options.items():
        with suppress(ValueError):
            options[key] = json.loads(value)
    {"spans": spans, "demo": demo}[args.what](args, options)
    write_part(args.out, "reader", report(read(args.store, "reader", "setting")))


if __name__ == "__main__":
    main()
