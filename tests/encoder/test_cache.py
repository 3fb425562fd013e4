"""A text is encoded once, whatever happens to the folder in between."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.encoder import CachedEncoder, EncodingCache, FakeEncoder
from palmette.errors import ConfigError, EncodingError, InputError, ReadOnlyError, StorageFullError
from support.tiny_encoder import states_of

TEXTS = ["a cat", "two dogs ran", "", "a cat", "bird"]


class Counting(FakeEncoder):
    def __init__(self, dimension: int = 8, **options) -> None:
        super().__init__(dimension, **options)
        self.seen: list[str] = []

    def forward(self, texts, kind, outputs):
        self.seen += texts
        return super().forward(texts, kind, outputs)


@pytest.fixture
def cache(tmp_path) -> EncodingCache:
    return EncodingCache(tmp_path)


def files(cache: EncodingCache) -> list[Path]:
    return sorted(cache.root.rglob("*.sqlite"))


def tokens_of(encoder: FakeEncoder, text: str) -> np.ndarray:
    return states_of(encoder, [text], outputs=("tokens",)).tokens[0].astype(np.float16)


@settings(max_examples=10)
@given(st.lists(st.lists(st.sampled_from(["a", "b b", "c", "d\ud800", "é", ""]), max_size=6), max_size=3))
def test_any_order_and_repetition_gives_the_encoders_rows(tmp_path_factory, calls):
    cache, encoder = EncodingCache(tmp_path_factory.mktemp("cache")), FakeEncoder(4)
    for texts in [[], *calls]:
        np.testing.assert_array_equal(cache.encode(encoder, texts), encoder.encode(texts))
        flat, offsets = cache.encode_tokens(encoder, texts)
        assert (len(offsets), flat.shape) == (len(texts) + 1, (offsets[-1], 4))
        for i, text in enumerate(texts):
            np.testing.assert_array_equal(flat[offsets[i] : offsets[i + 1]], tokens_of(encoder, text))


def test_another_encoder_limit_precision_or_prompt_meets_nothing(cache):
    cache.encode(Counting(), TEXTS)
    prompted, rough, short, wide = Counting(), Counting(), Counting(max_length=16), Counting(9)
    prompted.prompts = {"document": "passage: "}
    rough.precision = "bfloat16"
    for other in (prompted, rough, short, wide):
        cache.encode(other, TEXTS)
        assert len(other.seen) == len(set(TEXTS))
    same = Counting()
    same.name = "another name for the same"
    cache.encode(same, TEXTS[:2])
    assert same.seen == []
    cache.encode(same, TEXTS[:2], kind="query")  # queries are cut, documents are not
    assert sorted(same.seen) == sorted(TEXTS[:2])


def test_bad_calls_are_refused(cache):
    learner = FakeEncoder(8)
    learner.frozen = False
    with pytest.raises(ConfigError, match="being trained"):
        cache.encode(learner, TEXTS)
    with pytest.raises(InputError, match="text 1 must be a str"):
        cache.encode(FakeEncoder(8), ["a", 1])
    with pytest.raises(InputError, match="query 2 is empty"):
        cache.encode(FakeEncoder(8), TEXTS, kind="query")
    assert files(cache) == []


def test_a_bad_vector_is_named_by_its_place_and_never_kept(cache):
    class Broken(Counting):
        def forward(self, texts, kind, outputs):
            states = super().forward(texts, kind, outputs)
            for row, text in enumerate(texts):
                if text == "bird":
                    (states.pooled if "pooled" in outputs else states.tokens)[row] = float("inf")
            return states

    cache.encode(Broken(), TEXTS[:3])
    for call in (cache.encode, cache.encode_tokens):
        with pytest.raises(EncodingError, match="text 4: 'bird'"):
            call(Broken(), TEXTS)
    assert len(files(cache)) == 1
    encoder = Counting()
    cache.encode(encoder, TEXTS)
    assert encoder.seen == ["bird"]


def run(file: Path, command: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(command)


def overwrite(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:16384] + b"\xff" * (len(data) - 16384))


DAMAGES = {
    "altered vectors": lambda f: run(f, "UPDATE texts SET data = zeroblob(32)"),
    "truncated vectors": lambda f: run(f, "UPDATE texts SET data = zeroblob(3)"),
    "no vectors": lambda f: run(f, "UPDATE texts SET data = 7"),
    "text": lambda f: run(f, "UPDATE texts SET data = 'x'"),
    "vectors of other texts": lambda f: run(
        f, "UPDATE texts SET (crc, data) = (SELECT crc, data FROM texts AS t ORDER BY t.key LIMIT 1)"
    ),
    "foreign file": lambda f: f.write_bytes(b"no database"),
    "empty file": lambda f: f.write_bytes(b""),
    "truncated file": lambda f: f.write_bytes(f.read_bytes()[:20000]),
    "overwritten pages": overwrite,
    "foreign database": lambda f: run(f, "DROP TABLE texts"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("output", ["pooled", "sentences", "tokens"])
def test_what_is_damaged_is_made_again(cache, damage, output):
    def call(encoder: FakeEncoder) -> list[np.ndarray]:
        if output == "pooled":
            return [cache.encode(encoder, TEXTS)]
        if output == "tokens":
            return [np.array(cache.encode_tokens(encoder, TEXTS)[0])]
        pooled, sentences = cache.encode_sentences(encoder, TEXTS)
        return [pooled, *vars(sentences).values()]

    def check() -> None:
        for found, wanted in zip(call(encoder), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)

    encoder = Counting()
    expected = call(encoder)
    damage(files(cache)[0])
    with pytest.warns(UserWarning, match="damaged .* made again"):
        check()
    encoder.seen.clear()
    check()
    assert encoder.seen == []


def test_any_flipped_bit_is_harmless_or_noticed(cache):
    """No flipped bit of the file ever gives another vector."""
    encoder, rng = FakeEncoder(8), np.random.default_rng(0)
    texts = [f"text {i}" for i in range(200)]
    expected = cache.encode(encoder, texts)
    [file] = files(cache)
    whole = file.read_bytes()
    for _ in range(40):
        data = bytearray(whole)
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        file.write_bytes(data)
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            np.testing.assert_array_equal(cache.encode(encoder, texts), expected)
        assert all("made again" in str(warning.message) for warning in noticed)


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").touch()
    cache = EncodingCache(tmp_path / "file")
    with pytest.warns(UserWarning, match="not kept.*PALMETTE_CACHE"):
        found = cache.encode(FakeEncoder(8), TEXTS)
    np.testing.assert_array_equal(found, FakeEncoder(8).encode(TEXTS))
    with pytest.raises(ReadOnlyError, match="PALMETTE_CACHE"):
        cache.encode_tokens(FakeEncoder(8), TEXTS)


def test_a_full_disk_costs_a_warning(cache, monkeypatch):
    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr("palmette.encoder.cache.EncodingDatabase.put", full)
    with pytest.warns(UserWarning, match="not kept: no room left"):
        cache.encode(FakeEncoder(8), TEXTS)
    with pytest.raises(StorageFullError, match="no room left for encodings"):
        cache.encode_tokens(FakeEncoder(8), TEXTS)


def test_a_folder_that_may_only_be_read_is_read(cache, monkeypatch):
    encoder = Counting()
    cache.encode(encoder, TEXTS)
    encoder.seen.clear()
    monkeypatch.setattr(os, "access", lambda *_: False)
    cache.encode(encoder, TEXTS)
    assert encoder.seen == []
    assert len(list(cache.root.iterdir())) == 2, "the database and the lock"


@pytest.mark.parametrize("call", [EncodingCache.clear, lambda cache: cache.encode(FakeEncoder(8), TEXTS)])
def test_files_of_others_are_not_deleted(cache, call):
    others = {cache.root / name for name in ("mine.sqlite", "docs.npz")}
    for path in others:
        path.write_bytes(b"x")
    call(cache)
    assert others <= set(cache.root.iterdir())


LONG = ["A cat sleeps. " * 20, *TEXTS, "A dog runs far away from here. " * 9]


@pytest.mark.parametrize("has_offsets", [True, False])
def test_sentences_are_kept_beside_the_vectors(cache, has_offsets, monkeypatch):
    """What training encodes, indexing reads."""
    monkeypatch.setattr(FakeEncoder, "has_offsets", has_offsets)
    encoder = Counting()
    cache.encode(encoder, LONG[1:])
    assert len(encoder.seen) == len(set(LONG[1:]))
    vectors, expected = FakeEncoder(8).encode_sentences(LONG)
    encoder.seen.clear()
    for _ in range(2):
        pooled, sentences = CachedEncoder(encoder, cache).encode_sentences(LONG)
        for found, wanted in zip((pooled, *vars(sentences).values()), (vectors, *vars(expected).values()), strict=True):
            np.testing.assert_array_equal(found, wanted)
        assert np.array_equal(cache.encode(encoder, LONG), vectors)
    assert encoder.seen == LONG[:1]
    assert len(files(cache)) == 1
    empty = cache.encode_sentences(encoder, [])[1]
    assert (len(empty), empty.vectors.shape, empty.spans.shape) == (0, (0, 8), (0, 2))


def test_the_texts_used_least_recently_go(tmp_path):
    cache, encoder = EncodingCache(tmp_path, max_gb=5e-4), Counting(64)
    texts = {name: [f"{name} {i}" for i in range(300)] for name in "abcdef"}
    for name in "abcadef":
        cache.encode(encoder, texts[name])
        run(files(cache)[0], "UPDATE batches SET used = used - 7200")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5e5
    for name, known in {"f": True, "b": False}.items():
        encoder.seen.clear()
        cache.encode(encoder, texts[name][:5])
        assert (not encoder.seen) is known, name


def test_a_limit_of_nothing_keeps_nothing_and_limits_are_checked(monkeypatch, tmp_path):
    cache = EncodingCache(tmp_path, max_gb=0)
    for _ in range(2):
        assert np.array_equal(cache.encode(FakeEncoder(8), TEXTS), FakeEncoder(8).encode(TEXTS))
    assert sum(entry.texts for entry in cache.entries()) == 0
    with pytest.raises(ConfigError, match="max_gb must be .* got -1"):
        EncodingCache(tmp_path, max_gb=-1)
    monkeypatch.setenv("PALMETTE_CACHE_GB", "2.5")
    assert EncodingCache(tmp_path).max_bytes == 2_500_000_000
    monkeypatch.setenv("PALMETTE_CACHE_GB", "lots")
    with pytest.raises(ConfigError, match="PALMETTE_CACHE_GB must be .* got 'lots'"):
        EncodingCache(tmp_path)


CODE = """
import sys, numpy as np
from palmette.encoder import EncodingCache, FakeEncoder
cache, encoder = EncodingCache(sys.argv[1]), FakeEncoder(8)
for i in range(int(sys.argv[2]), int(sys.argv[2]) + 20):
    texts = [f'text {j}' for j in range(i, i + 10)]
    assert np.array_equal(cache.encode(encoder, texts), encoder.encode(texts))
