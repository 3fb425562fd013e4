"""Options of the encoder of fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from palmette.config import Config, check_range
from palmette.errors import ConfigError
from palmette.methods.fields.layout import Attention, ancestors_of
from palmette.methods.fields.reading import WHOLE
from palmette.training import TrainingConfig

__all__ = ["WHOLE", "By", "FieldsConfig", "FieldsSearch", "FieldsTraining"]

BLEND = 0.5
"""Of a score in two stages, the share of all fields together."""

By = Literal["two_stage", "aggregate", "best"]
Negatives = Literal["given", "mined", "words", "none"]


@dataclass(frozen=True)
class FieldsConfig(Config):
    """What to train, and how.

    Attributes:
        fields: The fields in their order, short to long: ``name`` or ``name=source``, where a source is a key of
            the document's fields or metadata (``metadata.brand``, ``specs.size``) or ``text``. Empty to find them.
        attention: Which field sees which: all earlier ones (``triangular``), none (``diagonal``), all (``full``).
        whole: One more field, ``all``, that holds every field's text on end and sees itself alone: what the encoder
            would make of the document. Without it a model starts far below its encoder, since words of early fields
            never know the later ones; with it a document costs twice the tokens.
        sees: Another graph without cycles: ``field=seen+seen`` for each field that sees others.
        pooling: A field's vector: the state of its ``token``, or the ``mean`` of the words it stands for; ``auto``
            is as the encoder was trained.
        queries: With the ``fields``' tokens and aggregated as documents are, or ``plain``, as the encoder reads them.
        similarity: ``cosine``, or the ``inner_product`` of vectors of any length.
        budgets: ``field=tokens``, where a field is to be cut at another length than is chosen for it.
        document_tokens: Tokens of a document at most; by default what the encoder takes.
        query_tokens: Tokens of a query at most.
        trained_layers: Only so many of the encoder's last layers learn; by default everything does. With 0 the
            encoder stays as it is and reads each text once; what learns is how its vectors are turned and weighed,
            which takes minutes on a CPU.
        dropout: Share of hidden values left out while the encoder learns.
        query_words: Where the encoder stays as it is, each token of the queries that train may learn a vector that
            is added to a query's: ``always``, ``never``, or where nobody judged (``auto``).
        word_steps: Steps more for these vectors alone, where nobody judged; each costs a hundredth of a second or two.
        temperature: What similarities are divided by (τ).
        aggregate_weight: λ_agg, of the loss of the aggregated vectors.
        fields_weight: λ_fields, of the mean of the fields' own losses.
        best_weight: λ_max, of the loss of the best field.
        diversity_weight: Of the loss of multi-view representations that pushes fields apart; 0 for none.
        negatives: One hard negative a query: among those ``given`` (graded 0), or ``mined`` from what the model
            itself finds, or from what shares ``words`` (BM25); ``none`` for those of the batch alone.
        mining_rounds: How often ``mined`` negatives are looked for in a run.
        mining_depth: Results among which they are drawn.
        chunk: Texts that go through the encoder at once, each chunk twice: less memory, the very same gradients.
            0 for all at once.
        pretrain_steps: Steps of masked language modelling on the documents before the training.
        pretrain_rate: Peak learning rate of that.
        targets: What a query's documents are learned from: the known ``answers``, or what the encoder as it begins
            and shared ``words`` (BM25) rank first together; ``auto`` is the latter where nobody judged.
        stored: How an index keeps the vectors of fields: a byte a number, two, or four.
        limits: Tokens of each field.
        dimension: Width of the vectors.
        words: Tokens of queries that have a vector.
    """

    fields: tuple[str, ...] = field(default=(), metadata={"given_as": "Mapping[str, str] | Sequence[str]"})
    attention: Attention = "triangular"
    whole: bool = True
    sees: tuple[str, ...] = field(default=(), metadata={"given_as": "Mapping[str, Sequence[str]]"})
    pooling: Literal["auto", "token", "mean"] = "auto"
    queries: Literal["fields", "plain"] = "fields"
    similarity: Literal["cosine", "inner_product"] = "cosine"
    budgets: tuple[str, ...] = field(default=(), metadata={"given_as": "Mapping[str, int]"})
    document_tokens: int | None = None
    query_tokens: int = 64
    trained_layers: int | None = None
    dropout: float = 0.1
    query_words: Literal["auto", "always", "never"] = "auto"
    word_steps: int = 2000
    temperature: float = 0.05
    aggregate_weight: float = 1.0
    fields_weight: float = 1.0
    best_weight: float = 1.0
    diversity_weight: float = 0.0
    negatives: Negatives = "given"
    mining_rounds: int = 3
    mining_depth: int = 30
    chunk: int = 32
    pretrain_steps: int = 0
    pretrain_rate: float = 1e-4
    targets: Literal["auto", "answers", "words"] = "auto"
    stored: Literal["int8", "float16", "float32"] = "int8"
    limits: tuple[int, ...] = field(default=(), metadata={"filled_in": True})
    dimension: int = field(default=0, metadata={"filled_in": True})
    words: int = field(default=0, metadata={"filled_in": True})

    def check(self) -> None:
        """Ranges, and options that go together."""
        for name, low in (
            ("aggregate_weight", 0),
            ("fields_weight", 0),
            ("best_weight", 0),
            ("diversity_weight", 0),
            ("mining_rounds", 1),
            ("mining_depth", 1),
            ("chunk", 0),
            ("pretrain_steps", 0),
            ("word_steps", 0),
            ("query_tokens", 1),
            ("document_tokens", 8),
            ("trained_layers", 0),
        ):
            check_range("fields", name, getattr(self, name), low)
        check_range("fields", "dropout", self.dropout, 0, 0.9)
        for name in ("temperature", "pretrain_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"fields: {name} must be above 0, got {getattr(self, name)!r}")
        if not any((self.aggregate_weight, self.fields_weight, self.best_weight)):
            raise ConfigError(
                "fields: give aggregate_weight, fields_weight or best_weight, or nothing is learned"
            )
        if self.sees and self.attention != "triangular":
            raise ConfigError(
                f"fields: sees says what attention={self.attention!r} says otherwise; give one of them"
            )
        for item in self.budgets:
            name, _, tokens = item.partition("=")
            if not tokens.isdecimal() or not int(tokens):
                raise ConfigError(f"fields: a budget is field=tokens, such as 'text=128'; got {item!r}")
            if self.fields and name not in self.order:
                raise ConfigError(f"fields: budgets name {name!r}; the fields are {', '.join(self.order)}")

    @property
    def order(self) -> list[str]:
        """The fields in their order."""
        return [item.partition("=")[0] for item in self.fields]

    @property
    def reads_whole(self) -> bool:
        """Whether the last field is the whole document."""
        return self.whole and len(self.fields) > 1 and self.order[-1] == WHOLE

    @property
    def ancestors(self) -> Tensor:
        """Which field sees which [F, F]."""
        return ancestors_of(self.order, self.attention, self.seen, alone=self.reads_whole)

    @property
    def seen(self) -> dict[str, list[str]]:
        """What each field sees, as given in ``sees``."""
        pairs = (item.partition("=") for item in self.sees)
        return {name: [other for other in others.split("+") if other] for name, _, others in pairs}

    @property
    def given_budgets(self) -> dict[str, int]:
        """Tokens by field, as given in ``budgets``."""
        return {name: int(tokens) for name, _, tokens in (item.partition("=") for item in self.budgets)}

    def token_pooling(self, encoder: str) -> bool:
        """Whether a field's vector is its token's state, on an encoder that pools by ``mean`` or ``cls``."""
        return self.pooling == "token" or (self.pooling == "auto" and encoder == "cls")


@dataclass(frozen=True)
class FieldsTraining(TrainingConfig):
    """How to train the encoder of fields.

    As in :class:`TrainingConfig`, with other defaults: the whole encoder learns, so in small steps, and few.
    """

    steps: int = 400
    batch_size: int = 64
    learning_rate: float = 5e-5
    warmup: float = 0.1
    decay: Literal["cosine", "linear", "constant"] = "linear"


@dataclass(frozen=True)
class FieldsSearch(Config):
    """How to search.

    Attributes:
        by: Documents near by their ``aggregate``, by their ``best`` field (all documents are looked at), or
            ``two_stage``: a shortlist by the first, ranked by the second.
        shortlist: How many documents the second stage ranks; never fewer than are asked for.
        blend: How much of the aggregate's similarity there is in the second stage's, 0 … 1, beside that of the best
            field; half by default, where the paper has 0: the best field alone. 0 where ``fields`` are chosen.
        fields: Only these count, and words (``lexical="auto"``), which may lie in any field, do not; empty for all.
        weights: ``field=weight``: similarities of a field times this, where the best is chosen.
    """

    by: By = "two_stage"
    shortlist: int = 100
    blend: float | None = None
    fields: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()

    def check(self) -> None:
        """Ranges, and options that go together."""
        check_range("fields search", "shortlist", self.shortlist, 1)
        if mapped := [item for item in self.fields if "=" in item]:
            raise ConfigError(
                f"fields search: fields names those that count, and {mapped[0]!r} says where one is read from, which a "
                "model is told when it is trained (FieldsModel.fit(…, fields=…)): give "
                f"fields={[item.partition('=')[0] for item in self.fields]!r}"
            )
        if self.blend is not None:
            check_range("fields search", "blend", self.blend, 0, 1)
        if self.by == "aggregate" and (self.fields or self.weights):
            raise ConfigError(
                "by='aggregate' compares all fields in one vector: leave fields and weights out, or search by "
                "'two_stage' or 'best'"
            )
        for item in self.weights:
            name, _, weight = item.partition("=")
            try:
                good = 0 < float(weight) < float("inf")
            except ValueError:
                good = False
            if not good:
                raise ConfigError(
                    f"a weight is field=number above 0, such as 'title=1.5'; got {item!r} ({name})"
                )

    @property
    def share(self) -> float:
        """How much of the aggregate's similarity there is in a score of the best field."""
        if self.by != "two_stage":
            return 0.0
        return (0.0 if self.fields else BLEND) if self.blend is None else self.blend

    @property
    def field_weights(self) -> dict[str, float]:
        """Weights by field."""
        return {name: float(weight) for name, _, weight in (item.partition("=") for item in self.weights)}
