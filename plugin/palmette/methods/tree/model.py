"""TreeModel: the hooks of the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from palmette.arrays import Floats, evenly_spaced, fold_columns
from palmette.config import check_range
from palmette.data import RetrievalData
from palmette.encoder import Encoder, Kind, States
from palmette.errors import ConfigError, TrainingError
from palmette.lexical.terms import TopicTerms, terms_from_json, terms_to_json
from palmette.methods.base import Arrays, FitInputs, Model, Queries
from palmette.methods.tree.config import TRAINING, TreeConfig, TreeSearch
from palmette.methods.tree.explain import explain, topics_of_training
from palmette.methods.tree.init import initialise
from palmette.methods.tree.leaves import ADAPTED, LEAVES, as_searched, stored_format, to_stored
from palmette.methods.tree.module import DoubleRouter, Tree
from palmette.methods.tree.training import DOCUMENTS_FOR_FORMAT, TreeTask
from palmette.ranking.score import options_key
from palmette.search.plan import ArraySpec, Score, SearchPlan
from palmette.store.protocols import View
from palmette.training.pairs import TrainingPairs
from palmette.types import Document, Explanation

TOPICS = "topics.json"
EMBEDDING = "embedding"
"""Query array: the encoder's own vectors, of which :meth:`TreeModel.explain` makes the leaves that no search read."""


