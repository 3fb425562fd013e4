"""LayersModel: a query vector from every layer of a frozen encoder, over the documents' ordinary vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from palmette.arrays import Floats, unit_rows
from palmette.encoder import Encoder
from palmette.encoder.base import Output
from palmette.encoder.coalesce import Coalescer
from palmette.errors import ConfigError
from palmette.methods.base import VECTOR, FitInputs, Model, Queries
from palmette.methods.layers.config import TRAINING, LayersConfig, LayersSearch
from palmette.methods.layers.module import LayerNetworks
from palmette.methods.layers.search import FUSED, LAYERS, layers_plan, merge_layers
from palmette.methods.layers.training import LayersTask
from palmette.search.plan import ArraySpec, Candidates, SearchPlan
from palmette.store.protocols import View
from palmette.types import Document, Explanation, Part

QUERIES_PER_PASS = 32
"""Queries of concurrent callers that share a pass of the encoder."""


class LayersModel(Model):
    """Per-layer retrieval: every layer of a frozen encoder searches with a query vector of its own.

    Documents are the encoder's own vectors, so embeddings that exist already need no second encoding
    (``index.add(documents, embeddings=…)``). A score is the weighted mean of the layers' similarities, which one query
    gives. With ``order="layer"`` each layer lists documents of its own, one layer after the other.

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
    indexes_embeddings = stores_vectors = True  # documents are the encoder's own vectors; queries need its states
    config: LayersConfig
    module: LayerNetworks

    @classmethod
    def task(cls, config: LayersConfig, inputs: FitInputs) -> tuple[LayersConfig, LayersTask]:
        """Encode every text once and initialise the networks."""
        encoder = inputs.encoder
        if not encoder.num_layers:
            raise ConfigError(f"encoder {encoder.name!r} has no transformer layers: choose one that has some")
        if config.layers is not None:
            config.replace(last=encoder.num_layers)  # refuse unknown layers before anything is encoded
        task = LayersTask.of(config, inputs)
        return task.module.config, task

    @classmethod
    def module_for(cls, config: LayersConfig, encoder: Encoder) -> LayerNetworks:
        """Networks of the config's shape."""
        return LayerNetworks(config)

    def arrays(self) -> tuple[ArraySpec, ...]:
        """The encoder's own vector."""
        return (ArraySpec(VECTOR, (self.config.vector,), searched="inner_product"),)

    def encode_documents(self, documents: Sequence[Document], vectors: Floats | None = None) -> dict[str, Floats]:
        """The encoder's vectors [N, d], of unit length where similarity is a cosine."""
        if vectors is None:
            vectors = self.encoder.encode([document.content for document in documents])
        return {VECTOR: self._scaled(vectors)}

    def _scaled(self, vectors: Floats) -> Floats:
        return unit_rows(vectors) if self.config.similarity == "cosine" else vectors

    def layers_of(self, options: LayersSearch) -> tuple[int, ...]:
        """Layers of a search."""
        return options.layers or self.config.query_layers

    def check_search(self, options: LayersSearch) -> None:
        """Check that the layers were trained."""
        known = self.config.query_layers
        if unknown := sorted(set(self.layers_of(options)) - set(known)):
            raise ConfigError(f"layer {unknown[0]} was not trained; this model has layers {list(known)}")

    def encode_queries(self, queries: Sequence[str] | Floats, options: LayersSearch) -> Queries:
        """Query vectors of the layers [Q, L, d] and their weighted mean [Q, d]; the encoder stops at the last layer."""
        if isinstance(queries, np.ndarray):
            self.require_embeddings()
        layers, texts = self.layers_of(options), self.encoder.check(queries, "query")
        shared: dict[tuple[int, ...], Coalescer] = self.__dict__.setdefault("_coalescers", {})
        vectors = shared.setdefault(layers, Coalescer(QUERIES_PER_PASS))(texts, partial(self._encode, layers=layers))
        fused = self.module.fused(torch.from_numpy(vectors).to(self.encoder.device), layers)
        return {LAYERS: vectors, FUSED: fused.cpu().numpy()}

    def _encode(self, texts: Sequence[str], layers: tuple[int, ...]) -> Floats:
        """Return the query vectors of these layers [Q, L, d]; the encoder stops at the last of them."""
        last = self.config.last in layers
        outputs: tuple[Output, ...] = ("layers", "pooled") if last else ("layers",)
        depth = None if last else layers[-1]
        out = np.empty((len(texts), len(layers), self.config.vector), np.float32)
        for rows, states in self.encoder.iter_states(texts, kind="query", outputs=outputs, depth=depth):
            with torch.inference_mode():
                states = states.tensors(self.encoder.device)
                inputs = [states.layers[:, layer] for layer in layers]
                out[rows] = self.module(inputs, states.mask, states.pooled, layers).cpu().numpy()
        return out

    def sentence_queries(self, queries: Queries, texts: Sequence[str] | Floats) -> Floats:
        """Fused query vectors, which lie in the documents' space."""
        return unit_rows(queries[FUSED])

    def lexical_key(self, options: LayersSearch) -> str | None:
        """One weight for all fused searches; the other orders do not rank by score alone."""
        return "" if options.order == "fused" else None

    def scoring_options(self, options: LayersSearch) -> LayersSearch:
        """Replace ``order="layer"`` by fusion of the same layers: the order changes no score."""
        return LayersSearch(layers=options.layers)

    def plan(self, queries: Queries, k: int, options: LayersSearch, view: View) -> SearchPlan:
        """One search with the queries of all layers."""
        return layers_plan(queries[LAYERS], queries[FUSED], options)

    def rank(self, view: View, plan: SearchPlan, candidates: Candidates, k: int, options: LayersSearch) -> Candidates:
        """One list from the layers' candidates, in the order of the options."""
        return merge_layers(view, plan, candidates, self.layers_of(options), k, options)

    def explain(
        self, query: Queries, arrays: Mapping[str, Any], options: LayersSearch, evidence: Mapping[str, Any]
    ) -> Explanation:
        """Similarity at every layer, each with its share of the weighted mean that is the score.

        In layer order the text names the layer that contributed the document, else the one whose query is nearest.
        """
        # 1. The parts: the layers' similarities times their weights.
        layers, vector = self.layers_of(options), np.asarray(arrays[VECTOR], np.float32).reshape(-1)
        weights = self.module.weights(layers).cpu().numpy()
        similar = (query[LAYERS][0] @ vector).astype(float).tolist()  # [L]
        parts = [
            Part(f"layer {layer}", float(weight * value), {"similarity": value, "weight": float(weight)})
            for layer, weight, value in zip(layers, weights, similar, strict=True)
        ]
        # 2. The layer that found the document, and the text.
        finder, brief = layers[int(np.argmax(similar))], "nearest to layer {}"
        if "layer" in evidence:
            finder, brief = int(evidence["layer"]), "found by layer {} first"
        score, brief = sum(part.value for part in parts), brief.format(finder)
        by_layer = dict(zip(map(str, layers), similar, strict=True))
        detail: dict[str, Any] = {"found_by": finder, "similarity": by_layer}
        values = ", ".join(f"{layer}: {value:.2f}" for layer, value in by_layer.items())
        text = f"score {score:.3f}; {brief}; similarity by layer {values}"
        return Explanation(score, parts, text, detail, brief=brief)

    def describe(self) -> dict[str, Any]:
        """Layers with their initial query and their weight in a fused list."""
        layers = {
            str(layer): {"began as": self.config.kind(layer), "weight": round(weight, 3)}
            for layer, weight in zip(self.config.query_layers, self.module.weights().tolist(), strict=True)
        }
        return {"layers": layers, "parameters": sum(p.numel() for p in self.module.parameters())}
