"""Cross-encoders by folder or name: an ONNX graph, which needs no torch, or sentence-transformers' ``CrossEncoder``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.encoder.base import readable
from palmette.encoder.local.files import read_settings
from palmette.encoder.local.find import GRAPHS
from palmette.errors import CheckpointError, ConfigError, InputError, MissingExtraError
from palmette.machine.threads import Renewed, get_threads

MOST_PAIR_TOKENS = 512
"""Tokens of a question and a text, both together; a longer text is cut."""
TEXTS_PER_PASS = 8
"""Texts of a pass, of similar length."""


def load_cross_encoder(place: str) -> Callable[[str, Sequence[str]], list[float]]:
    """Load a cross-encoder: a folder with an ONNX graph, or what ``CrossEncoder`` loads, a folder or a repository."""
    folder = Path(place).expanduser()
    graph = next((folder / name for name in GRAPHS if (folder / name).is_file()), None)
    if graph is not None:
        return OnnxCrossEncoder(folder, graph).score
    if not folder.is_dir() and (folder.is_absolute() or place.startswith((".", "~"))):
        raise ConfigError(f"there is no folder {place!r} with a cross-encoder: name another one, or a repository")
    try:
        from sentence_transformers import CrossEncoder
        from torch.nn import Identity
    except ModuleNotFoundError as error:
        raise MissingExtraError("sentence_transformers", "train", f"the cross-encoder {place!r}") from error
    try:
        model: Any = CrossEncoder(place, model_kwargs={"use_safetensors": True})
    except Exception as error:  # of several libraries without a common base
        raise CheckpointError(f"the cross-encoder {place!r} cannot be loaded ({str(error)[:300]})") from error

    def score(question: str, texts: Sequence[str]) -> list[float]:
        pairs = [(readable(question), readable(text)) for text in texts]
        return relevance(model.predict(pairs, activation_fn=Identity(), show_progress_bar=False))

    return score


def relevance(logits: NDArray[Any]) -> list[float]:
    """Return the log-odds of relevance of a classifier's outputs, of one class or two."""
    outputs = np.asarray(logits, np.float32)
    if outputs.ndim == 2 and outputs.shape[1] == 2:
        outputs = outputs[:, 1] - outputs[:, 0]
    if outputs.size != len(outputs):
        raise InputError(f"it gives {outputs.shape[1:]} numbers for a text, and a cross-encoder gives one or two")
    scores: list[float] = outputs.reshape(-1).tolist()
    return scores


class OnnxCrossEncoder(Renewed):
    """An ONNX graph from the tokens of a question and a text to one output, or to two classes."""

    def __init__(self, folder: Path, graph: Path) -> None:
        from tokenizers import Tokenizer

        self._graph, self._left = graph, list[Any]()
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise CheckpointError(f"cross-encoder {folder}: it has no usable tokenizer.json ({error})") from error
        files = ("tokenizer_config.json", "model_max_length"), ("config.json", "max_position_embeddings")
        limits = [read_settings(folder / file).get(name) for file, name in files]
        known = [limit for limit in limits if type(limit) is int and limit >= 8]
        self._tokenizer.enable_truncation(min([MOST_PAIR_TOKENS, *known]), strategy="longest_first")
        pad = (self._tokenizer.padding or {}).get("pad_token") or "[PAD]"
        pad_id = self._tokenizer.token_to_id(pad)
        pad_id = read_settings(folder / "config.json").get("pad_token_id") if pad_id is None else pad_id
        self._tokenizer.enable_padding(pad_id=pad_id or 0, pad_token=pad)
        self._session: Any = None
        super().__init__()
        self.score("a", ["b"])  # raises for what is no cross-encoder

    def renew(self) -> None:
        """Forget the session, without ending it: a forked child has none of its threads."""
        self._left.append(self._session)
        self._session = None

    def score(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return the log-odds of each text."""
        encoded = self._tokenizer.encode_batch([(readable(question), readable(text)) for text in texts])
        order = np.argsort([sum(one.attention_mask) for one in encoded], kind="stable")  # less padding
        scores = [0.0] * len(texts)
        for start in range(0, len(texts), TEXTS_PER_PASS):
            rows = order[start : start + TEXTS_PER_PASS]
            some = [encoded[row] for row in rows.tolist()]
            width = max(sum(one.attention_mask) for one in some)
            arrays = {
                "input_ids": np.array([one.ids[:width] for one in some], np.int64),
                "attention_mask": np.array([one.attention_mask[:width] for one in some], np.int64),
                "token_type_ids": np.array([one.type_ids[:width] for one in some], np.int64),
            }
            for row, score in zip(rows.tolist(), self._run(arrays), strict=True):
                scores[row] = score
        return scores

    def _run(self, arrays: dict[str, NDArray[np.int64]]) -> list[float]:
        import onnxruntime as runtime

        try:
            if self._session is None:
                options = runtime.SessionOptions()
                options.intra_op_num_threads, options.inter_op_num_threads = get_threads(), 1
                options.log_severity_level = 3
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting must cost nothing
                providers = ["CPUExecutionProvider"]
                self._session = runtime.InferenceSession(str(self._graph), options, providers=providers)
            names = [node.name for node in self._session.get_inputs()]
            return relevance(self._session.run(None, {name: arrays[name] for name in names})[0])
        except Exception as error:  # of several kinds without a common base
            raise CheckpointError(f"{self._graph} is no usable cross-encoder ({str(error)[:300]})") from error
