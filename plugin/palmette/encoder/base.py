"""What every encoder is: texts in, states out, whatever produces them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from palmette.encoder.coalesce import Coalescer, FairLock
from palmette.encoder.depth import Copies
from palmette.errors import ConfigError, EncodingError, InputError

__all__ = ["Encoder", "Kind", "Output", "States"]

Kind = Literal["query", "document"]
Output = Literal["pooled", "tokens", "layers"]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class States:
    """What one forward pass gives for B texts: float32, on the encoder's device, ``None`` if not asked for.

    Attributes:
        pooled: [B, d], the model's own sentence vector (its pooling and all that follows it).
        tokens: [B, T, d], the last hidden states.
        layers: [B, L + 1, T, d], all hidden states, the embeddings first.
        mask: [B, T], true where there is a token; always there when tokens or layers are.
    """

    pooled: Tensor | None = None
    tokens: Tensor | None = None
    layers: Tensor | None = None
    mask: Tensor | None = None


class Encoder(ABC):
    """A frozen text encoder, safe to share between threads.

    A subclass sets the attributes below and fills :meth:`forward`; checks, batching, coalescing and locking
    are done here.

    Attributes:
        name: What :func:`load_encoder` finds it by.
        revision: The Hub commit it came from, where known.
        dimension: Width d of the pooled vector.
        hidden_size: Width of token and layer states, which is d unless the model ends in a projection.
        num_layers: Layers L after the embeddings (0 where there are none to see).
        max_length: Tokens per text; what is longer is cut.
        fingerprint: SHA-256 over all that determines the vectors: not path, device, precision or batch size.
        device: Where the forward pass runs.
        precision: The dtype it computes in; results are float32 always.
        prompts: What is put before a query and before a document.
        asymmetric: Whether queries and documents take different paths besides their prompts.
        batch_size: Texts per pass at most, unless a call says otherwise.
        tokens_per_pass: About how many tokens one pass takes at most; ``None`` for any number.
        frozen: False for an encoder that is being trained, whose encodings must not be kept.
    """

    name: str
    revision: str | None = None
    dimension: int
    hidden_size: int
    num_layers: int
    max_length: int
    fingerprint: str
    device: torch.device
    precision: str = "float32"
    prompts: Mapping[str, str]
    asymmetric: bool = False
    frozen: bool = True
    batch_size: int = 32
    tokens_per_pass: int | None = None

    def __init__(self) -> None:
        self._lock = FairLock()
        self._coalesce = Coalescer(32)  # more texts in a pass are hardly faster, and wait longer

    @abstractmethod
    def forward(
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        """One pass over checked texts, adding the prompt of ``kind``; called by one thread at a time.

        With ``depth`` it stops after so many layers, and gives those alone.
        """

    @abstractmethod
    def to_config(self) -> dict[str, Any]:
        """JSON values from which :func:`load_encoder` makes this encoder again, on any machine."""

    def states(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        outputs: Sequence[Output] = ("pooled",),
        depth: int | None = None,
    ) -> States:
        """One forward pass over one batch. An empty query raises InputError; an empty document is encoded.

        With ``depth`` and ``outputs=("layers",)`` it ends after so many layers: [B, depth + 1, T, d], cheaper.
        """
        wanted = _outputs(outputs)
        return self._pass(
            self.check(texts, kind), range(len(texts)), kind, wanted, self._depth(depth, wanted)
        )

    def copies(self, count: int) -> Copies | None:
        """Copies of the last ``count`` transformer layers' weights; ``None`` where they are not of BERT's kind."""
        return None

    def iter_states(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        outputs: Sequence[Output] = ("pooled",),
        batch_size: int | None = None,
        progress: bool | None = False,
        positions: Sequence[int] | None = None,
        depth: int | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], States]]:
        """Batches of similar length, longest first: the texts' positions, and their states.

        Long before short shows at once whether the memory suffices. ``positions`` are what messages call the
        texts, where that is not their order. A bar shows on terminals only, unless ``progress`` is False.
        ``depth`` as in :meth:`states`.
        """
        wanted, checked, size = _outputs(outputs), self.check(texts, kind), self._size(batch_size)
        depth = self._depth(depth, wanted)
        order = np.argsort([-len(text) for text in checked], kind="stable").astype(np.int64)
        hidden = True if progress is False else None  # None: hidden unless stderr is a terminal
        with tqdm(total=len(order), desc="encoding", unit="text", delay=1, disable=hidden) as bar:
            start = 0
            while start < len(order):
                rows = order[start : start + self._fitting(checked[order[start]], size)]
                start += len(rows)
                names = rows.tolist() if positions is None else [positions[row] for row in rows]
                yield rows, self._pass([checked[row] for row in rows], names, kind, wanted, depth)
                bar.update(len(rows))

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        batch_size: int | None = None,
        progress: bool | None = False,
    ) -> Floats:
        """Pooled vectors in the order of the texts: [N, d], float32."""
        out = np.empty((len(texts), self.dimension), np.float32)
        for rows, states in self.iter_states(texts, kind=kind, batch_size=batch_size, progress=progress):
            assert states.pooled is not None
            out[rows] = states.pooled.cpu().numpy()
        return out

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Pooled query vectors: [N, d]. Callers in other threads that come together share a forward pass."""
        checked = self.check(texts, "query")  # a bad text stops its own caller only
        if len(checked) > self.batch_size:
            return self._encode_queries(checked)
        return self._coalesce(checked, self._encode_queries) if checked else self._encode_queries(checked)

    def _encode_queries(self, texts: list[str]) -> Floats:
        return self.encode(texts, kind="query")

    def variant(self, kind: Kind) -> str:
        """Equal for two kinds that give equal vectors: part of a cache's key."""
        return f"{kind if self.asymmetric else ''}:{self.prompts.get(kind, '')}"

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, dimension={self.dimension}, device={str(self.device)!r})"
        )

    def _fitting(self, longest: str, size: int) -> int:
        """How many texts of this length one pass takes."""
        tokens = min(self.max_length, 2 + len(longest) // 4)
        return min(size, max(1, self.tokens_per_pass // tokens)) if self.tokens_per_pass else size

    def _size(self, batch_size: int | None) -> int:
        size = self.batch_size if batch_size is None else batch_size
        if size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {size!r}")
        return size

    def check(self, texts: Sequence[str], kind: Kind) -> list[str]:
        """The texts as the model takes them: str, cut to a length that is sure to fill it, encodable."""
        if isinstance(texts, str):
            raise InputError(
                f"texts must be a list of str, got one str: {texts!r:.80}. Put it in a list: [text]"
            )
        if kind not in get_args(Kind):
            raise ConfigError(f"kind must be 'query' or 'document', got {kind!r}")
        return [self._check_one(position, text, kind) for position, text in enumerate(texts)]

    def _check_one(self, position: int, text: str, kind: Kind) -> str:
        if not isinstance(text, str):
            raise InputError(f"text {position} must be a str, got {type(text).__name__}: {text!r:.80}")
        if len(text) > self._max_chars:  # megabytes would be tokenised in full before being cut
            text = text[: 8 * self._max_chars].strip()[: self._max_chars]
        if kind == "query" and not text.strip():
            raise InputError(f"query {position} is empty: {text!r}; give it at least one word")
        return readable(text)

    @property
    def _max_chars(self) -> int:
        return max(16_384, 32 * self.max_length)

    def _pass(
        self,
        texts: Sequence[str],
        names: Sequence[int],
        kind: Kind,
        wanted: frozenset[Output],
        depth: int | None = None,
    ) -> States:
        if not texts:
            return self._nothing(wanted, depth)
        with self._lock:
            states = (
                self.forward(texts, kind, wanted)
                if depth is None
                else self.forward(texts, kind, wanted, depth)
            )
        self._check_finite(states, texts, names)
        return states

    def _check_finite(self, states: States, texts: Sequence[str], names: Sequence[int]) -> None:
        """Raise EncodingError on NaN and infinity, naming the first text that has them."""
        for output in get_args(Output):
            value: Tensor | None = getattr(states, output)
            if value is None or bool(torch.isfinite(value.sum())):  # one sum tells in nearly all cases
                continue
            bad = (~torch.isfinite(value)).flatten(1).any(dim=1)
            if bool(bad.any()):
                first = int(bad.nonzero()[0])
                raise EncodingError(
                    f"encoder {self.name!r} gave NaN or infinity in {output} of text {names[first]}: "
                    f"{texts[first]!r:.80} (precision {self.precision}; dtype='float32' has the widest range)"
                )

    def _depth(self, depth: int | None, wanted: frozenset[Output]) -> int | None:
        if depth is None:
            return None
        if wanted != {"layers"} or not 1 <= depth <= self.num_layers:
            raise ConfigError(
                f"depth goes with outputs=('layers',) and from 1 to the {self.num_layers} layers of {self.name!r}; "
                f"got depth={depth!r}, outputs={sorted(wanted)!r}"
            )
        return depth

    def _nothing(self, wanted: frozenset[Output], depth: int | None) -> States:
        wide, high = self.hidden_size, (self.num_layers if depth is None else depth) + 1
        shapes = {"pooled": (0, self.dimension), "tokens": (0, 0, wide), "layers": (0, high, 0, wide)}
        empty = {name: torch.zeros(shapes[name], device=self.device) for name in wanted}
        mask = torch.zeros((0, 0), dtype=torch.bool, device=self.device) if wanted - {"pooled"} else None
        return States(**empty, mask=mask)


def _outputs(outputs: Sequence[Output]) -> frozenset[Output]:
    wanted: frozenset[Output] = frozenset(outputs)
    if not wanted or wanted - set(get_args(Output)):
        raise ConfigError(f"outputs must be some of {', '.join(get_args(Output))}; got {outputs!r}")
    return wanted


def readable(text: str) -> str:
    """With "?" for lone surrogates, which tokenizers refuse; every character stays in its place."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def digest(*parts: str) -> str:
    """SHA-256 over strings, with their borders."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
