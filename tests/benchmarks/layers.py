"""Per-layer retrieval measured: answers found by budget, flat and compressed; what a reader makes of them; speed.

    python tests/benchmarks/layers.py quality SQUAD --encoder packaged:all-MiniLM-L6-v2 --seeds 0 1 2 --out FILE.jsonl
    python tests/benchmarks/layers.py rivals SQUAD … --out FILE.jsonl       a tree and BM25 at equal budget
    python tests/benchmarks/layers.py others SQUAD … --out FILE.jsonl       models trained in other ways
    python tests/benchmarks/layers.py tables FILE.jsonl
    python tests/benchmarks/layers.py answers SQUAD --reader READER --seeds 0 1 2 --kept FOLDER
    python tests/benchmarks/layers.py answers-table --kept FOLDER
    python tests/benchmarks/layers.py speed --encoder packaged:all-MiniLM-L6-v2

SQUAD is a BEIR folder whose queries.jsonl.gz holds ``answers``; without them a document is right that is judged
relevant. What is in FILE or in the folder ``--kept`` (models, and passages that were read) is not made again. A seed is
that of training and of FAISS's clusters. Budgets are total: of ``k`` documents each of L layers has k / L. Inverted
lists are searched as FAISS does: a query gets what lies in the lists it looks through, and no more. READER is a
checkpoint of ``tests/benchmarks/reader.py spans``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import faiss
from fetchhr import quality, reading, report, speed
from fetchhr.bench import BUDGETS, Bench

from palmette.reader import Reader


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=["quality", "rivals", "others", "tables", "answers", "answers-table", "speed"]
    )
    parser.add_argument("data", nargs="?", type=Path, help="a BEIR folder; for tables, the file")
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--titles", action="store_true", help="put titles before texts")
    parser.add_argument("--split", default="test")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kept", type=Path, help="a folder for models, and for what the reader has read")
    parser.add_argument("--names", nargs="+", default=list(quality.OTHERS), help="of trainings, for others")
    parser.add_argument("--reader", help="a checkpoint")
    parser.add_argument("--questions", type=int, default=400, help="of a fixed draw, for others and answers")
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--minutes", type=float, default=1e6, help="to read; run again to go on")
    parser.add_argument(
        "--backwards", action="store_true", help="from the last question on: a second process"
    )
    parser.add_argument("--documents", type=int, default=100_000)
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    bench = Bench(args.data, args.encoder, args.split, args.kept, args.titles)
    match args.what:
        case "quality":
            quality.quality(bench, args.seeds, args.out)
        case "rivals":
            quality.rivals(bench, args.seeds, args.out)
        case "others":
            quality.others(bench, args.seeds, args.out, args.names, args.questions)
        case "tables":
            report.tables(args.data)
        case "answers":
            reader = Reader.from_pretrained(args.reader)
            how = args.seeds, args.budgets, args.questions, args.minutes, args.backwards
            reading.answers(bench, reader, *how)
        case "answers-table":
            print(reading.table(args.kept))
        case "speed":
            speed.speed(args.encoder, args.documents)


if __name__ == "__main__":
    main()
