"""The span reader: a question-answering transformer over windows, and one softmax over all spans of all passages.

A span scores s(first token) + e(last token) + r(window) + w · x(passage) + b; "no answer" scores 0. r is learned; for a
published model it is −s([CLS]) − e([CLS]). The network reads each passage alone, so among many passages one without the
answer always scores high; w and b, over x = (similarity to the question, share of its words), correct that. They are
learned on held-out questions.

A long passage is cut into overlapping windows. In the overlap an answer starts in the later window, which has more room
after it, so that no span is counted twice:

    window 1   the owl hunts at night and [sleeps by day]        no answer starts in the brackets
    window 2                              [sleeps by day] in a hollow tree

Letters: W windows · T tokens · L tokens of an answer at most · P passages of a question.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.arrays import Floats, Rows
from palmette.encoder import Encoder
from palmette.encoder.base import readable
from palmette.encoder.local.backbone import Backbone, set_dropout
from palmette.encoder.local.sentence_transformer import OFFSET_FAMILIES
from palmette.errors import ConfigError, InputError
from palmette.machine.devices import auto_precision
from palmette.machine.progress import progress_bar
from palmette.reader.answer import AnswerCandidates
from palmette.reader.config import ReaderConfig
from palmette.reader.losses import grouped_logsumexp, learn_passage_bias, reading_loss
from palmette.reader.scores import NEVER, UnitVectors, batches, words_of
from palmette.reader.training import TrainingSet, answers, examine, span_credit
from palmette.training.config import TrainingConfig
from palmette.training.loop import Task, TrainingResult, train

KEEP = 20
"""Candidates kept of each window; the rest hardly has any probability."""
WINDOW_TOKENS_PER_PASS = 2048
"""Tokens of a pass on a CPU, whose cache they fit; sixteen times as many on a GPU."""
QUESTIONS_TOKENISED_AT_ONCE = 64
"""Questions tokenised at a time."""
Gold = list[tuple[int, int]]
"""First and last tokens of the right spans of a window."""
WINDOW_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Window:
    """A question and a part of a passage, as T tokens."""

    passage: int
    """Position of the passage among those read."""
    inputs: dict[str, list[int]]
    """[T] rows of the network's inputs by name."""
    offsets: Rows
    """[T, 2] characters of the passage that a token covers; 0, 0 for other tokens."""
    words: Rows
    """[T] word of the passage that a token belongs to; −1 for other tokens."""
    starts: NDArray[np.bool_]
    """[T] true where an answer may start: at a word's first token, unless a later window has more room."""
    ends: NDArray[np.bool_]
    """[T] true where an answer may end: at a word's last token."""

    def __len__(self) -> int:
        return len(self.words)

    def gold(self, spans: Sequence[tuple[int, int]], longest: int) -> Gold:
        """First and last tokens of spans of characters, widened to whole words, that this window has."""
        token_spans = []
        for start, end in spans:
            covered = np.flatnonzero((self.offsets[:, 1] > start) & (self.offsets[:, 0] < end))
            if not len(covered) or self.offsets[covered[0], 0] > start or self.offsets[covered[-1], 1] < end:
                continue
            first = int(np.flatnonzero(self.words == self.words[covered[0]])[0])
            last = int(np.flatnonzero(self.words == self.words[covered[-1]])[-1])
            if self.starts[first] and self.ends[last] and last - first < longest:
                token_spans.append((first, last))
        return token_spans


class Read(NamedTuple):
    """Scores of one question's W windows: their passages, and log Σ exp; of its C best spans: places, and scores."""

    passages: Rows
    totals: NDArray[np.float64]
    places: Rows
    scores: NDArray[np.float64]

    def candidates(self, biases: NDArray[np.float64]) -> AnswerCandidates:
        """Candidates of a question, with the bias of each passage [P]."""
        total = float(np.logaddexp.reduce([0.0, *(self.totals + biases[self.passages])]))
        return AnswerCandidates.of(self.places, self.scores + biases[self.places[:, 0]], total)


def right_spans(scores: Tensor, gold: Sequence[Gold]) -> Tensor:
    """[W, T, L] scores, and the right spans of each window → [W] log Σ exp of those."""
    flat = [(window, first, last - first) for window, spans in enumerate(gold) for first, last in set(spans)]
    if not flat:
        return scores.new_full((len(scores),), NEVER)
    window, first, extra = torch.tensor(flat, device=scores.device).T
    return grouped_logsumexp(scores[window, first, extra], window, len(scores))


