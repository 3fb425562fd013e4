"""Collections with their vectors, and the candidates of their questions with what each is scored by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from common import ENCODER
from palmette import load_data, load_encoder
from palmette.arrays import unit_rows
from palmette.lexical.analyser import LANGUAGE, analyser_of
from palmette.lexical.bm25 import WordCollection
from palmette.ranking.score import expected_word_share
from recording import Line, append, find, read
from relevant.collected import Texts, collected

Floats = NDArray[np.floating[Any]]
GIVEN = ("squad", "scifact", "fairytaleqa", "cosqa", "hotpot_mini", "medquad", "chorus_icecat")
SIZES = (200, 1000)  # documents of the samples
QUESTIONS, FOREIGN, SHORTLIST, K = 600, 100, 100, 10
GRID = np.round(np.arange(0, 1.001, 0.05), 2)
FUSIONS = (0.3, 0.5, 0.7)
WEIGHT, SPREAD, UNIT = 0.5, 0.092, 6.0
"""What is shipped: weight of words, usual spread of the encoder's cosines, spreads in a unit of meaning."""
SIZE, USUAL = 0.036, 2000
"""What a sum is worth less per natural logarithm of the documents, and the size where that is nothing."""


def group(name: str) -> str:
    """The collection that a sample is drawn from."""
    return name.partition("/")[0]


class Example(NamedTuple):
    """Questions: texts, unit vectors [Q, d], and the grades of relevant rows."""

    texts: list[str]
    vectors: Floats
    judged: list[dict[int, float]]

    def take(self, rows: Sequence[int]) -> Example:
        return Example([self.texts[r] for r in rows], self.vectors[rows], [self.judged[r] for r in rows])


class Collection(NamedTuple):
    """Documents, unit vectors of them [N, d] and of their sentences [S, d], and questions by split."""

    name: str
    texts: list[str]
    documents: Floats
    sentences: Floats
    first: NDArray[np.int64]
    asked: dict[str, Example]

    def cosines(self, vectors: Floats) -> tuple[Floats, Floats]:
        """[Q, N] cosines of documents and of their best sentences."""
        best = np.maximum.reduceat(vectors @ self.sentences.T, self.first, axis=1)
        return vectors @ self.documents.T, best

    def rows(self, document: int) -> NDArray[np.int64]:
        """Rows of a document's sentences."""
        ends = np.append(self.first[1:], len(self.sentences))
        return np.arange(self.first[document], ends[document])

    def sample(self, size: int, seed: int = 0) -> Collection:
        """Draw documents: the answers of some questions, and others at random."""
        rng, asked = np.random.default_rng(seed), self.asked["test"]
        kept: set[int] = set()
        chosen: list[int] = []
        for row in rng.permutation(len(asked.texts)).tolist():
            if len(chosen) < 200 and len(kept | set(asked.judged[row])) <= 0.6 * size:
                kept |= set(asked.judged[row])
                chosen.append(row)
        others = [row for row in rng.permutation(len(self.texts)).tolist() if row not in kept]
        rows = sorted([*kept, *others[: size - len(kept)]])
        place = {row: at for at, row in enumerate(rows)}
        some = asked.take(sorted(chosen))
        judged = [{place[row]: grade for row, grade in one.items()} for one in some.judged]
        lists = [self.rows(row) for row in rows]
        first = np.cumsum([0, *map(len, lists)])[:-1]
        sentences = self.sentences[np.concatenate(lists)]
        texts = [self.texts[row] for row in rows]
        test = {"test": some._replace(judged=judged)}
        return Collection(f"{self.name}/{size}", texts, self.documents[rows], sentences, first, test)


def texts_of(data: Path) -> Iterator[tuple[str, dict[str, Texts]]]:
    """Texts of every collection at hand, by split."""
    for name in GIVEN:
        if not (data / name).exists():
            continue
        given = load_data(data / name)
        documents, splits = [document.all_text for document in given.corpus], {}
        for split, graded in given.qrels.items():
            judged = {q: {given.rows[d]: float(g) for d, g in one.items() if g > 0} for q, one in graded.items()}
            asked = [query for query, one in judged.items() if one]
            if split != "train" and len(asked) > QUESTIONS:
                chosen = np.random.default_rng(0).choice(len(asked), QUESTIONS, replace=False)
                asked = [asked[row] for row in np.sort(chosen)]
            splits[split] = Texts(documents, [given.queries[q] for q in asked], [judged[q] for q in asked])
        if len(splits["test"].questions) < 50:  # few judgements: all of them
            every = splits.values()
            questions = [question for texts in every for question in texts.questions]
            merged = Texts(documents, questions, [one for texts in every for one in texts.judged])
            splits = {"test": merged}
        yield name, {split: found for split, found in splits.items() if split != "train"}
    for name, made in collected():
        yield name, {"test": made}


