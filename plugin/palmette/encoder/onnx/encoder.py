"""A sentence-transformers model that ONNX Runtime computes on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Mask
from palmette.encoder.base import Encoder, Kind, LayerWeights, Output, token_counter
from palmette.encoder.local.files import read_settings
from palmette.encoder.onnx.folder import TOKENIZER, OnnxFolder
from palmette.encoder.options import (
    EncoderOptions,
    check_truncate,
    chosen_prompts,
    fingerprint_with,
    own_prompts,
    truncated,
)
from palmette.encoder.sentences import Sentences
from palmette.encoder.states import States
from palmette.errors import CheckpointError, ConfigError, EncodingError
from palmette.machine.compiled import compiles_loops
from palmette.machine.cores import TOKENS_FOR_ONE_THREAD
from palmette.machine.devices import cpu_has_bfloat16, has_torch
from palmette.machine.threads import Renewed, get_threads

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs that a graph may have: [B, T] int64."""
OUTPUTS = ("last_hidden_state", "token_embeddings")
"""Names that the output of token states may have: [B, T, w]."""
CACHED_TOKENS = 2048
"""Tokens of a pass that stay in a processor's cache."""
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""Setting of ONNX Runtime (since 1.22): where the weights of a graph given as bytes lie."""
TEXTS_WORTH_TORCH = 4096
"""Texts that are worth the seconds until torch is there, where it encodes faster."""
ALIKE = 0.7
"""Least length of a text that is computed together with a longer one, relative to it."""


class OnnxEncoder(Encoder):
    """An ONNX graph of a transformer, and in NumPy what follows it: pooled and token states from one pass.

    There are no layer states. The weights are those of the file, so that ``precision`` says how they are kept:
    ``float32``, or ``int8`` where the file is smaller and its vectors are near the source's, not equal.

    Args:
        folder: Its files.
        options: Texts of a pass, threads of a long one (a question takes one), and what the vectors depend on.
        name: Name that :func:`palmette.load_encoder` takes.
        revision: Commit on the Hub, where known.
    """

    has_offsets = True
    tokens_per_pass = CACHED_TOKENS

    def __init__(self, folder: OnnxFolder, options: EncoderOptions, *, name: str, revision: str | None = None) -> None:
        super().__init__()
        self.name, self.revision, self.batch_size, self.device = name, revision, options.batch_size, "cpu"
        self.max_length, self.num_layers = folder.limit(options.max_length), 0
        self.head = folder.head
        own = own_prompts(folder.prompts, "")
        self.prompts = chosen_prompts(options.prompts, own)
        record = folder.record
        self.precision = "float32" if record is None else record.precision
        self._tokenizer = _load_tokenizer(folder, self.max_length)
        self._graph = _Sessions(folder, options.threads)
        tokens = self._tokens(["a"], "document")[0]
        self.hidden_size = tokens.shape[2]
        width = self.head.pool(tokens, np.ones(tokens.shape[:2], np.bool_)).shape[1]
        self.truncate = check_truncate(options.truncate, width, name)
        self.dimension = self.truncate or width
        vectors = own, self.prompts, self.truncate
        self.fingerprint = fingerprint_with(folder.fingerprint(self.max_length), *vectors)
        if record is not None and record.source.get("max_length") == self.max_length:
            source = record.source.get("fingerprint")
            self.stands_for = fingerprint_with(source, *vectors) if source else None

    def forward(self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None) -> States:
        """Run one pass; layer states are not among the outputs of a graph."""
        if "layers" in outputs:
            raise ConfigError(
                f"encoder {self.name!r} is an ONNX graph and gives 'pooled' and 'tokens': this method reads layers, so "
                "train it with the sentence-transformers model"
            )
        tokens, mask, offsets = self._tokens(texts, kind)
        pooled = self.pool(tokens, mask) if "pooled" in outputs else None
        if outputs == {"pooled"}:
            return States(pooled)
        tokens[~mask] = 0
        return States(pooled, tokens if "tokens" in outputs else None, None, mask, offsets)

    def finish(self, means: Floats) -> Floats:  # noqa: D102
        return truncated(self.head.finish(means), self.truncate)

    def pool(self, tokens: Floats, mask: Mask) -> Floats:  # noqa: D102
        return truncated(self.head.pool(tokens, mask), self.truncate)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:  # noqa: D102
        return self._counter(texts)

    @cached_property
    def _counter(self) -> Callable[[Sequence[str]], list[int]]:
        return token_counter(self._tokenizer)

    def _tokens(self, texts: Sequence[str], kind: Kind) -> tuple[Floats, Mask, NDArray[np.int64]]:
        """Run the graph: token states [B, T, w], their mask [B, T] and offsets [B, T, 2]."""
        prompt = self.prompts.get(kind, "")
        encodings = self._tokenizer.encode_batch([prompt + text for text in texts] if prompt else list(texts))
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        types = np.array([encoding.type_ids for encoding in encodings], np.int64)
        offsets = np.array([encoding.offsets for encoding in encodings], np.int64)
        states = self._run(ids, mask, types)
        return np.asarray(states, np.float32), mask.astype(np.bool_), np.maximum(offsets - len(prompt), 0)

    def _run(self, *values: NDArray[np.int64]) -> NDArray[Any]:
        """Run the graph: token states [B, T, w]; texts of similar length together, since padding costs as much."""
        mask, states = values[1], None
        lengths = mask.sum(axis=1)
        if lengths.min() >= ALIKE * lengths.max() or not mask[:, 0].all():  # all alike, or padded at the left
            return self._graph.run(dict(zip(INPUTS, values, strict=True)))
        order = np.argsort(-lengths, kind="stable")
        while len(order):
            longest = int(lengths[order[0]])
            count = int((lengths[order] >= ALIKE * longest).sum())
            rows, order = order[:count], order[count:]
            part = self._graph.run({name: each[rows, :longest] for name, each in zip(INPUTS, values, strict=True)})
            if states is None:
                states = np.zeros((*mask.shape, part.shape[2]), part.dtype)
            states[rows, : part.shape[1]] = part
        assert states is not None
        return states


class LightEncoder(OnnxEncoder):
    """A sentence-transformers model that ONNX Runtime computes from its own weights, with torch's fingerprint.

    What a graph does not give, layers and weights to train, comes from :meth:`with_torch`.
    """

    def __init__(
        self, folder: OnnxFolder, options: EncoderOptions, make_torch: Callable[[], Encoder], **place: Any
    ) -> None:
        super().__init__(folder, options, **place)
        assert folder.written is not None
        self.num_layers, self._make_torch = folder.written.layers, make_torch
        self._lock_torch, self._torch = Lock(), None

    _torch: Encoder | None

    def with_torch(self) -> Encoder:
        """Return the same model as torch computes it, loaded when it is first needed."""
        with self._lock_torch:
            self._torch = self._torch or self._make_torch()
            return self._torch

    def forward(self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None) -> States:
        """Run one pass; layer states are torch's."""
        if "layers" in outputs:
            by_torch = self.with_torch()
            with by_torch._lock:  # its passes and its copies have a lock of their own
                return by_torch.forward(texts, kind, outputs, depth)
        return super().forward(texts, kind, outputs, depth)

    def layer_weights(self, count: int) -> LayerWeights | None:  # noqa: D102
        return self.with_torch().layer_weights(count)

    def encode(self, texts: Sequence[str], **options: Any) -> Floats:  # noqa: D102
        faster = self._for_many(texts)
        return super().encode(texts, **options) if faster is None else faster.encode(texts, **options)

    def encode_sentences(self, texts: Sequence[str], **options: Any) -> tuple[Floats, Sentences]:  # noqa: D102
        faster = self._for_many(texts)
        return (
            super().encode_sentences(texts, **options) if faster is None else faster.encode_sentences(texts, **options)
        )

    def _for_many(self, texts: Sequence[str]) -> Encoder | None:
        """Return torch's encoder for many texts on a processor where half precision is twice as fast."""
        return self.with_torch() if len(texts) >= TEXTS_WORTH_TORCH and has_torch() and cpu_has_bfloat16() else None


