"""What the towers learn from: drawn matches against the other documents of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.methods.taxonomy.config import TaxonomyConfig
from palmette.methods.taxonomy.data import Asked, Lessons, TaxonomyData, lessons
from palmette.methods.taxonomy.losses import column_weights, matches_softmax
from palmette.methods.taxonomy.metrics import by_query, found_matches, nearest_wrong, summary
from palmette.methods.taxonomy.module import Towers
from palmette.methods.taxonomy.nodes import Nodes
from palmette.methods.taxonomy.sampling import Sampler, Stream

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.encoder import Encoder

__all__ = ["Inputs", "TaxonomyTask"]

GENTLE = 0.2
"""Of the learning rate, where there is no hierarchy: towers that begin as the encoder stay near it, and no document's
row learns the questions about it by heart before the towers have learned what is true of all."""
SURE = 2.0
"""Standard errors by which a gain must be more than luck."""


@dataclass(frozen=True)
class Inputs:
    """What the towers read, by row of a training query, of a validation query and of a document.

    Texts come as the frozen encoder's embeddings, nodes of a lookup table as their rows.
    """

    train: Tensor
    dev: Tensor
    documents: Tensor | None

    @classmethod
    def of(
        cls,
        lessons: Lessons,
        data: TaxonomyData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        lookup: bool,
        progress: bool | None,
    ) -> Self:
        """Encode each text once."""

        def read(asked: Asked) -> Tensor:
            if lookup:
                return torch.from_numpy(asked.rows)
            return torch.from_numpy(cache.encode(encoder, asked.texts, kind="query", progress=progress))

        documents = None
        if not lookup:
            contents = [document.content for document in data.corpus]
            documents = torch.from_numpy(cache.encode(encoder, contents, kind="document", progress=progress))
        return cls(read(lessons.train), read(lessons.dev), documents)

    def to(self, device: torch.device) -> Self:
        """On another device."""
        documents = None if self.documents is None else self.documents.to(device)
        return replace(self, train=self.train.to(device), dev=self.dev.to(device), documents=documents)


@dataclass
class TaxonomyTask:
    """Softmax of a drawn match over the documents of the batch, each weighed by how often it is drawn."""

    module: Towers
    lessons: Lessons
    inputs: Inputs
    sampler: Sampler
    multiplier: float
    stream: Stream | None = None
    start: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    hard: int = 0
    progress: bool | None = False
    wrong: NDArray[np.int64] | None = None  # [queries, H]

    @classmethod
    def of(
        cls,
        config: TaxonomyConfig,
        data: TaxonomyData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> Self:
        """Read the data once, and start the towers."""
        lookup = not config.reads
        learned = lessons(data, lookup=lookup, max_distance=config.max_distance, seed=seed)
        inputs = Inputs.of(learned, data, encoder, cache, lookup=lookup, progress=progress)
        sampler = Sampler(learned.train.matches, config.sampling, config.regular_share)
        nodes = Nodes.of(data.corpus, data.hierarchy, sampler.log_frequencies.numpy())
        module = Towers(config, nodes)
        module.begin(inputs.documents, torch.Generator().manual_seed(seed))
        stream = Stream(len(data.corpus)) if config.frequencies == "stream" else None
        if data.hierarchy is None:
            module.paces = {"": GENTLE}
        task = cls(module, learned, inputs, sampler, config.multiplier, stream, progress=progress)
        if data.hierarchy is not None and config.negatives == "masked":
            left = len(data.corpus) - int(learned.train.matches.counts.max(initial=0))
            task.hard = min(config.hard, left)
        task.start = by_query(task._found(), learned.dev.matches)
        return task

    @property
    def metric(self) -> str:
        """Recall of all matches, near and far, as far as the validation queries can tell it from the start's."""
        return "sure recall"

    def size(self) -> int:
        """Training queries."""
        return len(self.lessons.train)

    def to(self, device: torch.device) -> None:
        """Move what the towers read."""
        self.inputs = self.inputs.to(device)

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float = 0.0
    ) -> Tensor:
        """Of a batch of queries and the matches that are drawn of them."""
        owner, drawn = self.sampler.draw(rows, generator)
        rows = rows[np.unique(owner)]  # what has nothing to draw stays out
        columns, target, counts = np.unique(drawn, return_inverse=True, return_counts=True)
        device = self.inputs.train.device
        near = self._near(rows, progress)  # [B, H]
        at = torch.from_numpy(np.concatenate([columns, near.ravel()])).to(device)  # [U + BH]
        texts = None if self.inputs.documents is None else self.inputs.documents[at]
        asked = self.inputs.train[torch.from_numpy(rows).to(device)]
        queries, documents = module(asked, texts, at)  # [B, d], [U + BH, d]
        documents, wrong = documents.split([len(columns), near.size])
        if self.stream is None:
            frequencies = self.sampler.log_frequencies[torch.from_numpy(columns)]  # [U]
        else:
            frequencies = self.stream.log_frequencies(columns, counts, len(rows))
        weights = column_weights(
            torch.from_numpy(counts).float(),
            frequencies,
            len(rows),
            self.module.config.correction,
        )
        if self.module.config.negatives == "all":
            known = np.arange(len(rows)), target
        else:
            known = self.lessons.train.matches.among(rows, columns)
        row, column = (torch.from_numpy(part).to(device) for part in known)
        worth = torch.exp(-self.module.config.rarity * frequencies).to(device)  # [U]
        return matches_softmax(
            self.multiplier * queries,
            documents,
            weights.to(device),
            row,
            column,
            worth,
            wrong.view(*near.shape, -1) if near.size else None,
        )

    def _near(self, rows: NDArray[np.int64], progress: float) -> NDArray[np.int64]:
        """[B, H] the wrong answers of training queries that score highest, once it is time for them."""
        if not self.hard or progress < 1 - self.module.config.hard_share:
            return np.zeros((len(rows), 0), np.int64)
        if self.wrong is None:
            with torch.no_grad():
                queries = [self.module.queries(part) for part in torch.split(self.inputs.train, 16_384)]
                matches = self.lessons.train.matches
                found = nearest_wrong(torch.cat(queries), self.nodes(), matches, self.hard, self.progress)
            self.wrong = found.cpu().numpy()
        return self.wrong[rows]

    def nodes(self) -> Tensor:
        """[N, d] embeddings of all documents."""
        texts, parts = self.inputs.documents, []
        for rows in torch.split(torch.arange(self.lessons.train.matches.size), 16_384):
            at = rows.to(self.inputs.train.device)
            parts.append(self.module.documents(None if texts is None else texts[at], at))
        return torch.cat(parts)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Recall by distance on the validation queries, against all documents.

        The "sure recall" is less by two standard errors of what was gained over the first weights: a few queries do
        not tell luck from learning, and with them training stays where it began.
        """
        if not len(self.lessons.dev):
            return {}
        found, matches = self._found(), self.lessons.dev.matches
        metrics, gain = summary(found, matches), by_query(found, matches) - self.start  # [Q]
        return {**metrics, "sure recall": metrics["recall"] - SURE * float(gain.std()) / len(gain) ** 0.5}

    @torch.no_grad()
    def _found(self) -> NDArray[np.bool_]:
        """[P] whether each match of the validation queries is found."""
        return found_matches(self.module.queries(self.inputs.dev), self.nodes(), self.lessons.dev.matches)
