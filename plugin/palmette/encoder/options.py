"""Options of an encoder: of its passes, and those that are part of its vectors, prompts and a Matryoshka width."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from palmette.arrays import Floats, unit_rows
from palmette.config import check_choice, check_kind, check_range
from palmette.encoder.base import Kind
from palmette.errors import ConfigError, shown

if TYPE_CHECKING:
    import torch

LONGEST_PROMPT = 4096
"""Characters of a prompt."""


@dataclass(frozen=True)
class EncoderOptions:
    """Options of :func:`load_encoder` for the pass (first four) and for the vectors (the others)."""

    device: torch.device | str | None = None
    dtype: str = "auto"
    batch_size: int = 32
    threads: int | None = None
    max_length: int | None = None
    prompts: Mapping[str, str] | None = None
    truncate: int | None = None

    def __post_init__(self) -> None:
        check_range("load_encoder", "batch_size", self.batch_size, 1)
        check_range("load_encoder", "threads", self.threads, 1)


def chosen_prompts(user_prompts: Any, own: Mapping[str, str]) -> dict[str, str]:
    """Return the prompts of both kinds: those given, else the model's own."""
    prompts = {kind: own.get(kind, "") for kind in get_args(Kind)}
    if user_prompts is None:
        return prompts
    check_kind("prompts", user_prompts, Mapping, "a dict such as {'query': 'query: ', 'document': 'passage: '}")
    for kind, text in user_prompts.items():
        check_choice("a kind of prompts", kind, get_args(Kind))
        if not isinstance(text, str) or len(text) > LONGEST_PROMPT:
            raise ConfigError(
                f"the prompt of a {kind} must be a str of {LONGEST_PROMPT} characters at most, got {shown(text)}"
            )
        prompts[kind] = text
    return prompts


def own_prompts(recorded: Mapping[str, str | None], default_name: str | None) -> dict[str, str]:
    """Choose a model's prompts of both kinds among those of its settings."""
    prompts = {name: text for name, text in recorded.items() if text}
    default = prompts.get(default_name or "", "")
    document = (prompts[name] for name in ("document", "passage", "corpus") if name in prompts)
    return {"query": prompts.get("query", default), "document": next(document, default)}


def check_truncate(truncate: Any, width: int, name: str) -> int | None:
    """Check a Matryoshka width against the encoder's own; the own width is none."""
    if truncate is None:
        return None
    check_range("load_encoder", "truncate", truncate, 1, width, whole=True)
    return int(truncate) if truncate < width else None


def fingerprint_with(fingerprint: str, own: Mapping[str, str], prompts: Mapping[str, str], truncate: int | None) -> str:
    """Return the fingerprint of an encoder with options; without any it is the encoder's own."""
    chosen = chosen_prompts(None, prompts)
    facts: dict[str, Any] = {} if chosen_prompts(None, own) == chosen else {"prompts": chosen}
    if truncate is not None:
        facts["truncate"] = truncate
    if not facts:
        return fingerprint
    return hashlib.sha256(f"{fingerprint}\0{json.dumps(facts, sort_keys=True)}".encode()).hexdigest()


def truncated(vectors: Floats, truncate: int | None) -> Floats:
    """Return the first ``truncate`` columns of vectors [N, d], scaled to length 1 again."""
    if truncate is None:
        return vectors
    return unit_rows(vectors[:, :truncate])
