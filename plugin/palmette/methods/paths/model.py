"""PathsModel: a vector space and an index of it, learned together; a search visits the leaves of its query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from palmette.arrays import Floats
from palmette.data import RetrievalData
from palmette.encoder import Backbone, Encoder, Kind
from palmette.encoder.local.backbone import encode_texts
from palmette.methods.base import VECTOR, Arrays, FitInputs, Model, Queries
from palmette.methods.paths.config import TRAINING, PathsConfig, PathsSearch
from palmette.methods.paths.explain import REPORT, IndexReport, explain_leaf
from palmette.methods.paths.init import initialise
from palmette.methods.paths.module import Paths
from palmette.methods.paths.search import LEAF, VISITED, leaves_to_visit
from palmette.methods.paths.training import PathsTask
from palmette.search.plan import ArraySpec, Candidates, Lists, Score, SearchPlan
from palmette.store.protocols import View
from palmette.training.pairs import TrainingPairs, Validation
from palmette.types import Document, Explanation

PATHS_DEV_QUERIES = 300
"""Queries of a validation that encodes its texts again, because the encoder learns."""
PATHS_DEV_DOCUMENTS = 2000
"""Documents of such a validation."""


class PathsModel(Model):
    """Index of leaves over the space (EHI). Scores are cosines: −1 … 1.

    The training corpus should be like the documents to be searched: the leaves are made for it. Without ``steps`` they
    are its k-means; held-out questions then only say how many documents to visit.

    Examples:
        >>> from palmette import Document, FakeEncoder, Index, PathsModel
        >>> texts = [f"{animal} number {i}" for i in range(8) for animal in ("cat", "dog", "owl")]
        >>> pairs = [(text.upper(), text) for text in texts]
        >>> model = PathsModel.fit(pairs, encoder=FakeEncoder(32), branches=4)
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
    report: IndexReport = IndexReport()
    """Facts of the training: recall curve and terms of the leaves."""

    @classmethod
    def uses_space(cls, config: PathsConfig, data: RetrievalData) -> bool:
        """True unless the encoder learns."""
        return config.encoder_learns == "nothing"

    @classmethod
    def task(cls, config: PathsConfig, inputs: FitInputs) -> tuple[PathsConfig, PathsTask]:
        """Encode the pairs once, and start the indexer from the corpus."""
        data, encoder, cache, seed, progress = inputs
        config = config.for_documents(len(data.corpus)).replace(width=encoder.dimension)
        pairs = TrainingPairs.encode(data, encoder, cache, seed=seed, progress=progress)
        backbone = Backbone.of(encoder) if config.encoder_learns == "all" else None
        fewer: dict[str, Any] = {"queries": PATHS_DEV_QUERIES, "documents": PATHS_DEV_DOCUMENTS} if backbone else {}
        validation = Validation.of(data, seed, **fewer)  # random documents fill the leaves as all of them do
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = Paths(config, backbone).cpu()
        if config.start == "kmeans":
            initialise(module.indexer, F.normalize(pairs.documents, dim=1), seed)
        return config, PathsTask(module, pairs, validation, progress)

    @classmethod
    def module_for(cls, config: PathsConfig, encoder: Encoder) -> Paths:
        """Index of the config's shape."""
        learns = config.encoder_learns == "all"
        return Paths(config, Backbone.of(encoder, pretrained=False) if learns else None)

    def after_fit(self, task: PathsTask) -> None:
        """Keep the report."""
        self.report = task.report

    def extras(self) -> dict[str, bytes]:
        """The report."""
        return {REPORT: self.report.to_json()}

    def load_extras(self, files: Mapping[str, bytes]) -> None:
        """Read the report back."""
        if REPORT in files:
            self.report = IndexReport.from_json(files[REPORT])

    @cached_property
    def router(self) -> Paths:
        """Double-precision copy of the module that embeds and routes."""
        return self.module.router()

    @property
    def accepts_embeddings(self) -> bool:
        """True where the encoder does not learn."""
        return self.module.backbone is None

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Unit vectors, and the likeliest leaf of each document."""
        last = self.config.leaves - 1
        leaves = ArraySpec(LEAF, (1,), "int32", searched="lists", valid_range=(0, last))
        return ArraySpec(VECTOR, (self.config.width,), searched="inner_product"), leaves

    def encode_documents(self, documents: Sequence[Document], vectors: Floats | None = None) -> Arrays:
        """Vectors [N, m] and leaves [N, 1]."""
        contents = [document.content for document in documents]
        x = self._embed(self._encode(contents, "document") if vectors is None else vectors)
        leaves = self.router.leaf_of(x)[:, None].numpy().astype(np.int32)
        return {VECTOR: x.float().numpy(), LEAF: leaves}

    def encode_queries(self, queries: Sequence[str] | Floats, options: PathsSearch) -> Queries:
        """Vectors [Q, m]."""
        vectors = queries if isinstance(queries, np.ndarray) else self._encode(queries, "query")
        return {VECTOR: self._embed(vectors).float().numpy()}

    def _encode(self, texts: Sequence[str], kind: Kind) -> Floats:
        """Encoder vectors [n, m]: of the encoder as it was, or as it has learned."""
        if self.module.backbone is not None:
            return np.asarray(encode_texts(self.module.backbone, texts, kind).cpu(), np.float32)
        encode = self.encoder.encode_queries if kind == "query" else self.encoder.encode
        return np.asarray(encode(texts), np.float32)

    def _embed(self, vectors: Floats) -> torch.Tensor:
        return F.normalize(torch.from_numpy(np.array(vectors, np.float64)), dim=1)

    def plan(self, queries: Queries, k: int, options: PathsSearch, view: View) -> SearchPlan:
        """Inner products with the documents of the leaves to visit."""
        leaves = leaves_to_visit(self.router, self.report.curve, view, queries[VECTOR], k, options)
        lists = Lists(LEAF, leaves) if leaves.shape[1] else None
        return SearchPlan(Score(VECTOR, queries[VECTOR]), lists)

    def rank(self, view: View, plan: SearchPlan, candidates: Candidates, k: int, options: PathsSearch) -> Candidates:
        """Candidates as they are, with the number of leaves visited."""
        counts = (plan.lists.chosen >= 0).sum(axis=1) if plan.lists else np.zeros(len(candidates.keys), np.int64)
        visited = np.zeros(candidates.keys.shape, np.int64) + counts[:, None]
        return replace(candidates, evidence={VISITED: visited})

    def explain(self, query: Queries, arrays: Arrays, options: PathsSearch, evidence: Mapping[str, Any]) -> Explanation:
        """Leaves visited, the document's own, and its leaf's share of the cosine."""
        return explain_leaf(self.router, self.report.documents, query, arrays, evidence)

    def describe(self) -> dict[str, Any]:
        """Shape and terms of the leaves, and recall by documents visited."""
        report = self.report
        return {
            **{name: getattr(self.config, name) for name in ("leaves", "branches", "height")},
            "recall by share of documents visited": {f"{share:g}": row for share, row in report.curve.items()},
            "keywords": {leaf: [term for term, _ in best] for leaf, best in report.documents.items()},
        }
