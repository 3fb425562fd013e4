"""Training pairs and their given negatives; the documents that a validation ranks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from palmette import Document, FakeEncoder
from palmette.data import RetrievalData, load_data
from palmette.encoder.cache import EncodingCache
from palmette.training.pairs import DEV_DOCUMENTS, TrainingPairs, Validation, top_documents
from support.tiny_encoder import states_of

TOPICS, EACH, QUERIES, DOCUMENTS = 50, 20, 10, 120


def cosines(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(documents).T


@pytest.fixture
def data() -> RetrievalData:
    """A thousand documents; those of one topic are close together, and two of them answer."""
    corpus = [Document(f"{topic} {n}", f"document {n} of {topic}") for topic in range(TOPICS) for n in range(EACH)]
    queries = {f"q{topic}": f"which of {topic}" for topic in range(TOPICS)}
    judged = {f"q{topic}": {f"{topic} 3": 1, f"{topic} 4": 2} for topic in range(TOPICS)}
    return RetrievalData("topics", corpus, queries | {"t": "any"}, {"train": {"t": {"0 0": 1}}, "dev": judged})


@pytest.fixture
def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [51, d] and documents [1000, d], whose lengths differ by far more than their directions."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(TOPICS, 16, generator=draw)
    documents = centres.repeat_interleave(EACH, 0) + 0.2 * torch.randn(TOPICS * EACH, 16, generator=draw)
    documents *= torch.rand(len(documents), 1, generator=draw) * 9 + 1
    return torch.cat([centres, torch.zeros(1, 16)]), documents


def held(data: RetrievalData) -> Validation:
    made = Validation.of(data, 0, queries=QUERIES, documents=DOCUMENTS)
    assert made is not None
    return made


def grades(held: Validation) -> set[tuple[int, int, float]]:
    """(query row, document row, grade), wherever the document stands among those ranked."""
    query, place = np.divmod(held.judgements.keys, held.judgements.documents)
    rows = (held.queries[query], held.documents[place], held.judgements.grades)
    return set(zip(*(column.tolist() for column in rows), strict=True))


def test_judgements_stay_and_the_others_are_the_nearest(data, vectors):
    some = held(data)
    near = some.with_nearest_documents(*vectors)
    assert grades(near) == grades(some)
    assert len(near.documents) == len(set(near.documents.tolist())) == DOCUMENTS
    assert (np.diff(near.documents) > 0).all()
    needed = {document for _, document, _ in grades(some)}
    each = (DOCUMENTS - len(needed)) // QUERIES  # at least: some may be near to several queries, or judged
    for row in near.queries.tolist():
        nearest = cosines(vectors[0][row : row + 1], vectors[1])[0].argsort(descending=True)[:each]
        assert set(nearest.tolist()) <= set(near.documents.tolist())


def test_without_an_answer_nothing_is_validated(data: RetrievalData) -> None:
    unanswered = replace(data, qrels={**data.qrels, "dev": {"q1": {"1 3": 0}}})
    assert Validation.of(unanswered, 0) is Validation.of(data, 0, split="test") is None


def test_pairs_are_validated_among_the_nearest(tmp_path):
    """More documents than a validation ranks: what is encoded for training has chosen among them."""
    texts = [f"{n % 90} apples and {n // 90} pears" for n in range(DEV_DOCUMENTS + 600)]
    corpus = [Document(str(n), text) for n, text in enumerate(texts)]
    asked = {str(n): f"who has {texts[n]}" for n in range(0, len(texts), 70)}
    split = {"train": list(asked)[::2], "dev": list(asked)[1::2]}
    qrels = {name: {query: {query: 1} for query in chosen} for name, chosen in split.items()}
    every = RetrievalData("fruit", corpus, asked, qrels)
    made = TrainingPairs.encode(every, FakeEncoder(32), EncodingCache(tmp_path), seed=1)
    assert made.dev is not None
    assert len(made.dev.documents) == DEV_DOCUMENTS < len(every.corpus)
    expected = Validation.of(every, 1)
    assert expected is not None
    assert grades(made.dev) == grades(expected)
    queries, documents = made.held_out(lambda states: states.pooled)
    nearest = top_documents(queries, made.documents[: len(every.corpus)], cosines)
    assert set(nearest.ravel().tolist()) <= set(made.dev.documents.tolist())
    assert not set(nearest.ravel().tolist()) <= set(expected.documents.tolist())
    assert documents.shape == (DEV_DOCUMENTS, 32)


PAIRS = [(f"what does the {animal} say", f"the {animal} says its own name") for animal in "cat dog owl fox".split()]
WRONG = ["a cat is a mammal", "the cat sleeps all day"]
ROWS = np.arange(4)


def encoded(folder: Path, negatives: list[str]) -> TrainingPairs:
    data = load_data([(*PAIRS[0], negatives), *PAIRS[1:]], dev_fraction=0)
    return TrainingPairs.encode(data, FakeEncoder(16), EncodingCache(folder))


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_one_given_negative_per_query_by_the_generator(tmp_path: Path) -> None:
    pairs = encoded(tmp_path, WRONG)
    seen = set()
    for seed in range(20):
        [hard], again = pairs.hard_negatives(ROWS, draw(seed)), pairs.hard_negatives(ROWS, draw(seed))
        assert [hard] == again.tolist()
        seen.add(pairs.data.texts[hard])
    assert seen == set(WRONG)
    assert not len(pairs.hard_negatives(ROWS[1:], draw(0)))


def test_another_querys_answer_is_masked_and_no_negatives_are_none(tmp_path: Path) -> None:
    pairs = encoded(tmp_path, [PAIRS[2][1]])
    known = pairs.known_answers(pairs.query_rows, pairs.hard_negatives(ROWS, draw(0)))
    assert known.tolist() == [[False], [False], [True], [False]]
    plain = encoded(tmp_path, [])
    assert not len(plain.hard_negatives(ROWS, draw(0)))
    assert plain.known_answers(plain.query_rows, plain.document_rows).tolist() == torch.eye(4).bool().tolist()
    assert torch.equal(plain.documents, torch.from_numpy(FakeEncoder(16).encode([text for _, text in PAIRS])))


def test_token_states_come_padded_with_their_mask(tmp_path: Path) -> None:
    data = load_data(PAIRS, dev_fraction=0)
    encoder = FakeEncoder(16)
    pairs = TrainingPairs.encode(data, encoder, EncodingCache(tmp_path), tokens=True)
    states = pairs.states("query", np.array([2, 0]))
    expected = states_of(encoder, [PAIRS[2][0], PAIRS[0][0]], kind="query", outputs=["tokens"])
    assert states.tokens is not None
    assert states.mask is not None
    for row in range(2):
        count = int(states.mask[row].sum())
        assert count == int(expected.mask[row].sum())
        torch.testing.assert_close(
            states.tokens[row, :count], torch.from_numpy(expected.tokens[row, :count]), atol=2e-3, rtol=1e-2
        )
    assert not states.tokens[~states.mask].any()
