"""SpaceModel: the hooks of the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from palmette.arrays import Floats
from palmette.config import Config
from palmette.data import RetrievalData
from palmette.encoder import Encoder, load_encoder
from palmette.hub.checkpointed import TrainingRecord
from palmette.methods.base import DEFAULT_ENCODER, VECTOR, Arrays, Model, Queries
from palmette.ranking.score import USUAL
from palmette.search.plan import ArraySpec, Score, SearchPlan
from palmette.store.protocols import View
from palmette.types import Document, Explanation, Part


class SpaceConfig(Config):
    """Options of the model: none."""


class SpaceSearch(Config):
    """Options of one search: none."""


class SpaceModel(Model):
    """Dense retrieval with one vector per document. Scores are inner products, for most encoders cosines: −1 … 1.

    Examples:
        >>> from palmette import FakeEncoder, Index, SpaceModel
        >>> index = Index.build(["the red owl sleeps", "a blue fox runs"], SpaceModel.untrained(FakeEncoder(32)))
        >>> index.search("where is the fox?", k=1)[0].document.text
        'a blue fox runs'
    """

    method: ClassVar[str] = "space"
    config_class = SpaceConfig
    search_class = SpaceSearch
    accepts_embeddings = stores_vectors = True
    usual_score_scales = USUAL  # of the cosines that the shipped coefficients were learned on
    config: SpaceConfig

    @classmethod
    def untrained(cls, encoder: str | Encoder = DEFAULT_ENCODER, device: str | None = None) -> Self:
        """Model of the encoder's own vectors, without data and without training."""
        record = TrainingRecord(data="", labelled=False)
        return cls(SpaceConfig(), load_encoder(encoder, device=device), None, record=record)

    @classmethod
    def uses_space(cls, config: SpaceConfig, data: RetrievalData) -> bool:
        """True: the space is all that this method learns."""
        return True

    def arrays(self) -> tuple[ArraySpec, ...]:
        """The document's vector."""
        return (ArraySpec(VECTOR, (self.encoder.dimension,), "float16", searched="inner_product"),)

    def encode_documents(self, documents: Sequence[Document], vectors: Floats | None = None) -> Arrays:
        """Vectors [N, d] in half precision."""
        if vectors is None:
            vectors = self.encoder.encode([document.content for document in documents])
        return {VECTOR: vectors.astype(np.float16)}

    def encode_queries(self, queries: Sequence[str] | Floats, options: SpaceSearch) -> Queries:
        """Vectors [Q, d]."""
        return {VECTOR: queries if isinstance(queries, np.ndarray) else self.encoder.encode_queries(queries)}

    def plan(self, queries: Queries, k: int, options: SpaceSearch, view: View) -> SearchPlan:
        """Inner products with all documents."""
        return SearchPlan(Score(VECTOR, queries[VECTOR]))

    def explain(self, query: Queries, arrays: Arrays, options: SpaceSearch, evidence: Mapping[str, Any]) -> Explanation:
        """The documents' similarity, as one part."""
        vector = np.asarray(arrays[VECTOR], np.float32).reshape(-1)
        score = float(query[VECTOR][0] @ vector)
        return Explanation(score, [Part("cosine", score)], f"cosine {score:.3f}")

    def describe(self) -> dict[str, Any]:
        """Width of the vectors, and how the space was learned."""
        return {"dimension": self.encoder.dimension, "space": self.record.space}
