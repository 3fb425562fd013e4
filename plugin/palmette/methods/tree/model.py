"""TreeModel: the hooks of the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.arrays import Floats
from palmette.config import check_keys, check_range
from palmette.encoder import Encoder, Kind, States
from palmette.evidence import options_key
from palmette.lexical.terms import Terms, terms_from_json, terms_to_json
from palmette.methods.tree.config import TRAINING, TreeConfig, TreeSearch
from palmette.methods.tree.explain import explain, topics_of_training
from palmette.methods.tree.init import start_task
from palmette.methods.tree.module import DoubleRouter, Tree
from palmette.methods.tree.search import (
    ADAPTED,
    LEAVES,
    as_searched,
    fold_to_level,
    plan,
    stored_format,
    to_stored,
)
from palmette.methods.tree.training import TreeTask, level_within_tolerance
from palmette.model import Arrays, Model, Queries
from palmette.search.plan import ArraySpec, SearchPlan, View
from palmette.training.pairs import TrainingPairs
from palmette.types import Document, Explanation

if TYPE_CHECKING:
    from palmette.data import RetrievalData
    from palmette.encoder.cache import EncodingCache

TOPICS = "topics.json"


class TreeModel(Model):
    """A learned binary tree (ReTreever). Scores are Σ min(q, d) over the nodes of a level: 0 … 1, 1 for twins.

    With ``rerank=True`` they are cosines in the tree's space. Words are mixed in, unless ``lexical=0``.

    Examples:
        >>> from palmette import Document, FakeEncoder, Index, TreeModel
        >>> texts = [f"{animal} number {i}" for i in range(8) for animal in ("cat", "dog", "owl")]
        >>> pairs = [(text.upper(), text) for text in texts]
        >>> model = TreeModel.fit(pairs, encoder=FakeEncoder(32), depth=4, steps=5, batch_size=8)
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
    topics: Terms = MappingProxyType({})
    """Node, by its turns (``LRL``) → terms of the training's documents under it, with weights."""

    # -- training and checkpoints -----------------------------------------------------------------------------

    @classmethod
    def uses_space(cls, config: TreeConfig, data: RetrievalData) -> bool:
        """Unless the splits read tokens, or the encoder's own space is wanted."""
        return not config.reads_tokens and config.space == "adapted"

    @classmethod
    def task(
        cls, config: TreeConfig, data: RetrievalData, encoder: Encoder, cache: EncodingCache, *, seed: int,
        progress: bool | None,
    ) -> tuple[TreeConfig, TreeTask]:  # fmt: skip
        """Task on pairs that are encoded once, started from the corpus's geometry."""
        tokens = config.reads_tokens
        config = config.replace(width=encoder.dimension, token_width=encoder.hidden_size if tokens else 0)
        encode = partial(
            TrainingPairs.encode, encoder=encoder, cache=cache, seed=seed, tokens=tokens, progress=progress
        )
        return config, start_task(config, data, encode, seed, progress)

    @classmethod
    def module_for(cls, config: TreeConfig, encoder: Encoder) -> Tree:
        """Untrained tree of the config's shape."""
        return Tree(config)

    def after_fit(self, task: TreeTask) -> None:
        """Keep the nodes' topics, the format of the leaves, and whether synthetic pairs replaced the given ones."""
        self.config = self.config.replace(stored=stored_format(task.judged_leaves()))
        self.topics = topics_of_training(self.module, task.pairs)
        self.record = self.record.replace(made=self.record.labelled and not task.pairs.data.labelled)

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
        """Leaf probabilities (coarser levels are sums of them) and vectors in the space of the splits."""
        leaves = ArraySpec(LEAVES, (self.config.leaves,), self.config.dtype)
        return leaves, ArraySpec(ADAPTED, (self.config.width,), "float16")

    @property
    def accepts_embeddings(self) -> bool:
        """Unless the tree reads tokens."""
        return not self.config.reads_tokens

    def encode_documents(
        self, documents: Sequence[Document], vectors: Floats | None = None
    ) -> dict[str, NDArray[np.generic]]:
        """Leaf probabilities in the stored format, and vectors in half precision."""
        given = [document.content for document in documents] if vectors is None else vectors
        encoded = self._encode(given, "document")
        return {
            LEAVES: to_stored(encoded[LEAVES], self.config.dtype),
            ADAPTED: encoded[ADAPTED].astype(np.float16),
        }

    def encode_queries(self, queries: Sequence[str] | Floats, options: TreeSearch) -> Queries:
        """Leaf probabilities [Q, C] and vectors [Q, d]."""
        if isinstance(queries, np.ndarray) or self.config.reads_tokens:
            return self._encode(queries, "query")
        return self._encode(self.encoder.encode_queries(queries), "query")  # joins concurrent calls

    def embed(
        self, texts: Sequence[str], *, kind: Kind = "document", level: int | None = None, sqrt: bool = False,
        **options: Any,
    ) -> Floats:  # fmt: skip
        """Probabilities of a level's nodes: [N, nodes].

        With ``sqrt`` their square roots, whose inner product Σ √(p·q) bounds the overlap Σ min(p, q) from above: an
        engine that has inner products only can fetch candidates with it.
        """
        check_keys("tree embed", options, ("level", "sqrt"))
        search = self.search_options({"level": level})
        encoded = self.encode_queries(texts, search) if kind == "query" else self._encode(texts, kind)
        nodes = fold_to_level(encoded[LEAVES], self.level(search))
        return np.sqrt(nodes) if sqrt else nodes

    @cached_property
    def _router(self) -> DoubleRouter:
        return DoubleRouter(self.module)

    def _encode(self, texts: Sequence[str] | Floats, kind: Kind) -> Queries:
        """Leaf probabilities [N, C] and unit vectors in the space of the splits [N, d], of texts or embeddings."""
        leaves = np.empty((len(texts), self.config.leaves), np.float32)
        adapted = np.empty((len(texts), self.config.width), np.float32)
        tokens = self.config.reads_tokens
        if isinstance(texts, np.ndarray):
            self.require_embeddings()
            parts: Any = [(np.arange(len(texts)), States(torch.from_numpy(texts).to(self.encoder.device)))]
        else:
            outputs: Any = ("pooled", "tokens") if tokens else ("pooled",)
            parts = self.encoder.iter_states(texts, kind=kind, outputs=outputs)
        for rows, states in parts:
            with torch.inference_mode():
                routed = self.module(states).cpu().numpy() if tokens else self._router.leaves(states.pooled)
                adapted[rows] = self._router.embed(states.pooled)
            leaves[rows] = as_searched(routed, self.config.dtype)
        return {LEAVES: leaves, ADAPTED: adapted}

    # -- searching ------------------------------------------------------------------------------------------

    def check_search(self, options: TreeSearch) -> None:
        """Refuse a level that this tree lacks."""
        if isinstance(options.level, int):
            check_range("tree search", "level", options.level, 1, self.config.depth)
        self.level(options)

    def level(self, options: TreeSearch) -> int:
        """Level that a search compares at; ``auto`` reads the validation table of the training."""
        if options.level != "auto":
            return options.level or self.config.depth
        return level_within_tolerance(self.record.metrics, self.config.depth, options.tolerance)

    def plan(self, queries: Queries, k: int, options: TreeSearch, view: View) -> SearchPlan:
        """Overlap at the level; then the cosine, for a rerank."""
        return plan(queries, self.level(options), options)

    def lexical_key(self, options: TreeSearch) -> str:
        """Scores are cosines after a rerank, and sums over a level's nodes elsewhere."""
        if options.rerank:
            return options_key(TreeSearch(rerank=True))
        level = self.level(options)
        return "" if level == self.config.depth else options_key(TreeSearch(level=level))

    def lexical_variants(self) -> dict[str, TreeSearch]:
        """Every level, and the rerank."""
        levels = [TreeSearch(level=level) for level in range(1, self.config.depth)]
        return {options_key(search): search for search in (TreeSearch(), TreeSearch(rerank=True), *levels)}

    def explain(
        self, query: Queries, arrays: Arrays, options: TreeSearch, evidence: Mapping[str, Any]
    ) -> Explanation:
        """Path that both texts share, and the overlap that leaves it at each node."""
        return explain(query, arrays, self.level(options), self.topics, rerank=options.rerank)

    def describe(self, view: View | None = None) -> dict[str, Any]:
        """Shape and steepness of the tree."""
        config, linear = self.config, self.module.linear
        if view is not None:
            return {}
        facts: dict[str, Any] = {
            name: getattr(config, name) for name in ("depth", "leaves", "split", "propagation")
        }
        if linear is not None and config.propagation != "none":
            steepness = linear.slopes * linear.directions.norm(dim=1)
            levels = torch.split(steepness, [2**level for level in range(config.depth)])
            facts["mean slope per level"] = [round(float(level.mean()), 3) for level in levels]
        return {**facts, "multiplier": round(float(self.module.multiplier(config.depth)), 3)}
