"""A server's ``/rerank``: Cohere's and Jina's protocol, as vLLM speaks it, and that of TEI.

    rerank:MODEL@https://host/v1      POST https://host/v1/rerank

The key is read from PALMETTE_RERANK_KEY whenever a request is sent, never from the variable of another server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from palmette.errors import ConfigError, shown
from palmette.machine.endpoint import RERANK_KEY, Endpoint

RERANK_SECONDS = 10.0
"""Seconds that a question's judgement may take, all attempts together."""
OTHER_NAMES = (400, 404, 422)
"""HTTP statuses with which a server refuses a request whose fields have the other protocol's names."""


class RerankServer:
    """A model behind a server; threads may share it."""

    def __init__(self, name: str) -> None:
        match = re.fullmatch(r"rerank:\s*(\S(?:.*?\S)??)\s*@(https?://\S*)\s*", name)
        if match is None:
            raise ConfigError(f"{shown(name)} names no model of a server: write 'rerank:MODEL@https://host/v1'")
        self.name, self._model = f"rerank:{match[1]}@{match[2]}", match[1]
        self._endpoint = Endpoint("/rerank", match[2], key=RERANK_KEY)
        self._texts_as = "documents"

    def score(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return the server's score of each text."""
        for name in dict.fromkeys((self._texts_as, "documents", "texts")):
            body: dict[str, Any] = {"query": question, name: list(texts)}
            body |= {"model": self._model} if name == "documents" else {"truncate": True}  # TEI refuses longer ones
            reply = self._endpoint.post(body, lambda facts: _read(facts, len(texts)), patience=RERANK_SECONDS)
            if reply.status == 200:
                self._texts_as = name
                scores: list[float] = reply.content
                return scores
            if reply.status not in OTHER_NAMES:
                break
        raise self._endpoint.refusal(self._model, reply)


def _read(facts: Any, count: int) -> list[float]:
    """Return the scores of a reply in the order of the texts."""
    items = facts if isinstance(facts, list) else facts["results"]
    scores = {item["index"]: item["relevance_score"] if "relevance_score" in item else item["score"] for item in items}
    if sorted(scores) != list(range(count)):
        raise ValueError(f"scores of {len(scores)} texts, and {count} were sent")
    return [float(scores[row]) for row in range(count)]
