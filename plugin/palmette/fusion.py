"""Several trained models over one set of documents, each document stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.cache import EncodingCache
from palmette.config import Config
from palmette.data import load_data
from palmette.encoder import Encoder, load_encoder
from palmette.errors import ConfigError, InputError
from palmette.hub import Checkpoint
from palmette.lexical.mix import Mix
from palmette.model import Model, Queries
from palmette.model.mixing import learn_mixes, learn_weights
from palmette.model.side import MethodSide
from palmette.record import Record
from palmette.registry import load_model, model_class
from palmette.search.probe import ArraySpec, Floats, Found, joined, row_of
from palmette.search.threshold import first_depth, threshold_search
from palmette.types import Document, Explanation, Part

if TYPE_CHECKING:
    from palmette.store.backend import View

__all__ = ["FusionConfig", "FusionModel", "FusionSearch"]


@dataclass(frozen=True)
class FusionConfig(Config):
    """Who is fused, and how.

    Attributes:
        members: What the members' own checkpoints say of them.
        weights: How much each counts; they add up to 1.
        scales: What each member's scores are divided by before they are added.
    """

    members: tuple[dict[str, Any], ...] = field(default=())
    weights: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    def check(self) -> None:
        """Two members at least, and a weight and a scale for each."""
        count = len(self.members)
        if count < 2 or len(self.weights) != count or len(self.scales) != count:
            raise ConfigError(f"a fusion needs two models or more, a weight and a scale for each; got {count} models")
        if min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-6 or min(self.scales) <= 0:
            raise ConfigError(f"a fusion's weights are 0 or more and add up to 1, got {self.weights}")


@dataclass(frozen=True)
class FusionSearch(Config):
    """A fusion's search has no options of its own."""


class FusionModel(Model):
    """A weighted sum of several models' scores, exact: what counts is the sum over all documents.

    Made of trained models by :meth:`of`; an index given a list of models makes one. Scores are sums of the members'
    scores, each divided by its scale, so that all have a similar range.
    """

    method: ClassVar[str] = "fusion"
    retriever: ClassVar[str] = "FusionRetriever"
    config_class = FusionConfig
    search_class = FusionSearch
    config: FusionConfig

    def __init__(
        self,
        config: FusionConfig,
        members: Sequence[Model],
        *,
        record: Record | None = None,
        origin: str | None = None,
        revision: str | None = None,
    ) -> None:
        modules = nn.ModuleList([member.module for member in members])
        super().__init__(config, members[0].encoder, modules, record=record, origin=origin, revision=revision)
        self.members = list(members)

    @classmethod
    def of(
        cls,
        models: Sequence[Model | str | Path],
        data: Any = None,
        *,
        weights: Sequence[float] | None = None,
        cache: EncodingCache | str | Path | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Fuse trained models.

        Args:
            models: Two or more, or where their checkpoints lie.
            data: What :func:`palmette.load_data` reads, with held-out judgements to learn the weights from.
            weights: How much each counts, instead of learning it; without either all count the same.
            cache: Where encodings of ``data`` are kept.
            progress: Progress bars; ``None`` shows them on a terminal.
        """
        members = [model if isinstance(model, Model) else load_model(model) for model in models]
        facts = tuple({**member._facts(), "fingerprint": member.fingerprint} for member in members)
        scales = tuple(member.mixes[""].scale if "" in member.mixes else 1.0 for member in members)
        given = [1.0] * len(members) if weights is None else [float(weight) for weight in weights]
        if len(given) != len(members) or sum(given) <= 0:
            raise ConfigError(f"weights={weights!r}: give one for each of the {len(members)} models")
        shares = tuple(weight / sum(given) for weight in given)
        made = cls(FusionConfig(facts, shares, scales), members)
        worth = float(np.mean([member.mixes[""].weight if "" in member.mixes else 0.0 for member in members]))
        made.mixes = {"": Mix(weight=worth)}  # the members' scales are those of words: one for all
        if data is not None:
            made = made._learned(data, weights is None, EncodingCache(cache) if not isinstance(cache, EncodingCache) else cache, progress)
        return made

    def _learned(self, data: Any, weigh: bool, cache: EncodingCache, progress: bool | None) -> Self:
        """Weights, and how much words count, from held-out judgements."""
        loaded, made = load_data(data), self
        how: dict[str, Any] = {"seed": 0, "progress": progress}
        if weigh:
            shares = learn_weights(self, self.members, self._parts, loaded, cache, **how)
            made = type(self)(self.config.replace(weights=shares), self.members)
        made.mixes = learn_mixes(made, loaded, made.encoder, cache, **how)
        return made

    # -- the hooks ------------------------------------------------------------------------------------------

    @classmethod
    def task(cls, *_: Any, **__: Any) -> Any:
        """A fusion is not trained itself."""
        raise ConfigError("a fusion is made of trained models: FusionModel.of([model, another], data)")

    @classmethod
    def module_for(cls, config: FusionConfig, encoder: Encoder) -> nn.Module:
        """The members' modules, untrained."""
        return nn.ModuleList(
            [
                kind.module_for(kind.config_class.from_dict(facts["config"]), encoder)
                for facts in config.members
                for kind in [model_class(facts["method"])]
            ]
        )
