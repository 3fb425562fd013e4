"""The learned space: an encoder in it, what pairs teach, and models that are trained over it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from palmette import Document, FakeEncoder, Index, PathsModel, SpaceModel, TaxonomyModel, TreeModel, load_model
from palmette.data import RetrievalData
from palmette.encoder import CachedEncoder, EncodingCache
from palmette.encoder.space import Space, SpaceEncoder
from palmette.errors import CheckpointError
from palmette.training import space as space_module
from palmette.training.pairs import TrainingPairs, Validation
from palmette.training.space import Choice, fit_space, learn_apart
from support.tiny import documents, pairs, settings
from support.tiny_encoder import states_of

WIDTH, COUNT = 24, 100


@pytest.fixture
def enough_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_module, "LEAST_STEPS", 60)


@pytest.fixture(scope="module")
def space() -> Space:
    draw = np.random.default_rng(0)
    return Space(*draw.standard_normal((2, 48, 48)).astype(np.float32))


@pytest.fixture(scope="module")
def encoder(space: Space) -> SpaceEncoder:
    return SpaceEncoder(FakeEncoder(48), space)


TEXTS = [document.text for document in documents()]


def by_hand(vectors: np.ndarray, weight: np.ndarray) -> np.ndarray:
    mapped = vectors.astype(np.float64) @ weight.astype(np.float64)
    return mapped / np.linalg.norm(mapped, axis=1, keepdims=True)


def test_pooled_vectors_are_mapped_on_every_way(encoder: SpaceEncoder, space: Space) -> None:
    plain = FakeEncoder(48)
    for kind, weight in (("query", space.queries), ("document", space.documents)):
        expected = by_hand(plain.encode(TEXTS, kind=kind), weight)
        np.testing.assert_allclose(encoder.encode(TEXTS, kind=kind), expected, atol=1e-6)
        np.testing.assert_allclose(states_of(encoder, TEXTS, kind=kind).pooled, expected, atol=1e-6)
        np.testing.assert_allclose(encoder.map(plain.encode(TEXTS), kind), expected, atol=1e-6)
        for rows, states in encoder.iter_states(TEXTS, kind=kind):
            np.testing.assert_allclose(states.pooled, expected[rows], atol=1e-6)
    queries = encoder.encode_queries(TEXTS[:3])
    np.testing.assert_allclose(queries, by_hand(plain.encode(TEXTS[:3]), space.queries), atol=1e-6)


def test_sentences_are_mapped_too(encoder: SpaceEncoder) -> None:
    vectors, found = encoder.encode_sentences(TEXTS)
    np.testing.assert_array_equal(vectors, encoder.encode(TEXTS))
    _, plain = encoder.plain.encode_sentences(TEXTS)
    mapped = encoder.map(plain.floats(), "document")
    np.testing.assert_array_equal(found.spans, plain.spans)
    assert (found.floats() * mapped).sum(axis=1).min() > 0.999
    assert found.vectors.dtype == np.int8


def test_the_fingerprint_is_of_encoder_and_maps(encoder: SpaceEncoder, space: Space) -> None:
    others = [
        SpaceEncoder(FakeEncoder(48, max_length=64), space),
        SpaceEncoder(FakeEncoder(48), replace(space, queries=space.documents)),
        FakeEncoder(48),
    ]
    assert len({encoder.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert SpaceEncoder(FakeEncoder(48), space).fingerprint == encoder.fingerprint
    assert encoder.to_config() == FakeEncoder(48).to_config()


def test_concurrent_queries_of_both_encoders_do_not_mix(encoder: SpaceEncoder) -> None:
    plain, wrong = encoder.plain, list[str]()
    expected = {one: one.encode(TEXTS, kind="query") for one in (encoder, plain)}

    def ask(one: FakeEncoder | SpaceEncoder) -> None:
        for row, text in enumerate(TEXTS):
            if not np.array_equal(one.encode_queries([text])[0], expected[one][row]):
                wrong.append(text)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, (encoder, plain) * 4))
    assert not wrong


def test_the_cache_keeps_what_the_inner_encoder_gives(
    encoder: SpaceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EncodingCache(tmp_path)
    plain = cache.encode(encoder.plain, TEXTS)
    tokens, _ = cache.encode_tokens(encoder.plain, TEXTS[:5])
    monkeypatch.setattr(FakeEncoder, "forward", None)  # nothing is encoded again
    mapped = cache.encode(encoder, TEXTS)
    np.testing.assert_array_equal(mapped, encoder.map(plain, "document"))
    assert (cache.encode_tokens(encoder, TEXTS[:5])[0] == tokens).all()
    for cached in (CachedEncoder(encoder, cache), SpaceEncoder(CachedEncoder(encoder.plain, cache), encoder.space)):
        np.testing.assert_array_equal(cached.encode(TEXTS), mapped)
        np.testing.assert_array_equal(cached.map(plain, "document"), mapped)
        assert cached.plain.fingerprint == FakeEncoder(48).fingerprint
        vectors, found = cached.encode_sentences(TEXTS)
        np.testing.assert_array_equal(vectors, mapped)
        assert len(found) == len(TEXTS)


def made(noise: float | None, dev: int) -> TrainingPairs:
    """Documents at random; a question is its document, the second half of its columns made of ``noise`` if any."""
    draw = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(COUNT, WIDTH, generator=draw))
    queries = vectors.clone()
    if noise is not None:
        queries[:, WIDTH // 2 :] = noise * torch.randn(COUNT, WIDTH // 2, generator=draw) / WIDTH**0.5
    ids = [f"d{n}" for n in range(COUNT)]
    judged = {f"q{n}": {f"d{n}": 1} for n in range(COUNT)}
    split = {"train": {q: judged[q] for q in list(judged)[dev:]}, "dev": {q: judged[q] for q in list(judged)[:dev]}}
    corpus = [Document(id=id, text=f"text {id}") for id in ids]
    data = RetrievalData("made", corpus, {q: f"question {q}" for q in judged}, split)
    return TrainingPairs(
        data, torch.nn.functional.normalize(queries), vectors, *data.pairs("train"), Validation.of(data, 0)
    )


@pytest.mark.parametrize("dev", [60, 5])
def test_pairs_teach_which_directions_matter(dev: int, enough_steps: None) -> None:
    """With few held-out questions training questions take turns, and decide alike."""
    given = made(noise=3.0, dev=dev)
    space, facts = fit_space(given, progress=False)
    assert space is not None
    assert facts["questions"] == (dev if dev == 60 else COUNT)
    assert facts["ndcg@10"] > facts["encoder"] + 0.03
    noisy = np.linalg.norm(space.queries[WIDTH // 2 :])
    assert noisy < 0.97 * np.linalg.norm(space.queries[: WIDTH // 2])


@pytest.mark.parametrize("dev", [60, 5])
def test_pairs_that_teach_nothing_leave_the_encoder(dev: int, enough_steps: None) -> None:
    given = made(noise=None, dev=dev)
    space, facts = fit_space(given, progress=False)
    assert space is None
    assert (facts["maps"], facts["way"]) == (0, 0.0)
    assert facts["ndcg@10"] == facts["encoder"]


def test_chance_leaves_the_encoder(enough_steps: None) -> None:
    """Pairs of strangers: whatever seems to help on some questions is noise."""
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))
    held, turns = (made(noise=1.0, dev=dev) for dev in (60, 0))
    assert fit_space(replace(held, queries=held.queries[order]), progress=False)[0] is None
    _, facts = fit_space(replace(turns, queries=turns.queries[order]), progress=False)
    assert facts["ndcg@10"] < facts["encoder"] + 0.03, "questions are judged by maps that have not seen them"


def test_a_group_of_documents_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The space that judges is learned without questions about similar documents."""
    given, seen = made(noise=1.0, dev=60), []
    judged = given.data.qrels
    half = {q: {f"d{60 + n % 40}": 1} if n < 45 else answers for n, (q, answers) in enumerate(judged["dev"].items())}
    pairs = replace(given, data=replace(given.data, qrels={**judged, "dev": half}))
    learn = space_module.learn_maps
    monkeypatch.setattr(
        space_module, "learn_maps", lambda *how, **more: seen.append(more["without"]) or learn(*how, **more)
    )
    monkeypatch.setattr(space_module, "LEAST_STEPS", 2)
    assert learn_apart(given, Choice(1, 1.0)) is None, "its held-out documents are all new"
    assert learn_apart(pairs, Choice(1, 1.0)) is None, "a quarter of them are"
    known = {q: {f"d{60 + n % 40}": 1} if n < 51 else answers for n, (q, answers) in enumerate(judged["dev"].items())}
    pairs = replace(given, data=replace(given.data, qrels={**judged, "dev": known}))
    apart = learn_apart(pairs, Choice(2, 0.5))
    assert apart is not None
    assert apart.share == pytest.approx(2 / 17), "9 of 60 ask about new documents: .15 of 15/17 and 2/17 are a quarter"
    assert len(apart.queries) == round(0.2 * len(judged["train"]))
    ids = list(given.data.queries)
    assert [ids[row] for row in seen[0]] == apart.queries
    left_out = given.documents[torch.tensor([int(query[1:]) for query in apart.queries])]
    assert (left_out @ left_out.T).mean() > (given.documents @ given.documents.T).mean() + 0.1, "alike"
    far = np.abs(apart.space.queries - np.eye(WIDTH)).max()
    whole = learn_apart(pairs, Choice(2, 1.0))
    assert whole is not None
    assert np.abs(whole.space.queries - np.eye(WIDTH)).max() == pytest.approx(2 * far, rel=1e-4)