def encoded(name: str, splits: dict[str, Texts], data: Path, cache: Path) -> Collection:
    """Vectors of a collection, from a file where there is one."""
    encoder, path = load_encoder(ENCODER), cache / f"{name}.npz"
    texts = splits["test"].documents
    given = data / "encodings" / f"{name}.npz"
    if not path.exists():
        if given.exists():
            held = np.load(given)
            known = {key: held[key] for key in held.files if key in ("sentences", "scales", "first")}
            known["docs"] = held["docs"]
            if "sentences" not in known:  # names of a few words
                scales = np.abs(known["docs"]).max(axis=1, keepdims=True).astype(np.float32) / 127
                known |= {"sentences": np.rint(known["docs"] / scales).astype(np.int8), "scales": scales[:, 0]}
                known["first"] = np.arange(len(texts))
        else:
            documents, found = encoder.encode_sentences(texts)
            known = {"docs": documents.astype(np.float16), "sentences": found.vectors, "scales": found.scales}
            known["first"] = found.starts[:-1]
        asked = {f"queries_{split}": encoder.encode_queries(found.questions) for split, found in splits.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **known, **asked)
    held = np.load(path)
    asked = {
        s: Example(t.questions, unit_rows(held[f"queries_{s}"].astype(np.float32)), t.judged) for s, t in splits.items()
    }
    sentences = unit_rows(held["sentences"] * held["scales"][:, None])
    return Collection(name, texts, unit_rows(held["docs"].astype(np.float32)), sentences, held["first"], asked)


# -- candidates ------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The candidates of Q questions, [Q, C] each: best documents by vector and by words; [Q] from ``ideal`` on."""

    document: Floats
    sentence: Floats
    share: Floats
    grade: Floats
    ideal: Floats
    rarity: Floats
    documents: int

    def total(self, weight: float = WEIGHT) -> Floats:
        """The sum that hits are ranked by."""
        meaning = (self.document + self.sentence) / 2 / (UNIT * SPREAD)
        size = SIZE * np.log(self.documents / USUAL)  # the same for all hits: it orders nothing
        words = self.share - expected_word_share(self.rarity)[:, None]
        return (1 - weight) * meaning + weight * words - size

    def ndcg(self, total: Floats) -> float:
        """nDCG@10 of a ranking by these sums."""
        best = np.argsort(-total, axis=1, kind="stable")[:, :K]
        return float((gain(np.take_along_axis(self.grade, best, axis=1)) / self.ideal).mean())


def gain(grades: Floats) -> Floats:
    """Discounted gain of ranked grades [Q, k]."""
    return np.asarray(grades @ (1 / np.log2(np.arange(2, grades.shape[1] + 2))))


def ideal_of(judged: Sequence[dict[int, float]]) -> Floats:
    """[Q] gain of the best possible ranking."""
    best = [sorted(one.values(), reverse=True)[:K] for one in judged]
    return np.array([float(gain(np.array([grades]))[0]) for grades in best])


def ndcg(scores: Floats, asked: Example) -> float:
    """nDCG@10 of scores [Q, N] of all documents."""
    best = np.argpartition(-scores, K - 1, axis=1)[:, :K]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    best = np.take_along_axis(best, order, axis=1)
    grades = [[one.get(row, 0.0) for row in rows] for rows, one in zip(best.tolist(), asked.judged, strict=True)]
    return float((gain(np.array(grades)) / ideal_of(asked.judged)).mean())


def candidates(collection: Collection, words: WordCollection, asked: Example, depth: int = SHORTLIST) -> Found:
    """Both shortlists of every question."""
    parts, rarity = [list[Floats]() for _ in range(4)], []
    depth = min(depth, len(collection.texts))
    for start in range(0, len(asked.texts), 50):
        document, sentence = collection.cosines(asked.vectors[start : start + 50])
        for row in range(len(document)):
            matched = words.matches(asked.texts[start + row])
            share = matched.scores
            rarity.append(matched.rarity)
            best = [np.argpartition(-scores, depth - 1)[:depth] for scores in (document[row], share)]
            rows = np.union1d(*best)
            grades = np.array([asked.judged[start + row].get(r, 0.0) for r in rows.tolist()])
            for held, values in zip(
                parts, (document[row, rows], sentence[row, rows], share[rows], grades), strict=True
            ):
                padding = np.full(2 * depth - len(rows), 0.0 if held is parts[3] else -9.0)
                held.append(np.concatenate([values, padding]))
    ideal = ideal_of(asked.judged) if any(asked.judged) else np.ones(len(asked.texts))
    return Found(*map(np.array, [*parts, ideal, rarity, len(collection.texts)]))