"""


def test_processes_and_threads_may_fill_it_together(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "error"}
    worker = subprocess.Popen([sys.executable, "-c", CODE, str(tmp_path), "5"], env=env)

    def fill(start: int) -> None:
        cache, encoder = EncodingCache(tmp_path), FakeEncoder(8)
        for i in range(start, start + 20):
            texts = [f"text {j}" for j in range(i, i + 10)]
            assert np.array_equal(cache.encode(encoder, texts), encoder.encode(texts))

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, 12, 3)))
    assert worker.wait(120) == 0
    encoder = Counting()
    EncodingCache(tmp_path).encode(encoder, [f"text {i}" for i in range(34)])
    assert encoder.seen == []


def test_token_states_are_mapped_into_memory(cache):
    encoder = Counting()
    flat, _ = cache.encode_tokens(encoder, TEXTS)
    assert isinstance(flat, np.memmap)
    assert (flat.dtype, flat.flags.writeable) == (np.float16, False)
    assert sorted(encoder.seen) == sorted(set(TEXTS))
    cache.encode_tokens(encoder, ["new", *TEXTS[1:]])
    assert encoder.seen[len(set(TEXTS)) :] == ["new"]
    assert {path.stem for path in cache.root.iterdir()} == {"palmette-cache"}, "no file is left"


def test_values_beyond_half_precision_are_refused(cache):
    class Huge(FakeEncoder):
        def forward(self, texts, kind, outputs):
            states = super().forward(texts, kind, outputs)
            states.tokens[:] *= 1e6
            return states

    with pytest.raises(EncodingError, match="tokens of text 0 exceed half precision"):
        cache.encode_tokens(Huge(8), ["a"])
    assert files(cache) == []


def test_a_cached_encoder_encodes_a_document_once(tmp_path):
    encoder = Counting(16)
    cached = CachedEncoder(encoder, tmp_path)
    texts = ["a lamp", "a chair", "a lamp"]
    expected = FakeEncoder(16).encode(texts)
    for _ in range(2):
        assert np.array_equal(cached.encode(texts), expected)
        rows, states = next(cached.iter_states(texts))
        assert np.array_equal(states.pooled[rows], expected)
    assert len(encoder.seen) == 2
    assert np.array_equal(cached.encode_queries(["a lamp"]), FakeEncoder(16).encode_queries(["a lamp"]))
    assert len(encoder.seen) == 3, "queries bypass the cache"
    assert (cached.fingerprint, cached.to_config()) == (encoder.fingerprint, encoder.to_config())
    assert states_of(cached, ["a lamp"], outputs=("tokens",)).tokens is not None


def test_what_stands_above_a_text_is_part_of_its_key(cache):
    encoder, texts = FakeEncoder(8), ["a cat", "a cat", "a cat"]
    above = ["Pets", "", "Pets"]
    first = cache.encode_sentences(encoder, texts, above=above)
    again = cache.encode_sentences(encoder, texts, above=above)
    plain = encoder.encode_sentences(texts, above=above)
    for vectors, sentences in (first, again):
        np.testing.assert_array_equal(vectors, plain[0])
        np.testing.assert_array_equal(sentences.vectors, plain[1].vectors)
    assert not np.array_equal(first[0][0], first[0][1])
    assert np.array_equal(cache.encode_sentences(encoder, ["a cat"])[0][0], first[0][1])
