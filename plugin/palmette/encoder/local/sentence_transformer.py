"""Any sentence-transformers model, frozen."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from palmette.encoder.base import Encoder, Kind, LayerWeights, Output, readable, token_counter
from palmette.encoder.local.files import Size, check_encoder_folder, fingerprint
from palmette.encoder.onnx.graph import LAYER_NAMES
from palmette.encoder.options import EncoderOptions, check_truncate, chosen_prompts, fingerprint_with, own_prompts
from palmette.encoder.states import States
from palmette.errors import CheckpointError, ConfigError
from palmette.machine.cores import TOKENS_FOR_ONE_THREAD, limit_torch, one_thread

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert", "electra")
"""Types of transformers (``model_type``) whose layers are one list, end in no norm, and take a mask of any shape."""
OFFSET_FAMILIES = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Those of them that count positions from after the padding token's."""

_MODULES = 32
"""Largest number of modules that a network may have for each tensor of its weights."""
_NUMBERS = 16
"""Largest number of parameters that it may have for each stored number: weights of four bits are packed."""

_PARTS = ("query", "key", "value", "attended", "norms.0", "inner", "outer", "norms.1")
"""Parts of a layer in the order of LAYER_NAMES."""


def layer_body(network: nn.Module) -> Any:
    """Module whose ``layer`` is the list of layers, in a transformer of one of the FAMILIES."""
    return network.transformer if hasattr(network, "transformer") else network.encoder


