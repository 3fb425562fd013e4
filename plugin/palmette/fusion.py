"""Several trained models over one set of documents, each document stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor, nn

from palmette.arrays import Floats, Keys
from palmette.calibration import calibrate, learn_weights
from palmette.config import Config, check_kind, check_range
from palmette.data import load_data
from palmette.encoder import Encoder, load_encoder
from palmette.encoder.cache import EncodingCache
from palmette.errors import CheckpointError, ConfigError, shown
from palmette.evidence import SHORTLIST, Calibration, Scale, Units, read_calibrations, score_others
from palmette.hub import Checkpoint
from palmette.methods import load_model, model_class
from palmette.model import Arrays, Model, Queries
from palmette.search.plan import ArraySpec, Candidates, Score, SearchPlan, View, stack_rows
from palmette.types import Document, Explanation, Part

ARRAYS, WEIGHTS, FILES = "of{}_", "{}.", "member{}-"
"""What precedes the names of a member's arrays, weights and files."""


class FusionConfig(Config):
    """Members of a fusion and their weights."""

    retired: ClassVar[Mapping[str, object]] = {"rule": "scores"}

    members: tuple[dict[str, Any], ...] = ()
    """Content of the members' own ``config.json``."""
    weights: tuple[float, ...] = ()
    """Weight of each; they add up to 1."""
    scales: tuple[float, ...] = ()
    """Divisors of the members' scores, which give them a similar range."""

    def check(self) -> None:
        """Check that there are two members at least, with a weight and a scale each."""
        count = len(self.members)
        if count < 2 or len(self.weights) != count or len(self.scales) != count:
            raise ConfigError(
                f"a fusion needs two models or more, a weight and a scale for each; got {count} models"
            )
        if min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-6 or min(self.scales) <= 0:
            raise ConfigError(f"a fusion's weights are 0 or more and add up to 1, got {self.weights}")


class FusionSearch(Config):
    """Options of one search: none."""


@dataclass(frozen=True)
class FusionPlan:
    """Plans of all members, over one set of documents."""

    members: tuple[SearchPlan, ...]
    fetch: int | None
    """Longest shortlist of a member that rescores one."""
    only: Keys | None = None

    def among(self, keys: Keys) -> FusionPlan:
        """Plans that score exactly these documents."""
        return replace(self, members=tuple(plan.among(keys) for plan in self.members), only=keys)

    def one_query(self, row: int) -> FusionPlan:
        """Plans of one query."""
        return replace(self, members=tuple(plan.one_query(row) for plan in self.members))


class MemberView:
    """A view in which one member finds its arrays under their own names."""

    def __init__(self, view: View, place: int) -> None:
        self.view, self.start = view, ARRAYS.format(place)

    def __len__(self) -> int:
        return len(self.view)

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.view, name)
        if name in ("rows", "ragged", "list_sizes"):
            return lambda array, *keys: inner(self.start + array, *keys)
        return inner

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """Execute a plan on the member's arrays."""

        def own(score: Score) -> Score:
            scales = score.scales and self.start + score.scales
            return replace(score, array=self.start + score.array, scales=scales)

        lists = plan.lists and replace(plan.lists, array=self.start + plan.lists.array)
        second = plan.rescore and own(plan.rescore)
        return self.view.candidates(replace(plan, first=own(plan.first), rescore=second, lists=lists), k)


