"""Reader: answers from passages, with no language model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload
from weakref import WeakValueDictionary

from palmette.config import check_keys, check_range
from palmette.data.documents import text_of, to_document
from palmette.encoder import Encoder, load_encoder
from palmette.encoder.cache import EncodingCache
from palmette.encoder.load import encoder_of
from palmette.errors import CheckpointError, InputError, shown
from palmette.hub import Checkpoint
from palmette.hub.checkpointed import Checkpointed, TrainingRecord
from palmette.lexical.analyser import check_query
from palmette.machine.devices import require_torch
from palmette.machine.telemetry import span
from palmette.methods.base import DEFAULT_ENCODER
from palmette.reader.answer import Answer, answer_of, calibrated, with_blocks, with_places
from palmette.reader.config import TRAINING, ReaderConfig
from palmette.reader.data import load_reading
from palmette.reader.sentences import SentenceModule
from palmette.reader.training import TrainingSet
from palmette.training.config import TrainingConfig
from palmette.types import Document, Hit

if TYPE_CHECKING:
    from palmette.reader.spans import SpanModule

RELEVANT = 0.2
"""Probability of a hit from which on it is worth reading."""

HITS_READ = 5
"""Hits whose sentences are read, so that an answer does not depend on how many more are shown beside it."""
MOST_READ = 2**21
"""Characters of a question's passages: their sentences take 150 MB."""

LOADED_READERS: WeakValueDictionary[tuple[object, ...], Reader] = WeakValueDictionary()
"""Readers in use, so that many chains over one checkpoint share one."""


