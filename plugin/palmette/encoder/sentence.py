"""Any sentence-transformers model, frozen."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from palmette.devices import check_device
from palmette.encoder.base import Copies, Encoder, Kind, Output, States
from palmette.encoder.files import fingerprint
from palmette.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert", "electra")
"""Types of transformers (``model_type``) whose layers are one list, end in no norm, and take a mask of any shape."""

PRECISIONS = ("float32", "bfloat16", "float16")

# Raised by transformers on missing, unfitting and foreign files.
_BROKEN = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError)

_LAYER_NAMES: tuple[Mapping[str, str], ...] = (
    {  # BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA
        "attention.self.query": "query",
        "attention.self.key": "key",
        "attention.self.value": "value",
        "attention.output.dense": "attended",
        "attention.output.LayerNorm": "norms.0",
        "intermediate.dense": "inner",
        "output.dense": "outer",
        "output.LayerNorm": "norms.1",
    },
    {  # DistilBERT
        "attention.q_lin": "query",
        "attention.k_lin": "key",
        "attention.v_lin": "value",
        "attention.out_lin": "attended",
        "sa_layer_norm": "norms.0",
        "ffn.lin1": "inner",
        "ffn.lin2": "outer",
        "output_layer_norm": "norms.1",
    },
)
"""A layer's parts in the model → in :class:`Copies`."""


def layer_body(network: nn.Module) -> Any:
    """Module whose ``layer`` is the list of layers, in a transformer of one of the FAMILIES."""
    return network.transformer if hasattr(network, "transformer") else network.encoder


class SentenceEncoder(Encoder):
    """A sentence-transformers model that gives pooled, token and layer states from one forward pass.

    Weights are read from safetensors only, and no code from the checkpoint runs. The model's prompts named
    ``query`` and ``document`` (or ``passage``, ``corpus``) are used, else its default prompt.

    Args:
        folder: Files of the model, which :func:`check_folder` has passed.
        name: Name in configs and messages.
        revision: Hub commit of the files, where known.
        device: ``cuda``, ``mps``, ``cpu`` or a torch device.
        precision: Dtype of the transformer; pooling and all that follows runs in float32.
        batch_size: Texts per forward pass, unless a call sets another number.
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
        self.model = _load(folder, name, self.device, getattr(torch, precision))
        """Model of the library, to copy and not to change."""
        self._configs = _network_configs(self.model)
        self.max_length = self._limit(max_length)
        self.fingerprint = fingerprint(folder, self.max_length)
        self.prompts = _prompts(self.model)
        first = self.model[0]
        lengths = {getattr(first, key, None) for key in ("query_length", "document_length")}
        self.asymmetric = type(first).__name__ in ("Router", "Asym") or lengths != {None}
        network: Any = getattr(first, "auto_model", None)
        self.family: str | None = None
        """Type of the transformer (``bert``, …), where there is exactly one and it comes first."""
        if hasattr(network, "config") and len(self._configs) == 1:
            self.family = network.config.model_type
        self._body = layer_body(network) if self.family in FAMILIES else None
        probe = self._features(["a"], "document", layers=True)
        tokens = probe.get("token_embeddings")
        self.dimension = int(probe["sentence_embedding"].shape[-1])
        self.hidden_size = self.dimension if tokens is None else int(tokens.shape[-1])
        self.num_layers = max(0, len(probe.get("all_layer_embeddings") or ()) - 1)

    def copies(self, count: int) -> Copies | None:  # noqa: D102
        found = []
        for layer in self._body.layer[self.num_layers - count :] if self._body is not None else []:
            weights = {
                name: value.detach().float().cpu().clone() for name, value in layer.state_dict().items()
            }
            for names in _LAYER_NAMES:
                renamed = {
                    f"{old}.{kind}": f"{names[old]}.{kind}" for old in names for kind in ("weight", "bias")
                }
                if renamed.keys() == weights.keys():
                    found.append({renamed[name]: value for name, value in weights.items()})
        return Copies(self._configs[0].num_attention_heads, found) if found and len(found) == count else None

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        if outputs - {"pooled"} and self.num_layers == 0:
            raise ConfigError(
                f"encoder {self.name!r} has no transformer layers: it gives 'pooled' and nothing else"
            )
        with self._first_layers(depth):
            features = self._features(texts, kind, layers="layers" in outputs)
        # Tensors made in inference mode cannot enter a graph: from here on, the requested ones are copied.
        pooled = features["sentence_embedding"].float().clone() if "pooled" in outputs else None
        if outputs == {"pooled"}:
            return States(pooled)
        mask = features["attention_mask"].bool()  # [B, T]
        gap = ~mask[..., None]
        tokens = features["token_embeddings"].float().masked_fill(gap, 0) if "tokens" in outputs else None
        layers = None
        if "layers" in outputs:
            states = features["all_layer_embeddings"][: None if depth is None else depth + 1]
            layers = torch.stack(tuple(states), dim=1).float().masked_fill_(gap[:, None], 0)
        return States(pooled, tokens, layers, mask)

    @contextmanager
    def _first_layers(self, depth: int | None) -> Iterator[None]:
        """Leave out all layers after the first ``depth``; other families run all of them."""
        if depth is None or self._body is None:
            yield
            return
        layers = self._body.layer
        self._body.layer = layers[:depth]
        try:
            yield
        finally:
            self._body.layer = layers

    @torch.inference_mode()
    def _features(self, texts: Sequence[str], kind: Kind, *, layers: bool) -> dict[str, Any]:
        """Tokenise, and run the transformer and what follows it, once."""
        features: dict[str, Any] = self.model.preprocess(
            list(texts), prompt=self.prompts.get(kind) or None, task=kind
        )
        features = {key: v.to(self.device) if isinstance(v, Tensor) else v for key, v in features.items()}
        before = [config.output_hidden_states for config in self._configs]
        for config in self._configs if layers else ():
            config.output_hidden_states = True
        try:
            features = self.model(features, task=kind)
        finally:
            for config, value in zip(self._configs, before, strict=True):
                config.output_hidden_states = value
        features["sentence_embedding"] = features["sentence_embedding"][:, : self.model.truncate_dim]
        return features

    def _limit(self, wanted: int | None) -> int:
        """Set the token limit on the model; more than it has positions for raises."""
        own = self.model.max_seq_length
        if wanted is None:
            return int(own) if own and own < 1_000_000 else 8192
        most = min(
            (getattr(c, "max_position_embeddings", None) or wanted for c in self._configs), default=None
        )
        if wanted < 3 or (most is not None and wanted > most):
            raise ConfigError(f"max_length of {self.name!r} must be between 3 and {most}, got {wanted!r}")
        self.model.max_seq_length = wanted
        return wanted


def _load(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> SentenceTransformer:
    from safetensors import SafetensorError
    from sentence_transformers import SentenceTransformer

    logging: Any = importlib.import_module("transformers.utils.logging")
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # it takes half a second
    try:
        model = SentenceTransformer(
            str(folder),
            device=str(device),
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs={"dtype": dtype, "use_safetensors": True},
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
    """Prompt before queries and before documents, from the model's config."""
    given = {key: text for key, text in model.prompts.items() if text}
    default = given.get(model.default_prompt_name or "", "")
    names: dict[str, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
    return {
        kind: next((given[key] for key in keys if given.get(key)), default) for kind, keys in names.items()
    }


def _network_configs(model: SentenceTransformer) -> list[Any]:
    """Configs of the transformers inside: one, one per branch of a router, or none for static embeddings."""
    from transformers import PreTrainedModel

    found = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    return list(found.values())
