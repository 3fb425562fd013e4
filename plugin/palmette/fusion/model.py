"""Several trained models over one set of documents, each document stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.cache import EncodingCache
from palmette.data import load_data
from palmette.encoder import Encoder, load_encoder
from palmette.errors import ConfigError
from palmette.fusion.config import WINDOW, FusionConfig, FusionSearch
from palmette.fusion.members import (
    MemberCheckpoint,
    MemberView,
    file_of,
    named,
    of_member,
    together,
)
from palmette.fusion.ranks import explained_by_rank, fused_by_rank
from palmette.hub import Checkpoint
from palmette.lexical.mix import Mix
from palmette.model import Model, Queries
from palmette.model.mixing import learn_mixes, learn_weights
from palmette.model.model import Arrays
from palmette.model.side import MethodSide
from palmette.record import Record
from palmette.registry import load_model, model_class
from palmette.search.plan import ArraySpec, Floats, Keys, View
from palmette.search.probe import Found, joined, row_of
from palmette.search.threshold import first_depth, threshold_search
from palmette.types import Document, Explanation, Part

__all__ = ["FusionModel"]


@dataclass(frozen=True)
class FusionPlan:
    """Plans of all members, over one set of documents."""

    members: tuple[Any, ...]
    only: Keys | None = None

    @property
    def fetch(self) -> int | None:
        """Longest shortlist of the members."""
        many = [plan.fetch for plan in self.members if plan.rescore is not None and plan.fetch]
        return max(many, default=None)

    @property
    def rescore(self) -> bool | None:
        """Whether a member ranks a shortlist anew."""
        return self.fetch is not None or None

    def one_query(self, row: int) -> FusionPlan:
        """Plans of one query."""
        return replace(self, members=tuple(plan.one_query(row) for plan in self.members))


class FusionModel(Model):
    """A weighted sum of several models' scores, exact: what counts is the sum over all documents.

    Made of trained models by :meth:`of`; an index given a list of models makes one. Scores are sums of the members'
    scores, each divided by its scale, so that all have a similar range.

    With ``weights="rrf"`` the members' ranks are fused instead, Σ 1 / (60 + rank): for members whose scores cannot be
    compared. Such a score depends on what else is found, so thresholds and words (``lexical``) do not go with it.
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
        self.reads_metadata = any(member.reads_metadata for member in members)

    @classmethod
    def of(
        cls,
        models: Sequence[Model | str | Path],
        data: Any = None,
        *,
        weights: Sequence[float] | Literal["rrf"] | None = None,
        cache: EncodingCache | str | Path | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Fuse trained models.

        Args:
            models: Two or more, or where their checkpoints lie.
            data: What :func:`palmette.load_data` reads, with held-out judgements to learn the weights from.
            weights: How much each counts, instead of learning it; without either all count the same. ``"rrf"`` for
                reciprocal-rank fusion.
            cache: Where encodings of ``data`` are kept.
            progress: Progress bars; ``None`` shows them on a terminal.
        """
        members = [model if isinstance(model, Model) else load_model(model) for model in models]
        facts = tuple({**member._facts(), "fingerprint": member.fingerprint} for member in members)
        scales = tuple(member.mixes[""].scale if "" in member.mixes else 1.0 for member in members)
        ranks = isinstance(weights, str)
        if ranks and (weights != "rrf" or data is not None):
            raise ConfigError(
                f"weights={weights!r}: give numbers, or 'rrf' without data, since ranks have no weights to learn"
            )
        given = [1.0] * len(members) if weights is None or ranks else [float(weight) for weight in weights]
        if len(given) != len(members) or sum(given) <= 0:
            raise ConfigError(f"weights={weights!r}: give one for each of the {len(members)} models")
        shares = tuple(weight / sum(given) for weight in given)
        if ranks:
            return cls(FusionConfig(members=facts, weights=shares, scales=scales, rule="ranks"), members)
        made = cls(FusionConfig(members=facts, weights=shares, scales=scales), members)
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
            replace(spec, name=named(place, spec.name))
            for place, member in enumerate(self.members)
            for spec in member.arrays()
        )

    def encode_documents(self, documents: Sequence[Document], vectors: Floats | None = None) -> Arrays:
        """Arrays of all members."""
        given = () if vectors is None else (vectors,)
        return together([member.encode_documents(documents, *given) for member in self.members])

    def encode_queries(self, queries: Sequence[str] | Floats, options: FusionSearch) -> Queries:
        """Query arrays of all members."""
        if isinstance(queries, np.ndarray) and not self._one_encoder:
            raise ConfigError("these models read different encoders: search with the text itself")
        return together(
            [member.encode_queries(queries, member.search_options({})) for member in self.members]
        )

    @property
    def accepts_embeddings(self) -> bool:
        """Whether all members do, over one encoder."""
        return self._one_encoder and all(member.accepts_embeddings for member in self.members)

    @property
    def _one_encoder(self) -> bool:
        return len({member.encoder.fingerprint for member in self.members}) == 1

    def plan(self, queries: Queries, k: int, options: FusionSearch, view: View) -> Any:
        """Plans of all members."""
        return FusionPlan(
            tuple(
                member.plan(of_member(queries, at), k, member.search_options({}), MemberView(view, at))
                for at, member in enumerate(self.members)
            )
        )

    def execute(self, view: View, plan: Any, k: int, options: FusionSearch) -> Found:
        """Exact, as each member is."""
        ranks = self.config.rule == "ranks"
        plans = [replace(one, only=plan.only) for one in plan.members]
        total = len(view) if plan.only is None else len(plan.only)
        fixed = options.window or WINDOW if ranks else plan.fetch
        depth = first_depth(k, total) if fixed is None else max(1, min(max(k, fixed), total))
        views = [MemberView(view, place) for place in range(len(self.members))]
        settings = [member.search_options({}) for member in self.members]
        every = list(zip(self.members, views, plans, settings, strict=True))
        first = [member.execute(of, one, depth, options) for member, of, one, options in every]
        if ranks:
            return fused_by_rank(first, k)
        rows: list[tuple[Any, Floats, dict[str, NDArray[np.generic]]]] = []
        for row in range(len(first[0].keys)):
            sides = [
                MethodSide(member, of, one.one_query(row), options, row_of(found, row), depth)
                for (member, of, one, options), found in zip(every, first, strict=True)
            ]
            best = threshold_search(sides, self._sum, k, total, depth)
            evidence = together([side.evidence(best.keys) for side in sides])
            rows.append((best.keys, best.scores.astype(np.float32), evidence))
        evidence = together([dict(found.evidence) for found in first])
        compared = float(np.mean([found.visited for found in first]))
        return joined(rows, Found(first[0].keys, first[0].scores, compared, evidence))

    def check_search(self, options: FusionSearch) -> None:
        """Only ranks have a window."""
        if options.window is not None and self.config.rule != "ranks":
            raise ConfigError(
                f"window={options.window} is for reciprocal-rank fusion, and this one adds scores: leave it out"
            )

    def lexical_variants(self) -> dict[str, FusionSearch]:
        """Ranks take no words."""
        return {} if self.config.rule == "ranks" else super().lexical_variants()

    def lexical_key(self, options: FusionSearch) -> str | None:
        """Ranks are not scores."""
        return None if self.config.rule == "ranks" else ""

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
        if self.config.rule == "ranks":
            return explained_by_rank(self.members, query, arrays, evidence)
        parts, texts, details, score = [], [], {}, 0.0
        for place, (member, factor) in enumerate(zip(self.members, self._factors, strict=True)):
            own = member.explain(
                of_member(query, place),
                of_member(arrays, place),
                member.search_options({}),
                {**of_member(evidence, place), "document": evidence.get("document")},
            )
            name = f"{place}:{member.method}"
            parts += [Part(f"{name} {part.name}", factor * part.value, part.detail) for part in own.parts]
            texts.append(f"{factor * own.score:.3f} by {member.method} ({own.text})")
            details[name] = dict(own.detail)
            score += factor * own.score
        return Explanation(score, parts, f"score {score:.3f}: " + "; ".join(texts), {"members": details})

    def describe(self, view: View | None = None) -> dict[str, Any]:
        """Weights and the members' own facts."""
        facts: dict[str, Any] = {}
        for at, (member, weight) in enumerate(zip(self.members, self.config.weights, strict=True)):
            own = member.describe(None if view is None else MemberView(view, at))
            if view is None:
                facts[f"{at}:{member.method}"] = {"weight": round(weight, 3), **own}
            elif own:
                facts[f"{at}:{member.method}"] = own
        warnings = [facts[name].pop("warning") for name in facts if "warning" in facts[name]]
        return facts if not warnings else {**facts, "warning": "; ".join(warnings)}

    # -- checkpoints ----------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{place}.{name}": value
            for place, member in enumerate(self.members)
            for name, value in member._tensors().items()
        }

    def extras(self) -> dict[str, bytes]:
        """Files of all members."""
        return {
            file_of(place, name): content
            for place, member in enumerate(self.members)
            for name, content in member.extras().items()
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
            member = MemberCheckpoint.inside(checkpoint, place, facts)
            members.append(model_class(facts["method"]).from_checkpoint(member, encoder=coders[read_by]))
        made = cls(config, members, origin=checkpoint.origin, revision=checkpoint.revision)
        made.mixes = {
            name: Mix.from_dict(value) for name, value in checkpoint.config.get("words", {}).items()
        }
        made.fingerprint = checkpoint.fingerprint
        return made