class Reader(Checkpointed):
    """Answers questions from passages, in their own words, and says how sure it is and which passages say it.

    Made by :meth:`fit` or :meth:`from_pretrained`; safe to share between threads.
    """

    method = kind = "reader"
    config_class = ReaderConfig
    training_defaults = TRAINING
    config: ReaderConfig

    def __init__(
        self,
        config: ReaderConfig,
        encoder: Encoder,
        module: SentenceModule | SpanModule | None = None,
        *,
        threshold: float = 0.5,
        record: TrainingRecord | None = None,
    ) -> None:
        self.config, self.encoder = config, encoder
        self.module = new_module(config, encoder) if module is None else module
        if not isinstance(self.module, SentenceModule):
            self.module.to(encoder.device).eval().requires_grad_(False)
        self.threshold = threshold
        """Probability of there being an answer below which none is given; learned on held-out questions."""
        self.record = record or TrainingRecord()
        self.origin: str | None = None
        self.revision: str | None = None

    @classmethod
    def untrained(cls, encoder: str | Encoder = DEFAULT_ENCODER, device: str | None = None) -> Self:
        """Reader of sentences by the weights that all-MiniLM-L6-v2 comes to, without data and without training."""
        return cls(ReaderConfig(unit="sentence"), load_encoder(encoder, device=device))

    @classmethod
    def fit(
        cls,
        data: Any,
        *,
        encoder: str | Encoder = DEFAULT_ENCODER,
        device: str | None = None,
        output_dir: str | Path | None = None,
        resume: bool = False,
        progress: bool | None = None,
        cache: EncodingCache | str | Path | None = None,
        start: str | Path | Reader | None = None,
        **options: Any,
    ) -> Self:
        """Train a reader.

        Args:
            data: Questions with answers and their passages, see :func:`palmette.reader.load_reading`; for sentences
                the passages that answer will do.
            encoder: A sentence-transformers model, by name or folder, or an :class:`palmette.Encoder`: what a span
                reader starts from, and what finds passages that look right and are not.
            device: Where to train; ``None`` for the best there is.
            output_dir: Keeps the log and the state to ``resume`` from.
            resume: Continue the run in ``output_dir``.
            progress: Progress bars; ``None`` shows them on a terminal.
            cache: Where encodings are kept; ``None`` for the user's cache folder.
            start: A reader, or its checkpoint, whose weights training begins with; over the same encoder.
            options: Options of :class:`ReaderConfig` and :class:`palmette.TrainingConfig`. Sentences are fitted by
                L-BFGS in ``steps`` iterations at most, and use no other option of the loop but ``seed``.
        """
        require_torch()
        check_keys("Reader.fit", options, [*ReaderConfig.choices(), *TrainingConfig.choices()])
        own = {name: options.pop(name) for name in ReaderConfig.choices() if name in options}
        config, training = ReaderConfig(**own), TrainingConfig(**{**TRAINING, **options})
        loaded = load_reading(data, seed=training.seed)
        if config.unit == "span":
            loaded = loaded.with_answers()
        if not loaded.splits.get("train"):
            raise InputError(
                f"{loaded.name} has no training questions: splits are {sorted(loaded.splits)}. Reader.untrained() "
                "reads sentences without any"
            )
        store = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)
        coder = load_encoder(encoder, device=device)
        training_set = TrainingSet.of(loaded, config, coder, store, seed=training.seed, progress=progress)
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)  # of the head's first weights
            module = new_module(config, coder)
        if start is not None:
            begun = start if isinstance(start, Reader) else cls.from_pretrained(start, encoder=coder)
            load_weights(module, begun.module.kept(), f"start={shown(start)}")
        run: dict[str, Any] = {"device": device, "output_dir": output_dir, "resume": resume, "progress": progress}
        trained = module.fit(training_set, training, label=f"Training the {config.unit} reader", **run)
        record = TrainingRecord(
            data=loaded.name,
            documents=len(loaded.passages),
            pairs=len(training_set.train),
            steps=trained.steps,
            seconds=round(trained.seconds, 1),
            metric=module.metric,
            metrics={name: round(float(value), 6) for name, value in trained.metrics.items()},
            training=training.to_dict(),
        )
        return cls(config, coder, module, threshold=trained.metrics.get("threshold", 0.5), record=record)

    @overload
    def answer(self, question: str, passages: Sequence[Any], *, threshold: float | None = None) -> Answer: ...

    @overload
    def answer(
        self, question: Sequence[str], passages: Sequence[Sequence[Any]], *, threshold: float | None = None
    ) -> list[Answer]: ...

    def answer(
        self, question: str | Sequence[str], passages: Sequence[Any], *, threshold: float | None = None
    ) -> Answer | list[Answer]:
        """Answer a question from passages, or several questions from the passages of each.

        Args:
            question: One, or several.
            passages: Documents, hits, texts, LangChain's documents or LlamaIndex's nodes, in any order; for several
                questions a list for each.
            threshold: Least probability of there being an answer for one to be given; 0 answers always, ``None``
                takes the learned one. Hits of a search of which none is relevant, with a probability of 0.2, have no
                answer either. A reader of sentences reads the five most probable of hits.
        """
        bound = self.threshold if threshold is None else threshold
        check_range("answer", "threshold", bound, 0, 1)
        single, several = (isinstance(question, str), "a question must be a str, and several a list of them, got")
        questions: list[Any] = [question] if single else _listed(question, several)
        passage_lists = [passages] if single else _listed(passages)
        if len(questions) != len(passage_lists):
            raise InputError(f"{len(questions)} questions need as many lists of passages, got {len(passage_lists)}")
        for text in questions:
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"a question must be a str that is not empty, got {shown(text)}")
            check_query(text)
        passage_lists = list(map(_listed, passage_lists))
        document_lists = [list(map(_document, entries, range(len(entries)))) for entries in passage_lists]
        contents = [[document.content for document in documents] for documents in document_lists]
        if self.config.unit == "sentence":
            contents = list(map(_most_probable, passage_lists, contents))
        if (longest := max((sum(map(len, texts)) for texts in contents), default=0)) > MOST_READ:
            raise InputError(
                f"the passages of a question have {longest:,} characters, and may have {MOST_READ:,}: give fewer"
            )
        with span("answer"):
            if isinstance(self.module, SentenceModule):
                stored = {hit.document.content: hit.vectors for hit in chain(*passage_lists) if self._knows(hit)}
                candidate_lists = self.module.candidates(questions, contents, stored)
            else:
                candidate_lists = self.module.candidates(questions, contents)
        answers = []
        for text, candidates, entries, documents in zip(
            questions, candidate_lists, passage_lists, document_lists, strict=True
        ):
            scores = [entry.score for entry in entries if isinstance(entry, Hit)]
            best = max(scores) if scores and len(scores) == len(entries) else 1.0
            if bound and best < RELEVANT:
                reply = Answer(text, no_answer=1 - best)
            else:
                reply = answer_of(text, candidates, documents, bound)
                if isinstance(self.module, SentenceModule):
                    reply = with_blocks(calibrated(reply, candidates))
            answers.append(with_places(reply, entries))
        return answers[0] if single else answers

    def _knows(self, passage: Any) -> bool:
        """Return whether a passage comes with vectors of its sentences by the reader's encoder."""
        vectors = passage.vectors if isinstance(passage, Hit) else None
        if vectors is None or vectors.encoder != self.encoder.fingerprint:
            return False
        return self.encoder.has_offsets or len(vectors.spans) > 1  # else a text is stored as its only sentence

    def config_json(self) -> dict[str, Any]:  # noqa: D102
        return {
            "method": self.method,
            "config": {**self.config.to_dict(), "threshold": self.threshold},
            "encoder": self.encoder.to_config(),
            "record": self.record.to_dict(),
        }

    def weights(self) -> dict[str, Any]:  # noqa: D102
        return dict(self.module.kept())

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, *, encoder: str | Encoder | None = None, **options: Any) -> Self:
        """Reader of an opened checkpoint; loading the same twice gives the same object."""
        facts = checkpoint.config
        if facts.get("method") != cls.method:
            raise CheckpointError(
                f"{checkpoint.path} holds a {facts.get('method')!r} model, not a reader: use palmette.load_model"
            )
        config = ReaderConfig.from_dict({n: v for n, v in facts["config"].items() if n != "threshold"})
        coder = encoder_of(facts["encoder"], encoder, checkpoint.path, **options)
        key = (checkpoint.fingerprint, checkpoint.origin, checkpoint.revision, id(coder))
        if isinstance(known := LOADED_READERS.get(key), cls):
            return known
        module = new_module(config, coder)
        stored = checkpoint.weights("")[0] if config.unit == "sentence" else checkpoint.tensors()
        load_weights(module, stored, str(checkpoint.path))
        record = TrainingRecord.from_dict(facts.get("record", {}))
        reader = cls(config, coder, module, threshold=float(facts["config"]["threshold"]), record=record)
        reader.origin, reader.revision = checkpoint.origin, checkpoint.revision
        reader.fingerprint = checkpoint.fingerprint
        LOADED_READERS[key] = reader
        return reader

    def __repr__(self) -> str:
        where = f" from {self.origin}" if self.origin else ""
        return f"<Reader of {self.config.unit}s {self.fingerprint[:12]}{where}, encoder {self.encoder.name}>"


