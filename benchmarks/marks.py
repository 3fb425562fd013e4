"""Is the evidence of a question within what is marked of the passage that holds it?

    PALMETTE_DATA=DATA python benchmarks/marks.py --sets uv python

Sets and questions are those of passages.py; the first of five hits with a whole string of
evidence counts. *sentence*: the best one by its vector; *mark*: ``hit.highlights.sentence``; *stretch*: ``around``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from common import ENCODER
from palmette import Document, Index, SpaceModel, load_encoder
from palmette.encoder import CachedEncoder
from passages import SETS, load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("PALMETTE_DATA", "missing"))
    parser.add_argument("--npm", type=Path, help="docs/content of an installed npm")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    args = parser.parse_args()
    encoder = CachedEncoder(load_encoder(ENCODER))
    print("| set | questions | sentence | mark | stretch |\n|---|" + "---:|" * 4)
    for name in args.sets:
        if (manual := load(name, args)) is None:
            continue
        documents = [Document(file, one.text, {"source": file}) for file, one in manual.files.items()]
        index = Index.build(documents, SpaceModel.untrained(encoder), progress=False)
        counts = [0, 0, 0, 0]
        for places, hits in zip(manual.evidence, index.search(manual.questions, 5), strict=True):
            for hit in hits:
                assert hit.passage is not None
                shift, size = hit.passage.start, len(hit.document.content)
                inside = [(a - shift, b - shift) for file, a, b in places if file == hit.id]
                inside = [(a, b) for a, b in inside if a >= 0 and b <= size]
                if inside:
                    spans = ((0, size), hit.sentence, hit.highlights.sentence, hit.highlights.around)
                    for at, span in enumerate(spans):
                        counts[at] += any(span is not None and span[0] <= a and b <= span[1] for a, b in inside)
                    break
        print(f"| {name} | {' | '.join(map(str, counts))} |", flush=True)


if __name__ == "__main__":
    main()
