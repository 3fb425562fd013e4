"""What validation ranks: the judged documents, and of many others those that the queries lie near."""

import numpy as np
import pytest
import torch

from palmette import Document, FakeEncoder
from palmette.cache import EncodingCache
from palmette.data import RetrievalData
from palmette.held_out import DEV_DOCUMENTS, HeldOut, best_places
from palmette.pairs import EncodedPairs

TOPICS, EACH, QUERIES, DOCUMENTS = 50, 20, 10, 120


def cosines(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(documents).T


@pytest.fixture
def data() -> RetrievalData:
    """A thousand documents; those of one topic are close together, and two of them answer."""
    corpus = [
        Document(f"{topic} {n}", f"document {n} of {topic}") for topic in range(TOPICS) for n in range(EACH)
    ]
    queries = {f"q{topic}": f"which of {topic}" for topic in range(TOPICS)}
    judged = {f"q{topic}": {f"{topic} 3": 1, f"{topic} 4": 2} for topic in range(TOPICS)}
    return RetrievalData(
        "topics", corpus, queries | {"t": "any"}, {"train": {"t": {"0 0": 1}}, "dev": judged}
    )


@pytest.fixture
def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [51, d] and documents [1000, d], whose lengths differ by far more than their directions."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(TOPICS, 16, generator=draw)
    documents = centres.repeat_interleave(EACH, 0) + 0.2 * torch.randn(TOPICS * EACH, 16, generator=draw)
    documents *= torch.rand(len(documents), 1, generator=draw) * 9 + 1
    return torch.cat([centres, torch.zeros(1, 16)]), documents


def held(data: RetrievalData, documents: int = DOCUMENTS) -> HeldOut:
    made = HeldOut.of(data, 0, queries=QUERIES, documents=documents)
    assert made is not None
    return made


def grades(held: HeldOut) -> set[tuple[int, int, float]]:
    """(query row, document row, grade), wherever the document stands among those ranked."""
    query, place = np.divmod(held.judgements.keys, held.judgements.documents)
    rows = (held.queries[query], held.documents[place], held.judgements.grades)
    return set(zip(*(column.tolist() for column in rows), strict=True))


def test_judgements_stay_and_the_others_are_the_nearest(data, vectors):
    some = held(data)
    near = some.among_nearest(*vectors)
    assert grades(near) == grades(some)
    assert len(near.documents) == len(set(near.documents.tolist())) == DOCUMENTS
    assert (np.diff(near.documents) > 0).all()
    needed = {document for _, document, _ in grades(some)}
    each = (DOCUMENTS - len(needed)) // QUERIES  # at least: some may be near to several queries, or judged
    for row in near.queries.tolist():
        nearest = cosines(vectors[0][row : row + 1], vectors[1])[0].argsort(descending=True)[:each]
        assert set(nearest.tolist()) <= set(near.documents.tolist())


def test_what_is_worse_among_all_is_worse_among_the_nearest(data, vectors):
    """Ranking by six of sixteen columns: hardly worse among few at random, as bad among the nearest as among all."""
    queries, documents = vectors
    some = held(data)
    quality = {}
    for name, one in {
        "random": some,
        "near": some.among_nearest(queries, documents),
        "all": held(data, len(documents)),
    }.items():
        asked, ranked = queries[one.queries][:, :6], documents[one.documents][:, :6]
        quality[name] = one.judge(best_places(asked, ranked, cosines))["ndcg@10"]
    assert abs(quality["near"] - quality["all"]) < 0.5 * abs(quality["random"] - quality["all"])


def test_where_few_lie_near_the_rest_is_spread_over_all(data, vectors):
    one = HeldOut.of(data, 0, queries=1, documents=500)
    assert one is not None
    near = one.among_nearest(*vectors)
    assert len(near.documents) == len(set(near.documents.tolist())) == 500
    assert grades(near) == grades(one)
    best = cosines(vectors[0][one.queries], vectors[1])[0].argsort(descending=True)[:100]
    others = np.setdiff1d(near.documents, best.numpy())
    assert len(others) >= 398
    assert set(others.tolist()) <= set(one.documents.tolist())
    assert np.histogram(others, bins=5, range=(0, 1000))[0].min() > 50


def test_all_documents_stay_as_they_are(data, vectors):
    every = held(data, 10**6)
    assert every.among_nearest(*vectors) is every


def test_pairs_are_validated_among_the_nearest(tmp_path):
    """More documents than a validation ranks: what is encoded for training has chosen among them."""
    texts = [f"{n % 90} apples and {n // 90} pears" for n in range(DEV_DOCUMENTS + 600)]
    corpus = [Document(str(n), text) for n, text in enumerate(texts)]
    asked = {str(n): f"who has {texts[n]}" for n in range(0, len(texts), 70)}
    split = {"train": list(asked)[::2], "dev": list(asked)[1::2]}
    qrels = {name: {query: {query: 1} for query in chosen} for name, chosen in split.items()}
    every = RetrievalData("fruit", corpus, asked, qrels)
    made = EncodedPairs.encode(every, FakeEncoder(32), EncodingCache(tmp_path), seed=1)
    assert made.dev is not None
    assert len(made.dev.documents) == DEV_DOCUMENTS < len(every.corpus)
    expected = HeldOut.of(every, 1)
    assert expected is not None
    assert grades(made.dev) == grades(expected)
    queries, documents = made.held_out(lambda states: states.pooled)
    nearest = best_places(queries, made.documents[: len(every.corpus)], cosines)
    assert set(nearest.ravel().tolist()) <= set(made.dev.documents.tolist())
    assert not set(nearest.ravel().tolist()) <= set(expected.documents.tolist())
    assert documents.shape == (DEV_DOCUMENTS, 32)