def plain_bm25(texts: list[str], questions: list[str], k1: float = 1.2, b: float = 0.75) -> Floats:
    """[Q, N] BM25 of single words."""
    analyser, number = analyser_of(LANGUAGE), dict[int, int]()
    rows = [[number.setdefault(word.term, len(number)) for word in analyser.words(text)] for text in texts]
    lengths = np.array([len(row) for row in rows])
    place = (np.concatenate(rows), np.repeat(np.arange(len(texts)), lengths))
    counts = sparse.coo_matrix((np.ones(lengths.sum(), np.float32), place), (len(number), len(texts))).tocsr()
    counts.sum_duplicates()
    held = np.diff(counts.indptr)
    idf = np.log(1 + (len(texts) - held + 0.5) / (held + 0.5))
    norm = k1 * (1 - b + b * lengths[counts.indices] / lengths.mean())
    counts.data = (np.repeat(idf, held) * counts.data * (k1 + 1) / (counts.data + norm)).astype(np.float32)
    asked = [{number[word.term] for word in analyser.words(q) if word.term in number} for q in questions]
    at = np.cumsum([0, *map(len, asked)])
    chosen = np.fromiter((term for one in asked for term in one), np.int64, at[-1])
    picked = sparse.csr_matrix((np.ones(at[-1], np.float32), chosen, at), (len(questions), len(number)))
    return np.asarray((picked @ counts).todense())


def minmax(scores: Floats) -> Floats:
    low, high = scores.min(axis=1, keepdims=True), scores.max(axis=1, keepdims=True)
    return np.asarray((scores - low) / (high - low + 1e-9))


def spreads(collection: Collection, vectors: Floats) -> tuple[float, float]:
    """Mean standard deviation of questions' cosines, of documents and of best sentences."""
    document, sentence = collection.cosines(vectors)
    return float(document.std(axis=1).mean()), float(sentence.std(axis=1).mean())


def facts_of(collection: Collection) -> Line:
    """What all documents give: rankings by one score, fusions, and the sum at every weight."""
    asked = collection.asked["test"]
    words = WordCollection(analyser_of(LANGUAGE), collection.texts)
    share = np.stack([words.matches(text).scores for text in asked.texts])
    (document, sentence), plain = collection.cosines(asked.vectors), plain_bm25(collection.texts, asked.texts)
    scaled = [minmax(scores) for scores in (document, plain)]
    values: Line = {"encoder": ndcg(document, asked), "BM25": ndcg(plain, asked)}
    values |= {f"fusion {w}": ndcg((1 - w) * scaled[0] + w * scaled[1], asked) for w in FUSIONS}
    values["hindsight"] = max(values.values())
    meaning = (document + sentence) / 2 / (UNIT * SPREAD)
    values["sum"] = [ndcg((1 - w) * meaning + w * share, asked) for w in GRID]
    some = {"questions": asked.vectors}
    some["sentences"] = np.random.default_rng(0).permutation(collection.sentences)[:300]
    values["spreads"] = {name: spreads(collection, vectors) for name, vectors in some.items()}
    return {"documents": len(collection.texts)} | values


def everything(data: Path, cache: Path, store: Path) -> tuple[dict[str, Line], dict[str, dict[str, Found]]]:
    """Facts of all collections, and the candidates of test, dev and other collections' questions."""
    texts, others, found = dict(texts_of(data)), dict[str, Example](), {}
    paths = {name: cache / f"{name}.found.npz" for name in texts}
    for name, path in paths.items():
        if find(store, part="collection", data=name) and path.exists():
            continue
        for other in [] if others else texts:
            asked = encoded(other, texts[other], data, cache).asked["test"]
            rows = np.random.default_rng(7).permutation(len(asked.texts))[:FOREIGN].tolist()
            others[other] = asked.take(rows)._replace(judged=[{} for _ in rows])
        collection = encoded(name, texts[name], data, cache)
        for one in (collection, *(collection.sample(size) for size in SIZES if len(collection.texts) > 1.5 * size)):
            if len(one.asked["test"].texts) >= 40 and not find(store, part="collection", data=one.name):
                append(store, {"part": "collection", "data": one.name} | rounded(facts_of(one)))
        lists = lists_of(collection, {other: asked for other, asked in others.items() if other != name})
        np.savez(path, **{f"{k}/{field}": v for k, one in lists.items() for field, v in one._asdict().items()})
        print(f"  {name}: {len(collection.texts)} documents", flush=True)
    for name, path in paths.items():
        held = np.load(path)
        keys = dict.fromkeys(key.rpartition("/")[0] for key in held.files)
        found[name] = {key: Found(*(held[f"{key}/{field}"] for field in Found._fields)) for key in keys}
    lines = [line for line in read(store, "part", "data") if line["part"] == "collection"]
    return {line["data"]: line for line in lines if group(line["data"]) in texts}, found


def rounded(value: Any) -> Any:
    """Numbers to five digits, in lists and dicts too."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return round(value, 5) if isinstance(value, float) else value


def lists_of(collection: Collection, others: dict[str, Example]) -> dict[str, Found]:
    """Candidates of a collection's own questions and of others'."""
    words = WordCollection(analyser_of(LANGUAGE), collection.texts)
    lists = {split: candidates(collection, words, asked) for split, asked in collection.asked.items()}
    lists |= {f"from {other}": candidates(collection, words, asked, 30) for other, asked in others.items()}
    return lists
