"""Several trained models over one set of documents, each document stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.cache import EncodingCache
from palmette.config import Config
from palmette.data import load_data
from palmette.encoder import Encoder, load_encoder
from palmette.errors import ConfigError
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

    members: tuple[dict[str, Any], ...] = ()
    weights: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    def check(self) -> None:
        """Two members at least, and a weight and a scale for each."""
        count = len(self.members)
        if count < 2 or len(self.weights) != count or len(self.scales) != count:
            raise ConfigError(
                f"a fusion needs two models or more, a weight and a scale for each; got {count} models"
            )
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
        return made if data is None else made._learned(data, weights is None, cache, progress)

    def _learned(
        self, data: Any, weigh: bool, cache: EncodingCache | str | Path | None, progress: bool | None
    ) -> Self:
        """Weights, and how much words count, from held-out judgements."""
        loaded, made = load_data(data), self
        store = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)
        if weigh:
            shares = learn_weights(self.members, self.config.scales, loaded, store, seed=0, progress=progress)
            made = type(self)(self.config.replace(weights=shares), self.members)
        made.mixes = learn_mixes(made, loaded, made.encoder, store, seed=0, progress=progress)
        return made

    # -- the hooks ------------------------------------------------------------------------------------------

    @classmethod
    def task(cls, *_: Any, **__: Any) -> Any:
        """A fusion is not trained itself."""
        raise ConfigError("a fusion is made of trained models: FusionModel.of([model, another], data)")

    @classmethod
    def module_for(cls, config: FusionConfig, encoder: Encoder) -> nn.Module:
        """Its members make their own."""
        raise ConfigError("a fusion's modules are its members': load it with from_pretrained")

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Those of all members."""
        return tuple(
            replace(spec, name=_named(place, spec.name))
            for place, member in enumerate(self.members)
            for spec in member.arrays()
        )

    def encode_documents(self, documents: Sequence[Document]) -> dict[str, NDArray[np.generic]]:
        """By each member."""
        return _together([member.encode_documents(documents) for member in self.members])

    def encode_queries(self, texts: Sequence[str], options: FusionSearch) -> Queries:
        """By each member."""
        return _together([member.encode_queries(texts, member.options({})) for member in self.members])

    def encode_embeddings(self, vectors: Floats) -> Queries:
        """By each member, where all can and read the same encoder."""
        if len({member.encoder.fingerprint for member in self.members}) > 1:
            raise ConfigError("these models read different encoders: search with the text itself")
        return _together([member.encode_embeddings(vectors) for member in self.members])

    def search(self, view: View, queries: Queries, k: int, options: FusionSearch) -> Found:
        """Exact, as each member is."""
        depth = first_depth(k, len(view))
        views = [_MemberView(view, place) for place in range(len(self.members))]
        asked = [_of(queries, place) for place in range(len(self.members))]
        first = [
            member.search(of, one, depth, member.options({}))
            for member, of, one in zip(self.members, views, asked, strict=True)
        ]
        rows: list[tuple[Any, Floats, dict[str, NDArray[np.generic]]]] = []
        for row in range(len(first[0].keys)):
            sides = [
                MethodSide(member, of, _row(one, row), member.options({}), row_of(found, row), depth)
                for member, of, one, found in zip(self.members, views, asked, first, strict=True)
            ]
            best = threshold_search(sides, self._sum, k, len(view))
            evidence = _together([side.evidence(best.keys) for side in sides])
            rows.append((best.keys, best.scores.astype(np.float32), evidence))
        evidence = _together([dict(found.evidence) for found in first])
        compared = float(np.mean([found.compared for found in first]))
        return joined(rows, Found(first[0].keys, first[0].scores, compared, evidence))

    @property
    def _factors(self) -> list[float]:
        return [weight / scale for weight, scale in zip(self.config.weights, self.config.scales, strict=True)]

    def _sum(self, table: Floats) -> NDArray[np.float64]:
        """Members' scores [M, n] → [n]."""
        summed: NDArray[np.float64] = np.asarray(self._factors) @ table.astype(np.float64)
        return summed

    def explain(
        self,
        query: Queries,
        arrays: Mapping[str, NDArray[np.generic]],
        options: FusionSearch,
        evidence: Mapping[str, Any],
    ) -> Explanation:
        """Every member's parts, weighted."""
        parts, texts, details, score = [], [], {}, 0.0
        for place, (member, factor) in enumerate(zip(self.members, self._factors, strict=True)):
            own = member.explain(
                _of(query, place), _of(arrays, place), member.options({}), _of(evidence, place)
            )
            name = f"{place}:{member.method}"
            parts += [Part(f"{name} {part.name}", factor * part.value, part.detail) for part in own.parts]
            texts.append(f"{factor * own.score:.3f} by {member.method} ({own.text})")
            details[name] = dict(own.detail)
            score += factor * own.score
        return Explanation(score, parts, f"score {score:.3f}: " + "; ".join(texts), {"members": details})

    def describe(self) -> dict[str, Any]:
        """Who counts how much, and each member's own facts."""
        return {
            f"{place}:{member.method}": {"weight": round(weight, 3), **member.describe()}
            for place, (member, weight) in enumerate(zip(self.members, self.config.weights, strict=True))
        }

    # -- checkpoints ----------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{place}.{name}": value
            for place, member in enumerate(self.members)
            for name, value in member._tensors().items()
        }

    def files(self) -> dict[str, bytes]:
        """Those of all members."""
        return {
            _file(place, name): content
            for place, member in enumerate(self.members)
            for name, content in member.files().items()
        }

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, encoder: str | Encoder | None = None, **options: Any
    ) -> Self:
        """The fusion of an opened checkpoint; members of one encoder share it."""
        config = FusionConfig.from_dict(checkpoint.config["config"])
        coders: dict[str, Encoder] = {}
        members = []
        for place, facts in enumerate(config.members):
            read_by = str(facts["encoder"]["fingerprint"])
            if read_by not in coders:
                coders[read_by] = (
                    load_encoder(facts["encoder"], **options) if encoder is None else load_encoder(encoder)
                )
            member = _Member.inside(checkpoint, place, facts)
            members.append(model_class(facts["method"]).from_checkpoint(member, encoder=coders[read_by]))
        made = cls(config, members, origin=checkpoint.origin, revision=checkpoint.revision)
        made.mixes = {
            name: Mix.from_dict(value) for name, value in checkpoint.config.get("words", {}).items()
        }
        made.fingerprint = checkpoint.fingerprint
        return made


