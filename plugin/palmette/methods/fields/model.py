"""FieldsModel: an encoder of fields to train, documents of many vectors to search and to explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from palmette.data import load_data
from palmette.encoder import Backbone, Encoder, Kind
from palmette.encoder.coalesce import Coalescer
from palmette.errors import ConfigError, EncodingError
from palmette.lexical.mix import Lexical, Mix
from palmette.methods.fields.config import WHOLE, FieldsConfig, FieldsSearch, FieldsTraining
from palmette.methods.fields.explanation import explanation, passage
from palmette.methods.fields.memory import Memory
from palmette.methods.fields.module import FieldEncoder
from palmette.methods.fields.passes import encoded_documents, encoded_queries
from palmette.methods.fields.pretraining import LanguageModel, LanguageTask
from palmette.methods.fields.queries import WORDS, with_field_queries
from palmette.methods.fields.reading import TEXT, Reader, as_items
from palmette.methods.fields.searching import AGGREGATE, FIELDS, SCALES, WEIGHTS, search
from palmette.methods.fields.start import begin
from palmette.methods.fields.task import FieldsTask
from palmette.methods.fields.tokens import field_tokens, limits_of, query_limit
from palmette.methods.fields.wording import WordsTask
from palmette.model import Model, Queries
from palmette.search.parts import quantised
from palmette.search.probe import ArraySpec, Floats, Found
from palmette.training import Trained, TrainingConfig, train
from palmette.types import Document, Explanation

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.data import RetrievalData
    from palmette.store.backend import View

__all__ = ["FieldsModel"]

_ITEMS = ("fields", "sees", "budgets")
"""Options that may be mappings."""


def _stage(how: dict[str, Any], name: str, label: str) -> dict[str, Any]:
    """How a stage before or after the training proper runs."""
    folder = how.get("output_dir")
    return {**how, "output_dir": None if folder is None else Path(folder) / name, "label": label}


class FieldsModel(Model):
    """An encoder of documents with fields (title, brand, …): a vector per field, and one of them all.

    Scores are cosines (or inner products): of the field that matches best, or of the aggregate.

    A checkpoint holds the whole encoder: four bytes a parameter (see :mod:`palmette.encoder.backbone`).

    Examples:
        .. code-block:: python

            model = FieldsModel.fit(products, fields={"brand": "metadata.brand", "title": "title", "text": "text"})
            index = Index.build(products, model)
            hit = index.search("warm socks", k=1, filter={"price": {"$lt": 20}}, fields=["title", "text"])[0]
            hit.explain().detail["field"]  # 'title'
    """

    method: ClassVar[str] = "fields"
    retriever: ClassVar[str] = "MultiFieldRetriever"
    config_class = FieldsConfig
    training_class = FieldsTraining
    search_class = FieldsSearch
    makes_queries = True
    reads_metadata = True
    config: FieldsConfig
    module: FieldEncoder

    def __init__(self, config: FieldsConfig, encoder: Encoder, module: FieldEncoder, **more: Any) -> None:
        super().__init__(config, encoder, module, **more)
        self.reader = Reader.of(config.fields)
        self._coalesce = Coalescer(32)

    @classmethod
    def fit(cls, data: Any, config: Any = None, **options: Any) -> Self:
        """Train the encoder itself on documents with fields; see :meth:`palmette.Model.fit`."""
        given = {name: as_items(value) if name in _ITEMS else value for name, value in options.items()}
        loaded = load_data(data, seed=options.get("seed", 0), kinds=())
        reader = Reader.of(given["fields"]) if given.get("fields") else Reader.found(loaded.corpus)
        reader.check(loaded.corpus)
        if WHOLE in reader.names and len(reader.names) > 1:
            raise ConfigError(
                f"fields: {WHOLE!r} is the field that is made of all others; name yours otherwise, such as "
                f"fields={{'every': {reader.sources[WHOLE]!r}, …}}"
            )
        if WORDS not in loaded.qrels and (not loaded.labelled or given.get("targets") == "words"):
            loaded = with_field_queries(loaded, reader, options.get("seed", 0))
        if given.get("whole", True) and given.get("attention") != "full":
            reader = reader.with_whole(WHOLE)
        return super().fit(loaded, config, **{**given, "fields": reader.items})

    @classmethod
    def task(
        cls,
        config: FieldsConfig,
        data: RetrievalData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> tuple[FieldsConfig, FieldsTask]:
        """Copy the encoder, choose how much of each field it reads, and tokenise everything."""
        reader = Reader.of(config.fields) if config.fields else Reader.found(data.corpus)
        backbone = Backbone.of(encoder, new_tokens=len(reader.names))
        room = min(config.document_tokens or backbone.max_length, backbone.max_length)
        config = config.replace(fields=reader.items, dimension=backbone.dimension)
        given, whole = config.given_budgets, config.reads_whole
        limits = limits_of(backbone, reader, data.corpus, given, room, config.ancestors, whole=whole)
        config = config.replace(limits=limits)
        module = FieldEncoder(config, backbone, encoder.precision).to(backbone.device)
        backbone.freeze(config.trained_layers)
        if module.frozen:
            backbone.requires_grad_(False)
            module.memory = cls.memory()
        task = FieldsTask.of(module, data, reader, seed=seed, progress=progress)
        begin(task, seed)
        taught = config.query_words == "auto" and task.teacher is not None
        if module.frozen and (taught or config.query_words == "always"):
            module.learn_words(np.unique(np.concatenate([task.queries[row] for row in task.heard.tolist()])))
        return module.config, task

    @classmethod
    def memory(cls) -> Memory:
        """Where a frozen encoder keeps what it has read, for one training."""
        return Memory()

    @classmethod
    def run(cls, task: Any, training: TrainingConfig, **how: Any) -> Trained:
        """Language modelling first where it is asked for, then retrieval, then what words of queries add."""
        config: FieldsConfig = task.module.config
        if config.pretrain_steps:
            train(
                LanguageTask(LanguageModel(task.module), task),
                training.replace(steps=config.pretrain_steps, learning_rate=config.pretrain_rate),
                **_stage(how, "pretraining", "Learning the catalogue's language"),
            )
        try:
            trained = train(task, training, **how)
            if training.steps and config.word_steps and task.teacher and task.module.words:
                train(
                    WordsTask.of(task, task.teacher, task.module.words),
                    training.replace(steps=config.word_steps),
                    **_stage(how, "words", "Learning words of queries"),
                )
            return trained
        finally:
            task.module.memory = None

    @classmethod
    def module_for(cls, config: FieldsConfig, encoder: Encoder) -> FieldEncoder:
        """An encoder of the config's shape; all of its weights are in the checkpoint."""
        backbone = Backbone.of(encoder, new_tokens=len(config.order), pretrained=False)
        return FieldEncoder(config, backbone, encoder.precision)

    def arrays(self) -> tuple[ArraySpec, ...]:
        """The aggregated vector, the fields' vectors, and how much each field counts in the aggregate."""
        count, width, stored = len(self.config.order), self.config.dimension, self.config.stored
        scales = (ArraySpec(SCALES, (count,)),) if stored == "int8" else ()
        return (
            ArraySpec(AGGREGATE, (width,)),
            ArraySpec(FIELDS, (count, width), stored),
            *scales,
            ArraySpec(WEIGHTS, (count,)),
        )

    def encode_documents(self, documents: Sequence[Document]) -> dict[str, NDArray[np.generic]]:
        """Those arrays, from one pass."""
        module, limits = self.module, self.config.limits
        tokens = field_tokens(module.backbone, self.reader, documents, limits, module.ancestors)
        ids = [[field[row] for field in tokens] for row in range(len(documents))]
        made = encoded_documents(self.module, ids)
        bad = np.flatnonzero(~np.isfinite(made.fields).all(axis=(1, 2)))
        if len(bad):
            raise EncodingError(
                f"document {documents[bad[0]].key!r} became NaN or infinity; train with a lower rate"
            )
        kept: dict[str, NDArray[np.generic]] = {AGGREGATE: made.aggregate, WEIGHTS: made.weights}
        if self.config.stored == "int8":
            kept[FIELDS], kept[SCALES] = quantised(made.fields)
        else:
            kept[FIELDS] = made.fields.astype(self.config.stored)
        return kept

    def encode_queries(self, texts: Sequence[str], options: FieldsSearch) -> Queries:
        """Aggregated vectors [Q, d]; callers in other threads that come together share a pass."""
        checked = self.encoder.check(texts, "query")
        few = 0 < len(checked) <= 32
        return {AGGREGATE: self._coalesce(checked, self._asked) if few else self._asked(checked)}

    def _asked(self, texts: Sequence[str]) -> Floats:
        backbone = self.module.backbone
        prompt = backbone.prompts.get("query", "")
        ids = backbone.tokenise([prompt + text for text in texts], query_limit(backbone, self.config))
        return encoded_queries(self.module, ids)

    def reads(self, document: Document) -> str:
        """Its fields, which may lie in metadata."""
        return repr(self.reader.read(document))

    def vectors(self, texts: Sequence[str], *, kind: Kind = "document", **options: Any) -> Floats:
        """Aggregated vectors of texts without fields, or of queries."""
        super().vectors([], **options)
        if kind == "query":
            return self._asked(self.encoder.check(texts, "query"))
        documents = [Document(str(row), fields={TEXT: text}) for row, text in enumerate(texts)]
        return np.asarray(self.encode_documents(documents)[AGGREGATE], np.float32)

    def options(self, given: Mapping[str, Any]) -> FieldsSearch:
        """Search options; ``weights`` as a mapping too, and both lists as a shell has them: ``title,text``."""
        lists = {
            name: as_items(value)
            for name, value in given.items()
            if name in ("fields", "weights") and isinstance(value, str | Mapping)
        }
        options: FieldsSearch = super().options({**given, **lists})
        return options

    def check_options(self, options: FieldsSearch) -> None:
        """Fields that are asked for are there."""
        for name in (*options.fields, *options.field_weights):
            if name not in self.config.order:
                raise ConfigError(f"this model has no field {name!r}; fields: {', '.join(self.config.order)}")

    def scored_alike(self, options: FieldsSearch) -> FieldsSearch:
        """By the best field, or by the aggregate."""
        return FieldsSearch(by="aggregate" if options.by == "aggregate" else "two_stage")

    def shortlist(self, options: FieldsSearch) -> int | None:
        """That of two stages."""
        return options.shortlist if options.by == "two_stage" else None

    def mix(self, options: FieldsSearch, lexical: Lexical) -> Mix | None:
        """As everywhere; but words lie in any field, so unless asked for they do not count where fields are chosen."""
        return None if options.fields and lexical == "auto" else super().mix(options, lexical)

    def calibrated(self) -> list[FieldsSearch]:
        """Both."""
        return [FieldsSearch(), FieldsSearch(by="aggregate")]

    def search(self, view: View, queries: Queries, k: int, options: FieldsSearch) -> Found:
        """A shortlist by the aggregate, ranked by the best field; or either alone."""
        return search(view, queries[AGGREGATE], k, options, self.config)

    def explain(
        self,
        query: Queries,
        arrays: Mapping[str, NDArray[np.generic]],
        options: FieldsSearch,
        evidence: Mapping[str, Any],
    ) -> Explanation:
        """The field that matched, the similarity and weight of each, and the words that are nearest."""
        count, asked = len(self.config.order), query[AGGREGATE][0]
        fields = np.asarray(arrays[FIELDS], np.float32).reshape(count, -1)
        if SCALES in arrays:
            fields = fields * np.asarray(arrays[SCALES], np.float32).reshape(-1, 1)
        document = evidence.get("document")
        texts = (
            {} if document is None else dict(zip(self.config.order, self.reader.read(document), strict=True))
        )

        def nearest(pieces: Sequence[str]) -> int:
            return int((self.vectors(pieces) @ asked).argmax())

        weights, aggregate = (
            np.asarray(arrays[name], np.float32).reshape(-1) for name in (WEIGHTS, AGGREGATE)
        )
        return explanation(
            self.config,
            options,
            asked,
            fields,
            weights,
            aggregate,
            texts,
            lambda text: passage(text, nearest),
        )

    def describe(self) -> dict[str, Any]:
        """The fields, what each may see and how much of it is read."""
        sees = {
            name: [other for other, there in zip(self.config.order, row, strict=True) if there]
            for name, row in zip(self.config.order, self.module.ancestors.tolist(), strict=True)
        }
        return {
            "fields": dict(self.reader.sources),
            "tokens": dict(zip(self.config.order, self.config.limits, strict=True)),
            "sees": sees,
            "parameters": sum(value.numel() for value in self.module.parameters()),
            "dimension": self.config.dimension,
        }
