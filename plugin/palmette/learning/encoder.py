"""Trains the whole encoder on labelled pairs, and writes a folder that any ``encoder=`` takes.

    loss    −log softmax of 20 cos(q, d) over the documents of a batch: those of its questions, and for each question a
            hard negative, one of the nearest to it before training that are clearly farther than its answer

Held-out questions choose the epoch; the encoder as it was is one of the choices. A space
(:mod:`palmette.training.space`) learns in seconds from what the encoder's vectors hold. Over a trained encoder it gains
.04 more on two collections of three; a thousand pairs take ten minutes of a CPU and more, and all documents are encoded
anew.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.arrays import Rows
from palmette.config import Config, check_path
from palmette.data import load_data
from palmette.encoder import Backbone, Encoder, EncodingCache, load_encoder
from palmette.encoder.local.backbone import encode_texts
from palmette.encoder.local.sentence_transformer import without_bars
from palmette.encoder.options import own_prompts
from palmette.errors import CheckpointError, ConfigError, TrainingError
from palmette.hub.checkpointed import TrainingRecord
from palmette.machine.folders import atomic_folder
from palmette.methods.base import DEFAULT_ENCODER
from palmette.training.config import fit_configs
from palmette.training.loop import train
from palmette.training.maths import info_nce
from palmette.training.pairs import PairsTask, TrainingPairs, Validation, top_documents

COSINE_SCALE = 20.0
"""Factor of cosines in the softmax (inverse temperature)."""
NEAREST_DOCUMENTS = 50
"""Nearest documents of a question that may be its hard negatives."""
MARGIN = 0.95
"""Largest share of the answer's cosine that a hard negative may have; nearer ones are often answers, too."""
HELD_OUT_QUERIES = 150
"""Held-out questions that choose the epoch."""
HELD_OUT_DOCUMENTS = 1000
"""Documents that they are asked of, the nearest to them."""


class EncoderConfig(Config):
    """Options of the training of an encoder."""

    epochs: Annotated[float, Field(gt=0)] = 3.0
    """Passes over the pairs, where ``steps`` is 0."""
    max_length: Annotated[int, Field(ge=8)] = 128
    """Tokens of a text that training reads at most; the trained encoder reads as many as before."""


class _Vectors(nn.Module):
    """Unit vectors of tokens by the encoder that learns."""

    transformer_learns = True

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, *batches: tuple[Tensor, Tensor]) -> list[Tensor]:
        """Ids and masks [B, T] of each batch → [B, d]; one call a step, as several processes need."""
        return [F.normalize(self.backbone.pool(self.backbone(ids, mask), mask), dim=1) for ids, mask in batches]


@dataclass
class EncoderTask(PairsTask):
    """Training by in-batch negatives and a hard one for each question."""

    module: _Vectors
    hard: Rows
    """[P, ≤ NEAR] hard negatives of each pair, −1 where it has none."""

    def loss(self, module: nn.Module, rows: Rows, generator: torch.Generator, progress: float) -> Tensor:
        """InfoNCE of a batch of pairs."""
        # 1. The documents: answers, a mined negative of each question at random, and given ones, each document once.
        pairs, queries = self.pairs, self.pairs.query_rows[rows]
        own, given = pairs.document_rows[rows], pairs.hard_negatives(rows, generator)
        draw = torch.randint(self.hard.shape[1], (len(rows),), generator=generator).numpy()
        documents = np.unique(np.concatenate([own, self.hard[rows, draw], given]))
        documents = documents[documents >= 0]
        # 2. Their cosines with the questions, in float32.
        plain = self.module.backbone.plain
        query_vectors, document_vectors = module(
            plain(pairs.texts("query", queries), "query"), plain(pairs.texts("document", documents), "document")
        )
        with torch.autocast(query_vectors.device.type, enabled=False):
            logits = COSINE_SCALE * query_vectors.float() @ document_vectors.float().T  # [B, M]
        # 3. The softmax, without other known answers of a question.
        known = pairs.known_answers(queries, documents)
        return info_nce(logits, torch.from_numpy(np.searchsorted(documents, own)).to(logits.device), known)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """nDCG@10, Recall@10 and MRR@10 on held-out questions."""
        if (dev := self.pairs.dev) is None:
            return {}
        backbone = self.module.backbone
        queries = encode_texts(backbone, self.pairs.texts("query", dev.queries), "query")
        documents = encode_texts(backbone, self.pairs.texts("document", dev.documents), "document")
        return dev.score_ranking(top_documents(F.normalize(queries, dim=1), F.normalize(documents, dim=1)))


