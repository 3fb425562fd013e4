"""Any sentence-transformers model, frozen."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palmette.encoder.base import Encoder, Kind, Output, States
from palmette.encoder.files import fingerprint
from palmette.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["PRECISIONS", "SentenceEncoder", "auto_device", "auto_precision"]

PRECISIONS = ("float32", "bfloat16", "float16")


class SentenceEncoder(Encoder):
    """A sentence-transformers model that gives pooled, token and layer states from one forward pass.

    Weights are read from safetensors only, and no code from the checkpoint runs. Between them, the model's
    prompts named ``query`` and ``document`` (or ``passage``, ``corpus``) are used, else its default prompt.

    Args:
        folder: The model's files, which :func:`check_folder` has passed.
        name: What the encoder is called in configs and messages.
        revision: The Hub commit of the files, where known.
        device: ``cuda``, ``mps``, ``cpu`` or a torch device.
        precision: What the transformer computes in; pooling and all that follows runs in float32.
        batch_size: Texts per forward pass, unless a call says otherwise.
        max_length: Tokens per text; the model's own by default.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        revision: str | None = None,
        device: torch.device | None = None,
        precision: str = "float32",
        batch_size: int = 32,
        max_length: int | None = None,
    ) -> None:
        self.name, self.revision = name, revision
        self.device = device or auto_device()
        self.precision = precision
        self.batch_size = self._size(batch_size)
        self._model = _load(folder, name, self.device, getattr(torch, precision))
        self.max_length = self._limit(max_length)
        self.fingerprint = fingerprint(folder, self.max_length)
        self.prompts = _prompts(self._model)
        self.asymmetric = _is_asymmetric(self._model)
        self._network = self._model.transformers_model
        self.num_layers = (
            int(getattr(self._network.config, "num_hidden_layers", 0)) if self._network is not None else 0
        )
        probe = self.forward(["a"], "document", frozenset(["pooled"])).pooled
        assert probe is not None
        self.dimension = int(probe.shape[1])

    def to_config(self) -> dict[str, Any]:  # noqa: D102
        return {
            "name": self.name,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "max_length": self.max_length,
            "dimension": self.dimension,
            "prompts": dict(self.prompts),
        }

    def forward(self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output]) -> States:  # noqa: D102
        if outputs - {"pooled"} and self.num_layers == 0:
            raise ConfigError(
                f"encoder {self.name!r} has no transformer layers: it gives 'pooled' only, not {set(outputs)}"
            )
        with torch.inference_mode():
            features = self._model.preprocess(list(texts), prompt=self.prompts.get(kind) or None, task=kind)
            features = {key: v.to(self.device) if isinstance(v, Tensor) else v for key, v in features.items()}
            config = getattr(self._network, "config", None)
            if "layers" in outputs:
                config.output_hidden_states = True
            try:
                features = self._model(features, task=kind)
            finally:
                if "layers" in outputs:
                    config.output_hidden_states = False
        # Tensors made above cannot enter a graph: outside, copies are made of what is asked for.
        if outputs == {"pooled"}:
            return States(pooled=features["sentence_embedding"].float().clone())
        mask = features["attention_mask"].bool().clone()
        gap = ~mask[..., None]
        layers = torch.stack(features["all_layer_embeddings"], dim=1).float() if "layers" in outputs else None
        return States(
            pooled=features["sentence_embedding"].float().clone() if "pooled" in outputs else None,
            tokens=features["token_embeddings"].float().masked_fill(gap, 0) if "tokens" in outputs else None,
            layers=layers.masked_fill_(gap[:, None], 0) if layers is not None else None,
            mask=mask,
        )

    def _limit(self, asked: int | None) -> int:
        """The token limit, set on the model; more than it has positions for raises."""
        own = self._model.max_seq_length
        if asked is not None:
            positions = getattr(
                getattr(self._model.transformers_model, "config", None), "max_position_embeddings", None
            )
            if asked < 3 or (positions and asked > positions):
                raise ConfigError(
                    f"max_length must be between 3 and {positions or 'any'} for {self.name!r}, got {asked!r}"
                )
            self._model.max_seq_length = asked
            return asked
        return int(own) if own and own < 1_000_000 else 8192


def auto_device() -> torch.device:
    """The fastest device there is: cuda, then mps, then cpu."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def auto_precision(device: torch.device) -> str:
    """The precision that is fastest at (almost) no loss on a device."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float16"
    return "float32"


def _load(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> SentenceTransformer:
    from safetensors import SafetensorError
    from sentence_transformers import SentenceTransformer

    options = {"dtype": dtype, "use_safetensors": True}
    try:
        model = SentenceTransformer(
            str(folder),
            device=str(device),
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs=options,
        )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        ImportError,
        AttributeError,
        SafetensorError,
    ) as error:
        raise CheckpointError(f"encoder {name!r}: {folder} cannot be loaded: {error}") from error
    model.eval().requires_grad_(False)
    if dtype != torch.float32:  # a unit vector made in bfloat16 is .4 % off
        for module in list(model)[1:]:
            module.float()
        model[0].register_forward_hook(_widen)
    return model


def _widen(module: object, args: object, features: dict[str, Any]) -> dict[str, Any]:
    features["token_embeddings"] = features["token_embeddings"].float()
    return features


def _prompts(model: SentenceTransformer) -> dict[str, str]:
    """The prompt before queries and before documents, from the model's config."""
    given = {key: text for key, text in model.prompts.items() if text is not None}
    default = given.get(model.default_prompt_name or "", "")
    names: dict[str, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
    return {kind: next((given[key] for key in keys if key in given), default) for kind, keys in names.items()}


def _is_asymmetric(model: SentenceTransformer) -> bool:
    first = model[0]
    lengths = {getattr(first, key, None) for key in ("query_length", "document_length")}
    return type(first).__name__ in ("Router", "Asym") or lengths != {None}
