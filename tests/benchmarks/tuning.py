"""Fine-tuning the encoder, the rival of a learned space: the same pairs, quality and processor time.

    PALMETTE_DATA=FOLDER python tests/benchmarks/tuning.py scifact medquad fairytaleqa --store WORK/tuning.jsonl

sentence-transformers' own trainer on up to 1,000 pairs of each collection: in-batch negatives and, for each question, a
hard negative of the encoder's first hits; batches of 32, two epochs at 5e-5 with warm-up, 128 tokens. nDCG@10 of 300
test questions through an index without sentences, by vectors alone and with words at the weight that ``fit`` chose.
Needs the packages ``datasets`` and ``accelerate``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import recording
from common import Ready, parse_with_data
from curve import K, QUESTIONS, Recorded, sampled
from teacher import packaged

from palmette import Index, RetrievalData, SpaceModel, load_data
from palmette.metrics import score_run

PAIRS = 1000
"""Pairs to learn from, at most."""
EPOCHS = 2
BATCH = 32
RATE = 5e-5
TOKENS = 128
"""Tokens of a text, in training and in encoding."""
NEAR = 10
"""First hits of the encoder, of which one that is not relevant becomes a hard negative."""


def examples(data: RetrievalData, encoder: Recorded) -> list[dict[str, str]]:
    """Questions, each with its passage and a hard negative."""
    texts = {document.key: document.content for document in data.corpus}
    draw, train = np.random.default_rng(0), data.qrels["train"]
    with Index.build(data.corpus, SpaceModel.untrained(encoder), passages=None, progress=False) as index:
        ranked = index.rank([data.queries[query] for query in train], NEAR, lexical=0, sentences=False).ids
    lists = []
    for (query, judged), ids in zip(train.items(), ranked, strict=True):
        others = [id for id in ids if id not in judged]
        relevant = [id for id, grade in judged.items() if grade > 0]
        if others and relevant:
            wrong = others[int(draw.integers(len(others)))]
            lists.append({"anchor": data.queries[query], "positive": texts[relevant[0]], "negative": texts[wrong]})
    return lists


def tuned(rows: list[dict[str, str]], scratch: str) -> tuple[Any, float]:
    """Train the encoder; returns it, and seconds of processor time."""
    from datasets import Dataset  # type: ignore[import-not-found]
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.training_args import BatchSamplers, SentenceTransformerTrainingArguments

    model = SentenceTransformer(str(packaged()), device="cpu")
    model.max_seq_length = TOKENS
    arguments = SentenceTransformerTrainingArguments(
        output_dir=scratch,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        warmup_ratio=0.1,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        seed=0,
    )
    begun = time.process_time()
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_list(rows), loss=MultipleNegativesRankingLoss(model)
    )
    trainer.train()
    return model, time.process_time() - begun


def quality(data: RetrievalData, model: SpaceModel, test: dict[str, dict[str, int]]) -> list[float]:
    """Measure nDCG@10 by vectors alone, and with words."""
    found = []
    with Index.build(data.corpus, model, passages=None, progress=False) as index:
        for options in ({"lexical": 0}, {}):
            ranked = index.rank([data.queries[query] for query in test], K, sentences=False, **options)
            found.append(round(score_run(dict(zip(test, ranked.ids, strict=True)), test, ks=(K,))[f"ndcg@{K}"], 4))
    return found


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Measure a collection."""
    data = load_data(folder / name, dev_fraction=0.0)
    encoder = Recorded(data, np.load(folder / "encodings" / f"{name}.npz"))
    train = sampled(data, PAIRS, 0.0, 0)
    test = dict(list(data.qrels["test"].items())[:QUESTIONS])
    plain = Ready(encoder.dimension, encoder.known)
    plain.fingerprint = f"{name}, as it is"
    line: dict[str, Any] = {"set": name, "pairs": len(train.qrels["train"])}
    line["encoder"] = quality(data, SpaceModel.untrained(plain), test)
    begun = time.process_time()
    space = SpaceModel.fit(train, encoder=plain, progress=False)
    line["space seconds"], line["space"] = round(time.process_time() - begun, 1), quality(data, space, test)
    with TemporaryDirectory() as scratch:
        model, line["tuning seconds"] = tuned(examples(train, encoder), scratch)
    texts = [document.content for document in data.corpus]
    texts += [data.queries[query] for query in {**train.qrels["train"], **test}]
    vectors = model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
    again = Ready(encoder.dimension, dict(zip(texts, vectors, strict=True)))
    again.fingerprint = f"{name}, tuned"  # caches tell encoders apart by it
    line["tuned"] = quality(data, SpaceModel.untrained(again), test)
    line["tuned, and a space"] = quality(data, SpaceModel.fit(train, encoder=again, progress=False), test)
    return line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what the store does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--store", type=Path, required=True)
    args = parse_with_data(parser, argv)
    for name in args.sets:
        if recording.find(args.store, set=name) is None:
            print(recording.append(args.store, measure(args.data, name)), flush=True)


if __name__ == "__main__":
    main()
