"""LayersModel: a query from every layer of a frozen encoder, over the documents' ordinary vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.config import check_keys
from palmette.encoder import Encoder, Kind
from palmette.encoder.coalesce import Coalescer
from palmette.errors import ConfigError
from palmette.methods.layers.config import TRAINING, LayersConfig, LayersSearch
from palmette.methods.layers.explanation import explanation
from palmette.methods.layers.module import LayerQueries
from palmette.methods.layers.searching import FUSED, LAYERS, VECTOR, WHOLE, search
from palmette.methods.layers.task import LayersTask
from palmette.model import Model, Queries
from palmette.search.probe import ArraySpec, Floats, Found
from palmette.training import Trained, TrainingConfig
from palmette.types import Document, Explanation

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.data import RetrievalData
    from palmette.store.backend import View

__all__ = ["LayersModel"]

TOGETHER = 32
"""Queries of several callers that share a pass."""


class LayersModel(Model):
    """Per-layer retrieval: every layer of a frozen encoder asks with a query of its own.

    Documents are the encoder's own vectors, so embeddings that are there already need no second encoding
    (``index.add(documents, embeddings=…)``). A score is the weighted mean of the layers' similarities, and a document
    was found by the layer that ranks it highest; with another ``order``, by the one in whose places it is, and its
    score is the similarity there.

    Examples:
        >>> from palmette import FakeEncoder, Index, LayersModel
        >>> texts = ["the red owl sleeps", "a blue fox runs", "the green hen sings", "a white bee flies"]
        >>> pairs = [(f"what does the {text.split()[2]} do?", text) for text in texts]
        >>> model = LayersModel.fit(pairs, encoder=FakeEncoder(32), steps=20)
        >>> index = Index.build(texts, model)
        >>> index.search("where is the fox?", k=1, lexical=0)[0].document.text
        'a blue fox runs'
        >>> [hit.explain().detail["found_by"] for hit in index.search("the owl and the hen", k=3, order="layer")]
        [1, 2, 3]
    """

    method: ClassVar[str] = "layers"
    retriever: ClassVar[str] = "PerLayerRetriever"
    config_class = LayersConfig
    training_defaults = TRAINING
    search_class = LayersSearch
    config: LayersConfig
    module: LayerQueries

    @classmethod
    def task(
        cls,
        config: LayersConfig,
        data: RetrievalData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> tuple[LayersConfig, LayersTask]:
        """Encode every text once, and start the networks."""
        if not encoder.num_layers:
            raise ConfigError(
                f"encoder {encoder.name!r} has no transformer layers to ask with: choose one that has some"
            )
        if config.layers is not None:
            config.replace(last=encoder.num_layers)  # complain before anything is encoded
        task = LayersTask.of(config, data, encoder, cache, seed=seed, progress=progress)
        return task.config, task

    @classmethod
    def run(cls, task: Any, training: TrainingConfig, **how: Any) -> Trained:
        """Train; then weigh the layers for the fused list."""
        trained = super().run(task, training, **how)
        task.weigh()
        return trained

    @classmethod
    def module_for(cls, config: LayersConfig, encoder: Encoder) -> LayerQueries:
        """Networks of the config's shape."""
        return LayerQueries(config)

    def arrays(self) -> tuple[ArraySpec, ...]:
        """The encoder's own vector."""
        return (ArraySpec(VECTOR, (self.config.vector,)),)

    def encode_documents(self, documents: Sequence[Document]) -> dict[str, NDArray[np.generic]]:
        """Vectors [N, d], of unit length where similarity is a cosine."""
        return self.encode_vectors(
            documents, self.encoder.encode([document.content for document in documents])
        )

    def encode_vectors(
        self, documents: Sequence[Document], vectors: Floats
    ) -> dict[str, NDArray[np.generic]]:
        """The encoder's vectors [N, d], wherever they come from."""
        return {VECTOR: self._finished(vectors)}

    def _finished(self, vectors: Floats) -> Floats:
        if self.config.similarity != "cosine":
            return vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        finished: Floats = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
        return finished

    def layers_of(self, options: LayersSearch) -> tuple[int, ...]:
        """The layers that a search asks with."""
        return options.layers or self.config.asking

    def check_options(self, options: LayersSearch) -> None:
        """Layers that were trained, and a share of the budget for each."""
        layers = self.layers_of(options)
        if lost := sorted(set(layers) - set(self.config.asking)):
            raise ConfigError(
                f"layer {lost[0]} was not trained; this model asks with {list(self.config.asking)}"
            )
        if options.budget is not None and len(options.budget) != len(layers):
            raise ConfigError(
                f"budget {options.budget!r} needs a share for each of the layers {list(layers)}"
            )

    def encode_queries(self, texts: Sequence[str], options: LayersSearch) -> Queries:
        """A query for each layer [Q, L, d], and their weighted mean [Q, d]; the encoder stops at the last of them."""
        layers = self.layers_of(options)
        checked = self.encoder.check(texts, "query")
        ask = partial(self._ask, layers=layers)
        asked = self._sharing(layers)(checked, ask) if 0 < len(checked) <= TOGETHER else ask(checked)
        fused = self.module.fused(torch.from_numpy(asked).to(self.encoder.device), layers)
        return {LAYERS: asked, FUSED: fused.cpu().numpy()}

    def _sharing(self, layers: tuple[int, ...]) -> Coalescer:
        """What lets callers that come together share a pass, for these layers."""
        shared: dict[tuple[int, ...], Coalescer] = self.__dict__.setdefault("_coalescers", {})
        return shared.setdefault(layers, Coalescer(TOGETHER))

    def _ask(self, texts: Sequence[str], layers: tuple[int, ...]) -> Floats:
        """[Q, L, d] queries of these layers."""
        last = self.config.last in layers
        how: dict[str, Any] = (
            {"outputs": ("layers", "pooled")} if last else {"outputs": ("layers",), "depth": layers[-1]}
        )
        out = np.empty((len(texts), len(layers), self.config.vector), np.float32)
        for rows, states in self.encoder.iter_states(texts, kind="query", **how):
            assert states.layers is not None
            with torch.inference_mode():
                inputs = [states.layers[:, layer] for layer in layers]
                out[rows] = self.module(inputs, states.mask, states.pooled, layers).cpu().numpy()
        return out

    def additive(self, options: LayersSearch) -> bool:
        """A fused score is all that counts; elsewhere each layer has its places."""
        return options.order == "fused"

    def scored_alike(self, options: LayersSearch) -> LayersSearch:
        """Any layers' means have the same range."""
        return LayersSearch()

    def planned(self, view: View, queries: Queries, k: int, options: LayersSearch) -> Queries:
        """With the number of documents, by which a search knows whether it sees them all."""
        if WHOLE in queries:
            return queries
        return {**queries, WHOLE: np.full((len(queries[FUSED]), 1), len(view))}

    def search(self, view: View, queries: Queries, k: int, options: LayersSearch) -> Found:
        """One probe with the queries of all layers; their documents in the order asked for."""
        part = WHOLE in queries and bool((queries[WHOLE] > len(view)).any())
        return search(view, queries[LAYERS], queries[FUSED], self.layers_of(options), k, options, part)

    def explain(
        self,
        query: Queries,
        arrays: Mapping[str, NDArray[np.generic]],
        options: LayersSearch,
        evidence: Mapping[str, Any],
    ) -> Explanation:
        """Who found it, and its similarity at every layer."""
        layers = self.layers_of(options)
        weights = self.module.weights(layers).cpu().numpy()
        vector = np.asarray(arrays[VECTOR], np.float32).reshape(-1)
        return explanation(query[LAYERS][0], weights, vector, layers, options, evidence)

    def vectors(self, texts: Sequence[str], *, kind: Kind = "document", **options: Any) -> Floats:
        """For other vector stores: a question's weighted mean query, a document's own vector.

        ``layers=`` asks with some of them.
        """
        check_keys("layers vectors", options, ("layers",))
        if kind == "query":
            return self.encode_queries(texts, self.options(options))[FUSED]
        return self._finished(self.encoder.encode(texts))

    def describe(self) -> dict[str, Any]:
        """The layers, what their queries began as, and how much each counts in a fused list."""
        weights = self.module.weights().tolist()
        return {
            "layers": {
                str(layer): {"began as": self.config.kind(layer), "weight": round(weight, 3)}
                for layer, weight in zip(self.config.asking, weights, strict=True)
            },
            "parameters": sum(p.numel() for p in self.module.parameters()),
        }
