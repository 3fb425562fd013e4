"""Trained things that are saved, published and loaded again: models and readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from palmette.config import Config, check_keys, check_kind
from palmette.errors import CheckpointError, PalmetteError
from palmette.hub.card import render_card
from palmette.hub.checkpoint import LAYOUT, Checkpoint, Entry, dump_tensors, fingerprint_of, save_checkpoint
from palmette.hub.remote import open_checkpoint, push_checkpoint
from palmette.hub.report import SHOWN_METRICS, Report

# Raised by numbers, names and shapes that no model has.
_UNFIT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


@contextmanager
def loading(where: object) -> Iterator[None]:
    """Turn what impossible content of a checkpoint raises into CheckpointError."""
    try:
        yield
    except PalmetteError:
        raise
    except _UNFIT as error:
        raise CheckpointError(
            f"{where}: no model can be made of this checkpoint ({type(error).__name__}: {str(error)[:200]}); "
            "save or pull it again"
        ) from error


class TrainingRecord(Config):
    """Data, length and metrics of a training run, kept in the checkpoint."""

    data: str = "unknown"
    documents: int = 0
    pairs: int = 0
    labelled: bool = True
    steps: int = 0
    best_step: int | None = None
    """Step whose weights were kept: 0 where validation found none better than the start."""
    seconds: float = 0.0
    metric: str = ""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    training: Mapping[str, Any] = Field(default_factory=dict)
    space: Mapping[str, Any] = Field(default_factory=dict)
    """How the learned space was chosen, by nDCG@10 on held-out questions."""

    @classmethod
    def after(cls, data: Any, training: Config, task: Any, result: Any) -> Self:
        """Record a finished run: its RetrievalData, TrainingConfig, Task and result."""
        return cls(
            data=data.name,
            documents=len(data.corpus),
            pairs=len(data.pairs().queries) if data.labelled else task.size() if data.trainable else 0,
            labelled=data.labelled,
            steps=result.steps,
            best_step=result.best_step,
            seconds=round(result.seconds, 1),
            metric=task.metric,
            metrics={name: round(float(value), 6) for name, value in result.metrics.items()},
            training=training.to_dict(),
        )


class Checkpointed(ABC):
    """A trained model or reader that can be saved, published and loaded again."""

    method: ClassVar[str]
    retriever: ClassVar[str | None] = None
    """Name of the method's retriever class in both frameworks."""
    kind: ClassVar[Literal["retriever", "reader"]] = "retriever"
    """Role on the model card."""
    config: Config
    encoder: Any
    record: TrainingRecord

    @abstractmethod
    def config_json(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""

    @abstractmethod
    def weights(self) -> dict[str, Any]:
        """Return the weights by name: tensors on the CPU, or arrays."""

    def extras(self) -> dict[str, bytes]:
        """Return files besides config and weights (a vocabulary, an edge list): JSON or text by name."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of method, options, weights and encoder: equal fingerprints give equal results."""
        files = {**self.extras(), LAYOUT.weights: dump_tensors(self.weights())}
        return fingerprint_of(self.config_json(), {name: Entry.of(data) for name, data in files.items()})

    def card(self, report: Any = None, **more: Any) -> str:
        """Write the model card: task, training data, and the table of a ``report`` of :func:`palmette.evaluate`.

        ``license``, ``dataset`` (the training data on the Hub), ``language`` and ``limits`` go into it too.
        """
        check_keys(f"{type(self).__name__} card", more, ("dataset", "language", "license", "limits"))
        for name, value in more.items():
            if name in ("language", "limits") and isinstance(value, str):
                more[name] = [value]
            listed = name in ("language", "limits") and isinstance(value, list | tuple)
            for item in value if listed else [value]:
                check_kind(f"{name} of a card", item, str if listed else (str, type(None)), "text")
        if report is not None:
            check_kind("report", report, Report, "what palmette.evaluate returns")
            rows = {row.name: {name: row.metrics[name] for name in SHOWN_METRICS} for row in report.rows}
            more |= {"results": rows, "evaluated_on": f"{report.data}, {report.split}"}
        return render_card(
            method=self.method,
            class_name=type(self).__name__,
            config=self.config.to_dict(),
            encoder=self.encoder.to_config(),
            record=self.record.to_dict(),
            retriever=self.retriever,
            kind=self.kind,
            **more,
        )

    def save_pretrained(self, path: str | Path, *, report: Any = None, **card: Any) -> Path:
        """Write the checkpoint, whole or not at all: JSON, safetensors, a card, and a manifest of their sums.

        Options of the card: see :meth:`card`.
        """
        text = self.card(report, **card)
        return save_checkpoint(path, self.config_json(), self.weights(), text, files=self.extras()).path

    def push_to_hub(
        self, repo_id: str, *, report: Any = None, card: Mapping[str, Any] | None = None, **options: Any
    ) -> str:
        """Publish the checkpoint and return the commit's URL.

        Args:
            repo_id: ``owner/name``; made if it is not there.
            report: Result of :func:`palmette.evaluate`, for the card's table.
            card: Options of :meth:`card`.
            options: ``branch``, ``token``, ``private``, ``commit_message``, ``create_tag``.
        """
        with TemporaryDirectory() as folder:
            saved = self.save_pretrained(Path(folder) / "checkpoint", report=report, **(card or {}))
            return push_checkpoint(saved, repo_id, **options)

    @classmethod
    def from_pretrained(
        cls,
        repo_or_dir: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        device: str | None = None,
        encoder: Any = None,
        **encoder_options: Any,
    ) -> Self:
        """Load a checkpoint from a folder or the Hub.

        Args:
            repo_or_dir: A folder, or a repository id such as ``"me/ckpt"``.
            revision: Branch, tag or commit; a full commit hash that is cached costs no request.
            token: Hub token, where the client's own login is not enough.
            cache_dir: Hub cache to use.
            local_files_only: Never go to the network.
            device: Where to compute; ``None`` for the best there is.
            encoder: An encoder, its name or folder, in place of the recorded name; it must have its fingerprint.
            encoder_options: ``dtype``, ``batch_size``, ``threads`` of :func:`palmette.load_encoder`.
        """
        hub: dict[str, Any] = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        checkpoint = open_checkpoint(repo_or_dir, revision=revision, **hub)
        with loading(checkpoint.path):
            return cls.from_checkpoint(checkpoint, encoder=encoder, device=device, **hub, **encoder_options)

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, *, encoder: Any = None, **options: Any) -> Self:
        """Load an opened checkpoint; loading the same twice gives the same object."""