class TreeModel(Model):
    """A binary tree over the documents (ReTreever): topics from coarse to fine. Its searches rank by the space.

    ``level`` ranks by the tree itself: Σ min(q, d) over the nodes of a level, 0 … 1.

    Examples:
        >>> from palmette import Document, FakeEncoder, Index, TreeModel
        >>> texts = [f"{animal} number {i}" for i in range(8) for animal in ("cat", "dog", "owl")]
        >>> pairs = [(text.upper(), text) for text in texts]
        >>> model = TreeModel.fit(pairs, encoder=FakeEncoder(32), depth=4)
        >>> index = Index.in_memory(model)
        >>> _ = index.add(Document(id=str(i), text=text) for i, text in enumerate(texts))
        >>> [hit.document.text for hit in index.search("owl number 3", k=1, level=4)]
        ['owl number 3']
    """

    method: ClassVar[str] = "tree"
    retriever: ClassVar[str] = "TreeRetriever"
    config_class = TreeConfig
    search_class = TreeSearch
    training_defaults = TRAINING
    config: TreeConfig
    module: Tree
    topics: TopicTerms = MappingProxyType({})
    """Node, by its turns (``LRL``) → terms of the training's documents under it, with weights."""

    # -- training and checkpoints -----------------------------------------------------------------------------

    @classmethod
    def uses_space(cls, config: TreeConfig, data: RetrievalData) -> bool:
        """True unless the splits read tokens."""
        return not config.reads_tokens

    @classmethod
    def task(cls, config: TreeConfig, inputs: FitInputs) -> tuple[TreeConfig, TreeTask]:
        """Task on pairs that are encoded once."""
        data, encoder, cache, seed, progress = inputs
        tokens, trained = config.reads_tokens, config.start == "random"
        if not trained and (config.split, config.propagation) != ("linear", "product"):
            raise ConfigError(
                f"split={config.split!r} with propagation={config.propagation!r} is learned by training: give "
                "start='random' too"
            )
        config = config.replace(width=encoder.dimension, token_width=encoder.hidden_size if tokens else 0)
        pairs = TrainingPairs.encode(data, encoder, cache, seed=seed, tokens=tokens, progress=progress)
        if trained and len(pairs) < 2:
            dev_questions = 0 if pairs.dev is None else len(pairs.dev.queries)
            raise TrainingError(
                f"start='random' needs at least 2 pairs of question and document, got {len(pairs)}, beside "
                f"{dev_questions} held out to validate with: give more"
            )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            task = TreeTask(Tree(config), pairs)
        initialise(task.module, pairs.documents, seed)
        if trained:
            task.init_multipliers(torch.Generator().manual_seed(seed))
        return config, task

    @classmethod
    def module_for(cls, config: TreeConfig, encoder: Encoder) -> Tree:
        """Untrained tree of the config's shape."""
        return Tree(config)

    def after_fit(self, task: TreeTask) -> None:
        """Keep the nodes' topics, and the format of the leaves."""
        sample = evenly_spaced(len(task.pairs.data.corpus), DOCUMENTS_FOR_FORMAT)
        self.config = self.config.replace(stored=stored_format(np.concatenate(list(task.leaves(sample)))))
        self.topics = topics_of_training(task)

    def extras(self) -> dict[str, bytes]:
        """Topics."""
        return {TOPICS: terms_to_json(self.topics)} if self.topics else {}

    def load_extras(self, files: Mapping[str, bytes]) -> None:
        """Read topics back."""
        if TOPICS in files:
            self.topics = terms_from_json(
                files[TOPICS], TOPICS, lambda name: not set(name) - set("LR"), "node such as 'LRL'"
            )

    # -- encoding -------------------------------------------------------------------------------------------

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Leaf probabilities (coarser levels are sums of them) and vectors in the space."""
        leaves = ArraySpec(LEAVES, (self.config.leaves,), self.config.dtype, searched="overlap")
        return leaves, ArraySpec(ADAPTED, (self.config.width,), "float16", searched="inner_product")

    @property
    def accepts_embeddings(self) -> bool:
        """True unless the splits read tokens."""
        return self.module.linear is not None

    def encode_documents(self, documents: Sequence[Document], vectors: Floats | None = None) -> Arrays:
        """Leaf probabilities in the stored format, and vectors in half precision."""
        texts_or_vectors = [document.content for document in documents] if vectors is None else vectors
        encoded = self._encode(texts_or_vectors, "document")
        leaves = to_stored(encoded[LEAVES], self.config.dtype)
        return {LEAVES: leaves, ADAPTED: encoded[ADAPTED].astype(np.float16)}

    def encode_queries(self, queries: Sequence[str] | Floats, options: TreeSearch) -> Queries:
        """Vectors [Q, d], and leaf probabilities [Q, C]; where no leaves are compared, what :meth:`explain` needs."""
        if not self.accepts_embeddings:
            return self._encode(queries, "query")
        vectors = queries if isinstance(queries, np.ndarray) else self.encoder.encode_queries(queries)
        if self.level(options) is not None:
            return self._encode(vectors, "query")
        with torch.inference_mode():
            adapted = self._router.embed(torch.from_numpy(vectors))
        return {ADAPTED: adapted.astype(np.float32), EMBEDDING: vectors}

    @cached_property
    def _router(self) -> DoubleRouter:
        return DoubleRouter(self.module)

    def _encode(self, texts: Sequence[str] | Floats, kind: Kind) -> Queries:
        """Leaf probabilities [N, C] and unit vectors in the space [N, d], of texts or embeddings."""
        leaves = np.empty((len(texts), self.config.leaves), np.float32)
        adapted = np.empty((len(texts), self.config.width), np.float32)
        tokens = self.config.reads_tokens
        if isinstance(texts, np.ndarray):
            self.require_embeddings()
            parts: Any = [(np.arange(len(texts)), States(texts))]
        else:
            outputs: Any = ("pooled", "tokens") if tokens else ("pooled",)
            parts = self.encoder.iter_states(texts, kind=kind, outputs=outputs)
        for rows, inputs in parts:
            states = inputs.tensors(self.encoder.device)
            with torch.inference_mode():
                routed = self.module(states).cpu().numpy() if tokens else self._router.leaves(states.pooled)
                adapted[rows] = self._router.embed(states.pooled)
            leaves[rows] = as_searched(routed, self.config.dtype)
        return {LEAVES: leaves, ADAPTED: adapted}

    # -- searching ------------------------------------------------------------------------------------------

    def check_search(self, options: TreeSearch) -> None:
        """Refuse a level that this tree lacks."""
        check_range("tree search", "level", options.level, 1, self.config.depth)

    def level(self, options: TreeSearch) -> int | None:
        """Level that a search compares at; ``None`` for the space's vectors."""
        return options.level or (self.config.depth if self.config.ranking == "leaves" else None)

    def plan(self, queries: Queries, k: int, options: TreeSearch, view: View) -> SearchPlan:
        """Cosines in the space; or overlap at a level, Σ min(q, d) = 1 + nTVD(q, d)."""
        level = self.level(options)
        if level is None:
            return SearchPlan(Score(ADAPTED, queries[ADAPTED]))
        leaves = queries[LEAVES]  # [Q, C]
        fold = leaves.shape[1] >> level
        return SearchPlan(Score(LEAVES, fold_columns(leaves, fold), "overlap", fold))

    def lexical_key(self, options: TreeSearch) -> str:
        """Name the range of scores: cosines, or overlaps at a level."""
        level = self.level(options)
        return "" if level == self.level(TreeSearch()) else options_key(TreeSearch(level=level))

    def lexical_variants(self) -> dict[str, TreeSearch]:
        """The tree's own ranking, and every level."""
        every = [TreeSearch(), *(TreeSearch(level=level) for level in range(1, self.config.depth + 1))]
        return {self.lexical_key(search): search for search in reversed(every)}

    def explain(self, query: Queries, arrays: Arrays, options: TreeSearch, evidence: Mapping[str, Any]) -> Explanation:
        """Topic that both texts are under, the path that they share, and the overlap that leaves it at each node."""
        level = self.level(options)
        if EMBEDDING in query:
            query = self._encode(query[EMBEDDING], "query") | {ADAPTED: query[ADAPTED]}
        return explain(query, arrays, level, self.config.depth, self.topics)

    def describe(self) -> dict[str, Any]:
        """Shape of the tree."""
        return {name: getattr(self.config, name) for name in ("depth", "leaves", "split", "propagation")}