class _Sessions(Renewed):
    """Sessions of ONNX Runtime by their threads, made again in a forked child, which has none of these."""

    def __init__(self, folder: OnnxFolder, threads: int | None) -> None:
        self._path, self._name, self._threads, self._written = folder.graph, folder.name, threads, folder.written
        self._left: list[dict[int, Any]] = []
        """Sessions of the parent process: to end them would wait for threads that are not there."""
        self._sessions: dict[int, Any] = {}
        super().__init__()
        session = self._session(1)
        outputs = {node.name for node in session.get_outputs()}
        self._inputs = [node.name for node in session.get_inputs()]
        self._output = next((name for name in OUTPUTS if name in outputs), OUTPUTS[0])

    def renew(self) -> None:
        """Forget the sessions, without ending them."""
        self._left.append(self._sessions)
        self._sessions = {}

    def run(self, values: Mapping[str, NDArray[np.int64]]) -> NDArray[Any]:
        """Compute token states of token numbers."""
        session = self._session(next(iter(values.values())).size)
        try:
            states: NDArray[Any] = session.run([self._output], {name: values[name] for name in self._inputs})[0]
        except Exception as error:  # of several kinds without a common base
            raise EncodingError(
                f"encoder {self._name!r}: {self._path} cannot be computed ({str(error)[:300]}): palmette gives "
                f"{', '.join(INPUTS)} and reads {' or '.join(OUTPUTS)}; its tokenizer may belong to another model. "
                "Export it again with `palmette export-onnx`"
            ) from error
        return states

    def _session(self, tokens: int) -> Any:
        """Return the session for a pass of so many tokens; one that computes questions never pays for the other's.

        A question takes one thread, documents more; a process that ends at once has one session.
        """
        threads = 1 if tokens < TOKENS_FOR_ONE_THREAD and compiles_loops() else self._threads or get_threads()
        if threads in self._sessions:
            return self._sessions[threads]
        import onnxruntime as runtime

        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting must cost nothing
        model: str | bytes = str(self._path)
        if self._written is not None:
            model = self._written.graph
            options.add_session_config_entry(_WEIGHTS_FOLDER, str(self._written.folder))
        try:
            session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of several kinds without a common base
            raise CheckpointError(
                f"encoder {self._name!r}: {self._path} cannot be loaded ({str(error)[:300]}); export it again"
            ) from error
        self._sessions[threads] = session
        return session


def _load_tokenizer(folder: OnnxFolder, max_length: int) -> Any:
    """Load the tokenizer, which pads to the longest text of a pass and cuts after ``max_length`` tokens."""
    from tokenizers import Tokenizer

    path = folder.path / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(path))
        padding = tokenizer.padding or {}
        settings = read_settings(folder.path / "tokenizer_config.json")
        token = padding.get("pad_token") or settings.get("pad_token") or "[PAD]"
        token = token.get("content") if isinstance(token, dict) else token
        number = tokenizer.token_to_id(str(token))
        number = read_settings(folder.path / "config.json").get("pad_token_id") if number is None else number
        side = settings.get("padding_side") or str(padding.get("direction") or "right").lower()
        tokenizer.enable_padding(direction=side, pad_id=number or 0, pad_token=str(token))
        tokenizer.enable_truncation(max_length)
    except BaseException as error:  # what a stranger wrote may make the library panic
        known = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if isinstance(error, CheckpointError) or not known:
            raise
        raise CheckpointError(f"encoder {folder.name!r}: {path} is no tokenizer ({str(error)[:300]})") from error
    return tokenizer
