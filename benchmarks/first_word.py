"""What does the service add before the first word of a language model's answer?

    python benchmarks/first_word.py

A scripted model answers at once; a hundred questions about this project's docs, one after the other, each read to its
end, over HTTP. Printed: milliseconds from the question to the first word, and until the model is asked.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from common import ENCODER
from palmette import Index
from palmette.index.written import Limits
from palmette.service.writer import Writer

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.chat_stream import StreamServer, events
from support.services import running

DOCS = Path(__file__).parents[1] / "docs"
QUESTIONS = (
    "how do I install it?",
    "what is a tenant?",
    "how are tables cut?",
    "which port does the service use?",
    "how do I delete a document?",
    "how is an index backed up?",
    "what does distinct do?",
    "how do I train a tree?",
    "how are PDF files read?",
    "what is a filter?",
)


def main() -> None:
    os.environ.setdefault("OPENAI_API_KEY", "none is needed here")
    model, asked = StreamServer(), list[float]()

    def reply(body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        asked.append(perf_counter())
        return 200, {}, events("Words are ranked [1].", " And more.")

    model.reply = reply
    with TemporaryDirectory() as place:
        Index.build(DOCS, path=Path(place) / "index", encoder=ENCODER, progress=False).close()
        with running(Path(place) / "index") as service:
            service.service.writer = Writer(f"openai:scripted@{model.url}", Limits(seconds=9), shared=False)
            first, before = list[float](), list[float]()
            for number in range(11):
                for question in QUESTIONS:
                    begun, word, asked[:] = perf_counter(), 0.0, []
                    body = {"question": f"{question} ({number})", "llm": True}
                    with service.http.stream(
                        "POST", "/v1/answer", json=body, headers={"accept": "text/event-stream"}
                    ) as answer:
                        for line in answer.iter_lines():
                            if line.startswith("event: text") and not word:
                                word = perf_counter()
                    if number and asked:  # the first round warms up; where nothing fits, the model is not asked
                        first.append(1000 * (word - begun))
                        before.append(1000 * (asked[0] - begun))
    model.close()
    for name, took in (("to the first word", first), ("until the model is asked", before)):
        middle, most = np.quantile(took, (0.5, 0.95))
        print(f"{len(took)} questions, ms {name}: median {middle:.0f}, 95 % {most:.0f}, at most {max(took):.0f}")


if __name__ == "__main__":
    main()
