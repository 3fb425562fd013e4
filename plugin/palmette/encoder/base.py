"""The encoder interface: texts to states, with batching, checks and coalescing of concurrent queries."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from palmette.arrays import Floats, Rows, to_numpy
from palmette.config import check_choice, check_kind, check_range
from palmette.encoder.coalesce import Coalescer, FairLock
from palmette.encoder.sentences import Sentences, encode_sentences, whole_texts
from palmette.encoder.sentences.splitting import estimate_tokens
from palmette.encoder.states import States
from palmette.errors import ConfigError, EncodingError, InputError, shown
from palmette.machine import progress as bars

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Kind = Literal["query", "document"]
Output = Literal["pooled", "tokens", "layers"]


class LayerWeights(NamedTuple):
    """Weights of some transformer layers, first to last, and their number of attention heads.

    A layer has ``query``, ``key``, ``value``, ``attended`` (attention's output projection), ``inner`` and ``outer``
    (the feed-forward network), ``norms.0`` and ``norms.1``, each a ``.weight`` and a ``.bias``.
    """

    heads: int
    layers: list[dict[str, Tensor]]


def inner(name: str) -> Any:
    """Method of the encoder inside a :class:`WrappedEncoder`."""
    return property(attrgetter(f"encoder.{name}"))


class Encoder(ABC):
    """A frozen text encoder, safe to share between threads.

    A subclass sets the attributes below and fills :meth:`forward`; checks, batching, coalescing and locking
    are done here.

    Attributes:
        name: Name that :func:`load_encoder` accepts.
        revision: Hub commit, where known.
        dimension: Width d of the pooled vector.
        hidden_size: Width of token and layer states, which is d unless the model ends in a projection.
        num_layers: Layers L after the embeddings (0 where there are none to see).
        max_length: Tokens per pass; longer queries are cut, longer documents read in several passes.
        fingerprint: SHA-256 over all that determines the vectors: not path, device, precision or batch size.
        device: Device of the forward pass.
        precision: Dtype of the forward pass; results are always float32.
        prompts: Text put before a query and before a document.
        truncate: Columns that are kept of the model's vectors (Matryoshka); ``None`` for all.
        remote: True if texts go to a server, which counts them.
        asymmetric: True if queries and documents take different paths besides their prompts.
        batch_size: Largest number of texts per pass, unless a call sets another.
        tokens_per_pass: Approximate largest number of tokens per pass; ``None`` for no limit.
        frozen: False for an encoder that is being trained, whose encodings must not be kept.
        has_offsets: True if :meth:`forward` says which characters a token is made of.
        stands_for: Fingerprint of the encoder that this one is an export of, and whose place it may take.
        reads_questions_only: True if its vectors differ from those of ``stands_for``, so that documents of the same
            index must not be encoded by it.
    """

    name: str
    revision: str | None = None
    dimension: int
    hidden_size: int
    num_layers: int
    max_length: int
    fingerprint: str
    device: torch.device | str
    precision: str = "float32"
    prompts: Mapping[str, str]
    truncate: int | None = None
    remote: bool = False
    asymmetric: bool = False
    frozen: bool = True
    has_offsets: bool = False
    stands_for: str | None = None
    reads_questions_only: bool = False
    batch_size: int = 32
    tokens_per_pass: int | None = None

    def __init__(self) -> None:
        self._lock = FairLock()
        self._coalesce = Coalescer(32)  # more texts in a pass are hardly faster, and wait longer

    @abstractmethod
    def forward(self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None) -> States:
        """Run one pass over checked texts with the prompt of ``kind``; called by one thread at a time.

        With ``depth`` only the first ``depth`` layers' states are returned (and, where possible, computed).
        """

    def to_config(self) -> dict[str, Any]:
        """Return JSON values from which :func:`load_encoder` makes this encoder again, on any machine."""
        return {
            "name": self.name,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "max_length": self.max_length,
            "dimension": self.dimension,
            "prompts": dict(self.prompts),
            **({} if self.truncate is None else {"truncate": self.truncate}),
        }

    @property
    def plain(self) -> Encoder:
        """The encoder without a learned space: the one whose vectors users hold."""
        return self

    def map(self, vectors: Floats, kind: Kind) -> Floats:
        """Map vectors [N, d] of :attr:`plain` to this encoder's: where nothing is learned they stay."""
        return vectors

    def map_sentences(self, sentences: Sentences) -> Sentences:
        """Map the vectors of sentences as :meth:`map` maps documents."""
        return sentences

    def space_weights(self) -> dict[str, Floats]:
        """Maps of the learned space by their names in a checkpoint; none where nothing is learned."""
        return {}

    def with_torch(self) -> Encoder:
        """Return the same encoder as torch computes it, whose weights can be trained."""
        return self

    def finish(self, means: Any) -> Any:
        """Apply what follows the pooling (projections, unit length) to means of token states: [S, w] → [S, d]."""
        return means

    def pool(self, tokens: Any, mask: Any) -> Any:
        """Pool token states [B, T, w] of a pass where the mask [B, T] is true, and finish them: [B, d]."""
        sums = (tokens * mask[..., None]).sum(dim=1)
        return self.finish(sums / mask.sum(dim=1, keepdim=True).clamp(min=1))

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text, without those that a pass adds: here an estimate from its characters."""
        return estimate_tokens(texts)

    def layer_weights(self, count: int) -> LayerWeights | None:
        """Copy the last ``count`` transformer layers' weights; ``None`` where they are not of BERT's kind."""
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
    ) -> Iterator[tuple[Rows, States]]:
        """Yield batches of similar length, longest first: the texts' positions, and their states.

        Longest first shows at once whether the memory suffices. ``positions`` number the texts in messages, where
        that is not their order. A bar shows on terminals only, unless ``progress`` is False. States are of the first
        ``max_length`` tokens.
        """
        output_names, size = self._outputs(outputs, depth), self._size(batch_size)
        names = range(len(texts)) if positions is None else positions
        with text_bar("encoding", len(texts), progress) as bar:
            for rows, states in self.iter_batches(self.check(texts, kind), kind, output_names, size, names, depth):
                yield rows, states
                bar.update(len(rows))

    def iter_batches(
        self,
        texts: Sequence[str],
        kind: Kind,
        output_names: frozenset[Output],
        size: int,
        names: Sequence[int],
        depth: int | None = None,
    ) -> Iterator[tuple[Rows, States]]:
        """Yield the states of checked texts, one pass a batch, longest first."""
        order = np.argsort(-np.fromiter(map(len, texts), np.int64), kind="stable")
        while len(order):
            count = size
            if self.tokens_per_pass:
                tokens = min(self.max_length, 2 + len(texts[order[0]]) // 4)
                count = min(size, max(1, self.tokens_per_pass // tokens))
            rows, order = order[:count], order[count:]
            batch, named = list(map(texts.__getitem__, rows)), list(map(names.__getitem__, rows))
            yield rows, self._run_batch(batch, named, kind, output_names, depth)

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        batch_size: int | None = None,
        progress: bool | None = False,
    ) -> Floats:
        """Return pooled vectors in the order of the texts: [N, d], float32."""
        check_kind("texts", texts, Sequence, "a list of str")
        states = self.iter_states(texts, kind=kind, batch_size=batch_size, progress=progress)
        return self.gather(len(texts), states)

    def gather(self, count: int, batches: Iterator[tuple[Rows, States]]) -> Floats:
        """Gather the pooled vectors of batches in the order of the texts: [count, d]."""
        out = np.empty((count, self.dimension), np.float32)
        for rows, states in batches:
            assert states.pooled is not None
            out[rows] = to_numpy(states.pooled)
        return out

    def encode_sentences(
        self,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        progress: bool | None = False,
        positions: Sequence[int] | None = None,
        above: Sequence[str] = (),
    ) -> tuple[Floats, Sentences]:
        """Return the pooled vectors of documents [N, d], as :meth:`encode` does, and all of their sentences.

        ``above``, one for each text or none at all, is what stands above the text in its source: its title and
        headings. A pass reads it before the text, so that every token of the text knows of it, and then leaves its own
        tokens out: they are in no sentence, and count for nothing in the text's vector.

        What a pass leaves unread is read in windows of whole sentences; the document's vector stays that of its
        beginning (means over windows lose .03 nDCG@10 on MedQuAD's long answers, though they gain .01 on stories).
        A sentence's vector is the mean of its tokens' last hidden states in the pass over the whole text (also
        where the encoder pools by its first token), through what follows the pooling. An encoder without offsets
        gives one sentence a text, with the text's own vector.
        """
        size = self._size(batch_size)
        checked = self.check(texts, "document", cut=False)
        names = range(len(texts)) if positions is None else positions
        if self.has_offsets:
            with text_bar("encoding", len(texts), progress) as bar:
                read_before = self.check(above, "document", cut=False)
                return encode_sentences(self, checked, names, size, bar.update, read_before)
        pooled = self.encode(with_titles(checked, above), batch_size=batch_size, progress=progress)
        return pooled, whole_texts(checked, pooled)

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Return pooled query vectors [N, d]. Concurrent callers in other threads share a forward pass."""

        def encode(checked: list[str]) -> Floats:
            outputs: frozenset[Output] = frozenset({"pooled"})
            batches = self.iter_batches(checked, "query", outputs, self.batch_size, range(len(checked)))
            return self.gather(len(checked), batches)

        return self._coalesce(self.check(texts, "query"), encode)  # a bad text stops its own caller only

    def check_reads_documents(self) -> None:
        """Raise ConfigError where documents encoded here would not compare with those of the same index."""
        if self.reads_questions_only:
            raise ConfigError(
                f"this {self.precision} export of {self.name!r} reads questions only: documents of one index must all "
                "be encoded by one model; to add some, open the index without encoder="
            )

    def variant(self, kind: Kind) -> str:
        """Return a part of a cache's key: equal for two kinds that give equal vectors."""
        return f"{kind if self.asymmetric else ''}:{self.prompts.get(kind, '')}"

    @property
    def longest(self) -> int:
        """Characters that are sure to fill a pass: longer texts are cut before they are tokenised."""
        return max(16_384, 32 * self.max_length)

    def check(self, texts: Sequence[str], kind: Kind, *, cut: bool = True) -> list[str]:
        """Return texts that the model can take: str, with ``cut`` not much longer than it reads, encodable."""
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise InputError(
                f"texts must be a list of str, got {type(texts).__name__}: {shown(texts)}. A single text goes in a "
                "list: [text]"
            )
        check_choice("kind", kind, get_args(Kind))
        limit, checked = self.longest, []
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"text {position} must be a str, got {type(text).__name__}: {shown(text)}")
            if cut and len(text) > limit:  # megabytes would be tokenised in full before being cut
                text = text[: 8 * limit].strip()[:limit]
            if kind == "query" and not text.strip():
                raise InputError(f"query {position} is empty: {text!r}; give it at least one word")
            checked.append(readable(text))
        return checked

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, dimension={self.dimension}, device={str(self.device)!r})"

    def _size(self, requested: int | None) -> int:
        check_range("encode", "batch_size", self.batch_size if requested is None else requested, 1)
        return requested or self.batch_size

    def _outputs(self, outputs: Sequence[Output], depth: int | None) -> frozenset[Output]:
        """Check the names of requested outputs, and a depth, which is for ``layers`` alone."""
        output_names: frozenset[Output] = frozenset(outputs)
        if not output_names or output_names - set(get_args(Output)):
            raise ConfigError(f"outputs must be some of {', '.join(get_args(Output))}; got {outputs!r}")
        if depth is not None and (output_names != {"layers"} or not 1 <= depth <= self.num_layers):
            raise ConfigError(
                f"depth goes with outputs=('layers',) and from 1 to the {self.num_layers} layers of {self.name!r}; "
                f"got depth={depth!r}, outputs={sorted(output_names)!r}"
            )
        return output_names

    def _run_batch(
        self, texts: Sequence[str], names: Sequence[int], kind: Kind, output_names: frozenset[Output], depth: int | None
    ) -> States:
        """Run one pass; NaN and infinity raise EncodingError with the number of the first such text."""
        with nullcontext() if self.remote else self._lock:
            states = self.forward(texts, kind, output_names, *([] if depth is None else [depth]))
        for output in get_args(Output):
            value = getattr(states, output)
            if value is None or math.isfinite(float(value.sum())):  # one sum tells in nearly all cases
                continue
            for first in np.flatnonzero(~np.isfinite(to_numpy(value)).reshape(len(texts), -1).all(axis=1)).tolist():
                raise EncodingError(
                    f"encoder {self.name!r} gave NaN or infinity in {output} of text {names[first]}: "
                    f"{shown(texts[first])} (precision {self.precision}; dtype='float32' has the widest range)"
                )
        return states


