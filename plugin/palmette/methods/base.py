"""Model: the base of every method's trained retriever, and the hooks that a method fills.

A method (``methods/<name>/model.py``) subclasses :class:`Model` once. It must fill ``arrays``, ``encode_documents``,
``encode_queries``, ``plan`` and ``explain``, and where it trains ``task`` and ``module_for``; the other hooks have
defaults.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import unit_rows
from palmette.config import Config, check_keys
from palmette.data import RetrievalData, load_data
from palmette.encoder import Encoder, load_encoder
from palmette.encoder.cache import EncodingCache
from palmette.encoder.load import encoder_of
from palmette.encoder.space import SPACE_PREFIX, Space, SpaceEncoder
from palmette.errors import CheckpointError, ConfigError, InputError
from palmette.hub import Checkpoint
from palmette.hub.checkpointed import Checkpointed, TrainingRecord
from palmette.lexical.analyser import LANGUAGE
from palmette.machine.devices import load_module, require_torch
from palmette.ranking.rerank import rank_documents
from palmette.ranking.score import SHIPPED, Calibration, Lexical, ScoreScales, check_lexical, read_calibrations
from palmette.search.plan import ArraySpec, Candidates, Floats, SearchPlan
from palmette.store.protocols import View
from palmette.types import Document, Explanation

if TYPE_CHECKING:
    from torch import nn

    from palmette.training import Task

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"

VECTOR = "vector"
"""Array of the vector of a document, or of a query, where a method has one."""

Queries = dict[str, NDArray[Any]]
"""Query arrays by name, one row per query."""

Arrays = Mapping[str, NDArray[np.generic]]
"""Stored arrays by name, one row per document."""

LOADED: WeakValueDictionary[tuple[object, ...], Model] = WeakValueDictionary()
"""Models in use, so that many retrievers of one checkpoint share one (a live model keeps its encoder's id)."""


class FitInputs(NamedTuple):
    """Data, encoder and cache that a task is made of, and the seed of everything random."""

    data: RetrievalData
    encoder: Encoder
    cache: EncodingCache
    seed: int = 0
    progress: bool | None = False


class Model(Checkpointed):
    """A trained retriever of one method: encodes texts, plans searches, explains hits.

    Made by ``fit``, ``from_pretrained`` or :func:`palmette.load_model`; threads, indexes and retrievers may share it.
    """

    retriever: ClassVar[str] = "PalmetteRetriever"
    """Name of the retriever in both adapters; model cards import it from them."""
    config_class: ClassVar[type[Config]]
    search_class: ClassVar[type[Config]]
    training_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the training loop that differ from :class:`TrainingConfig`'s."""
    reads_metadata: bool = False
    """Whether metadata are fields of their own, so that frameworks must not prepend them to the text."""
    sentences: bool = True
    """Whether the encoder's vectors of single sentences compare with this model's queries."""
    stores_vectors: ClassVar[bool] = False
    """Whether the stored array :data:`VECTOR` holds the encoder's own vectors of passages."""
    cuts_documents: ClassVar[bool] = True
    """Whether an index cuts long documents into passages, unless it is told otherwise."""
    usual_score_scales: ClassVar[ScoreScales | None] = None
    """Score scales that stay where measured ones agree with them; ``None`` if none are usual."""

    def __init__(  # a method without weights of its own has no module
        self,
        config: Config,
        encoder: Encoder,
        module: nn.Module | None,
        *,
        record: TrainingRecord | None = None,
        origin: str | None = None,
        revision: str | None = None,
    ) -> None:
        self.config, self.encoder, self.origin, self.revision = config, encoder, origin, revision
        self.module: Any = module and module.to(encoder.device).eval().requires_grad_(False)
        self.record = record or TrainingRecord()
        # config of a checkpoint of an earlier version: a copy keeps it, and so its fingerprint
        self._loaded_config: Mapping[str, Any] | None = None
        self.calibrations: dict[str, Calibration] = {}  # by `lexical_key`
        self.cache: EncodingCache | None = None  # of this process's training
        self._search_options: dict[tuple[object, ...], Any] = {}  # validated before

    # -- hooks ----------------------------------------------------------------------------------------------

    @classmethod
    def uses_space(cls, config: Any, data: RetrievalData) -> bool:
        """Return True if labelled pairs train a linear map before the method, which then reads pooled vectors only."""
        return False

    @classmethod
    def task(cls, config: Any, inputs: FitInputs) -> tuple[Config, Task]:
        """Create the training task, and complete the config from the data; by default nothing is trained."""
        from palmette.training import Untrained

        return config, Untrained()

    @classmethod
    def module_for(cls, config: Any, encoder: Encoder) -> nn.Module | None:
        """Create an untrained module for a checkpoint's weights; by default ``None``, as there are no weights."""
        return None

    @abstractmethod
    def arrays(self) -> tuple[ArraySpec, ...]:
        """Arrays stored for each document."""

    @abstractmethod
    def encode_documents(self, documents: Sequence[Document], vectors: Floats | None = None) -> Arrays:
        """Stored arrays, one row per document; from the encoder's vectors [N, d] where they are given."""

    @property
    def accepts_embeddings(self) -> bool:
        """True if indexing and searching need nothing but the encoder's vectors."""
        return False

    @property
    def indexes_embeddings(self) -> bool:
        """True if indexing needs nothing but the encoder's document vectors."""
        return self.accepts_embeddings

    @abstractmethod
    def encode_queries(self, queries: Sequence[str] | Floats, options: Any) -> Queries:
        """Query arrays for a search, from texts or from the encoder's query vectors [Q, d]."""

    @abstractmethod
    def plan(self, queries: Queries, k: int, options: Any, view: View) -> SearchPlan:
        """Plan which query vectors compare with which stored array; may read ``len(view)``, ``view.list_sizes``."""

    def rank(self, view: View, plan: SearchPlan, candidates: Candidates, k: int, options: Any) -> Candidates:
        """Reorder or cut candidates; by default they stay as the plan ranks them."""
        return candidates

    @abstractmethod
    def explain(self, query: Queries, arrays: Arrays, options: Any, evidence: Mapping[str, Any]) -> Explanation:
        """Explain a score by parts that add up to it; ``evidence`` holds facts of the hit, and its ``document``."""

    def content_read(self, document: Document) -> str:
        """Content that an encoding depends on; ``score`` encodes documents of equal content once."""
        return repr((document.metadata if self.reads_metadata else None, document.text, document.fields))

    def check_search(self, options: Any) -> None:
        """Raise ConfigError when search options do not fit this model."""

    def scoring_options(self, options: Any) -> Any:
        """Return options that score documents alike, but neither leave any out nor change the order.

        Explanations and :meth:`score` use them.
        """
        return options

    def query_input(self, texts: Sequence[str]) -> Any:
        """Convert texts to the input of :meth:`encode_queries`: the encoder's vectors where it accepts them."""
        return self.encoder.encode_queries(texts) if self.accepts_embeddings else texts

    def sentence_queries(self, queries: Queries, texts: Sequence[str] | Floats) -> Floats:
        """Return unit vectors [Q, d] to compare with sentences, from the query arrays and their texts or vectors."""
        vectors = texts if isinstance(texts, np.ndarray) else self.encoder.encode_queries(texts)
        return unit_rows(vectors)

    def lexical_variants(self) -> dict[str, Any]:
        """Searches that are calibrated, each for itself, by key."""
        return {"": self.search_class()}

    def lexical_key(self, options: Any) -> str | None:
        """Key of the variant with the same range of scores; ``None`` if these options do not rank by score alone."""
        return ""

    def default_words(self, options: Any) -> float | None:
        """Weight of words in a search that gives none; ``None`` for the learned or shipped one."""
        return None

    def after_fit(self, task: Any) -> None:
        """Keep facts of the training besides weights, such as topics; :meth:`extras` saves them."""

    def load_extras(self, files: Mapping[str, bytes]) -> None:
        """Read :meth:`extras` back; checkpoints of other programs may lack them."""

    def describe(self) -> dict[str, Any]:
        """Facts of the trained structure."""
        return {}

    # -- training -------------------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        data: Any,
        *,
        preset: str | None = None,
        encoder: str | Encoder = DEFAULT_ENCODER,
        device: str | None = None,
        output_dir: str | Path | None = None,
        resume: bool = False,
        progress: bool | None = None,
        cache: EncodingCache | str | Path | None = None,
        learn_space: bool | None = None,
        **options: Any,
    ) -> Self:
        """Train a model.

        Args:
            data: Anything :func:`palmette.load_data` reads.
            preset: A named set of options; ``"paper"`` for the paper's own recipe.
            encoder: A sentence-transformers model, by name or folder, or an :class:`palmette.Encoder`.
            device: Where to train; ``None`` for the best there is.
            output_dir: Keeps the log and the state to ``resume`` from.
            resume: Continue the run in ``output_dir``.
            progress: Progress bars; ``None`` shows them on a terminal.
            cache: Where encodings are kept; ``None`` for the user's cache folder.
            learn_space: Let labelled pairs teach a space first (:mod:`palmette.training.space`); ``None`` does so
                without a ``preset``.
            options: Options of the method's config and of the loop
                (:class:`palmette.training.config.TrainingConfig`); they override the preset.
        """
        require_torch()
        from palmette.ranking.calibration import calibrate
        from palmette.training.config import fit_configs
        from palmette.training.loop import train
        from palmette.training.pairs import TrainingPairs
        from palmette.training.space import Choice, fit_space, learn_apart

        # 1. The options, and the data.
        settings, loop = fit_configs(cls.config_class, cls.training_defaults, preset, options)
        loaded = load_data(data, seed=loop.seed)
        if loaded.labelled and not loaded.trainable:
            raise InputError(
                f"{loaded.name} has no training pairs: splits are {sorted(loaded.qrels)}; 'train' is needed"
            )
        store = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)
        # 2. A space, where labelled pairs teach one that held-out questions gain from.
        coder = plain = load_encoder(encoder, device=device).plain
        facts, apart, vectors = dict[str, Any](), None, None
        learns = preset is None if learn_space is None else learn_space
        if learns and loaded.trainable and cls.uses_space(settings, loaded):
            pairs = TrainingPairs.encode(loaded, plain, store, seed=loop.seed, progress=progress)
            vectors = pairs.queries, pairs.documents
            space, facts = fit_space(pairs, seed=loop.seed, progress=progress)
            if space is not None:
                coder = SpaceEncoder(plain, space)
                apart = learn_apart(pairs, Choice(facts["maps"], facts["way"]), seed=loop.seed)
        # 3. The method's task, on texts that are encoded once, and its training.
        settings, task = cls.task(settings, FitInputs(loaded, coder, store, loop.seed, progress))
        where: dict[str, Any] = {"device": device, "output_dir": output_dir, "resume": resume}
        trained = train(task, loop, label=f"Training the {cls.method} model", progress=progress, **where)
        record = TrainingRecord.after(loaded, loop, task, trained).replace(space=facts)
        model = cls(settings, coder, task.module, record=record)
        model.after_fit(task)
        model.cache = store
        # 4. The probability of a hit, from method and words; where nothing was learned, an index measures the encoder's
        # score scales instead.
        if loaded.labelled or trained.steps:
            judging = None
            if apart is not None and not trained.steps:  # only the space has learned
                other = cls(settings, SpaceEncoder(plain, apart.space), task.module, record=record)
                judging = other, apart.queries, apart.share
            given: dict[str, Any] = {"seed": loop.seed, "progress": progress, "vectors": vectors, "apart": judging}
            model.calibrations = calibrate(model, loaded, coder, store, **given)
        return model

    # -- checkpoints ----------------------------------------------------------------------------------------

    def config_json(self) -> dict[str, Any]:
        """Content of ``config.json``."""
        return {
            "method": self.method,
            "config": self._loaded_config or self.config.to_dict(),
            "encoder": self.encoder.to_config(),
            "record": self.record.to_dict(),
            "evidence": {name: calibration.model_dump() for name, calibration in self.calibrations.items()},
        }

    def weights(self) -> dict[str, Any]:
        """Weights of the module as tensors, and the maps of the space as arrays."""
        own = {} if self.module is None else self.module.state_dict()
        tensors: dict[str, Any] = {name: value.detach().cpu().contiguous() for name, value in own.items()}
        return {**tensors, **self.encoder.space_weights()}

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, *, encoder: str | Encoder | None = None, **options: Any) -> Self:
        """Model of an opened checkpoint; loading the same twice gives the same object."""
        facts = checkpoint.config
        if facts.get("method") != cls.method:
            raise CheckpointError(
                f"{checkpoint.path} holds a {facts.get('method')!r} model, not {cls.method!r}: use palmette.load_model"
            )
        config = cls.config_class.from_dict(facts["config"])
        base_encoder = encoder.plain if isinstance(encoder, Encoder) else encoder
        coder = encoder_of(facts["encoder"], base_encoder, checkpoint.path, **options)
        learned = read_calibrations(facts)
        key = (checkpoint.fingerprint, repr(learned), checkpoint.origin, checkpoint.revision, id(coder))
        if isinstance(known := LOADED.get(key), cls):
            return known
        maps, weights = checkpoint.weights(SPACE_PREFIX)
        if space := Space.of(maps, coder.dimension):
            coder = SpaceEncoder(coder, space)
        try:
            module = load_module(lambda: cls.module_for(config, coder), weights)
        except RuntimeError as error:
            raise CheckpointError(f"{checkpoint.path}: weights do not fit the config ({error})") from error
        record = TrainingRecord.from_dict(facts.get("record", {}))
        model = cls(config, coder, module, record=record, origin=checkpoint.origin, revision=checkpoint.revision)
        model.calibrations = learned
        model.load_extras({name: checkpoint.file(name) for name in checkpoint.extras})
        model.fingerprint, model._loaded_config = checkpoint.fingerprint, facts["config"]
        LOADED[key] = model
        return model

    def search(self, view: View, queries: Queries, k: int, options: Any) -> Candidates:
        """The ``k`` best documents of a view for every query."""
        return self.execute(view, self.plan(queries, k, options, view), k, options)

    def execute(self, view: View, plan: SearchPlan, k: int, options: Any) -> Candidates:
        """The ``k`` best documents of a plan."""
        return self.rank(view, plan, view.candidates(plan, k), k, options)

    def require_embeddings(self) -> None:
        """Raise ConfigError unless the encoder's own vectors are enough for this model."""
        if not self.accepts_embeddings:
            raise ConfigError(f"a {self.method} model reads more than an embedding: give the text itself")

    def search_options(self, options: Mapping[str, Any]) -> Any:
        """Validated search options; unknown ones raise and name the known ones."""
        key: tuple[object, ...] | None = (*options.items(), *map(type, options.values()))  # True equals 1, and differs
        try:
            if (known := self._search_options.get(key or ())) is not None:
                return known
        except TypeError:  # a list: valid, perhaps, but no key
            key = None
        check_keys(f"{self.method} search", options, self.search_class.names())
        validated = self.search_class(**options)
        self.check_search(validated)
        if key is not None:
            if len(self._search_options) >= 256:
                self._search_options.clear()
            self._search_options[key] = validated
        return validated

    def calibration(self, options: Any, lexical: Lexical) -> Calibration | None:
        """Coefficients of a search with these options; ``None`` where it does not rank by score alone."""
        lexical, key = check_lexical(lexical), self.lexical_key(options)
        if key is None:
            if lexical in ("auto", 0):
                return None
            raise ConfigError(
                f"lexical={lexical!r} adds to a score, but these {self.method} options do not rank by score alone: "
                "leave them out, or search with lexical=0"
            )
        calibration = self.calibrations.get(key) or self.calibrations.get("") or SHIPPED
        words = self.default_words(options) if lexical == "auto" else lexical
        return calibration if words is None else calibration.model_copy(update={"words": words})

    def score(
        self,
        query: str,
        documents: Sequence[Document],
        *,
        lexical: Lexical = "auto",
        language: str | None = LANGUAGE,
        **options: Any,
    ) -> list[float]:
        """Probability that each document is relevant to a query, in the order given: reranking without an index.

        A document that ``options`` leave out has its score all the same, as in :meth:`palmette.Index.explain`; one
        without a phrase of the query has 0. ``lexical`` adds words as in a search, with IDF of these documents only:
        scores of different calls must not be compared. ``language`` selects the stemmer.
        """
        chosen = self.search_options(options)
        return rank_documents(self, query, documents, chosen, lexical=lexical, language=language).scores

    def __repr__(self) -> str:
        where = f" from {self.origin}" if self.origin else ""
        return f"<{type(self).__name__} {self.fingerprint[:12]}{where}, encoder {self.encoder.name}>"