def test_few_pairs_teach_nothing() -> None:
    given = made(noise=3.0, dev=0)
    few = replace(given, query_rows=given.query_rows[:40], document_rows=given.document_rows[:40])
    assert fit_space(few, progress=False) == (None, {})


def test_other_answers_of_a_question_are_no_negatives(monkeypatch: pytest.MonkeyPatch) -> None:
    given, loss, seen = made(noise=1.0, dev=0), space_module.symmetric_info_nce, []
    judged = {f"q{n}": {f"d{n}": 1, f"d{(n + 1) % COUNT}": 1} for n in range(COUNT)}
    data = replace(given.data, qrels={"train": judged})
    pairs = TrainingPairs(data, given.queries, given.documents, *data.pairs("train"), None)
    monkeypatch.setattr(space_module, "symmetric_info_nce", lambda *how: seen.append(how[1]) or loss(*how))
    space_module.learn_maps(pairs, space_module.nearest_documents(pairs), 1)
    assert all(known.sum() > len(known) for known in seen)


def test_near_documents_are_negatives(monkeypatch: pytest.MonkeyPatch) -> None:
    every, loss, seen = made(noise=1.0, dev=0), space_module.symmetric_info_nce, []
    given = replace(every, query_rows=every.query_rows[:40], document_rows=every.document_rows[:40])
    monkeypatch.setattr(space_module, "symmetric_info_nce", lambda *how: seen.append(how[2].detach()) or loss(*how))
    monkeypatch.setattr(space_module, "RANDOM", 0)
    monkeypatch.setattr(space_module, "NEAREST_OF_A_QUESTION", 3)
    space_module.learn_maps(given, space_module.nearest_documents(given), 1)
    asked = torch.from_numpy(np.unique(given.query_rows))
    third = (given.queries[asked] @ given.documents.T).topk(3, dim=1).values[:, -1]
    first = seen[0] / space_module.INVERSE_TEMPERATURE  # of the first step, which is taken in the encoder's space
    assert 0 < first.shape[1] <= len(first)
    assert (first.amax(dim=0) >= third.min() - 1e-6).all()