class _Member(Checkpoint):
    """A member's checkpoint inside that of its fusion."""

    whole: Checkpoint
    place: int

    @classmethod
    def inside(cls, whole: Checkpoint, place: int, facts: Mapping[str, Any]) -> Self:
        """The files of one member."""
        start = _file(place, "")
        files = {
            name.removeprefix(start): entry for name, entry in whole.files.items() if name.startswith(start)
        }
        made = cls(whole.path, dict(facts), str(facts["fingerprint"]), files, whole.origin, whole.revision)
        object.__setattr__(made, "whole", whole)
        object.__setattr__(made, "place", place)
        return made

    def tensors(self, device: str = "cpu") -> dict[str, Tensor]:
        start = f"{self.place}."
        every = self.whole.tensors(device)
        return {name.removeprefix(start): value for name, value in every.items() if name.startswith(start)}

    def file(self, name: str) -> bytes:
        return self.whole.file(_file(self.place, name))


class _MemberView:
    """A view in which one member finds its arrays under their own names."""

    def __init__(self, view: View, place: int) -> None:
        self.view, self.place = view, place

    def __len__(self) -> int:
        return len(self.view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def within(self, keys: Any) -> _MemberView:
        return _MemberView(self.view.within(keys), self.place)

    def nearest(self, probe: Any, k: int) -> Found:
        return self.view.nearest(replace(probe, array=_named(self.place, probe.array)), k)

    def array(self, name: str, keys: Sequence[int]) -> NDArray[np.generic]:
        return self.view.array(_named(self.place, name), keys)


def _named(place: int, name: str) -> str:
    """A member's array among those of all."""
    return f"of{place}_{name}"


def _file(place: int, name: str) -> str:
    return f"member{place}-{name}"


def _together(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The members' arrays under names that differ."""
    return {_named(place, name): array for place, one in enumerate(members) for name, array in one.items()}


def _of(arrays: Mapping[str, Any], place: int) -> dict[str, Any]:
    """One member's of them."""
    start = _named(place, "")
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def _row(queries: Queries, row: int) -> Queries:
    return {name: array[row : row + 1] for name, array in queries.items()}
