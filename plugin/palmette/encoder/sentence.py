"""Any sentence-transformers model, frozen."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palmette.encoder.base import Encoder, Kind, Output, States
from palmette.encoder.depth import Copies, Stops, copies_of
from palmette.encoder.device import check_device
from palmette.encoder.files import fingerprint
from palmette.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["PRECISIONS", "SentenceEncoder"]

PRECISIONS = ("float32", "bfloat16", "float16")

# What transformers raises on missing, unfitting and foreign files.
_BROKEN = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError)


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
        super().__init__()
        self.name, self.revision = name, revision
        self.device = check_device(device)
        self.precision = precision
        self.batch_size = self._size(batch_size)
        # Passes that stay in a CPU's cache are a fifth to a third faster than 32 long texts.
        self.tokens_per_pass = 2048 if self.device.type == "cpu" else None
        self._model = _load(folder, name, self.device, getattr(torch, precision))
        self._configs = _network_configs(self._model)
        self.max_length = self._limit(max_length)
        self.fingerprint = fingerprint(folder, self.max_length)
        self.prompts = _prompts(self._model)
        self.asymmetric = _is_asymmetric(self._model)
        probe = self._features(["a"], "document", layers=True)
        tokens = probe.get("token_embeddings")
        self.dimension = int(probe["sentence_embedding"].shape[-1])
        self.hidden_size = self.dimension if tokens is None else int(tokens.shape[-1])
        self.num_layers = max(0, len(probe.get("all_layer_embeddings") or ()) - 1)
        self._stops = Stops(self._model, self.num_layers)

    @property
    def model(self) -> SentenceTransformer:
        """The library's own model, to copy and not to change."""
        return self._model

    @property
    def family(self) -> str | None:
        """The transformer's type (``bert``, …), where there is exactly one and it comes first."""
        kind = getattr(getattr(self._model[0], "auto_model", None), "config", None)
        return kind.model_type if kind is not None and len(self._configs) == 1 else None

    def to_config(self) -> dict[str, Any]:  # noqa: D102
        return {
            "name": self.name,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "max_length": self.max_length,
            "dimension": self.dimension,
            "prompts": dict(self.prompts),
        }

    def copies(self, count: int) -> Copies | None:  # noqa: D102
        config = self._configs[0] if len(self._configs) == 1 else None
        heads = getattr(config, "num_attention_heads", None)
        return copies_of(self._model, self.num_layers, count, heads) if heads else None

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        if outputs - {"pooled"} and self.num_layers == 0:
            raise ConfigError(
                f"encoder {self.name!r} has no transformer layers: it gives 'pooled' and nothing else"
            )
        run = partial(self._features, texts, kind, layers="layers" in outputs)
        features = run() if depth is None else self._stops.run(depth, run)
        # What inference mode made cannot enter a graph: from here on, copies are made of what is asked for.
        pooled = features["sentence_embedding"].float().clone() if "pooled" in outputs else None
        if outputs == {"pooled"}:
            return States(pooled)
        mask = features["attention_mask"].bool()  # [B, T]
        gap = ~mask[..., None]
        tokens = features["token_embeddings"].float().masked_fill(gap, 0) if "tokens" in outputs else None
        layers = None
        if "layers" in outputs:
            layers = (
                torch.stack(features["all_layer_embeddings"], dim=1).float().masked_fill_(gap[:, None], 0)
            )
        return States(pooled, tokens, layers, mask)

    @torch.inference_mode()
    def _features(self, texts: Sequence[str], kind: Kind, *, layers: bool) -> dict[str, Any]:
        """Tokenise, and run the transformer and what follows it, once."""
        features = self._model.preprocess(list(texts), prompt=self.prompts.get(kind) or None, task=kind)
        features = {key: v.to(self.device) if isinstance(v, Tensor) else v for key, v in features.items()}
        if not layers:
            return self._run(features, kind)
        before = [config.output_hidden_states for config in self._configs]
        for config in self._configs:
            config.output_hidden_states = True
        try:
            return self._run(features, kind)
        finally:
            for config, value in zip(self._configs, before, strict=True):
                config.output_hidden_states = value

    def _run(self, features: dict[str, Any], kind: Kind) -> dict[str, Any]:
        features = self._model(features, task=kind)
        features["sentence_embedding"] = features["sentence_embedding"][:, : self._model.truncate_dim]
        return features

    def _limit(self, asked: int | None) -> int:
        """The token limit, set on the model; more than it has positions for raises."""
        own = self._model.max_seq_length
        if asked is not None:
            most = min(
                (getattr(c, "max_position_embeddings", None) or asked for c in self._configs), default=None
            )
            if asked < 3 or (most is not None and asked > most):
                raise ConfigError(f"max_length of {self.name!r} must be between 3 and {most}, got {asked!r}")
            self._model.max_seq_length = asked
            return asked
        return int(own) if own and own < 1_000_000 else 8192


def _load(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> SentenceTransformer:
    from safetensors import SafetensorError
    from sentence_transformers import SentenceTransformer

    logging: Any = importlib.import_module("transformers.utils.logging")
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # it takes half a second
    options = {"dtype": dtype, "use_safetensors": True}
    try:
        model = SentenceTransformer(
            str(folder),
            device=str(device),
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs=options,
        )
    except (*_BROKEN, SafetensorError) as error:
        raise CheckpointError(f"encoder {name!r}: {folder} cannot be loaded: {error}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
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
    given = {key: text for key, text in model.prompts.items() if text}
    default = given.get(model.default_prompt_name or "", "")
    names: dict[str, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
    return {
        kind: next((given[key] for key in keys if given.get(key)), default) for kind, keys in names.items()
    }


def _network_configs(model: SentenceTransformer) -> list[Any]:
    """The configs of the transformers inside: one, or one per branch of a router; none for static embeddings."""
    from transformers import PreTrainedModel

    found = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    return list(found.values())


def _is_asymmetric(model: SentenceTransformer) -> bool:
    first = model[0]
    lengths = {getattr(first, key, None) for key in ("query_length", "document_length")}
    return type(first).__name__ in ("Router", "Asym") or lengths != {None}
