"""The span reader: a question-answering transformer over windows, and one softmax over all spans of all passages.

A span scores s(first token) + e(last token) + r(its window); "no answer" scores 0. r is learned; of a published model
it is −s([CLS]) − e([CLS]), which is how those tell "no answer". A window that is no help lowers all its spans at once,
so that scores of different passages compare.

The network reads every passage by itself, and among many there is always one that makes it sure of wrong words: the
more passages, the worse its answers. So all spans of passage p gain

    w · x(p) + b,    x(p) = (similarity of passage and question, share of the question's words in it),

learned on held-out questions once the network is trained.

Letters: W windows · T tokens · L tokens of an answer at most · P passages of a question.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from palmette.encoder import Encoder
from palmette.encoder.backbone import Backbone
from palmette.encoder.base import readable
from palmette.encoder.device import auto_precision
from palmette.errors import ConfigError, InputError
from palmette.reader.answer import Candidates
from palmette.reader.config import ReaderConfig
from palmette.reader.scores import (
    NEVER,
    Floats,
    UnitVectors,
    grouped_logsumexp,
    minimise,
    reading_loss,
    words_of,
)
from palmette.reader.training import TrainingSet, answers, examine, span_credit
from palmette.training import Trained, TrainingConfig, train

KEEP = 20
"""Candidates kept of each window; the rest hardly has any probability."""
TOKENS = 2048
"""Tokens of a pass on a CPU, whose cache they fit; sixteen times as many on a GPU."""
BLOCK = 64
"""Questions tokenised at a time."""
PULL = 0.05
"""Penalty of w, and of b where an average passage gains something, beside the sum over the questions."""

Rows = NDArray[np.int64]


# -- windows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A question and a part of a passage, as T tokens.

    Attributes:
        passage: Position of the passage among those read.
        inputs: [T] rows of the network's inputs by name.
        offsets: [T, 2] characters of the passage that a token covers; 0, 0 for other tokens.
        words: [T] word of the passage that a token belongs to; −1 for other tokens.
        starts: [T] whether an answer may start here: at a word's first token, unless a later window has more room.
        ends: [T] whether an answer may end here: at a word's last token.
    """

    passage: int
    inputs: dict[str, list[int]]
    offsets: Rows
    words: Rows
    starts: NDArray[np.bool_]
    ends: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.words)

    def gold(self, spans: Sequence[tuple[int, int]], longest: int) -> list[tuple[int, int]]:
        """First and last tokens of spans of characters, widened to whole words, that this window has."""
        found = []
        for start, end in spans:
            covered = np.flatnonzero((self.offsets[:, 1] > start) & (self.offsets[:, 0] < end))
            if not len(covered) or self.offsets[covered[0], 0] > start or self.offsets[covered[-1], 1] < end:
                continue
            first = int(np.flatnonzero(self.words == self.words[covered[0]])[0])
            last = int(np.flatnonzero(self.words == self.words[covered[-1]])[-1])
            if self.starts[first] and self.ends[last] and last - first < longest:
                found.append((first, last))
        return found