class SentenceEncoder(Encoder):
    """A sentence-transformers model that gives pooled, token and layer states from one forward pass.

    Weights are read from safetensors only, and no code from the checkpoint runs. The model's prompts named
    ``query`` and ``document`` (or ``passage``, ``corpus``) are used, else its default prompt.

    ``precision`` is the transformer's; pooling and all that follows runs
    in float32. ``max_length`` and ``prompts`` are the model's own by default; ``truncate`` keeps its first columns.
    """

    def __init__(
        self,
        folder: Path,
        options: EncoderOptions,
        *,
        name: str,
        revision: str | None,
        device: torch.device,
        precision: str,
    ) -> None:
        from transformers import PreTrainedModel

        super().__init__()
        limit_torch()
        self.name, self.revision, self.precision, self.batch_size = name, revision, precision, options.batch_size
        self.device = device
        # Passes that stay in a CPU's cache are a fifth to a third faster than 32 long texts.
        self.tokens_per_pass = 2048 if self.device.type == "cpu" else None
        self.model = _load(folder, name, self.device, getattr(torch, precision))
        """Model of the library, to copy (:meth:`between_passes`) and not to change."""
        # Configs of the transformers inside: one, or none for static embeddings.
        networks = [part for part in self.model.modules() if isinstance(part, PreTrainedModel)]
        self._configs = list({id(part.config): part.config for part in networks}.values())
        self.max_length = self._limit(options.max_length)
        own = own_prompts(self.model.prompts, self.model.default_prompt_name)
        self.prompts = chosen_prompts(options.prompts, own)
        first = self.model[0]
        lengths = {getattr(first, key, None) for key in ("query_length", "document_length")}
        self.asymmetric = lengths != {None}
        network: Any = getattr(first, "auto_model", None)
        alone = hasattr(network, "config") and len(self._configs) == 1
        self.family: str | None = network.config.model_type if alone else None
        """Type of the transformer (``bert``, …), where there is exactly one and it comes first."""
        self._body = layer_body(network) if self.family in FAMILIES else None
        probe = self._features(["a"], "document", layers=True, offsets=True)
        tokens = probe.get("token_embeddings")
        width = int(probe["sentence_embedding"].shape[-1])
        self.truncate = check_truncate(options.truncate, width, name)
        self.dimension = self.truncate or width
        self.hidden_size = width if tokens is None else int(tokens.shape[-1])
        self.fingerprint = fingerprint_with(fingerprint(folder, self.max_length), own, self.prompts, self.truncate)
        self._after = _after_pooling(self.model)
        self._pooling = self.model[1] if self._after is not None else None
        self.has_offsets = self._after is not None and "offsets" in probe
        self.num_layers = max(0, len(probe.get("all_layer_embeddings") or ()) - 1)

    def layer_weights(self, count: int) -> LayerWeights | None:  # noqa: D102
        names = LAYER_NAMES["distilbert" if self.family == "distilbert" else "bert"]
        pairs = zip(names.split(), _PARTS, strict=True)
        new = {f"{old}.{kind}": f"{part}.{kind}" for old, part in pairs for kind in ("weight", "bias")}
        with self.between_passes():
            layers = self._body.layer if self._body is not None else ()
            weights = [layer.state_dict() for layer in layers][-count:]
        if len(weights) != count or any(layer.keys() != new.keys() for layer in weights):
            return None
        copies = [{new[name]: value.float().cpu().clone() for name, value in w.items()} for w in weights]
        return LayerWeights(self._configs[0].num_attention_heads, copies)

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        if outputs - {"pooled"} and self.num_layers == 0:
            raise ConfigError(f"encoder {self.name!r} has no layers: it gives 'pooled' and nothing else")
        with self._first_layers(depth):
            features = self._features(texts, kind, layers="layers" in outputs, offsets=outputs != {"pooled"})
        # Tensors made in inference mode cannot enter a graph: from here on, the requested ones are copied.
        pooled = self._truncated(features["sentence_embedding"].float().clone()) if "pooled" in outputs else None
        if outputs == {"pooled"}:
            return States(pooled)
        offsets = features.get("offsets")
        mask = features["attention_mask"].bool()  # [B, T]
        gap = ~mask[..., None]
        tokens = features["token_embeddings"].float().masked_fill(gap, 0) if "tokens" in outputs else None
        layers = None
        if "layers" in outputs:
            states = features["all_layer_embeddings"][: None if depth is None else depth + 1]
            layers = torch.stack(tuple(states), dim=1).float().masked_fill_(gap[:, None], 0)
        return States(pooled, tokens, layers, mask, offsets)

    @torch.inference_mode()
    def finish(self, means: Tensor) -> Tensor:  # noqa: D102
        features = {"sentence_embedding": means}
        for module in self._after or ():
            features = module(features)
        return self._truncated(features["sentence_embedding"][:, : self.model.truncate_dim])

    def _truncated(self, vectors: Tensor) -> Tensor:
        """Keep the first columns of vectors [N, d], scaled to length 1 again, where the encoder is truncated."""
        return vectors if self.truncate is None else functional.normalize(vectors[:, : self.truncate], dim=1)

    @torch.inference_mode()
    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:  # noqa: D102
        if self._pooling is None:
            mean: Tensor = super().pool(tokens, mask)
            return mean
        features: Any = self._pooling({"token_embeddings": tokens, "attention_mask": mask.long()})
        return self.finish(features["sentence_embedding"])

    def count_tokens(self, texts: Sequence[str]) -> list[int]:  # noqa: D102
        tokenizer: Any = getattr(self.model, "tokenizer", None)
        if not callable(tokenizer) or not texts:
            return super().count_tokens(texts)
        if self._counter is not None:
            return self._counter(texts)
        checked = [readable(text) for text in texts]
        return [len(ids) for ids in tokenizer(checked, add_special_tokens=False, verbose=False)["input_ids"]]

    @cached_property
    def _counter(self) -> Callable[[Sequence[str]], list[int]] | None:
        """Counter beside passes, which set the model's own tokenizer; ``None`` for one that keeps no settings."""
        with self.between_passes() as model:
            backend = getattr(model.tokenizer, "backend_tokenizer", None)
            return None if backend is None else token_counter(backend)

    @contextmanager
    def between_passes(self) -> Iterator[SentenceTransformer]:
        """Lend the model for a copy: a pass in another thread sets its layers, its outputs and its tokenizer."""
        with self._lock:
            yield self.model

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
    def _features(self, texts: Sequence[str], kind: Kind, *, layers: bool, offsets: bool) -> dict[str, Any]:
        """Tokenise, and run the transformer and the modules after it, once.

        ``offsets`` asks for the characters of every token, which take as long to collect as the tokens themselves.
        """
        prompt = self.prompts.get(kind) or None
        features: dict[str, Any] = self.model.preprocess(list(texts), prompt=prompt, task=kind)
        encodings = getattr(features, "encodings", None)  # of fast tokenizers
        features = {key: v.to(self.device) if isinstance(v, Tensor) else v for key, v in features.items()}
        before = [config.output_hidden_states for config in self._configs]
        for config in self._configs if layers else ():
            config.output_hidden_states = True
        # A question needs one thread, and on a busy machine more would wait for each other.
        tokens = features.get("input_ids")
        is_short = tokens is not None and tokens.device.type == "cpu" and tokens.numel() < TOKENS_FOR_ONE_THREAD
        try:
            with one_thread() if is_short else nullcontext():
                features = self.model(features, task=kind)
        except IndexError as error:
            raise CheckpointError(
                f"encoder {self.name!r}: its tokenizer gives numbers or positions that its network has no row for "
                f"({error}); download it again"
            ) from error
        finally:
            for config, value in zip(self._configs, before, strict=True):
                config.output_hidden_states = value
        features["sentence_embedding"] = features["sentence_embedding"][:, : self.model.truncate_dim]
        if encodings and offsets:
            places = np.array([encoding.offsets for encoding in encodings], np.int64)  # [B, T, 2]
            features["offsets"] = np.maximum(places - len(prompt or ""), 0)
        return features

    def _limit(self, tokens: int | None) -> int:
        """Set the token limit on the model; more than it has positions for raises."""
        own = self.model.max_seq_length
        if tokens is None:
            return int(own) if own and own < 1_000_000 else 8192
        limits = [getattr(config, "max_position_embeddings", None) or tokens for config in self._configs]
        most = min(limits, default=None)
        if tokens < 3 or (most is not None and tokens > most):
            raise ConfigError(f"max_length of {self.name!r} must be between 3 and {most}, got {tokens!r}")
        self.model.max_seq_length = tokens
        return tokens


