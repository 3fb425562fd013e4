"""A small BEIR folder."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_beir(folder: Path, corpus: Iterable[dict[str, Any]], questions: Iterable[str]) -> Path:
    """A question for each document, dealt to train, dev and test in turns."""
    rows = list(corpus)
    asked = [{"_id": f"q{n}", "text": question} for n, question in enumerate(questions)]
    (folder / "qrels").mkdir(parents=True)
    for name, lines in (("corpus", rows), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for place, split in enumerate(("train", "dev", "test")):
        judged = [f"q{n}\t{row['_id']}\t1\n" for n, row in enumerate(rows) if n % 3 == place]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return folder