class Windows:
    """Cuts questions and passages into windows, by the tokenizer's own overflow; safe for several threads."""

    def __init__(self, tokenizer: Any, config: ReaderConfig) -> None:
        self.tokenizer, self.config = (
            copy.deepcopy(tokenizer),
            config,
        )  # the encoder sets its own to other lengths
        self._lock = threading.Lock()  # a fast tokenizer keeps its truncation as state

    def __call__(self, question: str, passages: Sequence[str]) -> list[Window]:
        """All windows of some passages, in their order; a blank passage has none."""
        texts = {place: readable(text) for place, text in enumerate(passages) if text.strip()}
        if not texts:
            return []
        question, most, overlap = readable(question), self.config.max_question, self.config.overlap
        with self._lock:
            tokens = self.tokenizer(
                question, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            offsets = tokens["offset_mapping"]
            found = self.tokenizer(
                [question if len(offsets) <= most else question[: offsets[most - 1][1]]] * len(texts),
                list(texts.values()),
                truncation="only_second",
                max_length=self.config.max_length,
                stride=overlap,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_token_type_ids=True,
            )
        owner, filled = found["overflow_to_sample_mapping"], list(texts)
        windows = []
        for at, sample in enumerate(owner):
            offset = np.array(found["offset_mapping"][at], np.int64).reshape(-1, 2)
            words = np.array([-1 if word is None else word for word in found.word_ids(at)], np.int64)
            inside = np.array([side == 1 for side in found.sequence_ids(at)]) & (offset[:, 1] > offset[:, 0])
            words[~inside] = -1
            starts = inside & (words != np.concatenate([[-1], words[:-1]]))
            ends = inside & (words != np.concatenate([words[1:], [-1]]))
            covered = np.flatnonzero(inside)
            if (
                at + 1 < len(owner) and owner[at + 1] == sample
            ):  # the next window has the overlap, with more room
                starts[covered[-overlap:]] = False
            if (
                at and owner[at - 1] == sample and len(covered)
            ):  # may open within a word that the last window has
                earliest = found.word_to_chars(at - 1, int(words[covered[0]]), 1).start
                starts[covered[0]] &= bool(offset[covered[0], 0] <= earliest)
            inputs = {name: found[name][at] for name in ("input_ids", "attention_mask", "token_type_ids")}
            windows.append(
                Window(filled[sample], inputs, np.where(inside[:, None], offset, 0), words, starts, ends)
            )
        return windows


def batches(windows: Sequence[Window], tokens: int) -> Iterator[list[int]]:
    """Positions of windows of similar length, together about as many ``tokens`` as one pass should take."""
    group: list[int] = []
    for at in sorted(range(len(windows)), key=lambda at: -len(windows[at])):
        if group and (len(group) + 1) * len(windows[group[0]]) > tokens:
            yield group
            group = []
        group.append(at)
    if group:
        yield group


# -- network --------------------------------------------------------------------------------------------------


class SpanModule(nn.Module):
    """A transformers question-answering model, and what speaks for a passage beside it.

    Args:
        config: Trained layers, and the length of windows and answers.
        encoder: Its transformer is the start of the network, unless ``config.model`` names another one.
    """

    transformer_learns = True

    def __init__(self, config: ReaderConfig, encoder: Encoder) -> None:
        from transformers import AutoModelForQuestionAnswering, AutoTokenizer

        super().__init__()
        attention = (
            "eager" if encoder.device.type == "cpu" else "sdpa"
        )  # fused attention learns slowly on a CPU
        if config.model is None:
            backbone = Backbone.of(encoder)
            tokenizer = backbone.tokenizer
            self.qa: Any = AutoModelForQuestionAnswering.from_config(
                backbone.network.config, attn_implementation=attention
            ).float()
            self.body.load_state_dict(backbone.network.state_dict(), strict=False)
        else:
            tokenizer = AutoTokenizer.from_pretrained(config.model)
            self.qa = AutoModelForQuestionAnswering.from_pretrained(
                config.model, attn_implementation=attention, use_safetensors=True
            ).float()
        self.config, self.windows = config, Windows(tokenizer, config)
        own, count = self.qa.config, len(layers := self.layers)
        positions = own.max_position_embeddings
        if own.model_type in (
            "roberta",
            "xlm-roberta",
            "camembert",
            "mpnet",
        ):  # these count from behind the padding
            positions -= own.pad_token_id + 1
        if config.max_length > positions:
            raise ConfigError(
                f"reader: max_length={config.max_length}, but the model has {positions} positions"
            )
        trained = count if config.trained_layers is None else config.trained_layers
        if trained > count:
            raise ConfigError(f"trained_layers must be between 0 and {count}, got {trained}")
        self.body.requires_grad_(config.trained_layers is None)
        layers[count - trained :].requires_grad_(True)
        for name, parameter in self.body.named_parameters():
            if "word_embeddings" in name or "position_embeddings" in name:
                parameter.requires_grad_(False)
        for name, part in self.qa.named_modules():
            if isinstance(part, nn.Dropout):  # none of attention weights, which costs as much as all the rest
                part.p = 0.0 if "attention" in name and "output" not in name else config.dropout
        self.relevance = None if config.model else nn.Linear(own.hidden_size, 1)
        for head in (self.qa.qa_outputs, self.relevance) if self.relevance else ():
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        self.weigh = nn.Linear(2, 1).requires_grad_(False)  # w and b of a passage; 0 until they are learned
        nn.init.zeros_(self.weigh.weight)
        nn.init.zeros_(self.weigh.bias)
        self.learned = [
            name for name, p in self.named_parameters() if p.requires_grad or name.startswith("weigh.")
        ]
        """Names of the weights that a checkpoint keeps, since they differ from the start's."""

    @property
    def body(self) -> Any:
        """Transformer under the head."""
        return getattr(self.qa, self.qa.base_model_prefix)

    @property
    def layers(self) -> nn.ModuleList:
        """Layers of the transformer."""
        found: nn.ModuleList = getattr(self.body, "transformer", None) or self.body.encoder
        return found.layer  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        """Device that computes."""
        return self.weigh.weight.device

    def forward(self, windows: Sequence[Window]) -> Tensor:
        """Scores of all spans [W, T, L], by first token and further tokens; ``NEVER`` for what is none."""

        def padded(rows: Sequence[Any], value: int = 0) -> Tensor:
            parts = [torch.as_tensor(row) for row in rows]
            return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value).to(self.device)

        def from_each(values: Tensor) -> Tensor:  # [W, T] → [W, T, L]: the values from each token on
            return F.pad(values, (0, longest - 1)).unfold(1, longest, 1)

        typed = getattr(self.qa.config, "type_vocab_size", 1) > 1
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if typed else [])]
        pad = {"input_ids": int(self.windows.tokenizer.pad_token_id)}
        inputs = {n: padded([one.inputs[n] for one in windows], pad.get(n, 0)) for n in names}
        out = self.qa(**inputs, output_hidden_states=True)
        starts, ends = out.start_logits.float(), out.end_logits.float()  # [W, T]
        longest = min(self.config.max_answer, starts.shape[1])
        relevance = -starts[:, :1] - ends[:, :1]  # [W, 1]: of [CLS]
        if self.relevance is not None:
            with torch.autocast(self.device.type, enabled=False):
                relevance = self.relevance(out.hidden_states[-1][:, 0].float())
        scores = (starts + relevance)[:, :, None] + from_each(ends)
        may_start, may_end = (padded([getattr(one, side) for one in windows]) for side in ("starts", "ends"))
        return scores.masked_fill(~(may_start[:, :, None] & from_each(may_end.int()).bool()), NEVER)

    def totals(self, windows: Sequence[Window]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Scores in batches: positions of windows, their scores [W, T, L] and log Σ exp of those [W]."""
        for group in batches(windows, TOKENS * (16 if self.device.type == "cuda" else 1)):
            scores = self([windows[at] for at in group])
            yield group, scores, scores.flatten(1).logsumexp(1)


class Read(NamedTuple):
    """Scores of one question's W windows: log Σ exp [W]; of each window the best scores [C] and tokens [C, 2]."""

    windows: Sequence[Window]
    totals: NDArray[np.float64]
    kept: Sequence[tuple[NDArray[np.float64], Rows]]

    def candidates(self, gains: NDArray[np.float64]) -> Candidates:
        """Candidates of a question, with what each passage gains [P]."""
        gain = [float(gains[window.passage]) for window in self.windows]
        found = [
            (window.passage, window.offsets[first, 0], window.offsets[last, 1], score + more)
            for window, (scores, spans), more in zip(self.windows, self.kept, gain, strict=True)
            for score, (first, last) in zip(scores, spans, strict=True)
            if score > NEVER / 2
        ]
        *places, scores = np.array(found, np.float64).reshape(-1, 4).T
        return Candidates.of(*places, scores, float(np.logaddexp.reduce([0.0, *(self.totals + gain)])))


def right_spans(scores: Tensor, gold: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
    """[W, T, L] scores, and first and last tokens of the right spans of each window → [W] log Σ exp of those."""
    flat = [(window, first, last - first) for window, spans in enumerate(gold) for first, last in set(spans)]
    if not flat:
        return scores.new_full((len(scores),), NEVER)
    window, first, extra = torch.tensor(flat, device=scores.device).T
    return grouped_logsumexp(scores[window, first, extra], window, len(scores))


# -- training and reading -------------------------------------------------------------------------------------


@dataclass
class SpanTask:
    """Training of a span reader: −log probability of the right spans among all spans of a question's passages."""

    reading: SpanReading
    lessons: TrainingSet

    metric = "f1 of answers"

    @property
    def module(self) -> SpanModule:
        """Network in training."""
        return self.reading.module

    def size(self) -> int:
        """Number of training questions."""
        return len(self.lessons.train)

    def to(self, device: torch.device) -> None:
        """Windows are made on the CPU and sent batch by batch."""

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """Loss of a batch of questions, each read in one window of some passages."""
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        lessons = [lesson for row in rows.tolist() if (lesson := self.lesson(row, draw))]
        if not lessons:
            config = self.reading.config
            raise InputError(
                f"{self.lessons.data.name}: no answer to these questions fits: windows have {config.max_length} tokens "
                f"(max_length), answers at most {config.max_answer} (max_answer)"
            )
        windows = [window for lesson in lessons for window, _ in lesson]
        gold = [spans for lesson in lessons for _, spans in lesson]
        owner = np.repeat(np.arange(len(lessons)), [len(lesson) for lesson in lessons])
        order, every, right = [], [], []
        for group, scores, totals in self.module.totals(windows):
            every.append(totals)
            right.append(right_spans(scores, [gold[at] for at in group]))
            order += group
        questions = torch.from_numpy(owner[order]).to(self.module.device)
        return reading_loss(torch.cat(every), torch.cat(right), questions, len(lessons)).mean()

    def lesson(self, row: int, draw: np.random.Generator) -> list[tuple[Window, list[tuple[int, int]]]]:
        """Windows to read for one question, and the right spans in each; none where its answer is in no window.

        One window is of a passage that the question belongs to, the others are any without an answer: of the same
        passage, or of others that look right.
        """
        asked, config = self.lessons.train[row], self.reading.config
        others = list(self.lessons.negatives[row])
        withheld = bool(others) and asked.answered and draw.random() < config.absent
        own = [] if withheld or not asked.passages else [int(draw.choice(asked.passages))]
        more = config.passages - len(own)
        texts = self.lessons.texts(own + [others[at] for at in draw.permutation(len(others))[:more]])
        spans = asked.spans(own[0], texts[0]) if own else []
        right, rest = [], []
        for window in self.module.windows(asked.question, texts):
            held = window.gold(spans, config.max_answer) if own and window.passage == 0 else []
            first = bool(held) if asked.answered else window.passage == 0
            (right if own and first else rest).append((window, held))
        if own and not right:
            return []
        chosen = [right[int(draw.integers(len(right)))]] if own else []
        return chosen + [rest[at] for at in draw.permutation(len(rest))[:more]]

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Measures of :func:`examine`, without what speaks for a passage."""
        held = self.lessons.dev
        texts = [self.lessons.texts(one.rows) for one in held]
        read = self.reading.read([one.asked.question for one in held], texts)
        found = [one.candidates(np.zeros(len(some))) for one, some in zip(read, texts, strict=True)]
        return examine(self.lessons.data, held, found, span_credit)


class SpanReading:
    """Finds spans with a transformer that reads question and passage together."""

    metric = SpanTask.metric

    def __init__(self, config: ReaderConfig, encoder: Encoder) -> None:
        self.config, self.vectors, self.module = config, UnitVectors(encoder), SpanModule(config, encoder)

    def kept(self) -> dict[str, Tensor]:
        """Weights that a checkpoint stores: those that differ from the start's."""
        state = self.module.state_dict()
        return {name: state[name] for name in self.module.learned}

    def fit(self, lessons: TrainingSet, training: TrainingConfig, **run: Any) -> Trained:
        """Train the network, then learn what speaks for a passage, and the threshold, on held-out questions."""
        trained = train(SpanTask(self, lessons), training, **run)
        held = lessons.calibration
        if not held:
            return trained
        questions, passages = [one.asked.question for one in held], [lessons.texts(one.rows) for one in held]
        read, signs = self.read(questions, passages), self.signs(questions, passages, run["progress"])
        right = [
            np.array([one.answered and answers(lessons.data, one.asked, row) for row in one.rows], bool)
            for one in held
        ]
        self.learn(read, signs, right)
        found = [one.candidates(self.gains(some)) for one, some in zip(read, signs, strict=True)]
        metrics = {**trained.metrics, **examine(lessons.data, held, found, span_credit)}
        return Trained(**{**vars(trained), "metrics": metrics})

    def candidates(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[Candidates]:
        """The best spans of each question's passages, with probabilities."""
        read, signs = self.read(questions, passages), self.signs(questions, passages)
        return [one.candidates(self.gains(some)) for one, some in zip(read, signs, strict=True)]

    @torch.inference_mode()
    def read(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[Read]:
        """Scores of each question's passages."""
        module, found, blocks = self.module.eval(), [], range(0, len(questions), BLOCK)
        half = auto_precision(module.device) == "bfloat16"
        for start in tqdm(blocks, desc="reading", unit="block", delay=2, leave=False, disable=None):
            part = slice(start, start + BLOCK)
            pairs = zip(questions[part], passages[part], strict=True)
            windows = [module.windows(question, texts) for question, texts in pairs]
            flat = [window for some in windows for window in some]
            totals, kept = np.zeros(len(flat)), {}
            with torch.autocast(module.device.type, dtype=torch.bfloat16, enabled=half):
                for group, scores, every in module.totals(flat):
                    best = scores.flatten(1).topk(min(KEEP, scores[0].numel()), dim=1)
                    first = (best.indices // scores.shape[2]).cpu().numpy()
                    last = first + (best.indices % scores.shape[2]).cpu().numpy()
                    totals[group] = every.cpu().numpy()
                    values = best.values.double().cpu().numpy()
                    kept |= {at: (values[n], np.stack([first[n], last[n]], 1)) for n, at in enumerate(group)}
            at = 0
            for some in windows:
                rows = range(at, at := at + len(some))
                found.append(Read(some, totals[list(rows)], [kept[row] for row in rows]))
        return found

    def signs(
        self, questions: Sequence[str], passages: Sequence[Sequence[str]], progress: bool | None = False
    ) -> list[Floats]:
        """[P, 2] x of each question's passages; zeros for a blank one."""
        found = [np.zeros((len(some), 2), np.float32) for some in passages]
        texts = list(dict.fromkeys(text for some in passages for text in some if text.strip()))
        vectors = dict(zip(texts, self.vectors.documents(texts, progress), strict=True)) if texts else {}
        words = {text: words_of(text) for text in texts}
        queries = self.vectors.queries(questions) if texts else np.zeros((len(questions), 0), np.float32)
        for question, query, some, signs in zip(questions, queries, passages, found, strict=True):
            asked = words_of(question)
            for place, text in enumerate(some):
                if text in vectors:
                    signs[place] = vectors[text] @ query, len(asked & words[text]) / max(1, len(asked))
        return found

    def gains(self, signs: Floats) -> NDArray[np.float64]:
        """[P] w · x + b."""
        with torch.inference_mode():
            added = self.module.weigh(torch.from_numpy(signs).to(self.module.device)).squeeze(-1)
        gains: NDArray[np.float64] = added.double().cpu().numpy()
        return gains

    def learn(
        self, read: Sequence[Read], signs: Sequence[Floats], right: Sequence[NDArray[np.bool_]]
    ) -> None:
        """Find w, under which right passages [P] are most probable among those of their question, and then b.

        Found together, questions without an answer, whose passages look as right as any, would talk w down.
        """
        totals = []
        for one, marks in zip(read, right, strict=True):
            totals.append(np.full(len(marks), NEVER))
            np.logaddexp.at(totals[-1], np.array([w.passage for w in one.windows], np.int64), one.totals)
        base, x, hits = (torch.from_numpy(np.concatenate(some)) for some in (totals, signs, right))
        owner, count = (
            torch.from_numpy(np.repeat(np.arange(len(right)), [len(some) for some in right])),
            len(right),
        )
        w, b = torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)

        def chosen() -> Tensor:
            scores = base + x.double() @ w
            hit = grouped_logsumexp(scores.masked_fill(~hits, NEVER), owner, count)
            every = grouped_logsumexp(scores, owner, count)
            return torch.where(hit > NEVER / 2, every - hit, 0.0).sum() + PULL * w.square().sum()

        def answered() -> Tensor:
            scores = base + x.double() @ w + b
            loss = reading_loss(scores, scores.masked_fill(~hits, NEVER), owner, count).sum()
            return loss + PULL * (b + x.double().mean(0) @ w).square().sum()

        minimise(w, chosen)
        minimise(b, answered)
        with torch.no_grad():
            self.module.weigh.weight.copy_(w[None])
            self.module.weigh.bias.copy_(b)