def _after_pooling(model: SentenceTransformer) -> list[nn.Module] | None:
    """List the modules that pooled vectors of documents go through; ``None`` where no transformer is pooled."""
    modules = list(model)
    names = [type(module).__name__ for module in modules[:2]]
    return modules[2:] if names == ["Transformer", "Pooling"] else None


def _load(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> SentenceTransformer:
    """Load a sentence-transformers model from local files, frozen, without running code of the folder."""
    from sentence_transformers import SentenceTransformer

    size = check_encoder_folder(folder, name)
    try:
        with without_bars(), _no_larger_than(size, f"encoder {name!r}: {folder}"):
            model = SentenceTransformer(
                str(folder),
                device=str(device),
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"dtype": dtype, "use_safetensors": True},
            )
    except BaseException as error:  # three libraries read what a stranger wrote
        known = isinstance(error, Exception) or type(error).__name__ == "PanicException"  # of tokenizers
        if isinstance(error, CheckpointError) or not known:
            raise
        raise CheckpointError(f"encoder {name!r}: {folder} cannot be loaded: {error}") from error
    model.eval().requires_grad_(False)
    if dtype != torch.float32:  # a unit vector made in bfloat16 is .4 % off
        for module in list(model)[1:]:
            module.float()
        model[0].register_forward_hook(_widen)
    return model


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers from showing bars for what takes half a second."""
    logging: Any = importlib.import_module("transformers.utils.logging")  # its functions are untyped
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _no_larger_than(size: Size, where: str) -> Iterator[None]:
    """Stop while a network is made that is far larger than its weights: a config may declare any number of layers."""
    modules, numbers, thread = _MODULES * size.tensors + 256, _NUMBERS * size.numbers + (1 << 22), get_ident()

    def count_module(*_: Any) -> None:
        nonlocal modules
        modules -= get_ident() == thread
        if modules < 0:
            raise CheckpointError(
                f"{where} declares more layers than its {size.tensors} tensors hold: download it again"
            )

    def count_numbers(module: nn.Module, name: str, values: Tensor | None) -> None:
        nonlocal numbers
        numbers -= values.numel() if values is not None and get_ident() == thread else 0
        if numbers < 0:
            raise CheckpointError(
                f"{where} declares larger weights than its {size.numbers:,} numbers: download it again"
            )

    hooks = [register_module_module_registration_hook(count_module)]
    hooks.append(register_module_parameter_registration_hook(count_numbers))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _widen(module: object, args: object, features: dict[str, Any]) -> dict[str, Any]:
    features["token_embeddings"] = features["token_embeddings"].float()
    return features
