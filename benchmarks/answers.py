"""Answers of the sentence reader on real manuals: do they hold the evidence, and in how many words?

    PALMETTE_DATA=DATA python benchmarks/answers.py --npm NPM
    PALMETTE_DATA=DATA python benchmarks/answers.py --collections squad fairytaleqa hotpot_mini

Sets and questions are those of passages.py. Each file is a document of one index; the first five passages are read by
``Reader.untrained()``. An answer is right when it has one of the question's strings of evidence. *sentence*: the chosen
sentence alone; *block*: with the code, list or table that it announces; *answer*: with what stands around it, as given.

The second table is of confidence, answers forced: its error (mean confidence and share of right answers in five
groups), and answers that are wrong at 50 % and more. ``--collections`` adds 250 test questions of folders of DATA,
whose answer is right when it has an accepted one.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common import ENCODER, number
from palmette import Document, Index, Reader, SpaceModel, load_encoder
from palmette.arrays import Floats
from palmette.encoder import CachedEncoder
from palmette.reader import Answer, load_reading
from palmette.reader.answer import Support
from palmette.reader.blocks import complete
from passages import SETS, load

PASSAGES = 5
Strings = Sequence[Sequence[str]]


def sentence(support: Support) -> str:
    return support.sentence


def block(support: Support) -> str:
    content = support.document.content
    start = content.index(support.sentence)
    return content[slice(*complete(content, start, start + len(support.sentence)))]


def answer(support: Support) -> str:
    return support.text


EXTENTS: tuple[Callable[[Support], str], ...] = (sentence, block, answer)


def held(texts: Sequence[str], strings: Sequence[Sequence[str]]) -> NDArray[np.bool_]:
    """Return which texts have one of their strings."""
    pairs = zip(texts, strings, strict=True)
    return np.array([any(one.lower() in text.lower() for one in some) for text, some in pairs])


def confidence_line(name: str, confidence: Floats, right: NDArray[np.bool_]) -> str:
    """Write a row of the table of confidence."""
    groups = [group for group in np.array_split(np.argsort(confidence, kind="stable"), 5) if len(group)]
    error = sum(len(group) * abs(confidence[group].mean() - right[group].mean()) for group in groups) / len(right)
    sure = confidence >= 0.5
    wrong = (sure & ~right).sum()
    shares = (error, wrong / len(right), wrong / max(1, sure.sum()), sure.mean())
    return f"| {name} | {len(right)} | {right.sum()} | " + " | ".join(number(share) for share in shares) + " |"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("PALMETTE_DATA", "missing"))
    parser.add_argument("--npm", type=Path, help="docs/content of an installed npm")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--collections", nargs="*", default=[], help="folders of DATA whose questions have answers")
    parser.add_argument("--questions", type=int, default=250)
    parser.add_argument("--encoder", default=ENCODER)
    args = parser.parse_args(argv)
    encoder = CachedEncoder(load_encoder(args.encoder))
    reader, forced = Reader.untrained(encoder), dict[str, tuple[Floats, NDArray[np.bool_]]]()

    def ask(name: str, documents: Sequence[Document], questions: Sequence[str], strings: Strings) -> Sequence[Answer]:
        """Answer as by default; what is said of forced answers is kept."""
        index = Index.build(documents, SpaceModel.untrained(encoder), progress=False)
        hits = index.search(questions, PASSAGES)
        answers = reader.answer(questions, hits, threshold=0)
        said = np.array([one.confidence for one in answers])
        forced[name] = said, held([one.text for one in answers], strings)
        return reader.answer(questions, hits)

    print(
        "| set | right: sentence | block | answer | words: sentence | block | answer | no answer |\n|---|" + "---:|" * 7
    )
    for name in args.sets:
        if (manual := load(name, args)) is None:
            print(f"| {name} | its texts are not there |", flush=True)
            continue
        documents = [
            Document(file, one.text, {"source": file} | ({"title": one.title} if one.title else {}))
            for file, one in manual.files.items()
        ]
        strings = [[manual.files[file].text[start:end] for file, start, end in places] for places in manual.evidence]
        answers = ask(name, documents, manual.questions, strings)
        texts = [[extent(one.supports[0]) if one else "" for one in answers] for extent in EXTENTS]
        right = [int(held(row, strings).sum()) for row in texts]
        words = [int(np.median([len(text.split()) for text in row])) for row in texts]
        none = sum(not one for one in answers)
        print(f"| {name} | {' | '.join(map(str, [*right, *words, none]))} |", flush=True)
    for name in args.collections:
        data = load_reading(str(args.data / name))
        asked = [one for one in data.split("test") if one.answers]
        random.Random(0).shuffle(asked)
        sample = asked[: args.questions]
        ask(name, data.passages, [one.question for one in sample], [one.answers or () for one in sample])
    print("\n| confidence | questions | right | error | wrong at 50 % | of those at 50 % | answers at 50 % |")
    print("|---|" + "---:|" * 6)
    if len(forced) > 1:
        forced["all"] = tuple(np.concatenate(parts) for parts in zip(*forced.values(), strict=True))  # type: ignore[assignment]
    for name, (said, right_ones) in forced.items():
        print(confidence_line(name, said, right_ones))


if __name__ == "__main__":
    main()