class TrainedEncoder:
    """An encoder whose every weight has learned from labelled pairs.

    ``save_pretrained`` writes a sentence-transformers model: give its folder as ``encoder=`` to any method, whose
    index then encodes all documents anew.
    """

    method: ClassVar[str] = "encoder"
    config_class: ClassVar[type[EncoderConfig]] = EncoderConfig
    training_defaults: ClassVar[Mapping[str, Any]] = {
        "steps": 0,  # as many as the epochs have
        "batch_size": 64,
        "learning_rate": 5e-5,
        "weight_decay": 0.01,
        "warmup": 0.1,
        "decay": "linear",
    }

    def __init__(self, start: Encoder, module: _Vectors, record: TrainingRecord) -> None:
        self._start, self._module, self.record = start, module, record

    @classmethod
    def fit(
        cls,
        data: Any,
        *,
        encoder: str | Path | Encoder = DEFAULT_ENCODER,
        device: str | None = None,
        output_dir: str | Path | None = None,
        resume: bool = False,
        progress: bool | None = None,
        cache: EncodingCache | str | Path | None = None,
        **options: Any,
    ) -> Self:
        """Train a copy of an encoder.

        Args:
            data: Labelled pairs, as anything that :func:`palmette.load_data` reads.
            encoder: The sentence-transformers model to begin with (of the BERT family), by name or folder.
            device: Where to train; ``None`` for the best there is.
            output_dir: Keeps the log and the state to ``resume`` from.
            resume: Continue the run in ``output_dir``.
            progress: Progress bars; ``None`` shows them on a terminal.
            cache: Where encodings by the encoder as it is are kept.
            options: Options of :class:`EncoderConfig` and of the loop
                (:class:`palmette.training.config.TrainingConfig`).
        """
        # 1. The options and the pairs.
        settings, loop = fit_configs(cls.config_class, cls.training_defaults, None, options, "TrainedEncoder")
        loaded = load_data(data, seed=loop.seed)
        if not loaded.trainable:
            raise TrainingError(f"{loaded.name} has no training pairs, and an encoder learns from nothing else")
        # 2. The encoder as it is: what it can learn with, and where documents lie to it.
        store = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)
        start = load_encoder(encoder, device=device).plain.with_torch()
        if start.truncate is not None:
            raise ConfigError(
                f"an encoder learns with all its columns: leave truncate={start.truncate} out here, and give it "
                "when you load the trained encoder"
            )
        backbone = Backbone.of(start)  # raises before a text is encoded, which a server may ask money for
        pairs = TrainingPairs.encode(loaded, start, store, seed=loop.seed, progress=progress)
        # 3. Held-out questions, and hard negatives.
        dev = Validation.of(loaded, loop.seed, queries=HELD_OUT_QUERIES, documents=HELD_OUT_DOCUMENTS)
        dev = None if dev is None else dev.with_nearest_documents(pairs.queries, pairs.documents)
        backbone.max_length = min(backbone.max_length, settings.max_length)
        task = EncoderTask(_Vectors(backbone), replace(pairs, dev=dev), hard_negatives(pairs))
        # 4. The run, validated after each epoch.
        epoch = max(1, task.size() // min(loop.batch_size, task.size()))
        if not loop.steps:
            loop = loop.replace(steps=max(1, round(settings.epochs * epoch)))
        if loop.evaluate_every is None:
            loop = loop.replace(evaluate_every=epoch)
        label = "Training the encoder"
        trained = train(task, loop, device=device, output_dir=output_dir, resume=resume, progress=progress, label=label)
        return cls(start, task.module, TrainingRecord.after(loaded, loop, task, trained))

    def save_pretrained(self, path: str | Path) -> Path:
        """Write the encoder to a new or empty folder, whole or not at all."""
        folder = check_path(path)
        check_new(folder)
        # A copy of the model, with the weights that were learned.
        backbone = self._module.backbone
        start: Any = self._start  # a SentenceEncoder, or Backbone.of had raised
        with start.between_passes() as given:
            model = copy.deepcopy(given).float()
        model[0].auto_model.load_state_dict(backbone.network.state_dict(), strict=False)  # a pooler is not trained
        for part, learned in zip(list(model)[2:], backbone.rest, strict=True):
            part.load_state_dict(learned.state_dict())
        if own_prompts(model.prompts, model.default_prompt_name) != start.prompts:
            model.prompts = {**model.prompts, **start.prompts}  # those that it was loaded with, and learned with
        with atomic_folder(folder) as draft, without_bars():
            model.save(str(draft), create_model_card=False)
        return folder

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the encoder, as it is once it is loaded."""
        with tempfile.TemporaryDirectory() as folder:
            return load_encoder(self.save_pretrained(Path(folder) / "encoder"), device="cpu").fingerprint


def check_new(folder: Path) -> None:
    """Raise unless an encoder may be saved there; makes the folder above."""
    if folder.is_file() or folder.is_symlink() or (folder.is_dir() and any(folder.iterdir())):
        raise CheckpointError(
            f"cannot save over {folder}, which is no empty folder: choose a new one; nothing was changed"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be made ({error.strerror}): choose another folder") from error


def hard_negatives(pairs: TrainingPairs) -> Rows:
    """Return the nearest documents of each pair's question that are clearly farther than its answer: [P, ≤ NEAR].

    They repeat to fill a row, which is −1 without any; a known answer of the question is none of them.
    """
    queries = F.normalize(pairs.queries[torch.from_numpy(pairs.query_rows)], dim=1)  # [P, d]
    documents = F.normalize(pairs.documents, dim=1)  # [N, d]
    answers = (queries * documents[torch.from_numpy(pairs.document_rows)]).sum(dim=1)  # [P] cosines
    nearest = top_documents(queries, documents, depth=NEAREST_DOCUMENTS)  # [P, ≤ NEAR]
    hard = np.full_like(nearest, -1)
    for row, (near, query) in enumerate(zip(nearest, pairs.query_rows, strict=True)):
        far = (documents[torch.from_numpy(near)] @ queries[row] < MARGIN * answers[row]).numpy()
        known = pairs.data.positives_mask(np.array([query]), near)[0]
        if (kept := near[far & ~known]).size:
            hard[row] = np.resize(kept, nearest.shape[1])
    return hard
