"""Reader: answers from passages, with no language model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from palmette.cache import EncodingCache
from palmette.config import check_keys, check_range
from palmette.data.documents import to_document
from palmette.encoder import Encoder, load_encoder
from palmette.encoder.load import encoder_of
from palmette.errors import CheckpointError, ConfigError, InputError
from palmette.hub import Checkpoint
from palmette.model import DEFAULT_ENCODER, Published
from palmette.reader.answer import Answer
from palmette.reader.config import ReaderConfig, ReaderTraining
from palmette.reader.data import load_reading
from palmette.reader.lessons import Lessons
from palmette.reader.made import with_gaps
from palmette.reader.reading import Candidates, Reading, answer_of
from palmette.reader.sentences import SentenceReading
from palmette.reader.spans import SpanReading
from palmette.record import Record
from palmette.training import TrainingConfig, main_first, train
from palmette.types import Document, Hit

__all__ = ["Reader"]

UNITS: dict[str, type[Reading]] = {"sentence": SentenceReading, "span": SpanReading}
"""What finds each unit of answer."""
_LOADED: WeakValueDictionary[tuple[object, ...], Reader] = WeakValueDictionary()
"""Readers in use, so that many chains over one checkpoint share one."""


class Reader(Published):
    """Answers questions from passages, in their own words, and says how sure it is and which passages say it.

    Made by :meth:`fit` or :meth:`from_pretrained`; safe to share between threads.
    """

    method = kind = "reader"
    config_class = ReaderConfig
    training_class = ReaderTraining
    config: ReaderConfig

    def __init__(
        self,
        config: ReaderConfig,
        encoder: Encoder,
        reading: Reading,
        *,
        threshold: float = 0.5,
        record: Record | None = None,
        origin: str | None = None,
        revision: str | None = None,
    ) -> None:
        self.config, self.encoder, self.reading = config, encoder, reading
        self.threshold = threshold
        """The probability of there being an answer below which none is given; learned on held-out questions."""
        self.module = reading.module.to(encoder.device).eval().requires_grad_(False)
        self.record = record or Record()
        self.origin, self.revision = origin, revision

    @staticmethod
    def training_for(unit: str) -> type[TrainingConfig]:
        """The defaults of the loop for a unit of answer."""
        return UNITS[unit].training

    # -- training -------------------------------------------------------------------------------------------

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
            data: Questions with answers and their passages, or documents alone: see
                :func:`palmette.reader.load_reading`.
            encoder: A sentence-transformers model, by name or folder, or an :class:`palmette.Encoder`: what a span
                reader starts from, and what finds passages that look right and are not.
            device: Where to train; ``None`` for the best there is.
            output_dir: Keeps the log and the state to ``resume`` from.
            resume: Go on with the run in ``output_dir``.
            progress: Progress bars; ``None`` shows them on a terminal.
            cache: Where encodings are kept; ``None`` for the user's cache folder.
            start: A reader, or its checkpoint, whose weights training begins with; over the same encoder.
            options: Those of :class:`ReaderConfig` and :class:`ReaderTraining`.
        """
        return cls._fit(
            data,
            dict(options),
            encoder=encoder,
            device=device,
            output_dir=output_dir,
            resume=resume,
            progress=progress,
            cache=cache,
            start=start,
        )

    @classmethod
    def _fit(
        cls,
        data: Any,
        options: Mapping[str, Any],
        *,
        encoder: str | Encoder,
        device: str | None,
        output_dir: str | Path | None,
        resume: bool,
        progress: bool | None,
        cache: EncodingCache | str | Path | None = None,
        start: str | Path | Reader | None = None,
    ) -> Self:
        """What :meth:`fit` does; the options are those of the reader and of the loop."""
        own, loop = ReaderConfig.choices(), ReaderTraining.choices()
        check_keys("Reader.fit", options, [*own, *loop])
        config = ReaderConfig(**{key: value for key, value in options.items() if key in own})
        unit = UNITS[config.unit]
        training = unit.training(**{key: value for key, value in options.items() if key in loop})
        loaded = load_reading(data, seed=training.seed)
        if not loaded.splits.get("train"):
            raise InputError(f"{loaded.name} has no training questions: splits are {sorted(loaded.splits)}")
        if config.unit == "span":
            loaded = with_gaps(loaded, seed=training.seed)
        store = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)
        with main_first(device):
            coder = load_encoder(encoder, device=device)
            lessons = Lessons.of(loaded, config, coder, store, seed=training.seed, progress=progress)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)  # of the heads' first weights
            reading = unit(config, coder)
        if start is not None:
            begun = start if isinstance(start, Reader) else cls.from_pretrained(start, encoder=coder)
            reading.load(begun.reading.kept(), f"start={start!r:.80}")
        task = reading.task(lessons, progress)
        run: dict[str, Any] = {
            "device": device,
            "output_dir": output_dir,
            "resume": resume,
            "progress": progress,
        }
        trained = train(task, training, label=f"Training the {config.unit} reader", **run)
        metrics = {**trained.metrics, **reading.settle(lessons, progress)}
        record = Record(
            data=loaded.name,
            documents=len(loaded.passages),
            pairs=task.size(),
            labelled=loaded.labelled,
            steps=trained.steps,
            seconds=round(trained.seconds, 1),
            metric=task.metric,
            metrics={name: round(float(value), 6) for name, value in metrics.items()},
            training=training.to_dict(),
        )
        return cls(config, coder, reading, threshold=metrics.get("threshold", 0.5), record=record)

    # -- answering ------------------------------------------------------------------------------------------

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
            passages: What may have the answer, in any order: documents, hits, texts, LangChain's documents or
                LlamaIndex's nodes. Of several questions, a list for each.
            threshold: The least probability of there being an answer for one to be given: 0 answers always. By default
                what was learned in training.
        """
        bound = self.threshold if threshold is None else _bound(threshold)
        if isinstance(question, str):
            return self._answers([question], [passages], bound)[0]
        if not _several(question):
            what = type(question).__name__
            raise InputError(
                f"a question must be a str, and several a list of them, got {what} {question!r:.80}"
            )
        questions, given = list(question), _listed(passages)
        if len(questions) != len(given):
            raise InputError(f"{len(questions)} questions need as many lists of passages, got {len(given)}")
        return self._answers(questions, given, bound)

    def _answers(
        self, questions: Sequence[Any], passages: Sequence[Sequence[Any]], threshold: float
    ) -> list[Answer]:
        for question in questions:
            if not isinstance(question, str) or not question.strip():
                raise InputError(f"a question must be a str that is not empty, got {question!r:.80}")
        documents = [_documents(given) for given in passages]
        found = self.candidates(questions, [[document.content for document in some] for some in documents])
        return [
            answer_of(question, candidates, some, threshold)
            for question, candidates, some in zip(questions, found, documents, strict=True)
        ]

    def candidates(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[Candidates]:
        """All that may answer each question in its passages, with probabilities."""
        return self.reading.candidates(questions, passages)

    # -- checkpoints ----------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        return {
            "method": self.method,
            "config": {**self.config.to_dict(), "threshold": self.threshold},
            "encoder": self.encoder.to_config(),
            "record": self.record.to_dict(),
        }

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value.detach().cpu().contiguous() for name, value in self.reading.kept().items()}

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, encoder: str | Encoder | None = None, **options: Any
    ) -> Self:
        """The reader of an opened checkpoint; loading the same twice gives the same object."""
        facts = checkpoint.config
        if facts.get("method") != cls.method:
            raise CheckpointError(
                f"{checkpoint.path} holds a {facts.get('method')!r} model, not a reader: use palmette.load_model"
            )
        stored = dict(facts["config"])
        threshold = float(stored.pop("threshold"))
        config = ReaderConfig.from_dict(stored)
        coder = encoder_of(facts["encoder"], encoder, checkpoint.path, **options)
        key = (checkpoint.fingerprint, checkpoint.origin, checkpoint.revision, id(coder))
        if isinstance(known := _LOADED.get(key), cls):
            return known
        reading = UNITS[config.unit](config, coder)
        reading.load(checkpoint.tensors(), str(checkpoint.path))
        reader = cls(
            config,
            coder,
            reading,
            threshold=threshold,
            record=Record.from_dict(facts.get("record", {})),
            origin=checkpoint.origin,
            revision=checkpoint.revision,
        )
        reader.fingerprint = checkpoint.fingerprint
        _LOADED[key] = reader
        return reader

    def __repr__(self) -> str:
        where = f" from {self.origin}" if self.origin else ""
        return f"<Reader of {self.config.unit}s {self.fingerprint[:12]}{where}, encoder {self.encoder.name}>"


def _bound(threshold: Any) -> float:
    """A probability that a user gave."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float | np.integer | np.floating):
        raise ConfigError(f"answer: threshold must be a number between 0 and 1, got {threshold!r:.80}")
    check_range("answer", "threshold", float(threshold), 0, 1)
    return float(threshold)


def _several(given: Any) -> bool:
    """Whether this is some of what is asked for, rather than one."""
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | Document)


def _listed(passages: Any) -> list[Any]:
    """Passages as a list."""
    if not _several(passages):
        what = type(passages).__name__
        raise InputError(
            f"passages must be a list, got one {what}: {passages!r:.80}. Put it in a list: [text]"
        )
    return list(passages)


def _documents(passages: Any) -> list[Document]:
    """Documents, of whatever was given."""
    return [_document(passage, place) for place, passage in enumerate(_listed(passages))]


def _document(passage: Any, place: int) -> Document:
    if isinstance(passage, Hit):
        return passage.document
    text = passage if isinstance(passage, str) else getattr(passage, "page_content", None)
    if hasattr(passage, "get_content"):
        text = passage.get_content()
    blank = isinstance(text, str) and not text.strip()
    return Document(id=str(place), fields={"text": ""}) if blank else to_document(passage)