class SpanModule(nn.Module):
    """A transformers question-answering model that reads question and passage together, and what passages gain.

    It starts from the encoder's transformer, unless ``config.model`` names another one.
    """

    transformer_learns = True
    metric = "f1 of answers"

    def __init__(self, config: ReaderConfig, encoder: Encoder) -> None:
        from transformers import AutoModelForQuestionAnswering, AutoTokenizer

        super().__init__()
        self.config, self.vectors = config, UnitVectors(encoder)
        # fused attention learns slowly on a CPU
        attention = {"attn_implementation": "eager" if torch.device(encoder.device).type == "cpu" else "sdpa"}
        kind: Any = AutoModelForQuestionAnswering
        if config.model is None:
            backbone = Backbone.of(encoder)
            self.qa: Any = kind.from_config(backbone.network.config, **attention).float()
            self.body.load_state_dict(backbone.network.state_dict(), strict=False)
            self.tokenizer = backbone.tokenizer
        else:
            self.tokenizer = AutoTokenizer.from_pretrained(config.model)
            self.qa = kind.from_pretrained(config.model, use_safetensors=True, **attention).float()
        self._lock = threading.Lock()  # of the tokenizer, which keeps its truncation as state
        own, layers = self.qa.config, (getattr(self.body, "transformer", None) or self.body.encoder).layer
        positions = own.max_position_embeddings - (own.pad_token_id + 1 if own.model_type in OFFSET_FAMILIES else 0)
        if config.max_length > positions:
            raise ConfigError(f"max_length={config.max_length}, but the model has {positions} positions")
        trained = len(layers) if config.trained_layers is None else config.trained_layers
        if trained > len(layers):
            raise ConfigError(f"trained_layers must be between 0 and {len(layers)}, got {trained}")
        self.body.requires_grad_(config.trained_layers is None)
        layers[len(layers) - trained :].requires_grad_(True)
        for name, parameter in self.body.named_parameters():
            if "word_embeddings" in name or "position_embeddings" in name:
                parameter.requires_grad_(False)
        set_dropout(self.qa, config.dropout)
        self.relevance = None if config.model else nn.Linear(own.hidden_size, 1)
        for head in (self.qa.qa_outputs, self.relevance) if self.relevance else ():
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        self.bias_layer = nn.Linear(2, 1).requires_grad_(False)  # w and b; 0 until they are learned
        for parameter in self.bias_layer.parameters():
            nn.init.zeros_(parameter)
        self.learned = [n for n, p in self.named_parameters() if p.requires_grad or n.startswith("bias_layer.")]
        """Names of the weights that differ from the start's."""

    @property
    def body(self) -> Any:
        """Transformer under the head."""
        return getattr(self.qa, self.qa.base_model_prefix)

    def kept(self) -> dict[str, Tensor]:
        """Weights that a checkpoint stores."""
        state = self.state_dict()
        return {name: state[name] for name in self.learned}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights of a checkpoint; RuntimeError where their shapes differ."""
        self.load_state_dict(dict(weights), strict=False)

    def windows(self, question: str, passages: Sequence[str]) -> list[Window]:
        """Cut passages by the tokenizer's overflow, in their order; a blank passage has no window."""
        texts = {place: readable(text) for place, text in enumerate(passages) if text.strip()}
        if not texts:
            return []
        config, question, offsets = self.config, readable(question), {"return_offsets_mapping": True}
        with self._lock:
            read = self.tokenizer(question, add_special_tokens=False, verbose=False, **offsets)
            if len(read["offset_mapping"]) > config.max_question:
                question = question[: read["offset_mapping"][config.max_question - 1][1]]
            encoded = self.tokenizer(
                [question] * len(texts),
                list(texts.values()),
                truncation="only_second",
                max_length=config.max_length,
                stride=config.overlap,
                return_overflowing_tokens=True,
                return_token_type_ids=True,
                **offsets,
            )
        owner, windows = [-1, *encoded["overflow_to_sample_mapping"], -1], []
        for at, (before, sample, after) in enumerate(zip(owner, owner[1:], owner[2:], strict=False)):
            offset = np.array(encoded["offset_mapping"][at], np.int64).reshape(-1, 2)
            words = np.array([-1 if word is None else word for word in encoded.word_ids(at)], np.int64)
            inside = np.array([side == 1 for side in encoded.sequence_ids(at)]) & (offset[:, 1] > offset[:, 0])
            words[~inside] = -1
            starts = inside & (words != np.concatenate([[-1], words[:-1]]))
            ends = inside & (words != np.concatenate([words[1:], [-1]]))
            covered = np.flatnonzero(inside)
            if after == sample:  # the next window has the overlap, with more room
                starts[covered[-config.overlap :]] = False
            if before == sample and len(covered):  # may open within a word that the last window has
                earliest = encoded.word_to_chars(at - 1, int(words[covered[0]]), 1).start
                starts[covered[0]] &= bool(offset[covered[0], 0] <= earliest)
            inputs, offset = {name: encoded[name][at] for name in WINDOW_INPUTS}, np.where(inside[:, None], offset, 0)
            windows.append(Window(list(texts)[sample], inputs, offset, words, starts, ends))
        return windows

    def forward(self, windows: Sequence[Window]) -> Tensor:
        """Scores of all spans [W, T, L], by first token and further tokens; ``NEVER`` for what is none."""
        device = self.bias_layer.weight.device

        def padded(rows: Sequence[Any], value: int = 0) -> Tensor:
            parts = [torch.as_tensor(row) for row in rows]
            return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value).to(device)

        def from_each(values: Tensor) -> Tensor:  # [W, T] → [W, T, L]: the values from each token on
            return F.pad(values, (0, longest - 1)).unfold(1, longest, 1)

        names = WINDOW_INPUTS if getattr(self.qa.config, "type_vocab_size", 1) > 1 else WINDOW_INPUTS[:2]
        pad = {"input_ids": self.tokenizer.pad_token_id}
        inputs = {name: padded([window.inputs[name] for window in windows], pad.get(name, 0)) for name in names}
        out = self.qa(**inputs, output_hidden_states=True)
        starts, ends = out.start_logits.float(), out.end_logits.float()  # [W, T]
        relevance = -starts[:, :1] - ends[:, :1]  # [W, 1]: of [CLS]
        if self.relevance is not None:
            with torch.autocast(device.type, enabled=False):
                relevance = self.relevance(out.hidden_states[-1][:, 0].float())
        longest = min(self.config.max_answer, starts.shape[1])
        scores: Tensor = (starts + relevance)[:, :, None] + from_each(ends)
        may_start, may_end = (padded([getattr(window, side) for window in windows]) for side in ("starts", "ends"))
        return scores.masked_fill(~(may_start[:, :, None] & from_each(may_end.int()).bool()), NEVER)

    def passes(
        self, windows: Sequence[Window], network: nn.Module | None = None
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Passes of the network: positions of windows, their scores [W, T, L], and log Σ exp of those [W]."""
        for group in batches(windows, WINDOW_TOKENS_PER_PASS * (16 if self.bias_layer.weight.is_cuda else 1)):
            scores = (network or self)([windows[at] for at in group])
            yield group, scores, scores.flatten(1).logsumexp(1)

    def candidates(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[AnswerCandidates]:
        """The best spans of each question's passages, with probabilities."""
        readings, all_features = self.read(questions, passages), self.passage_features(questions, passages)
        return [
            reading.candidates(self.passage_bias(features))
            for reading, features in zip(readings, all_features, strict=True)
        ]

    @torch.inference_mode()
    def read(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[Read]:
        """Scores of each question's passages."""
        self.eval()
        readings, blocks, device = (
            [],
            range(0, len(questions), QUESTIONS_TOKENISED_AT_ONCE),
            self.bias_layer.weight.device,
        )
        half = auto_precision(device) == "bfloat16"
        for start in progress_bar(None, blocks, desc="reading", unit="block", delay=2, leave=False):
            part = slice(start, start + QUESTIONS_TOKENISED_AT_ONCE)
            windows = [self.windows(*pair) for pair in zip(questions[part], passages[part], strict=True)]
            flat = [window for question_windows in windows for window in question_windows]
            totals, best_spans = np.zeros(len(flat)), list[Any]([None] * len(flat))
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
                for group, scores, log_sums in self.passes(flat):
                    totals[group] = log_sums.cpu().numpy()
                    best = scores.flatten(1).topk(min(KEEP, scores[0].numel()), dim=1)
                    first, more = np.divmod(best.indices.cpu().numpy(), scores.shape[2])
                    for place, *row in zip(group, best.values.tolist(), first, first + more, strict=True):
                        best_spans[place] = [  # passage, characters and score
                            (flat[place].passage, flat[place].offsets[start, 0], flat[place].offsets[end, 1], score)
                            for score, start, end in zip(*row, strict=True)
                            if score > NEVER / 2
                        ]
            place = 0
            for question_windows in windows:
                rows = slice(place, place := place + len(question_windows))
                spans = np.array(
                    [span for window_spans in best_spans[rows] for span in window_spans], np.float64
                ).reshape(-1, 4)
                read = np.array([window.passage for window in question_windows], np.int64)
                readings.append(Read(read, totals[rows], spans[:, :3].astype(np.int64), spans[:, 3]))
        return readings

    def passage_features(
        self, questions: Sequence[str], passages: Sequence[Sequence[str]], progress: bool | None = False
    ) -> list[Floats]:
        """[P, 2] x of each question's passages; zeros for a blank one."""
        texts = list(
            dict.fromkeys(text for question_passages in passages for text in question_passages if text.strip())
        )
        vectors = self.vectors.documents(texts, progress)
        known = {text: (vector, words_of(text)) for text, vector in zip(texts, vectors, strict=True)}
        features, nothing = [], (np.zeros(vectors.shape[1], np.float32), set[str]())
        for question, query, question_passages in zip(
            questions, self.vectors.queries(questions), passages, strict=True
        ):
            question_words, rows = words_of(question), [known.get(text, nothing) for text in question_passages]
            pairs = [
                (vector @ query, len(question_words & words) / max(1, len(question_words))) for vector, words in rows
            ]
            features.append(np.array(pairs, np.float32).reshape(-1, 2))
        return features

    def passage_bias(self, features: Floats) -> NDArray[np.float64]:
        """[P] w · x + b."""
        w, b = (parameter.double().cpu().numpy() for parameter in self.bias_layer.parameters())
        return np.asarray(features @ w[0] + b, np.float64)

    def fit(self, training_set: TrainingSet, training: TrainingConfig, **run: Any) -> TrainingResult:
        """Train the network, then learn what passages gain, and the threshold, on held-out questions."""
        trained, held_out = train(SpanTask(self, training_set), training, **run), training_set.calibration
        if not held_out:
            return trained
        questions, passages = (
            [item.example.question for item in held_out],
            [training_set.texts(item.rows) for item in held_out],
        )
        read, all_features = self.read(questions, passages), self.passage_features(questions, passages, run["progress"])
        right = [
            [item.answered and answers(training_set.data, item.example, row) for row in item.rows] for item in held_out
        ]
        totals = [np.full(len(marks), NEVER) for marks in right]  # log Σ exp of each passage's spans
        for item, sums in zip(read, totals, strict=True):
            np.logaddexp.at(sums, item.passages, item.totals)
        w, b = learn_passage_bias(totals, all_features, right)
        with torch.no_grad():
            self.bias_layer.weight.copy_(w[None])
            self.bias_layer.bias.copy_(b)
        candidates = [
            item.candidates(self.passage_bias(features)) for item, features in zip(read, all_features, strict=True)
        ]
        metrics = examine(training_set.data, held_out, candidates, span_credit)
        return replace(trained, metrics={**trained.metrics, **metrics})


@dataclass
class SpanTask(Task):
    """−log probability of the right spans among all spans of a question's passages."""

    module: SpanModule
    training_set: TrainingSet
    metric = SpanModule.metric

    def size(self) -> int:
        """Number of training questions."""
        return len(self.training_set.train)

    def loss(self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float) -> Tensor:
        """Loss of a batch of questions, each read in one window of some passages."""
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        samples = [sample for row in rows.tolist() if (sample := self.example(row, draw))]
        if not samples:
            config = self.module.config
            raise InputError(
                f"{self.training_set.data.name}: no answer to these questions fits: windows have {config.max_length} "
                f"tokens (max_length), answers at most {config.max_answer} (max_answer)"
            )
        windows, gold = zip(*(pair for sample in samples for pair in sample), strict=True)
        owner = np.repeat(np.arange(len(samples)), [len(sample) for sample in samples])
        order, every, right = [], [], []
        for group, scores, totals in self.module.passes(windows, module):
            every.append(totals)
            right.append(right_spans(scores, [gold[at] for at in group]))
            order += group
        questions = torch.from_numpy(owner[order]).to(every[0].device)
        return reading_loss(torch.cat(every), torch.cat(right), questions, len(samples)).mean()

    def example(self, row: int, draw: np.random.Generator) -> list[tuple[Window, Gold]]:
        """Windows to read for one question, and the right spans in each; none where its answer is in no window.

        One window is of a passage that the question belongs to, the others are any without an answer: of the same
        passage, or of others that look right.
        """
        example, config = self.training_set.train[row], self.module.config
        others = list(self.training_set.negatives[row])
        withheld = bool(others) and example.answered and draw.random() < config.absent
        own = [] if withheld or not example.passages else [int(draw.choice(example.passages))]
        more = config.passages - len(own)
        texts = self.training_set.texts(own + [others[at] for at in draw.permutation(len(others))[:more]])
        spans = example.spans(own[0], texts[0]) if own else []
        right, rest = list[tuple[Window, Gold]](), list[tuple[Window, Gold]]()
        for window in self.module.windows(example.question, texts):
            gold = window.gold(spans, config.max_answer) if own and window.passage == 0 else []
            first = bool(gold) if example.answered else window.passage == 0
            (right if own and first else rest).append((window, gold))
        if own and not right:
            return []
        chosen = [right[int(draw.integers(len(right)))]] if own else []
        return chosen + [rest[at] for at in draw.permutation(len(rest))[:more]]

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Measures of :func:`examine`, without what passages gain."""
        held_out = self.training_set.dev
        texts = [self.training_set.texts(item.rows) for item in held_out]
        read = self.module.read([item.example.question for item in held_out], texts)
        candidates = [item.candidates(np.zeros(len(passages))) for item, passages in zip(read, texts, strict=True)]
        return examine(self.training_set.data, held_out, candidates, span_credit)