def test_learning_is_repeatable_and_restores_the_threads() -> None:
    given, before = made(noise=2.0, dev=60), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        near = space_module.nearest_documents(given)
        spaces = [space_module.learn_maps(given, near, 2, seed=3) for _ in range(2)]
        fit_space(given, progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(spaces[0].queries, spaces[1].queries)
    assert not np.array_equal(spaces[0].queries, spaces[0].documents)


FITS = {SpaceModel: {}, TreeModel: {"depth": 4}, PathsModel: {"branches": 4, "steps": 5}, TaxonomyModel: {"steps": 5}}


@pytest.fixture
def given_space(space: Space, monkeypatch: pytest.MonkeyPatch) -> Space:
    """The space that every fit is given, so that what follows does not hang on the choice."""
    facts = {"questions": 10, "encoder": 0.5, "maps": 2, "way": 1.0, "ndcg@10": 0.75}
    monkeypatch.setattr("palmette.training.space.fit_space", lambda *_, **__: (space, facts))
    return space


@pytest.mark.parametrize("kind", FITS, ids=lambda kind: kind.method)
def test_a_model_keeps_its_space(kind: type, given_space: Space, tmp_path: Path) -> None:
    options = settings(**FITS[kind]) if FITS[kind] else {"progress": False}
    plain = FakeEncoder(48)
    model = kind.fit(pairs(), encoder=plain, **options)
    assert isinstance(model.encoder, SpaceEncoder)
    assert model.encoder.plain is plain
    weights = model.weights()
    assert np.array_equal(weights["space.queries"], given_space.queries)
    path = model.save_pretrained(tmp_path / "model")
    assert "two linear maps, 100% of the way, nDCG@10 0.500 → 0.750" in (path / "README.md").read_text("utf-8")
    again = load_model(path, encoder=model.encoder)  # a model's own encoder stands for the plain one
    assert again.fingerprint == model.fingerprint
    assert again.encoder.fingerprint == model.encoder.fingerprint
    built, reloaded = (Index.build(documents(), one) for one in (model, again))
    question = "where does the red owl live?"
    assert built.search(question, k=5) == reloaded.search(question, k=5)
    vectors = plain.encode([d.content for d in documents()])  # embeddings are those of the plain encoder
    other = Index.in_memory(model)
    other.add(documents(), embeddings=vectors)
    [hits] = other.search(plain.encode_queries([question]), k=5)
    expected = built.search([question], k=5, lexical=0, sentences=False)[0]
    assert [hit.id for hit in hits] == [hit.id for hit in expected], "given vectors have no sentences"


@pytest.mark.parametrize(
    ("kind", "data", "options"),
    [
        (TreeModel, pairs(), {"depth": 3, "learn_space": False}),
        (TreeModel, pairs(), {"depth": 3, "preset": "paper"}),
        (TreeModel, documents(), {"depth": 3}),
        (PathsModel, pairs(), {"branches": 4, "preset": "paper", "encoder_learns": "nothing"}),
    ],
    ids=["unwanted", "paper's tree", "no labels", "paper's paths"],
)
def test_a_method_can_do_without(kind: type, data: list, options: dict, given_space: Space) -> None:
    model = kind.fit(data, encoder=FakeEncoder(48), **settings(steps=2), **options)
    assert isinstance(model.encoder, FakeEncoder)
    assert not model.record.space
    assert not any(name.startswith("space.") for name in model.weights())


def test_of_equal_ways_the_shortest_is_taken() -> None:
    encoder, choice = np.random.default_rng(0).random(60), space_module.Choice
    better = {choice(maps, way): encoder + 0.1 for way in (1.0, 0.5) for maps in (2, 1)}
    assert space_module.choose({choice(0, 0.0): encoder, **better}) == choice(1, 0.5)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda w: w.update({"space.queries": np.eye(47, dtype=np.float32)}), r"space\.queries is \[47, 47\]"),
        (lambda w: w.update({"space.documents": np.zeros(48, np.float32)}), r"space\.documents is \[48\]"),
        (lambda w: w.update({"space.documents": np.eye(48, dtype=np.float16)}), "float16"),
        (lambda w: w.update({"space.queries": np.full((48, 48), np.nan, np.float32)}), "no finite numbers"),
        (lambda w: w.pop("space.documents"), "has the maps"),
        (lambda w: w.update({"space.third": np.eye(48, dtype=np.float32)}), "has the maps"),
    ],
)
def test_maps_of_a_damaged_checkpoint_are_refused(harm: Callable, words: str, space: Space) -> None:
    weights = {"space.queries": space.queries, "space.documents": space.documents}
    harm(weights)
    with pytest.raises(CheckpointError, match=words):
        Space.of(weights, 48)