class FusionModel(Model):
    """A weighted sum of several models' scores, over the documents that are among the best of any member.

    Made of trained models by :meth:`of`; an index given a list of models makes one. Scores are sums of the members'
    scores, each divided by its scale, so that all have a similar range.
    """

    method: ClassVar[str] = "fusion"
    retriever: ClassVar[str] = "FusionRetriever"
    config_class = FusionConfig
    search_class = FusionSearch
    config: FusionConfig

    def __init__(self, config: FusionConfig, members: Sequence[Model], **origin: Any) -> None:
        modules = nn.ModuleList([member.module for member in members])
        super().__init__(config, members[0].encoder, modules, **origin)
        self.members = list(members)
        self.reads_metadata = any(member.reads_metadata for member in members)
        self.sentences = members[0].sentences
        self._one_encoder = len({member.encoder.fingerprint for member in members}) == 1
        self._with_options = [(member, member.search_options({})) for member in members]
        self._factors = [weight / scale for weight, scale in zip(config.weights, config.scales, strict=True)]

    @classmethod
    def of(
        cls, models: Sequence[Model | str | Path], data: Any = None, *, weights: Sequence[float] | None = None,
        cache: EncodingCache | str | Path | None = None, progress: bool | None = None,
    ) -> Self:  # fmt: skip
        """Fuse trained models.

        Args:
            models: Two or more, or where their checkpoints lie.
            data: What :func:`palmette.load_data` reads, with held-out judgements to learn the weights from.
            weights: Weight of each, instead of learning it; without either all count the same.
            cache: Where encodings of ``data`` are kept.
            progress: Progress bars; ``None`` shows them on a terminal.
        """
        check_kind("models", models, Sequence, "a list of models or their folders")
        members = [model if isinstance(model, Model) else load_model(model) for model in models]
        if isinstance(weights, str):
            raise ConfigError(
                f"weights={shown(weights)}: give a number for each model; reciprocal ranks ('rrf') are no longer "
                "fused, since sums of scores rank better: leave weights out, or give data to learn them from"
            )
        check_kind("weights", weights, (Sequence, np.ndarray, type(None)), "a number for each model")
        given = [1.0] * len(members) if weights is None else list(weights)
        for weight in given:
            check_range("fusion", "weights", weight, 0, 1e9)
        if len(given) != len(members) or sum(given) <= 0:
            raise ConfigError(f"weights={shown(weights)}: give one for each of the {len(members)} models")
        learned = [member.calibrations.get("") for member in members]
        config = FusionConfig(
            members=tuple({**member.config_json(), "fingerprint": member.fingerprint} for member in members),
            weights=tuple(weight / sum(given) for weight in given),
            scales=tuple(one.units.own.unit if one and one.units else 1.0 for one in learned),
        )
        made = cls(config, members)
        units = [one.units for one in learned if one and one.units]
        if len(units) == len(members):  # a sum of scores in units of meaning is in such units
            zero = sum(w * one.own.zero / one.own.unit for w, one in zip(config.weights, units, strict=True))
            sentence = next((unit.sentence for unit in units if unit.sentence), None)
            made.calibrations = {"": Calibration(units=Units(own=Scale(zero=zero), sentence=sentence))}
        if data is None:
            return made
        loaded = load_data(data)
        store = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)
        how: dict[str, Any] = {"seed": 0, "progress": progress}
        if weights is None:
            shares = learn_weights(members, config.scales, loaded, store, **how)
            made = cls(config.replace(weights=shares), members)
        made.calibrations = calibrate(made, loaded, made.encoder, store, **how)
        return made

    # -- hooks ----------------------------------------------------------------------------------------------

    @classmethod
    def task(cls, *_: Any, **__: Any) -> Any:
        """Refuse: a fusion is not trained itself."""
        raise ConfigError("a fusion is made of trained models: FusionModel.of([model, another], data)")

    @classmethod
    def module_for(cls, config: FusionConfig, encoder: Encoder) -> nn.Module:
        """Refuse: members make their own modules."""
        raise ConfigError("a fusion's modules are its members': load it with from_pretrained")

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Arrays of all members."""
        starts = map(ARRAYS.format, range(len(self.members)))
        return tuple(
            replace(spec, name=start + spec.name, scales=spec.scales and start + spec.scales)
            for start, member in zip(starts, self.members, strict=True)
            for spec in member.arrays()
        )

    def encode_documents(self, documents: Sequence[Document], vectors: Floats | None = None) -> Arrays:
        """Arrays of all members."""
        given = () if vectors is None else (vectors,)
        return _join([member.encode_documents(documents, *given) for member in self.members])

    def encode_queries(self, queries: Sequence[str] | Floats, options: FusionSearch) -> Queries:
        """Query arrays of all members."""
        if isinstance(queries, np.ndarray) and not self._one_encoder:
            raise ConfigError("these models read different encoders: search with the text itself")
        return _join([member.encode_queries(queries, own) for member, own in self._with_options])

    @property
    def accepts_embeddings(self) -> bool:
        """Whether all members do, over one encoder."""
        return self._one_encoder and all(member.accepts_embeddings for member in self.members)

    def plan(self, queries: Queries, k: int, options: FusionSearch, view: View) -> Any:
        """Plans of all members."""
        plans = tuple(
            member.plan(_split(queries, at), k, own, MemberView(view, at))
            for at, (member, own) in enumerate(self._with_options)
        )
        fetch = max((plan.fetch for plan in plans if plan.rescore and plan.fetch), default=None)
        return FusionPlan(plans, fetch)

    def execute(self, view: View, plan: Any, k: int, options: FusionSearch) -> Candidates:
        """Sum the members' scores of all documents that are among the best of any."""
        total = len(view) if plan.only is None else len(plan.only)
        depth = max(1, min(max(SHORTLIST, 2 * k, plan.fetch or 0), total))
        searches = [
            partial(member.execute, MemberView(view, place), options=own)
            for place, (member, own) in enumerate(self._with_options)
        ]
        first = [search(one, depth) for search, one in zip(searches, plan.members, strict=True)]
        rows = []
        for row in range(len(first[0].keys)):
            listed = [found.one_query(row) for found in first]
            every = np.unique(np.concatenate([found.keys[0] for found in listed]))
            scored = []
            for search, one, found in zip(searches, plan.members, listed, strict=True):
                other = score_others(search, one.one_query(row), found, every)
                scored.append((other, other.keys[0].argsort()))  # in the order of ``every``
            table = np.stack([found.scores[0][order] for found, order in scored])  # [M, n]
            sums = np.asarray(self._factors) @ table.astype(np.float64)
            best = np.lexsort((every, -table[0], -sums))[:k]
            facts = [
                {name: array[0][order[best]] for name, array in found.evidence.items()}
                for found, order in scored
            ]
            rows.append((every[best], sums[best].astype(np.float32), _join(facts)))
        visited = float(np.mean([found.visited for found in first]))
        return stack_rows(rows, Candidates(first[0].keys, first[0].scores, visited))

    def explain(
        self, query: Queries, arrays: Arrays, options: FusionSearch, evidence: Mapping[str, Any]
    ) -> Explanation:
        """Every member's parts, weighted."""
        parts, texts, briefs, details, score = [], [], [], {}, 0.0
        for place, ((member, search), factor) in enumerate(
            zip(self._with_options, self._factors, strict=True)
        ):
            facts = {**_split(evidence, place), "document": evidence.get("document")}
            own = member.explain(_split(query, place), _split(arrays, place), search, facts)
            name = f"{place}:{member.method}"
            parts += [Part(f"{name} {part.name}", factor * part.value, part.detail) for part in own.parts]
            briefs.append(own.brief)
            texts.append(f"{factor * own.score:.3f} by {member.method} ({own.text})")
            details[name] = dict(own.detail)
            score += factor * own.score
        brief, text = "; ".join(filter(None, briefs)), f"score {score:.3f}: {'; '.join(texts)}"
        return Explanation(score, parts, text, {"members": details}, brief=brief)

    def describe(self, view: View | None = None) -> dict[str, Any]:
        """Weights and the members' own facts."""
        facts: dict[str, Any] = {}
        for at, (member, weight) in enumerate(zip(self.members, self.config.weights, strict=True)):
            own = member.describe(None if view is None else MemberView(view, at))
            weighed = {"weight": round(weight, 3)} if view is None else {}
            if weighed or own:
                facts[f"{at}:{member.method}"] = weighed | own
        warnings = [own.pop("warning") for own in facts.values() if "warning" in own]
        return facts | ({"warning": "; ".join(warnings)} if warnings else {})

    # -- checkpoints ----------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:  # noqa: D102
        return _join([member.weights() for member in self.members], WEIGHTS)

    def extras(self) -> dict[str, bytes]:
        """Files of all members."""
        return _join([member.extras() for member in self.members], FILES)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, encoder: str | Encoder | None = None, **options: Any
    ) -> Self:
        """Load the fusion of an opened checkpoint; members of one encoder share it."""
        facts = checkpoint.config["config"]
        if facts.get("rule", "scores") != "scores":
            raise CheckpointError(
                f"{checkpoint.path} fuses reciprocal ranks, which palmette no longer does, since sums of scores rank "
                "better: fuse its models again with FusionModel.of([model, another])"
            )
        config = FusionConfig.from_dict(facts)
        coders: dict[str, Encoder] = {}
        members, origin = [], dict[str, Any](origin=checkpoint.origin, revision=checkpoint.revision)
        for place, own in enumerate(config.members):
            read_by, files = str(own["encoder"]["fingerprint"]), _split(checkpoint.files, place, FILES)
            if read_by not in coders:
                given = (own["encoder"], options) if encoder is None else (encoder, dict[str, Any]())
                coders[read_by] = load_encoder(given[0], **given[1])
            member = MemberCheckpoint(
                checkpoint.path, own, str(own["fingerprint"]), files, whole=checkpoint, place=place, **origin
            )
            members.append(model_class(own["method"]).from_checkpoint(member, encoder=coders[read_by]))
        made = cls(config, members, **origin)
        made.calibrations = read_calibrations(checkpoint.config)
        made.fingerprint = checkpoint.fingerprint
        return made


@dataclass(frozen=True)
class MemberCheckpoint(Checkpoint):
    """A member's checkpoint inside that of its fusion."""

    whole: Checkpoint = field(kw_only=True)
    place: int = field(kw_only=True)

    def tensors(self, device: str = "cpu") -> dict[str, Tensor]:
        """Load the member's weights."""
        return _split(self.whole.tensors(device), self.place, WEIGHTS)

    def file(self, name: str) -> bytes:
        """Read one of the member's files."""
        return self.whole.file(FILES.format(self.place) + name)


def _join(members: Sequence[Mapping[str, Any]], start: str = ARRAYS) -> dict[str, Any]:
    """Give what the members have names that differ."""
    return {start.format(at) + name: value for at, one in enumerate(members) for name, value in one.items()}


def _split(every: Mapping[str, Any], place: int, start: str = ARRAYS) -> dict[str, Any]:
    """Select what one member has."""
    own = start.format(place)
    return {name.removeprefix(own): value for name, value in every.items() if name.startswith(own)}
