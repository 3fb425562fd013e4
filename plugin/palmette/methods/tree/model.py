"""TreeModel: index the leaves, search any level, explain along the path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.config import check_keys, check_range
from palmette.encoder import Encoder, Kind, States
from palmette.errors import ConfigError
from palmette.methods.tree.config import TRAINING, TreeConfig, TreeSearch
from palmette.methods.tree.exact import Exact
from palmette.methods.tree.explanation import explain
from palmette.methods.tree.lessons import lessons
from palmette.methods.tree.living import grow, prune
from palmette.methods.tree.module import Tree
from palmette.methods.tree.search import (
    LEAVES,
    REACHED,
    VECTORS,
    nearest_within,
    reached,
    reranked,
    summed,
    unit,
)
from palmette.methods.tree.start import started
from palmette.methods.tree.task import TreeTask, smallest
from palmette.methods.tree.topics import Topics, topics_from_json, topics_of, topics_to_json
from palmette.methods.tree.trust import trained
from palmette.model import Model, Queries
from palmette.pairs import EncodedPairs
from palmette.search.fixed import as_floats, to_fixed
from palmette.search.probe import ArraySpec, Floats, Found, Probe
from palmette.training import TrainingConfig
from palmette.types import Document, Explanation

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.data import RetrievalData
    from palmette.hub import Checkpoint
    from palmette.store.backend import View

__all__ = ["TreeModel"]

TOPICS = "topics.json"
FIXED = 1 << 11
"""Leaves up to which fixed point changed no ranking quality (measured; at 2^12 it cost .003 of nDCG@10 and more)."""


class TreeModel(Model):
    """A learned binary tree (ReTreever). Scores are Σ min(q, d) over the nodes of a level: 0 … 1, 1 for twins.

    With ``rerank="encoder"`` they are the encoder's cosines instead. Either is mixed with words, unless ``lexical=0``.

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
    training_defaults = TRAINING
    search_class = TreeSearch
    config: TreeConfig
    module: Tree
    topics: Topics = MappingProxyType({})
    """Node, by its turns (``LRL``) → the terms of the training's documents that fall into it, with weights."""

    @classmethod
    def task(
        cls,
        config: TreeConfig,
        data: RetrievalData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> tuple[TreeConfig, TreeTask]:
        """Encode the pairs once, and start the tree from the corpus's geometry."""
        tokens = config.reads_tokens
        config = config.replace(width=encoder.dimension, token_width=encoder.hidden_size if tokens else 0)
        how: dict[str, Any] = {"encoder": encoder, "cache": cache, "seed": seed, "progress": progress}
        pairs, made = lessons(config, data, partial(EncodedPairs.encode, **how, tokens=tokens), seed)
        return config, started(config, pairs, seed, progress, made)

    run = staticmethod(trained)

    @classmethod
    def module_for(cls, config: TreeConfig, encoder: Encoder) -> Tree:
        """A tree of the config's shape."""
        return Tree(config)

    def learned(self, task: TreeTask) -> None:
        """What the training's documents under every node speak of, and what taught."""
        self.topics = topics_of(self.module, task.pairs)
        self.record = self.record.replace(made=self.record.labelled and not task.pairs.data.labelled)

    def files(self) -> dict[str, bytes]:
        """The topics."""
        return {TOPICS: topics_to_json(self.topics)} if self.topics else {}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Read them back; checkpoints of other making may lack them."""
        if TOPICS in checkpoint.files:
            self.topics = topics_from_json(checkpoint.file(TOPICS), f"{checkpoint.path}: {TOPICS}")

    # -- after training -------------------------------------------------------------------------------------

    def grow(
        self,
        data: Any,
        *,
        crowded: float | None = None,
        leaves: Sequence[str] = (),
        levels: int = 1,
        cache: EncodingCache | str | Path | None = None,
        device: str | None = None,
        progress: bool | None = None,
        **training: Any,
    ) -> Self:
        """A tree whose crowded leaves are split; all else routes as before, up to 2,048 leaves to the bit.

        Give all documents to a tree whose collection has grown, or only those of a new topic: then the leaves that
        they crowd are split. New nodes learn from the pairs of the documents in those leaves, self-made ones
        where there are no labels. Without a crowded leaf the model itself comes back. Indexes made before go on
        with the old model; ``index.copy_to(path, model=grown)`` makes one for the new.

        Args:
            data: Anything :func:`palmette.load_data` reads.
            crowded: How many documents may fall into a leaf; ``None`` for twice their even share.
            leaves: Split these instead, by name (``LRRL``).
            levels: How often: each time the leaves that are crowded then.
            cache: Where encodings are kept; ``None`` for the user's cache folder.
            device: Where to train; ``None`` for the best there is.
            progress: Progress bars; ``None`` shows them on a terminal.
            training: Options of :class:`TreeTraining`, with 300 steps unless said otherwise; 0 leaves the new
                nodes where they begin.
        """
        check_keys("grow", training, TrainingConfig.choices())
        loop = TrainingConfig(**{"steps": 300} | dict(TRAINING) | dict(training))
        asked: dict[str, Any] = {"crowded": crowded, "leaves": leaves, "levels": levels}
        return grow(self, data, loop, **asked, cache=cache, device=device, progress=progress)

    def prune(
        self,
        data: Any,
        *,
        tolerance: float = 0.005,
        columns: int | None = None,
        seed: int = 0,
        cache: EncodingCache | str | Path | None = None,
        progress: bool | None = None,
    ) -> Self:
        """A smaller tree, without the splits that least tell a query's likeliest documents apart.

        A cut node becomes a leaf, with the sum of the probabilities that were below it.

        Args:
            data: Anything :func:`palmette.load_data` reads, for its held-out queries.
            tolerance: The share of their nDCG@10 that may be lost; the model itself comes back where any cut would.
            columns: Cut down to so many leaves instead.
            seed: Of what is held out where the data does not say.
            cache: Where encodings are kept; ``None`` for the user's cache folder.
            progress: A progress bar; ``None`` shows it on a terminal.
        """
        asked: dict[str, Any] = {"tolerance": tolerance, "columns": columns, "seed": seed}
        return prune(self, data, **asked, cache=cache, progress=progress)

    # -- encoding -------------------------------------------------------------------------------------------

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Leaf probabilities (coarser levels are sums of them), encoder vectors, and the leaf each text falls into."""
        return (
            ArraySpec(LEAVES, (self.config.leaves,), "uint16" if self._fixed else "float32"),
            ArraySpec(VECTORS, (self.config.width,), "float16"),
            ArraySpec(REACHED, (2,), "int32"),
        )

    @property
    def _fixed(self) -> bool:
        """Whether leaves are kept in fixed point: half the memory, and no loss where a leaf is not too thin."""
        return self.config.leaves <= FIXED

    def _states(self, texts: Sequence[str], kind: Kind) -> Iterator[tuple[NDArray[np.int64], States]]:
        """What the split functions read, for some texts at a time."""
        outputs: tuple[Any, ...] = ("pooled", "tokens") if self.config.reads_tokens else ("pooled",)
        return self.encoder.iter_states(texts, kind=kind, outputs=outputs)

    @cached_property
    def _exact(self) -> Exact:
        return Exact(self.module)

    def _route(self, states: States) -> Floats:
        """Leaf probabilities [B, C]; those of an embedding are the same in every batch."""
        pooled = states.pooled
        assert pooled is not None
        with torch.inference_mode():
            tokens = self.config.reads_tokens
            leaves = self.module(states).cpu().numpy() if tokens else self._exact.leaves(pooled)
        return as_floats(to_fixed(leaves)) if self._fixed else leaves.astype(np.float32, copy=False)

    def _routed(self, texts: Sequence[str], kind: Kind) -> Queries:
        """Leaf probabilities [N, C] and unit vectors [N, d]."""
        leaves = np.empty((len(texts), self.config.leaves), np.float32)
        vectors = np.empty((len(texts), self.config.width), np.float32)
        for rows, states in self._states(texts, kind):
            assert states.pooled is not None
            leaves[rows], vectors[rows] = self._route(states), states.pooled.cpu().numpy()
        return {LEAVES: leaves, VECTORS: unit(vectors)}

    def encode_documents(self, documents: Sequence[Document]) -> dict[str, NDArray[np.generic]]:
        """The three arrays."""
        made = self._routed([document.content for document in documents], "document")
        return {
            LEAVES: to_fixed(made[LEAVES]) if self._fixed else made[LEAVES],
            VECTORS: made[VECTORS].astype(np.float16),
            REACHED: reached(made[LEAVES], self.config.shape),
        }

    def encode_queries(self, texts: Sequence[str], options: TreeSearch) -> Queries:
        """Leaf probabilities [Q, C] and unit vectors [Q, d]."""
        if self.config.reads_tokens:
            return self._routed(texts, "query")
        return self.encode_embeddings(self.encoder.encode_queries(texts))

    @property
    def takes_embeddings(self) -> bool:
        """Unless the tree reads tokens."""
        return not self.config.reads_tokens

    def encode_embeddings(self, vectors: Floats) -> Queries:
        """Route given embeddings [Q, d]; a tree that reads tokens cannot."""
        if not self.takes_embeddings:
            return super().encode_embeddings(vectors)
        pooled = torch.from_numpy(vectors).to(self.encoder.device)
        return {LEAVES: self._route(States(pooled)), VECTORS: unit(vectors)}

    def vectors(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        level: int | None = None,
        sqrt: bool = False,
        **options: Any,
    ) -> Floats:
        """The probabilities of a level's nodes: [N, nodes].

        With ``sqrt`` their square roots, whose inner product Σ √(p·q) bounds the overlap Σ min(p, q) from above:
        an engine that knows only inner products can fetch candidates with it.
        """
        check_keys("tree vectors", options, ("level", "sqrt"))
        runs = self._runs(self.options({"level": level}))
        made = self.encode_queries(texts, TreeSearch()) if kind == "query" else self._routed(texts, kind)
        nodes = summed(made[LEAVES], runs)
        return np.sqrt(nodes) if sqrt else nodes

    # -- searching ------------------------------------------------------------------------------------------

    def check_options(self, options: TreeSearch) -> None:
        """A level of this tree."""
        if options.rerank == "adapted" and self.config.space != "adapted":
            raise ConfigError(
                "rerank='adapted' needs a tree trained with space='adapted', and this one has "
                f"space={self.config.space!r}: use rerank='encoder'"
            )
        if isinstance(options.level, int):
            check_range("tree search", "level", options.level, 1, self.config.depth)
        self.level(options)

    def level(self, options: TreeSearch) -> int:
        """The level a search compares at; ``auto`` reads the validation table of the training."""
        if options.level != "auto":
            return options.level or self.config.depth
        return smallest(self.record.metrics, self.config.depth, options.tolerance)

    def _runs(self, options: TreeSearch) -> int | tuple[int, ...]:
        """Leaves per node of the level."""
        return self.config.shape.runs(self.level(options))

    def shortlist(self, options: TreeSearch) -> int | None:
        """That of a rerank."""
        return None if options.rerank is None else options.shortlist

    def scored_alike(self, options: TreeSearch) -> TreeSearch:
        """Scores are cosines where hits are ranked anew, and sums over a level's nodes elsewhere."""
        if options.rerank is not None:
            return TreeSearch(rerank=options.rerank)
        level = self.level(options)
        return TreeSearch() if level == self.config.depth else TreeSearch(level=level)

    def calibrated(self) -> list[TreeSearch]:
        """Every level, and every way of ranking anew."""
        levels = [TreeSearch(level=level) for level in range(1, self.config.depth)]
        adapted = [TreeSearch(rerank="adapted")] if self.config.space == "adapted" else []
        return [TreeSearch(), TreeSearch(rerank="encoder"), *adapted, *levels]

    def search(self, view: View, queries: Queries, k: int, options: TreeSearch) -> Found:
        """Nearest by nTVD at the level, exactly; then by the encoder, where asked for."""
        runs = self._runs(options)
        probe = Probe(LEAVES, summed(queries[LEAVES], runs), "overlap", runs)
        many = k if options.rerank is None else max(k, options.shortlist)
        if options.within == "all":
            found = view.nearest(probe, min(many, max(1, len(view))))
        else:
            asked = reached(queries[LEAVES], self.config.shape)
            found = nearest_within(view, probe, many, queries[LEAVES], asked, options)
        if options.rerank is None:
            return found
        return reranked(view, found, queries[VECTORS], k, self._space(options))

    def _space(self, options: TreeSearch) -> NDArray[np.float64] | None:
        """The map W [d, d] of the space that a rerank measures in; ``None`` for the encoder's."""
        adapter = self.module.adapter
        return adapter.weight.double().cpu().numpy() if options.rerank == "adapted" and adapter else None

    def explain(
        self,
        query: Queries,
        arrays: Mapping[str, NDArray[np.generic]],
        options: TreeSearch,
        evidence: Mapping[str, Any],
    ) -> Explanation:
        """The path both texts share, and what turns off at each node; see :func:`explanation.explain`."""
        return explain(
            query,
            arrays,
            self.config.shape,
            self.level(options),
            rerank=options.rerank,
            space=self._space(options),
            topics=self.topics,
        )

    def describe(self) -> dict[str, Any]:
        """Shape and steepness of the tree."""
        config = self.config
        facts: dict[str, Any] = {
            "depth": config.depth,
            "leaves": config.leaves,
            "levels": [len(nodes) for nodes in config.shape.levels[1:]],
            "split": config.split,
            "propagation": config.propagation,
        }
        if self.module.linear is not None and config.propagation != "none":
            linear = self.module.linear
            norms = torch.split(linear.slopes * linear.directions.norm(dim=1), config.shape.opened)
            facts["mean slope per level"] = [round(float(level.mean()), 3) for level in norms]
        return {**facts, "multiplier": round(float(self.module.multiplier(config.depth)), 3)}
