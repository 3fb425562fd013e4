"""What is kept as a checkpoint, on disk and on the Hub: models, and readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from palmette.config import Config, check_keys
from palmette.encoder import Encoder
from palmette.hub import (
    Checkpoint,
    fingerprint_of,
    open_checkpoint,
    push_checkpoint,
    render_card,
    save_checkpoint,
)
from palmette.record import Record
from palmette.report import SHOWN, Report

__all__ = ["Published"]


class Published(ABC):
    """Something trained that is saved, published and loaded again."""

    method: ClassVar[str]
    retriever: ClassVar[str | None] = None
    """Name of the method's retriever class in both frameworks."""
    kind: ClassVar[Literal["retriever", "reader"]] = "retriever"
    """What the model card tells people how to use."""
    config: Config
    encoder: Encoder
    record: Record

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """The content of ``config.json``."""

    @abstractmethod
    def _tensors(self) -> dict[str, Tensor]:
        """The weights, on the CPU."""

    def extras(self) -> dict[str, bytes]:
        """Files of a checkpoint besides config and weights (a vocabulary, an edge list): JSON or text by name."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of method, options, weights and encoder: equal fingerprints give equal results."""
        return fingerprint_of(self._facts(), self._tensors(), self.extras())

    def card(self, report: Report | None = None, **more: Any) -> str:
        """The model card: what it is, what it was trained on, and the measured table of a ``report`` where given.

        ``license``, ``dataset`` (the training data on the Hub), ``language`` and ``limits`` go into it too.
        """
        check_keys(f"{type(self).__name__} card", more, ("dataset", "language", "license", "limits"))
        measured: dict[str, Any] = {}
        if report is not None:
            rows = {row.name: {name: row.metrics[name] for name in SHOWN} for row in report.rows}
            measured = {"results": rows, "evaluated_on": f"{report.data}, {report.split}"}
        return render_card(
            method=self.method,
            class_name=type(self).__name__,
            config=self.config.to_dict(),
            encoder=self.encoder.to_config(),
            record=self.record.to_dict(),
            retriever=self.retriever,
            kind=self.kind,
            **measured,
            **more,
        )

    def save_pretrained(self, path: str | Path, *, report: Report | None = None, **card: Any) -> Path:
        """Write the checkpoint, whole or not at all: JSON, safetensors, a card, and a manifest of their sums.

        What goes into the card: see :meth:`card`.
        """
        text = self.card(report, **card)
        return save_checkpoint(path, self._facts(), self._tensors(), text, files=self.extras()).path

    def push_to_hub(
        self,
        repo_id: str,
        *,
        report: Report | None = None,
        card: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """Publish the checkpoint and return the commit's URL.

        Args:
            repo_id: ``owner/name``; made if it is not there.
            report: What :func:`palmette.evaluate` measured, for the card's table.
            card: More for the card, see :meth:`card`.
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
        encoder: str | Encoder | None = None,
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
            encoder: Take the encoder from here instead (it must be the very one the checkpoint names).
            encoder_options: ``dtype``, ``batch_size``, ``threads`` of :func:`palmette.load_encoder`.
        """
        hub: dict[str, Any] = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        checkpoint = open_checkpoint(repo_or_dir, revision=revision, **hub)
        return cls.from_checkpoint(checkpoint, encoder=encoder, device=device, **hub, **encoder_options)

    @classmethod
    @abstractmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, encoder: str | Encoder | None = None, **options: Any
    ) -> Self:
        """What an opened checkpoint holds; loading the same twice gives the same object."""
