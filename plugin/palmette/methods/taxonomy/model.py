"""TaxonomyModel: towers to train, a taxonomy to search and to explain along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.cache import EncodingCache
from palmette.encoder import Encoder, FakeEncoder
from palmette.errors import ConfigError, InputError
from palmette.methods.taxonomy.calibration import CutOff
from palmette.methods.taxonomy.config import (
    TaxonomyConfig,
    TaxonomySearch,
    TaxonomyTraining,
)
from palmette.methods.taxonomy.construction import constructed, dimension_needed
from palmette.methods.taxonomy.data import TaxonomyData
from palmette.methods.taxonomy.explanation import explanation
from palmette.methods.taxonomy.module import Towers
from palmette.methods.taxonomy.nodes import Nodes
from palmette.methods.taxonomy.searching import NODE, VECTOR, search
from palmette.methods.taxonomy.stages import finish, run
from palmette.methods.taxonomy.task import TaxonomyTask
from palmette.model import DEFAULT_ENCODER, Model, Queries
from palmette.record import Record
from palmette.search.probe import ArraySpec, Floats, Found
from palmette.training import Trained, TrainingConfig
from palmette.types import Document, Explanation

if TYPE_CHECKING:
    from palmette.data import RetrievalData
    from palmette.hub import Checkpoint
    from palmette.store.backend import View

__all__ = ["TaxonomyModel"]


class TaxonomyModel(Model):
    """A dual encoder for taxonomies: a query finds its exact match and everything more general.

    Scores are T times the inner product of the two embeddings: differences of log probabilities.

    Examples:
        >>> from palmette import Document, FakeEncoder, Index, TaxonomyModel
        >>> from palmette.methods.taxonomy import Hierarchy
        >>> paths = [f"animal > {a} > {a} number {i}" for a in ("dog", "cat", "owl") for i in range(9)]
        >>> tree = Hierarchy.from_paths(paths)
        >>> model = TaxonomyModel.fit(tree, encoder=FakeEncoder(32), dimension=16, steps=150, learning_rate=0.01)
        >>> index = Index.build(tree.documents(), model)
        >>> [hit.document.text for hit in index.search("owl number 3", k=3, order="specific")]
        ['owl number 3', 'owl', 'animal']
    """

    method: ClassVar[str] = "taxonomy"
    retriever: ClassVar[str] = "TaxonomyRetriever"
    config_class = TaxonomyConfig
    training_class = TaxonomyTraining
    search_class = TaxonomySearch
    makes_queries = True
    config: TaxonomyConfig
    module: Towers

    @classmethod
    def fit(
        cls, data: Any, config: Any = None, *, edges: Any = None, parents: str | None = None, **options: Any
    ) -> Self:
        """Train the two towers; see :meth:`palmette.Model.fit`.

        Args:
            data: Documents that name their parents in metadata (or come with ``edges``), a
                :class:`~palmette.methods.taxonomy.Hierarchy`, or anything that :func:`palmette.load_data` reads.
            config: The method's options.
            edges: (child id, parent id), where metadata does not say.
            parents: Metadata key of a document's parents; "" for no hierarchy.
            options: See :meth:`palmette.Model.fit`.
        """
        loaded = TaxonomyData.load(data, edges, parents, options.get("seed", 0))
        return super().fit(loaded, config, **options)

    @classmethod
    def construct(
        cls,
        data: Any,
        *,
        dimension: int | None = None,
        edges: Iterable[tuple[str, str]] | None = None,
        parents: str | None = None,
        max_distance: int | None = None,
        seed: int = 0,
    ) -> Self:
        """Lookup tables without training: random directions, and queries as their sums (the paper's algorithm 1).

        Args:
            data: As for :meth:`fit`, with a hierarchy.
            dimension: Width of the embeddings; by default what :func:`dimension_needed` finds, many times what
                training takes.
            edges: As for :meth:`fit`.
            parents: As for :meth:`fit`.
            max_distance: Farther ancestors do not match.
            seed: Of the directions.
        """
        loaded = TaxonomyData.load(data, edges, parents, seed)
        if loaded.hierarchy is None:
            raise InputError(
                "a construction needs a hierarchy: give edges, parents in metadata, or a Hierarchy"
            )
        width = dimension or dimension_needed(loaded.hierarchy, max_distance=max_distance, seed=seed)
        config = TaxonomyConfig(
            dimension=width, queries="lookup", documents="lookup", max_distance=max_distance
        ).replace(width=1, nodes=len(loaded.corpus))
        coder = FakeEncoder(1)
        task = TaxonomyTask.of(config, loaded, coder, EncodingCache(), seed=seed, progress=False)
        every = task.lessons.train.matches
        task.module.fill(*constructed(every, width, torch.Generator().manual_seed(seed)))
        metrics = finish(task)
        record = Record(data=loaded.name, documents=len(loaded.corpus), pairs=task.size(), metrics=metrics)
        return cls(config, coder, task.module, record=record)

    @classmethod
    def _fit(
        cls, data: Any, options: Mapping[str, Any], *, encoder: str | Encoder = DEFAULT_ENCODER, **how: Any
    ) -> Self:
        """As everywhere; lookup tables read no text, and get the encoder that weighs nothing."""
        if options.get("queries") == "lookup":
            encoder = FakeEncoder(1)
        loaded = TaxonomyData.load(data, seed=options.get("seed", 0))
        return super()._fit(loaded, options, encoder=encoder, **how)

    @classmethod
    def task(
        cls,
        config: TaxonomyConfig,
        data: RetrievalData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> tuple[TaxonomyConfig, TaxonomyTask]:
        """Encode every text once, and start both towers alike."""
        if not isinstance(data, TaxonomyData):
            data = TaxonomyData.load(data, seed=seed)
        usual = 64 if data.hierarchy is not None else encoder.dimension
        config = config.replace(
            dimension=config.dimension or usual, width=encoder.dimension, nodes=len(data.corpus)
        )
        return config, TaxonomyTask.of(config, data, encoder, cache, seed=seed, progress=progress)

    @classmethod
    def run(cls, task: Any, training: TrainingConfig, **how: Any) -> Trained:
        """One stage or two, then the nodes' embeddings and the calibration of the cut-off."""
        return run(task, training, **how)

    @classmethod
    def module_for(cls, config: TaxonomyConfig, encoder: Encoder) -> Towers:
        """Towers of the config's shape."""
        return Towers(config)

    @property
    def nodes(self) -> Nodes:
        """The documents that the model was trained on."""
        assert self.module.nodes is not None
        return self.module.nodes

    def files(self) -> dict[str, bytes]:
        """The nodes and their edges."""
        return self.nodes.to_files()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Read the nodes back."""
        self.module.nodes = Nodes.from_checkpoint(checkpoint)

    def arrays(self) -> tuple[ArraySpec, ...]:
        """An embedding, and which node of the taxonomy a document is (−1 for none)."""
        return (ArraySpec(VECTOR, (self.config.dimension,)), ArraySpec(NODE, (), "int64"))

    def encode_documents(self, documents: Sequence[Document]) -> dict[str, NDArray[np.generic]]:
        """Embeddings [N, d] and rows of nodes [N]."""
        places, rows = self.nodes.by_id(documents), self.nodes.by_content(documents)
        texts = None
        if self.module.document_head is not None:
            texts = self._tensor(self.encoder.encode([document.content for document in documents]))
        else:
            rows = places
            if (lost := np.flatnonzero(rows < 0)).size:
                raise InputError(
                    f"document {documents[lost[0]].id!r} is no node of this taxonomy, and a model with "
                    "documents='lookup' knows no others: train with documents='both', or train again with it"
                )
        with torch.inference_mode():
            vectors = self.module.documents(texts, self._tensor(rows)).cpu().numpy()  # [N, d]
        return {VECTOR: vectors, NODE: places}

    def encode_queries(self, texts: Sequence[str], options: TaxonomySearch) -> Queries:
        """Embeddings times T [Q, d]: of texts, or of the nodes that they name."""
        if self.config.reads:
            return self.encode_embeddings(self.encoder.encode_queries(texts))
        return self._asked(np.array([self.nodes.named(text) for text in texts], np.int64))

    @property
    def takes_embeddings(self) -> bool:
        """Where nodes are told by their texts."""
        return self.config.reads

    def encode_embeddings(self, vectors: Floats) -> Queries:
        """The encoder's query vectors through the query tower: [Q, w] → [Q, d]."""
        if not self.takes_embeddings:
            raise ConfigError("a taxonomy of lookup tables knows no embeddings: ask for a node by id or name")
        return self._asked(vectors)

    def _asked(self, inputs: NDArray[np.generic]) -> Queries:
        with torch.inference_mode():
            vectors = self.module.queries(self._tensor(inputs)) * self.config.multiplier
        return {VECTOR: vectors.cpu().numpy()}

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.encoder.device)

    def additive(self, options: TaxonomySearch) -> bool:
        """What is cut, closed or put in order is chosen by more than the score."""
        return options.cut is None and options.order == "score" and not options.closed

    def scored_alike(self, options: TaxonomySearch) -> TaxonomySearch:
        """All searches score alike."""
        return TaxonomySearch()

    def calibrated(self) -> list[TaxonomySearch]:
        """Words speak for exact matches: they count where those are all there is, not where a chain is wanted."""
        return [] if self.nodes.hierarchy is not None else [TaxonomySearch()]

    def check_options(self, options: TaxonomySearch) -> None:
        """A node to search within, and edges to close under, are there."""
        hierarchy, within = self.nodes.hierarchy, options.within
        if hierarchy is None and (options.closed or within is not None):
            asked = "closed=True" if within is None else f"within={within!r}"
            raise ConfigError(f"{asked} needs a hierarchy: this model was trained on pairs alone")
        if hierarchy is not None and within is not None:
            hierarchy.row(within)

    def search(self, view: View, queries: Queries, k: int, options: TaxonomySearch) -> Found:
        """Best inner products; then cut, closed and ordered as asked."""
        return search(self.nodes, self.cutoff, view, queries[VECTOR], k, options)

    @cached_property
    def cutoff(self) -> CutOff:
        """What turns scores into probabilities."""
        return CutOff(self.module.node_vectors, self.module.cut)

    def explain(
        self,
        query: Queries,
        arrays: Mapping[str, NDArray[np.generic]],
        options: TaxonomySearch,
        evidence: Mapping[str, Any],
    ) -> Explanation:
        """Down the chain of ancestors: what the most general one scores, and what each step adds."""
        asked, vector = query[VECTOR][0], np.asarray(arrays[VECTOR], np.float32).reshape(-1)  # [d], [d]
        return explanation(self.nodes, self.cutoff, asked, vector, int(np.ravel(arrays[NODE])[0]))

    def describe(self) -> dict[str, Any]:
        """Size and shape of the taxonomy, and of the towers."""
        hierarchy = self.nodes.hierarchy
        shape = (
            {}
            if hierarchy is None
            else {
                "edges": len(hierarchy.parents.values),
                "depth": int(hierarchy.depths.max()),
                "leaves": len(hierarchy.leaves()),
            }
        )
        return {"nodes": len(self.nodes), **shape, "dimension": self.config.dimension}
