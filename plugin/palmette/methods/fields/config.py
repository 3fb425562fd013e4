"""Options of the encoder of fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from palmette.config import FILLED_IN, Config, check_range
from palmette.errors import ConfigError
from palmette.methods.fields.layout import Attention, ancestors_of
from palmette.methods.fields.reading import WHOLE
from palmette.training import TrainingConfig

__all__ = ["WHOLE", "By", "FieldsConfig", "FieldsSearch", "FieldsTraining"]

BLEND = 0.5
"""Of a score in two stages, the share of all fields together."""

By = Literal["two_stage", "aggregate", "best"]
Negatives = Literal["given", "mined", "words", "none"]


class FieldsConfig(Config):
    """What to train, and how."""

    fields: tuple[str, ...] = ()
    """The fields in their order, short to long: ``name`` or ``name=source``, where a source is a key of the
    document's fields or metadata (``metadata.brand``, ``specs.size``) or ``text``. Empty to find them.
    """
    attention: Attention = "triangular"
    """Which field sees which: all earlier ones (``triangular``), none (``diagonal``), all (``full``)."""
    whole: bool = True
    """One more field, ``all``, that holds every field's text on end and sees itself alone: what the encoder
    would make of the document. Without it a model starts far below its encoder, since words of early
    fields never know the later ones; with it a document costs twice the tokens.
    """
    sees: tuple[str, ...] = ()
    """Another graph without cycles: ``field=seen+seen`` for each field that sees others."""
    pooling: Literal["auto", "token", "mean"] = "auto"
    """A field's vector: the state of its ``token``, or the ``mean`` of the words it stands for; ``auto`` is
    as the encoder was trained.
    """
    queries: Literal["fields", "plain"] = "fields"
    """With the ``fields``' tokens and aggregated as documents are, or ``plain``, as the encoder reads them.
    """
    similarity: Literal["cosine", "inner_product"] = "cosine"
    """``cosine``, or the ``inner_product`` of vectors of any length."""
    budgets: tuple[str, ...] = ()
    """``field=tokens``, where a field is to be cut at another length than is chosen for it."""
    document_tokens: Annotated[int, Field(ge=8)] | None = None
    """Tokens of a document at most; by default what the encoder takes."""
    query_tokens: Annotated[int, Field(ge=1)] = 64
    """Tokens of a query at most."""
    trained_layers: Annotated[int, Field(ge=0)] | None = None
    """Only so many of the encoder's last layers learn; by default everything does. With 0 the encoder stays
    as it is and reads each text once; what learns is how its vectors are turned and weighed, which takes
    minutes on a CPU.
    """
    dropout: Annotated[float, Field(ge=0, le=0.9)] = 0.1
    """Share of hidden values left out while the encoder learns."""
    query_words: Literal["auto", "always", "never"] = "auto"
    """Where the encoder stays as it is, each token of the queries that train may learn a vector that is added
    to a query's: ``always``, ``never``, or where nobody judged (``auto``).
    """
    word_steps: Annotated[int, Field(ge=0)] = 2000
    """Steps more for these vectors alone, where nobody judged; each costs a hundredth of a second or two."""
    temperature: Annotated[float, Field(gt=0)] = 0.05
    """What similarities are divided by (τ)."""
    aggregate_weight: Annotated[float, Field(ge=0)] = 1.0
    """λ_agg, of the loss of the aggregated vectors."""
    fields_weight: Annotated[float, Field(ge=0)] = 1.0
    """λ_fields, of the mean of the fields' own losses."""
    best_weight: Annotated[float, Field(ge=0)] = 1.0
    """λ_max, of the loss of the best field."""
    diversity_weight: Annotated[float, Field(ge=0)] = 0.0
    """Of the loss of multi-view representations that pushes fields apart; 0 for none."""
    negatives: Negatives = "given"
    """One hard negative a query: among those ``given`` (graded 0), or ``mined`` from what the model itself
    finds, or from what shares ``words`` (BM25); ``none`` for those of the batch alone.
    """
    mining_rounds: Annotated[int, Field(ge=1)] = 3
    """How often ``mined`` negatives are looked for in a run."""
    mining_depth: Annotated[int, Field(ge=1)] = 30
    """Results among which they are drawn."""
    chunk: Annotated[int, Field(ge=0)] = 32
    """Texts that go through the encoder at once, each chunk twice: less memory, the very same gradients. 0
    for all at once.
    """
    pretrain_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of masked language modelling on the documents before the training."""
    pretrain_rate: Annotated[float, Field(gt=0)] = 1e-4
    """Peak learning rate of that."""
    targets: Literal["auto", "answers", "words"] = "auto"
    """What a query's documents are learned from: the known ``answers``, or what the encoder as it begins and
    shared ``words`` (BM25) rank first together; ``auto`` is the latter where nobody judged.
    """
    stored: Literal["int8", "float16", "float32"] = "int8"
    """How an index keeps the vectors of fields: a byte a number, two, or four."""
    limits: Annotated[tuple[int, ...], FILLED_IN] = ()
    """Tokens of each field."""
    dimension: Annotated[int, FILLED_IN] = 0
    """Width of the vectors."""
    words: Annotated[int, FILLED_IN] = 0
    """Tokens of queries that have a vector."""

    def check(self) -> None:
        """Ranges, and options that go together."""
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


class FieldsTraining(TrainingConfig):
    """How to train the encoder of fields.

    As in :class:`TrainingConfig`, with other defaults: the whole encoder learns, so in small steps, and few.
    """

    steps: int = 400
    batch_size: int = 64
    learning_rate: float = 5e-5
    warmup: float = 0.1
    decay: Literal["cosine", "linear", "constant"] = "linear"


class FieldsSearch(Config):
    """How to search."""

    by: By = "two_stage"
    """Documents near by their ``aggregate``, by their ``best`` field (all documents are looked at), or
    ``two_stage``: a shortlist by the first, ranked by the second.
    """
    shortlist: Annotated[int, Field(ge=1)] = 100
    """How many documents the second stage ranks; never fewer than are asked for."""
    blend: float | None = None
    """How much of the aggregate's similarity there is in the second stage's, 0 … 1, beside that of the best
    field; half by default, where the paper has 0: the best field alone. 0 where ``fields`` are chosen.
    """
    fields: tuple[str, ...] = ()
    """Only these count, and words (``lexical="auto"``), which may lie in any field, do not; empty for all."""
    weights: tuple[str, ...] = ()
    """``field=weight``: similarities of a field times this, where the best is chosen."""

    def check(self) -> None:
        """Ranges, and options that go together."""
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
