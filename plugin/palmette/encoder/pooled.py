"""Encoders that give one vector a text and no token states: objects of frameworks, functions, servers."""

from __future__ import annotations

import hashlib
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from palmette.arrays import Floats, unit_rows
from palmette.encoder.base import Encoder, Kind, Output
from palmette.encoder.options import check_truncate, chosen_prompts, fingerprint_with, truncated
from palmette.encoder.states import States
from palmette.errors import ConfigError, EncodingError, ModelMismatchError, shown

PROBE = "palmette"
"""Text whose vector tells the width, and one model of a name from another."""
SAME_MODEL = 0.98
"""Least cosine of two vectors of PROBE by one model; half precision and another batch stay well above it."""
CHECKED_EVERY = 60.0
"""Seconds after which a request of questions carries PROBE again; each one of documents does."""
BEGINNING = 200
"""Characters by which texts are told apart; what a model cuts off may make longer ones equal."""
SAFE_SHARE = 0.98
"""Part of the largest number of a vector that may be the largest where the vector is computed again."""


class PooledEncoder(Encoder):
    """The base of encoders that return one vector a text: a subclass fills :meth:`embed`.

    Documents are ranked by their vector and by words, and each passage counts as one sentence.
    """

    def __init__(self, name: str, *, max_length: int, batch_size: int) -> None:
        super().__init__()
        self.name, self.max_length, self.batch_size = name, max_length, batch_size
        self.device, self.prompts, self.num_layers = "cpu", {}, 0
        self.dimension = self.hidden_size = self.width = 0
        self.truncate: int | None = None
        self.probes_queries = True
        """Whether PROBE goes along with questions, too."""
        self.source = repr(name)
        """What gives the vectors, for messages."""
        self._probe: Floats | None = None  # vector of PROBE by the model that is known
        self._checked = -math.inf  # the first request always compares the model with what is known of it

    @abstractmethod
    def embed(self, texts: list[str], kind: Kind) -> Any:
        """Return a vector for each of some texts, none of them blank, with their prompt."""

    def settle(self, facts: str, prompts: Mapping[str, str] | None, truncate: int | None) -> None:
        """Ask for the vector of PROBE, and set prompts, width and fingerprint; ``facts`` name the model."""
        probe = self.unit_vectors([PROBE], "document")[0]
        self.check_model(probe)
        self.width = len(probe)
        self.prompts = {kind: prompt for kind, prompt in chosen_prompts(prompts, {}).items() if prompt}
        self.truncate = check_truncate(truncate, self.width, self.name)
        self.dimension = self.hidden_size = self.truncate or self.width
        own = fingerprints(facts, probe)[0]
        self.fingerprint = fingerprint_with(own, {}, self.prompts, self.truncate)

    def forward(self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None) -> States:
        """Ask for the vectors of texts; there are no others.

        PROBE goes along with documents, and now and then with questions: a model that is exchanged behind the name
        raises before a vector of it is kept.
        """
        if more := outputs - {"pooled"}:
            raise ConfigError(
                f"{self.name!r} gives one vector a text and no {' and '.join(sorted(more))}: this method needs an "
                "encoder whose states palmette can read, such as a sentence-transformers model"
            )
        prompt = self.prompts.get(kind, "")
        prompted = [prompt + text for text in texts]
        is_due = time.monotonic() - self._checked > CHECKED_EVERY
        if kind == "document" or (is_due and self.probes_queries):
            rows = self.unit_vectors([PROBE, *prompted], kind)
            self.check_model(rows[0])
            vectors = rows[1:]
        else:
            vectors = self.unit_vectors(prompted, kind)
        return States(pooled=truncated(vectors, self.truncate))

    def check_model(self, probe: Floats) -> None:
        """Raise unless the vector of PROBE [d] is that of the model that is known."""
        cosine = 1.0 if self._probe is None else float(probe @ self._probe)
        if cosine < SAME_MODEL:
            raise ModelMismatchError(
                f"{self.source} is another model than before: its vector of the text {PROBE!r} has a cosine of "
                f"{cosine:.2f} with the earlier one. What is indexed and the model no longer match, and nothing was "
                "written: give the model of that time again, or build the index anew"
            )
        if self._probe is None:
            self._probe = probe
        self._checked = time.monotonic()

    def unit_vectors(self, texts: list[str], kind: Kind) -> Floats:
        """Return unit vectors [N, d]; raise where :meth:`embed` returns anything else."""
        returned = self.embed([text if text.strip() else " " for text in texts], kind)
        try:
            vectors = np.asarray(returned, np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise EncodingError(f"{self.source} returned no vectors but {shown(returned)} ({error})") from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise EncodingError(
                f"{self.source} returned an array {np.shape(vectors)} for {len(texts)} texts: a vector for each is "
                "needed"
            )
        if self.width and vectors.shape[1] != self.width:
            raise EncodingError(
                f"{self.source} returned vectors of {vectors.shape[1]} numbers, and {self.width} before: is it "
                "still the same model?"
            )
        if not np.isfinite(vectors).all():
            row = int((~np.isfinite(vectors)).any(axis=1).argmax())
            raise EncodingError(f"{self.source} returned NaN or infinity for text {row}: {shown(texts[row])}")
        for row in np.flatnonzero(~vectors.any(axis=1)).tolist():
            if texts[row].strip():
                raise EncodingError(f"{self.source} returned a vector of zeros for text {row}: {shown(texts[row])}")
        unit = unit_rows(vectors)
        if len(unit) > 1 and np.abs(unit - unit[0]).max() < 1e-6:
            different = {" ".join(text.casefold().split())[:BEGINNING]: text for text in texts}
            if len(different) > 1:
                first, second, *_ = different.values()
                raise EncodingError(
                    f"{self.source} returned the same vector for all of {len(different)} different texts, such as "
                    f"{shown(first)} and {shown(second)}: correct the model"
                )
        return unit


def fingerprints(facts: str, probe: Floats) -> list[str]:
    """Return the fingerprint of a model by the vector of PROBE [d], and those that noise could make of it.

    Another model has its largest number elsewhere. Noise in the last digits moves it among the largest ones only.
    """
    sizes = np.abs(probe)
    order = np.argsort(-sizes, kind="stable")
    near = order[sizes[order] >= SAFE_SHARE * sizes[order[0]]]
    rows = [f"{facts}\0{len(probe)}\0{largest}\0{probe[largest] > 0}" for largest in near.tolist()]
    return [hashlib.sha256(row.encode("utf-8", "surrogatepass")).hexdigest() for row in rows]


PREFIX = "given:"
"""Beginning of the names of such encoders: the object itself has to be given again."""
NAME_ATTRIBUTES = ("model_name", "model", "__qualname__")
"""Attributes that may name the model; only a text is kept, since another value could hold a key."""
TEXTS_PER_CALL = 64
"""Texts of a call."""
ASSUMED_TOKENS = 512
"""Tokens that a text is taken to have room for, as palmette estimates them; longer documents become passages."""

Embed = Callable[[list[str]], Any]
"""Texts → a vector for each."""


def is_embedder(value: object) -> bool:
    """Return whether a value is LangChain's ``Embeddings``, LlamaIndex's ``BaseEmbedding``, or a function."""
    named = any(callable(getattr(value, name, None)) for name in ("embed_documents", "get_text_embedding_batch"))
    return named or (callable(value) and not isinstance(value, type | Encoder))


class GivenEncoder(PooledEncoder):
    """An encoder that asks an object of the user's for vectors of texts.

    An index keeps its name and width, never the object: give it again to open the index.

    Args:
        embedder: LangChain's ``Embeddings``, LlamaIndex's ``BaseEmbedding``, or a function of a list of texts that
            returns a vector for each.
        prompts: Text put before a query and before a document.
        truncate: Columns of the vectors that are kept, of a model that was trained for it (Matryoshka).
    """

    asymmetric = True

    def __init__(self, embedder: Any, *, prompts: Mapping[str, str] | None = None, truncate: int | None = None) -> None:
        name = next(
            (value for key in NAME_ATTRIBUTES if isinstance(value := getattr(embedder, key, None), str) and value),
            type(embedder).__name__,
        )
        super().__init__(f"{PREFIX}{name}", max_length=ASSUMED_TOKENS, batch_size=TEXTS_PER_CALL - 1)  # beside PROBE
        self.embedder, self._embed = embedder, _calls_of(embedder)
        self.probes_queries = self._embed[0] is self._embed[1]  # a framework's call for questions takes one text
        self.settle(f"given encoder 1\0{name}", prompts, truncate)

    def embed(self, texts: list[str], kind: Kind) -> Any:
        """Call the object."""
        return self._embed[kind == "query"](texts)


def _calls_of(embedder: Any) -> tuple[Embed, Embed]:
    """Return the calls for documents and for queries."""
    if callable(getattr(embedder, "embed_documents", None)):  # LangChain
        return embedder.embed_documents, lambda texts: [embedder.embed_query(text) for text in texts]
    if callable(getattr(embedder, "get_text_embedding_batch", None)):  # LlamaIndex
        embed_query = embedder.get_query_embedding
        return embedder.get_text_embedding_batch, lambda texts: [embed_query(text) for text in texts]
    return embedder, embedder