def new_module(config: ReaderConfig, encoder: Encoder) -> SentenceModule | SpanModule:
    """Make the part that reads, with the weights that training begins with."""
    if config.unit == "sentence":
        return SentenceModule(config, encoder)
    require_torch("a reader of spans")
    from palmette.reader.spans import SpanModule

    return SpanModule(config, encoder)


def load_weights(module: SentenceModule | SpanModule, tensors: Mapping[str, Any], where: str) -> None:
    """Load the weights of a checkpoint."""
    if missing := sorted(module.kept().keys() ^ tensors.keys()):
        raise CheckpointError(f"{where}: weights do not fit the config ({missing[0]} is on one side only)")
    try:
        module.load(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{where}: weights do not fit the config ({error})") from error


def _listed(values: Any, complaint: str = "passages must be a list, got one") -> list[Any]:
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping | Document):
        return list(values)
    raise InputError(f"{complaint} {type(values).__name__} {shown(values)}. Put it in a list")


def _most_probable(passages: Sequence[Any], contents: Sequence[str]) -> list[str]:
    """Blank the texts of all but the most probable hits; passages that are no hits are all read."""
    if not all(isinstance(passage, Hit) for passage in passages):
        return list(contents)
    kept = set(sorted(range(len(passages)), key=lambda at: -passages[at].score)[:HITS_READ])
    return [text if at in kept else "" for at, text in enumerate(contents)]


def _document(passage: Any, place: int) -> Document:
    if isinstance(passage, Hit):
        return passage.document
    text = text_of(passage)
    blank = isinstance(text, str) and not text.strip()
    return Document(id=str(place), fields={"text": ""}) if blank else to_document(passage)
