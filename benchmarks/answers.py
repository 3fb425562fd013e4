"""Answers of the sentence reader on real manuals: do they hold the evidence, and in how many words?

    PALMETTE_DATA=DATA python benchmarks/answers.py --npm NPM

Sets and questions are those of passages.py. Each file is a document of one index; the first five passages are read by
``Reader.untrained()``. An answer is right when it has one of the question's strings of evidence. *sentence*: the chosen
sentence alone; *block*: with the code, list or steps that it announces; *answer*: with what stands around it, as given.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from common import ENCODER
from palmette import Document, Index, Reader, SpaceModel, load_encoder
from palmette.encoder import CachedEncoder
from palmette.reader.answer import Support
from palmette.reader.blocks import complete
from passages import SETS, load

PASSAGES = 5


def sentence(support: Support) -> str:
    return support.sentence


def block(support: Support) -> str:
    content = support.document.content
    start = content.index(support.sentence)
    return content[slice(*complete(content, start, start + len(support.sentence)))]


def answer(support: Support) -> str:
    return support.text


EXTENTS: tuple[Callable[[Support], str], ...] = (sentence, block, answer)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("PALMETTE_DATA", "missing"))
    parser.add_argument("--npm", type=Path, help="docs/content of an installed npm")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--encoder", default=ENCODER)
    args = parser.parse_args(argv)
    encoder = CachedEncoder(load_encoder(args.encoder))
    reader = Reader.untrained(encoder)
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
        index = Index.build(documents, SpaceModel.untrained(encoder), progress=False)
        answers = reader.answer(manual.questions, index.search(manual.questions, PASSAGES))
        texts = [[extent(one.supports[0]) if one else "" for one in answers] for extent in EXTENTS]
        strings = [
            [manual.files[file].text[start:end].lower() for file, start, end in places] for places in manual.evidence
        ]
        right = [
            sum(any(s in text.lower() for s in held) for text, held in zip(row, strings, strict=True)) for row in texts
        ]
        words = [int(np.median([len(text.split()) for text in row])) for row in texts]
        none = sum(not one for one in answers)
        print(f"| {name} | {' | '.join(map(str, [*right, *words, none]))} |", flush=True)


if __name__ == "__main__":
    main()
