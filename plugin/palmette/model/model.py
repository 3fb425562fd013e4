"""Model: what every method's trained retriever is, and the few hooks a method fills in.

A method (``methods/<name>/``) subclasses :class:`Model` once and says

====================  =========================================================================================
``config_class``      its options, stored in the checkpoint                              (a frozen ``Config``)
``training_class``    its defaults for the loop, where they differ                 (a ``TrainingConfig``)
``search_class``      its options of one search                                          (a frozen ``Config``)
``task``              what is trained: module, loss, validation                          (a ``training.Task``)
``run``               the training itself, where one run of the loop is not all of it
``module_for``        an untrained module of the right shape, to load weights into
``arrays``            which arrays it keeps for each document                            (``ArraySpec``)
``encode_documents``  documents → those arrays (and ``encode_vectors``, where an encoder's vector is enough)
``encode_queries``    texts → query arrays (and ``encode_embeddings``, where an encoder's vector is enough)
``planned``           query arrays + what the whole view decides about a search, where it does
``search``            query arrays + a view of the index → keys and scores
``explain``           one query, one document → parts that add up to the score ``search`` gave
``learned``           what is kept of a training besides weights, where a method needs it
``survey``            how an index's documents fit the trained structure (and ``warning``, where they do not)
``files``/``restore``  what a checkpoint keeps besides config and weights, where a method needs it
====================  =========================================================================================

Everything else — data, caching, the loop, checkpoints, the Hub, the index, the frameworks — is here or below.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.config import Config, check_keys
from palmette.encoder import Encoder, Kind
from palmette.errors import ConfigError
from palmette.hub import Checkpoint
from palmette.lexical.mix import Lexical, Mix, check_lexical, options_key
from palmette.lexical.tokens import LANGUAGE, check_language
from palmette.model.fitting import documented, fit
from palmette.model.loading import load
from palmette.model.published import Published
from palmette.model.scoring import scores_of
from palmette.record import Record
from palmette.search.probe import ArraySpec, Floats, Found
from palmette.training import Task, Trained, TrainingConfig, train
from palmette.types import Document, Explanation

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.data import RetrievalData
    from palmette.store.backend import View

__all__ = ["DEFAULT_ENCODER", "Model", "Queries"]

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"

Queries = dict[str, NDArray[Any]]
"""Named query arrays, one row per query in each."""


class Model(Published):
    """A trained retriever of one method: turns texts into arrays, ranks them, says why.

    Made by ``fit``, ``from_pretrained`` or :func:`palmette.load_model`; safe to share between threads, indexes
    and retrievers.
    """

    retriever: ClassVar[str]
    config_class: ClassVar[type[Config]]
    training_class: ClassVar[type[TrainingConfig]] = TrainingConfig
    search_class: ClassVar[type[Config]]
    reads_metadata: bool = False
    """Whether metadata are read where they lie, so that the text is to be without what a framework puts before it."""
    makes_queries: ClassVar[bool] = False
    """Whether documents without labels may come without the queries that :func:`palmette.load_data` makes of them."""

    def __init_subclass__(cls) -> None:
        """Let ``help(…Model.fit)``, and a notebook's tooltip, say what every option does."""
        super().__init_subclass__()
        documented(cls)

    def __init__(
        self,
        config: Config,
        encoder: Encoder,
        module: nn.Module,
        *,
        record: Record | None = None,
        origin: str | None = None,
        revision: str | None = None,
    ) -> None:
        self.config = config
        self.encoder = encoder
        self.module = module.to(encoder.device).eval().requires_grad_(False)
        self.record = record or Record()
        self.origin = origin
        self.revision = revision
        self.mixes: dict[str, Mix] = {}
        """How words count beside this model's scores, by search options (see :meth:`mix`)."""

    # -- hooks ----------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def task(
        cls,
        config: Any,
        data: RetrievalData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> tuple[Config, Task]:
        """The training task, and the config completed from the data (widths, sizes)."""

    @classmethod
    def run(cls, task: Any, training: TrainingConfig, **how: Any) -> Trained:
        """Train a task; what trains in stages, or measures something once it is trained, does it here."""
        return train(task, training, **how)

    @classmethod
    @abstractmethod
    def module_for(cls, config: Any, encoder: Encoder) -> nn.Module:
        """An untrained module, to load a checkpoint's weights into."""

    @abstractmethod
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The arrays kept for each document."""

    @abstractmethod
    def encode_documents(self, documents: Sequence[Document]) -> dict[str, NDArray[np.generic]]:
        """Those arrays, one row per document."""

    def encode_vectors(
        self, documents: Sequence[Document], vectors: Floats
    ) -> dict[str, NDArray[np.generic]]:
        """The same from the encoder's own document vectors [N, d], where the method needs no more than those."""
        raise ConfigError(
            f"a {self.method} model reads more of a document than its embedding: add it without embeddings"
        )

    @abstractmethod
    def encode_queries(self, texts: Sequence[str], options: Any) -> Queries:
        """Query arrays for a search with these options, one row per text."""

    @property
    def takes_embeddings(self) -> bool:
        """Whether the encoder's own query vectors are all that a search needs."""
        return False

    def encode_embeddings(self, vectors: Floats) -> Queries:
        """Query arrays from the encoder's own query vectors [Q, d], where the method needs no more than those."""
        raise ConfigError(
            f"a {self.method} model reads more of the text than its embedding: search with the text itself"
        )

    def planned(self, view: View, queries: Queries, k: int, options: Any) -> Queries:
        """With what the whole view decides, so that searches of parts of it agree; planning twice changes nothing."""
        return queries

    @abstractmethod
    def search(self, view: View, queries: Queries, k: int, options: Any) -> Found:
        """The ``k`` best documents of a view for every query."""

    @abstractmethod
    def explain(
        self,
        query: Queries,
        arrays: Mapping[str, NDArray[np.generic]],
        options: Any,
        evidence: Mapping[str, Any],
    ) -> Explanation:
        """Why a document scores what it does for a query; ``evidence``: the hit's, if any, and the ``document``."""

    def additive(self, options: Any) -> bool:
        """Whether these searches rank by score alone, so that something may be added to it."""
        return True

    def scored_alike(self, options: Any) -> Any:
        """Plainer options under which scores have the same range, which is all that a :class:`Mix` depends on."""
        return options

    def calibrated(self) -> Sequence[Any]:
        """The options of which :attr:`mixes` are learned in training; empty where words are no help."""
        return [self.search_class()]

    def learned(self, task: Any) -> None:
        """Keep what a training has shown besides the weights, such as topics (``files`` then writes it)."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Read :meth:`files` back."""

    def reads(self, document: Document) -> str:
        """What of a document counts besides its text: two with the same of both have the same arrays."""
        return repr(document.fields)

    def vectors(self, texts: Sequence[str], *, kind: Kind = "document", **options: Any) -> Floats:
        """One vector per text, for other people's vector stores: the encoder's own, unless a method has better."""
        check_keys(f"{self.method} vectors", options, ())
        return self.encoder.encode_queries(texts) if kind == "query" else self.encoder.encode(texts)

    def describe(self) -> dict[str, Any]:
        """Facts about the trained structure, for ``palmette inspect``."""
        return {}

    def survey(self, view: View) -> dict[str, Any]:
        """Facts about an index's documents in this structure, for ``palmette inspect``."""
        return {}

    def warning(self, view: View) -> str | None:
        """What is wrong with an index that has grown, and the remedy; said after adds."""
        return None

    # -- training -------------------------------------------------------------------------------------------

    @classmethod
    def _fit(
        cls,
        data: Any,
        options: Mapping[str, Any],
        *,
        encoder: str | Encoder = DEFAULT_ENCODER,
        device: str | None = None,
        output_dir: str | Path | None = None,
        resume: bool = False,
        progress: bool | None = None,
        cache: EncodingCache | str | Path | None = None,
    ) -> Self:
        """What every ``fit`` does; ``options`` are those of the method's config and of its training class."""
        run: dict[str, Any] = {
            "device": device,
            "output_dir": output_dir,
            "resume": resume,
            "progress": progress,
        }
        return fit(cls, data, options, encoder=encoder, cache=cache, **run)

    # -- checkpoints ----------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        return {
            "method": self.method,
            "config": self.config.to_dict(),
            "encoder": self.encoder.to_config(),
            "record": self.record.to_dict(),
            "words": {name: mix.to_dict() for name, mix in self.mixes.items()},
        }

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value.detach().cpu().contiguous() for name, value in self.module.state_dict().items()}

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, encoder: str | Encoder | None = None, **options: Any
    ) -> Self:
        """The model of an opened checkpoint; loading the same twice gives the same object."""
        return load(cls, checkpoint, encoder, options)

    # -- searching ------------------------------------------------------------------------------------------

    def options(self, given: Mapping[str, Any]) -> Any:
        """The search options of this method; unknown ones raise and name the known ones."""
        check_keys(f"{self.method} search", given, self.search_class.names())
        options = self.search_class.of(**given)
        self.check_options(options)
        return options

    def check_options(self, options: Any) -> None:
        """Raise ConfigError when search options do not fit this model."""

    def shortlist(self, options: Any) -> int | None:
        """How many documents a search fetches by one score to rank them by another; ``None`` where it has one score.

        After such a search the last score says nothing of documents that were not fetched.
        """
        return None

    def mix(self, options: Any, lexical: Lexical) -> Mix | None:
        """How words count in a search with these options; ``None`` where they do not."""
        if lexical != "auto" and lexical > 0 and not self.additive(options):
            raise ConfigError(
                f"lexical={lexical!r} adds to a score, but these {self.method} options do not rank by score alone: "
                "leave them out, or search with lexical=0"
            )
        if lexical == 0 or not self.additive(options):
            return None
        learned = self.mixes.get(options_key(self.scored_alike(options))) or self.mixes.get("")
        own = learned.weight if learned else 0.0
        weight = own if lexical == "auto" else lexical
        return (learned or Mix()).replace(weight=weight) if weight else None

    def score(
        self,
        query: str,
        documents: Sequence[Document],
        *,
        lexical: Lexical = 0.0,
        language: str | None = LANGUAGE,
        **options: Any,
    ) -> list[float]:
        """The score of each document for a query, in the order given: reranking without an index.

        ``lexical`` mixes words in, as in a search, but what is rare is then told by these documents alone: scores are
        to be compared with each other only. ``language`` is whose word endings are cut off.
        """
        chosen, weight = self.options(options), check_lexical(lexical)
        return scores_of(self, query, documents, chosen, self.mix(chosen, weight), check_language(language))

    def __repr__(self) -> str:
        where = f" from {self.origin}" if self.origin else ""
        return f"<{type(self).__name__} {self.fingerprint[:12]}{where}, encoder {self.encoder.name}>"
