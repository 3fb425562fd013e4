"""FieldsModel: the hooks of the field encoder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from palmette.arrays import Floats, quantise
from palmette.encoder import Backbone, Encoder
from palmette.encoder.coalesce import Coalescer
from palmette.errors import CheckpointError, ConfigError, EncodingError
from palmette.methods.base import Arrays, FitInputs, Model, Queries
from palmette.methods.fields.config import TRAINING, FieldsConfig, FieldsSearch
from palmette.methods.fields.documents import (
    TEXT,
    FieldExtractor,
    FieldsWarning,
    field_tokens,
    query_tokens,
    token_budgets,
)
from palmette.methods.fields.explain import explain
from palmette.methods.fields.module import FieldEncoder
from palmette.methods.fields.search import AGGREGATE, FIELD_SCALES, FIELD_WEIGHTS, FIELDS, blend, part_weights
from palmette.methods.fields.training import FieldsTask
from palmette.ranking.score import options_key
from palmette.search.plan import ArraySpec, Score, SearchPlan
from palmette.store.protocols import View
from palmette.types import Document, Explanation


class FieldsModel(Model):
    """Encoder of documents with fields (title, brand, …): one vector per field, and one of all fields.

    Scores are cosines (or inner products) of the field that matches best, of the aggregate, or of both in parts.
    The encoder itself is trained, a sentence-transformers model of the BERT family, and the checkpoint holds a copy of
    it: four bytes a parameter. Without labelled pairs nothing is trained: the model keeps the encoder's own vectors
    of whole documents, and says so in a warning.

    Examples:
        .. code-block:: python

            model = FieldsModel.fit(pairs, fields={"brand": "metadata.brand", "title": "title", "text": "text"})
            index = Index.build(products, model)
            hit = index.search("warm socks", k=1, filter={"price": {"$lt": 20}}, fields=["title", "text"])[0]
            hit.explain().detail["field"]  # 'title'
    """

    method: ClassVar[str] = "fields"
    retriever: ClassVar[str] = "MultiFieldRetriever"
    config_class = FieldsConfig
    search_class = FieldsSearch
    training_defaults: ClassVar[Mapping[str, Any]] = TRAINING
    sentences = False  # the encoder of fields is trained, and sentences are not fields
    config: FieldsConfig
    module: FieldEncoder

    def __init__(self, config: FieldsConfig, encoder: Encoder, module: FieldEncoder, **more: Any) -> None:
        super().__init__(config, encoder, module, **more)
        self.extractor = FieldExtractor.of(config.fields)
        self.reads_metadata = self.extractor.reads_metadata
        self._coalesce = Coalescer(32)

    @classmethod
    def task(cls, config: FieldsConfig, inputs: FitInputs) -> tuple[FieldsConfig, FieldsTask]:
        """Copy the encoder, choose how much of each field it reads, and tokenise everything.

        The cache is not used: what a trained encoder gives today is wrong tomorrow.
        """
        data, encoder = inputs.data, inputs.encoder
        if not data.labelled:
            warnings.warn(
                f"{data.name} has no labelled pairs, so nothing is trained: the model keeps the encoder's own vectors "
                "of whole documents. Give pairs of a query and its document to train it",
                FieldsWarning,
                stacklevel=3,
            )
        extractor = FieldExtractor.for_training(config, data.corpus)
        backbone = Backbone.of(encoder, new_tokens=len(extractor.sources))
        filled_in = {"fields": extractor.sources, "dimension": backbone.dimension, "labelled": data.labelled}
        config = config.replace(**filled_in)
        config = config.replace(limits=token_budgets(backbone, extractor, data.corpus, config))
        module = FieldEncoder(config, backbone, encoder.precision).to(backbone.device)
        backbone.freeze(config.trained_layers)
        if module.frozen:
            backbone.requires_grad_(False)
        return config, FieldsTask.of(module, extractor, inputs)

    @classmethod
    def module_for(cls, config: FieldsConfig, encoder: Encoder) -> FieldEncoder:
        """Encoder of the config's shape; all of its weights are in the checkpoint."""
        if len(config.limits) != len(config.order):
            raise CheckpointError(f"fields: {len(config.order)} fields need as many limits, got {len(config.limits)}")
        backbone = Backbone.of(encoder, new_tokens=len(config.order), pretrained=False)
        return FieldEncoder(config, backbone, encoder.precision)

    def after_fit(self, task: FieldsTask) -> None:
        """Keep the share that held-out queries chose."""
        self.config = task.module.config

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Aggregate, fields' vectors with their scales, and fields' weights in the aggregate."""
        count, width, stored = len(self.config.order), self.config.dimension, self.config.stored
        scales = (ArraySpec(FIELD_SCALES, (count,)),) if stored == "int8" else ()
        factors = FIELD_SCALES if scales else None
        fields = ArraySpec(FIELDS, (count, width), stored, searched="inner_product", scales=factors)
        return (
            ArraySpec(AGGREGATE, (width,), searched="inner_product"),
            fields,
            *scales,
            ArraySpec(FIELD_WEIGHTS, (count,)),
        )

    def encode_documents(self, documents: Sequence[Document], vectors: Floats | None = None) -> Arrays:
        """Stored arrays, from one pass."""
        if vectors is not None:
            self.require_embeddings()
        backbone, limits = self.module.backbone, self.config.limits
        tokens = field_tokens(backbone, self.extractor, documents, limits, self.config.attended)
        ids = [[field.row(at).tolist() for field in tokens] for at in range(len(documents))]
        fields, weights, aggregate = self.module.encode("document", ids)
        bad = np.flatnonzero(~np.isfinite(fields).all(axis=(1, 2)))
        if len(bad):
            raise EncodingError(f"document {documents[bad[0]].key!r} became NaN or infinity; train with a lower rate")
        if self.config.stored == "float32":
            return {AGGREGATE: aggregate, FIELD_WEIGHTS: weights, FIELDS: fields}
        codes, scales = quantise(fields)
        return {AGGREGATE: aggregate, FIELD_WEIGHTS: weights, FIELDS: codes, FIELD_SCALES: scales}

    def encode_queries(self, queries: Sequence[str] | Floats, options: FieldsSearch | None) -> Queries:
        """Aggregates of queries [Q, d]; concurrent callers share a pass."""
        if isinstance(queries, np.ndarray):
            self.require_embeddings()
        texts = self.encoder.check(list(queries), "query")
        return {AGGREGATE: self._coalesce(texts, self._encode_queries)}

    def _encode_queries(self, texts: Sequence[str]) -> Floats:
        tokens = query_tokens(self.module.backbone, texts, self.config)
        return self.module.encode("query", [tokens.row(at).tolist() for at in range(len(tokens))])[2]

    def plan(self, queries: Queries, k: int, options: FieldsSearch, view: View) -> SearchPlan:
        """A shortlist by the aggregate, ranked by the best field; or either alone."""
        config, vectors = self.config, queries[AGGREGATE]  # [Q, d]
        first, share = Score(AGGREGATE, vectors), blend(config, options)
        if share == 1:
            return SearchPlan(first)
        scales = FIELD_SCALES if config.stored == "int8" else None
        best = Score(FIELDS, vectors, part_weights=part_weights(config, options), scales=scales)
        if options.by == "best":
            return SearchPlan(best)
        return SearchPlan(first, rescore=best, fetch=max(k, options.shortlist), share=share)

    def explain(
        self, query: Queries, arrays: Arrays, options: FieldsSearch, evidence: Mapping[str, Any]
    ) -> Explanation:
        """The field that matched, similarity and weight of each field, and the words that are nearest."""
        vector = query[AGGREGATE][0]
        stored = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
        fields = stored[FIELDS].reshape(len(self.config.order), -1)
        if FIELD_SCALES in stored:
            fields = fields * stored[FIELD_SCALES].reshape(-1, 1)
        document = evidence.get("document")
        texts = self.extractor.read(document) if document is not None else []
        return explain(
            self.config, options, vector, fields, stored[FIELD_WEIGHTS].reshape(-1), stored[AGGREGATE].reshape(-1),
            dict(zip(self.config.order, texts, strict=False)),
            lambda pieces: self._nearest(pieces, vector),
        )  # fmt: skip

    def content_read(self, document: Document) -> str:
        """Texts of the fields, wherever they lie."""
        return repr(self.extractor.read(document))

    def check_search(self, options: FieldsSearch) -> None:
        """Refuse fields that the model does not have."""
        for name in (*options.fields, *options.factors):
            if name not in self.config.order:
                raise ConfigError(f"this model has no field {name!r}; fields: {', '.join(self.config.order)}")

    def lexical_variants(self) -> dict[str, FieldsSearch]:
        """Two stages, and the aggregate alone."""
        return {options_key(options): options for options in (FieldsSearch(), FieldsSearch(by="aggregate"))}

    def lexical_key(self, options: FieldsSearch) -> str:
        """Key of the variant by the aggregate or by the best field."""
        return options_key(FieldsSearch(by="aggregate" if options.by == "aggregate" else "two_stage"))

    def default_words(self, options: FieldsSearch) -> float | None:
        """Weight of words: 0 where fields are chosen, since words may lie in any field."""
        return 0.0 if options.fields else None

    def _nearest(self, texts: Sequence[str], vector: Floats) -> int:
        """Return the place of the text whose aggregate is nearest to a query's vector [d]."""
        documents = [Document(str(row), fields={TEXT: text}) for row, text in enumerate(texts)]
        return int((np.asarray(self.encode_documents(documents)[AGGREGATE], np.float32) @ vector).argmax())

    def describe(self) -> dict[str, Any]:
        """The fields, which fields each attends to, and how much of each is read."""
        order = self.config.order
        attended = zip(order, self.config.attended, strict=True)
        return {
            "fields": dict(self.extractor.sources),
            "tokens": dict(zip(order, self.config.limits, strict=True)),
            "sees": {name: np.array(order)[row].tolist() for name, row in attended},
            "parameters": sum(value.numel() for value in self.module.parameters()),
            "dimension": self.config.dimension,
            "labelled": self.config.labelled,
        }
