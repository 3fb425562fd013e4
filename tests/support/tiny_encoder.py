"""A sentence-transformers model of a few thousand random weights, saved as the library saves any."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from palmette.encoder import Encoder, Kind, Output, States

WORDS = "a the cat dog bird sat ran on under mat roof query passage : . how do i open file ##s ##ing".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def save_tiny_encoder(folder: Path, *, prompts: dict[str, str] | None = None, **shape: Any) -> Path:
    """Write the model to ``folder``: a few layers, vectors of unit length.

    ``dense`` projects the result. Given ``words``, it knows those and any other by its letters.
    """
    shutil.copytree(_build(tuple((prompts or {}).items()), **shape), folder)
    return folder


@cache
def _build(
    prompts: tuple[tuple[str, str], ...],
    *,
    dense: int | None = None,
    family: str = "bert",
    pooling: str = "mean",
    words: tuple[str, ...] = (),
    width: int = 16,
    layers: int = 2,
) -> Path:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from transformers import AutoConfig, AutoModel, BertTokenizerFast

    folder = Path(mkdtemp(prefix="tiny-encoder-"))
    raw = folder / "raw"
    raw.mkdir()
    pad = 1 if family in ("roberta", "mpnet") else 0
    first = ["[UNK]", "[PAD]"] if pad else ["[PAD]", "[UNK]"]
    vocabulary = [*first, "[CLS]", "[SEP]", "[MASK]", *WORDS, *map(str, range(30))]
    if words:
        known = [*words, *LETTERS, *(f"##{letter}" for letter in LETTERS + "0123456789"), *"-?,"]
        vocabulary += [word for word in dict.fromkeys(known) if word not in vocabulary]
    (raw / "vocab.txt").write_text("\n".join(vocabulary))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            family,
            vocab_size=len(vocabulary),
            pad_token_id=pad,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64 if family == "bert" else 66,  # some count from 1
            initializer_range=0.5,
        )
        AutoModel.from_config(config).save_pretrained(raw)
        BertTokenizerFast(vocab=str(raw / "vocab.txt"), model_max_length=64).save_pretrained(raw)
        body = [modules.Transformer(str(raw)), modules.Pooling(width, pooling)]
        body += [modules.Dense(width, dense)] if dense else []
        model = SentenceTransformer(modules=[*body, modules.Normalize()], device="cpu", prompts=dict(prompts))
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


def states_of(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    kind: Kind = "document",
    outputs: Sequence[Output] = ("pooled",),
    depth: int | None = None,
) -> States:
    """States of some texts in their order, from one pass of any length."""
    names = encoder._outputs(outputs, depth)
    return encoder._run_batch(encoder.check(texts, kind), range(len(texts)), kind, names, depth)


def edited(name: str, **values: Any) -> Callable[[Path], object]:
    """Change values of a JSON file of an encoder's folder, or make the file."""

    def edit(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, **values}))

    return edit
