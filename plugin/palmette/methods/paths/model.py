"""PathsModel: a space and an index of it, learned together; a search visits the leaves that its query goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.config import check_keys
from palmette.encoder import Backbone, Encoder, Kind
from palmette.held_out import HeldOut
from palmette.methods.paths.config import TRAINING, PathsConfig, PathsSearch
from palmette.methods.paths.explanation import explain
from palmette.methods.paths.facts import FACTS, Facts, facts_from_json, facts_to_json
from palmette.methods.paths.health import filled, unbalanced
from palmette.methods.paths.inputs import Embedded, Tokenised, embedded, tokens_of
from palmette.methods.paths.module import Paths
from palmette.methods.paths.routing import Router
from palmette.methods.paths.search import LEAVES, VECTOR, VISIT, plan, search
from palmette.methods.paths.stages import run
from palmette.methods.paths.task import PathsTask, started
from palmette.model import Model, Queries
from palmette.pairs import EncodedPairs
from palmette.search.probe import ArraySpec, Floats, Found
from palmette.training import Trained, TrainingConfig
from palmette.types import Document, Explanation

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.data import RetrievalData
    from palmette.hub import Checkpoint
    from palmette.store.backend import View

__all__ = ["PathsModel"]

PART = 4096
"""Texts that are routed at a time."""
DEV_QUERIES, DEV_DOCUMENTS = 300, 2000
"""Where the encoder learns, a validation encodes so many anew."""


class PathsModel(Model):
    """A learned index (EHI). Scores are cosines in the space that it has learned: −1 … 1.

    Examples:
        >>> from palmette import Document, FakeEncoder, Index, PathsModel
        >>> texts = [f"{animal} number {i}" for i in range(8) for animal in ("cat", "dog", "owl")]
        >>> pairs = [(text.upper(), text) for text in texts]
        >>> model = PathsModel.fit(pairs, encoder=FakeEncoder(32), branches=4, steps=5, batch_size=8)
        >>> index = Index.in_memory(model)
        >>> _ = index.add(Document(id=str(i), text=text) for i, text in enumerate(texts))
        >>> [hit.document.text for hit in index.search("owl number 3", k=1, visit=0.5)]
        ['owl number 3']
    """

    method: ClassVar[str] = "paths"
    retriever: ClassVar[str] = "PathRetriever"
    config_class = PathsConfig
    training_defaults = TRAINING
    search_class = PathsSearch
    config: PathsConfig
    module: Paths
    facts: Facts = Facts()
    """What the training has shown: the recall curve, how full the leaves were, what they are about."""

    @classmethod
    def task(
        cls,
        config: PathsConfig,
        data: RetrievalData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> tuple[PathsConfig, PathsTask]:
        """Encode the pairs once, and start the indexer from the corpus's geometry."""
        config = config.sized(len(data.corpus)).replace(width=encoder.dimension)
        pairs = EncodedPairs.encode(data, encoder, cache, seed=seed, progress=progress)
        if config.encoder_learns == "nothing":
            held = HeldOut.of(data, seed)  # at random: leaves are as full of these as of all
            return config, PathsTask(started(config, pairs, seed), pairs, Embedded(pairs), held)
        backbone = Backbone.of(encoder)
        inputs = Tokenised.of(backbone, pairs, progress)
        fewer = HeldOut.of(data, seed, queries=DEV_QUERIES, documents=DEV_DOCUMENTS)
        return config, PathsTask(started(config, pairs, seed, backbone), pairs, inputs, fewer)

    @classmethod
    def run(cls, task: PathsTask, training: TrainingConfig, **how: Any) -> Trained:
        """Train; then measure what searches and explanations need."""
        return run(task, training, **how)

    @classmethod
    def module_for(cls, config: PathsConfig, encoder: Encoder) -> Paths:
        """An index of the config's shape."""
        learns = config.encoder_learns != "nothing"
        return Paths(config, Backbone.of(encoder, pretrained=False) if learns else None)

    def learned(self, task: PathsTask) -> None:
        """The recall curve, the load and the keywords of the leaves."""
        self.facts = task.facts

    def files(self) -> dict[str, bytes]:
        """Those facts."""
        return {FACTS: facts_to_json(self.facts)}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Read them back; checkpoints of other making may lack them."""
        if FACTS in checkpoint.files:
            self.facts = facts_from_json(checkpoint.file(FACTS), f"{checkpoint.path}: {FACTS}")

    @cached_property
    def router(self) -> Router:
        """What embeds and routes queries."""
        return Router(self.module)

    # -- searching ------------------------------------------------------------------------------------------

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Unit vectors, and the leaves of each document, likeliest first."""
        return (
            ArraySpec(VECTOR, (self.config.width,)),
            ArraySpec(LEAVES, (self.config.per_document,), "int32"),
        )

    def encode_documents(self, documents: Sequence[Document]) -> dict[str, NDArray[np.generic]]:
        """Vectors [N, m] and leaves [N, l]: routing needs no training."""
        return self.routed(self._embedded([document.content for document in documents], "document"))

    def encode_vectors(
        self, documents: Sequence[Document], vectors: Floats
    ) -> dict[str, NDArray[np.generic]]:
        """From the encoder's own, where it has stayed as it was."""
        learned = self.module.backbone is not None
        return super().encode_vectors(documents, vectors) if learned else self.routed(vectors)

    def _embedded(self, texts: Sequence[str], kind: Kind) -> Floats:
        """The encoder's vectors [n, m] of texts: as it was, or as it has learned."""
        backbone = self.module.backbone
        if backbone is None:
            return self.encoder.encode_queries(texts) if kind == "query" else self.encoder.encode(texts)
        made: Floats = embedded(backbone, tokens_of(backbone, texts, kind)).cpu().numpy()
        return made

    def routed(self, embeddings: Floats) -> dict[str, NDArray[np.generic]]:
        """The arrays of documents with these encoder embeddings [N, m]."""
        vectors, leaves = [], []
        with torch.inference_mode():
            for start in range(0, len(embeddings), PART):
                part = self.module.embed(self._tensor(embeddings[start : start + PART]))
                vectors.append(part.cpu().numpy())
                beam = self.module.indexer.beam(part, self.config.per_document)
                leaves.append(beam.leaves.cpu().numpy().astype(np.int32))
        return {VECTOR: np.concatenate(vectors), LEAVES: np.concatenate(leaves)}

    def encode_queries(self, texts: Sequence[str], options: PathsSearch) -> Queries:
        """Vectors [Q, m]; which leaves they visit depends on the index, see :meth:`planned`."""
        return self._asked(self._embedded(texts, "query"))

    @property
    def takes_embeddings(self) -> bool:
        """Where the encoder has stayed as it was."""
        return self.module.backbone is None

    def encode_embeddings(self, vectors: Floats) -> Queries:
        """From the encoder's own, where it has stayed as it was."""
        return self._asked(vectors) if self.takes_embeddings else super().encode_embeddings(vectors)

    def _asked(self, vectors: Floats) -> Queries:
        return {VECTOR: self.router.embed(np.asarray(vectors, np.float32))}

    def vectors(self, texts: Sequence[str], *, kind: Kind = "document", **options: Any) -> Floats:
        """Vectors [n, m] of the learned space."""
        check_keys(f"{self.method} vectors", options, ())
        found: Floats = self._asked(self._embedded(texts, kind))[VECTOR]
        return found

    def _tensor(self, array: Floats) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array, np.float32)).to(self.module.adapter.device)

    def planned(self, view: View, queries: Queries, k: int, options: PathsSearch) -> Queries:
        """With the leaves that each query visits."""
        if VISIT in queries:
            return queries
        leaves = plan(self.router, self.config, self.facts.curve, view, queries[VECTOR], k, options)
        return {**queries, VISIT: leaves}

    def search(self, view: View, queries: Queries, k: int, options: PathsSearch) -> Found:
        """The best cosines among the documents of the visited leaves: what comparing them all would find."""
        return search(view, self.planned(view, queries, k, options), k)

    def scored_alike(self, options: PathsSearch) -> PathsSearch:
        """All searches score alike."""
        return PathsSearch()

    def explain(
        self,
        query: Queries,
        arrays: Mapping[str, NDArray[np.generic]],
        options: PathsSearch,
        evidence: Mapping[str, Any],
    ) -> Explanation:
        """The leaves visited, the document's own, and how much of the cosine is its leaf's theme."""
        return explain(self.router, self.module.centres, self.facts.documents, query, arrays, evidence)

    # -- health ---------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Size and balance of the index, recall by documents visited, and what the leaves are about."""
        facts = self.facts
        return {
            "leaves": self.config.leaves,
            "branches": self.config.branches,
            "height": self.config.height,
            "documents per leaf": dict(facts.load),
            "documents per leaf in training": [dict(row) for row in facts.loads],
            "recall by share of documents visited": {
                f"{share:g}": dict(row) for share, row in facts.curve.items()
            },
            "keywords": {name: [term for term, _ in terms] for name, terms in facts.documents.items()},
            "keywords of queries": {
                name: [term for term, _ in terms] for name, terms in facts.queries.items()
            },
        }

    def survey(self, view: View) -> dict[str, Any]:
        """How full the leaves of an index are."""
        return {"documents per leaf": filled(view, self.config)}

    def warning(self, view: View) -> str | None:
        """What to do when adds have unbalanced the leaves."""
        return unbalanced(filled(view, self.config), self.facts.load)