class WrappedEncoder(Encoder):
    """An encoder around another one, whose attributes it shares, locks included."""

    copies, finish, to_config, with_torch = inner("copies"), inner("finish"), inner("to_config"), inner("with_torch")
    pool, count_tokens = inner("pool"), inner("count_tokens")

    def __init__(self, encoder: Encoder) -> None:
        names = [name for name in Encoder.__annotations__ if hasattr(encoder, name)]
        self.__dict__.update({name: getattr(encoder, name) for name in names} | encoder.__dict__)
        self.encoder = encoder


def text_bar(label: str, total: int, progress: bool | None) -> Any:
    """Make a bar of texts that shows on terminals only, and not at all where ``progress`` is False."""
    shown = False if progress is False else None
    return bars.progress_bar(shown, total=total, desc=label, unit="text", delay=1)


def with_titles(texts: Sequence[str], above: Sequence[str]) -> Sequence[str]:
    """Return texts, each after what stands above it in its source, for encoders that read one text as a whole."""
    if not above:
        return texts
    return [f"{title}\n{text}" if title else text for title, text in zip(above, texts, strict=True)]


def token_counter(tokenizer: Any) -> Callable[[Sequence[str]], list[int]]:
    """Return a function that counts all tokens of texts, for a tokenizer of the library ``tokenizers``.

    The library keeps padding and truncation in the tokenizer. The function's copy has neither, and nobody sets it, so
    that it serves any number of threads without a lock.
    """
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    copy.encode_special_tokens = tokenizer.encode_special_tokens  # which is not in the text

    def count(texts: Sequence[str]) -> list[int]:
        encodings = copy.encode_batch_fast([readable(text) for text in texts], add_special_tokens=False)
        return [len(encoding) for encoding in encodings]

    return count


def readable(text: str) -> str:
    """Replace lone surrogates, which tokenizers refuse, by "?"; every character keeps its place."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
