"""A text meets an encoder once, whatever happens to the folder in between."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.cache import CachedEncoder, EncodingCache, default_cache_dir
from palmette.cache.files import ShardWriter
from palmette.encoder import FakeEncoder
from palmette.errors import ConfigError, EncodingError, InputError, ReadOnlyError

TEXTS = ["a cat", "two dogs ran", "", "a cat", "bird"]


class Counting(FakeEncoder):
    """Counts the texts it encodes."""

    def __init__(self, dimension: int = 8, **options) -> None:
        super().__init__(dimension, **options)
        self.seen: list[str] = []

    def forward(self, texts, kind, outputs):
        self.seen += texts
        return super().forward(texts, kind, outputs)


@pytest.fixture
def cache(tmp_path) -> EncodingCache:
    return EncodingCache(tmp_path)


def shards(cache: EncodingCache) -> list[Path]:
    return sorted(path.parent for path in cache.root.rglob("index.safetensors"))


def tokens_of(encoder: FakeEncoder, text: str) -> np.ndarray:
    return encoder.states([text], outputs=("tokens",)).tokens[0].numpy().astype(np.float16)


def test_only_what_is_missing_is_encoded(cache):
    encoder = Counting()
    found = cache.encode(encoder, TEXTS)
    np.testing.assert_array_equal(found, FakeEncoder(8).encode(TEXTS))
    assert sorted(encoder.seen) == sorted(set(TEXTS))
    more = EncodingCache(cache.root).encode(encoder, ["new", *reversed(TEXTS)])
    np.testing.assert_array_equal(more, FakeEncoder(8).encode(["new", *reversed(TEXTS)]))
    assert encoder.seen[len(set(TEXTS)) :] == ["new"]


@given(st.lists(st.lists(st.sampled_from(["a", "b b", "c", "d\ud800", "é", ""]), max_size=6), max_size=4))
def test_any_order_and_repetition_gives_the_encoders_rows(tmp_path_factory, calls):
    cache, encoder = EncodingCache(tmp_path_factory.mktemp("cache")), FakeEncoder(4)
    for texts in calls:
        np.testing.assert_array_equal(cache.encode(encoder, texts), encoder.encode(texts))
        flat, offsets = cache.encode_tokens(encoder, texts)
        assert len(offsets) == len(texts) + 1
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
    cache.encode(same, TEXTS[:2], kind="query")  # no prompt, one model: queries are documents
    assert same.seen == []


def test_bad_calls_are_refused(cache):
    learner = FakeEncoder(8)
    learner.frozen = False
    with pytest.raises(ConfigError, match="being trained"):
        cache.encode(learner, TEXTS)
    with pytest.raises(InputError, match="text 1 must be a str"):
        cache.encode(FakeEncoder(8), ["a", 1])
    with pytest.raises(InputError, match="query 2 is empty"):
        cache.encode(FakeEncoder(8), TEXTS, kind="query")
    assert shards(cache) == []


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
    assert len(shards(cache)) == 1


def test_empty(cache):
    assert cache.encode(FakeEncoder(8), []).shape == (0, 8)
    flat, offsets = cache.encode_tokens(FakeEncoder(8), [])
    assert (flat.shape, offsets.tolist()) == ((0, 8), [0])


def _truncate(shard: Path) -> None:
    data = (shard / "data.bin").read_bytes()
    (shard / "data.bin").write_bytes(data[:-1])


def _flip(name: str):
    def damage(shard: Path) -> None:
        data = bytearray((shard / name).read_bytes())
        data[-5] ^= 4
        (shard / name).write_bytes(data)
        os.utime(shard / name, ns=(1, 1))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_truncate, id="truncated data"),
        pytest.param(_flip("data.bin"), id="flipped data"),
        pytest.param(_flip("index.safetensors"), id="flipped index"),
        pytest.param(lambda s: (s / "index.safetensors").write_bytes(b"\0" * 9), id="no index"),
        pytest.param(lambda s: (s / "data.bin").unlink(), id="data gone"),
        pytest.param(lambda s: (s / "index.safetensors").unlink(), id="index gone"),
    ],
)
def test_a_damaged_shard_is_dropped_and_made_again(cache, damage):
    encoder = Counting()
    cache.encode(encoder, TEXTS)
    damage(shards(cache)[0])
    with pytest.warns(UserWarning, match="damaged .* made again"):
        found = cache.encode(encoder, TEXTS)
    np.testing.assert_array_equal(found, FakeEncoder(8).encode(TEXTS))
    encoder.seen.clear()
    cache.encode(encoder, TEXTS)
    assert encoder.seen == []


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").touch()
    cache = EncodingCache(tmp_path / "file")
    with pytest.warns(UserWarning, match="not kept.*PALMETTE_CACHE"):
        found = cache.encode(FakeEncoder(8), TEXTS)
    np.testing.assert_array_equal(found, FakeEncoder(8).encode(TEXTS))
    with pytest.raises(ReadOnlyError, match="PALMETTE_CACHE"):
        cache.encode_tokens(FakeEncoder(8), TEXTS)


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), ShardWriter(tmp_path, (2,), "float32") as writer:
        writer.append([b"0" * 16], [1], np.zeros((1, 2)))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept_in_time(cache):
    cache.encode(FakeEncoder(8), ["a"])
    drawer = shards(cache)[0].parent
    for name, age in (("old", 2 * 24 * 3600), ("new", 60)):
        (drawer / f".tmp-{name}").mkdir()
        then = time.time() - age
        os.utime(drawer / f".tmp-{name}", (then, then))
    cache.encode(FakeEncoder(8), ["b"])
    assert [path.name for path in drawer.glob(".tmp-*")] == [".tmp-new"]


def test_many_small_shards_become_one(cache):
    encoder = Counting()
    for i in range(40):
        cache.encode(encoder, [f"text {i}"])
    assert len(shards(cache)) < 20
    encoder.seen.clear()
    texts = [f"text {i}" for i in range(40)]
    np.testing.assert_array_equal(cache.encode(encoder, texts), FakeEncoder(8).encode(texts))
    assert encoder.seen == []


def test_a_shard_merged_away_meanwhile_is_no_damage(cache):
    cache.encode(FakeEncoder(8), ["a"])
    [shard] = shards(cache)
    found = cache._drawer(FakeEncoder(8), "document", "pooled").shards
    cache.encode(FakeEncoder(8), ["b"])
    reading = found()
    first = next(reading)
    for path in shards(cache):
        if path != first.path:
            path.rename(path.parent / f".tmp-{path.name}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(reading) == []
    assert shard.parent.is_dir()


def _fill(root: Path, start: int) -> None:
    cache, encoder = EncodingCache(root), FakeEncoder(8)
    for i in range(start, start + 40):
        texts = [f"text {j}" for j in range(i, i + 10)]
        assert np.array_equal(cache.encode(encoder, texts), encoder.encode(texts))


def test_processes_may_fill_it_together(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from palmette.cache import EncodingCache\n"
        "from palmette.encoder import FakeEncoder\n"
        "cache, encoder = EncodingCache(sys.argv[1]), FakeEncoder(8)\n"
        "for i in range(int(sys.argv[2]), int(sys.argv[2]) + 40):\n"
        "    texts = [f'text {j}' for j in range(i, i + 10)]\n"
        "    assert np.array_equal(cache.encode(encoder, texts), encoder.encode(texts))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    workers = [subprocess.Popen([*command, start], env=env) for start in ("0", "5")]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    encoder = Counting()
    EncodingCache(tmp_path).encode(encoder, [f"text {i}" for i in range(54)])
    assert encoder.seen == []


def test_threads_may_fill_it_together(tmp_path):
    errors = []

    def work(start: int) -> None:
        try:
            _fill(tmp_path, start)
        except (AssertionError, UserWarning, OSError) as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(3 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_token_states_are_mapped_in_the_order_of_the_texts(cache):
    encoder = Counting()
    flat, offsets = cache.encode_tokens(encoder, TEXTS)
    assert isinstance(flat, np.memmap)
    assert flat.dtype == np.float16
    for i, text in enumerate(TEXTS):
        np.testing.assert_array_equal(flat[offsets[i] : offsets[i + 1]], tokens_of(FakeEncoder(8), text))
    assert sorted(encoder.seen) == sorted(set(TEXTS))
    again, _ = cache.encode_tokens(encoder, TEXTS)
    assert again.filename == flat.filename
    assert len(encoder.seen) == len(set(TEXTS))


def test_more_texts_cost_their_own_encoding_and_one_file(cache):
    encoder = Counting()
    cache.encode_tokens(encoder, TEXTS)
    encoder.seen.clear()
    flat, offsets = cache.encode_tokens(encoder, ["new", *TEXTS])
    assert encoder.seen == ["new"]
    np.testing.assert_array_equal(flat[offsets[1] : offsets[2]], tokens_of(FakeEncoder(8), TEXTS[0]))
    assert len(shards(cache)) == 1
    subset, _ = cache.encode_tokens(encoder, TEXTS[1:])  # keeps what does not cover it
    assert len(shards(cache)) == 2
    assert encoder.seen == ["new"]
    assert subset.shape[1] == 8


def test_layers_are_kept_per_token(cache):
    encoder = FakeEncoder(8, num_layers=2)
    flat, offsets = cache.encode_tokens(encoder, TEXTS, outputs="layers")
    assert flat.shape == (offsets[-1], 3, 8)
    states = encoder.states([TEXTS[1]], outputs=("layers",))
    expected = states.layers[0].transpose(0, 1).numpy().astype(np.float16)
    np.testing.assert_array_equal(flat[offsets[1] : offsets[2]], expected)


def test_values_beyond_half_precision_are_refused(cache):
    class Huge(FakeEncoder):
        def forward(self, texts, kind, outputs):
            states = super().forward(texts, kind, outputs)
            states.tokens.mul_(1e6)
            return states

    with pytest.raises(EncodingError, match="tokens of text 0 exceed half precision"):
        cache.encode_tokens(Huge(8), ["a"])
    assert shards(cache) == []


def test_size_entries_and_clear(cache):
    assert (cache.size(), cache.entries(), cache.clear()) == (0, [], 0)
    cache.encode(FakeEncoder(8), TEXTS)
    cache.encode_tokens(FakeEncoder(8), TEXTS)
    assert {(entry.name, entry.output) for entry in cache.entries()} == {
        ("fake:8:3", "pooled"),
        ("fake:8:3", "tokens"),
    }
    size = cache.size()
    assert size == sum(path.stat().st_size for path in cache.root.rglob("*") if path.is_file()) > 0
    assert cache.clear() == size
    assert cache.size() == 0


def test_the_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path))
    assert EncodingCache().root == tmp_path
    monkeypatch.delenv("PALMETTE_CACHE")
    assert default_cache_dir().is_absolute()
    assert "palmette" in default_cache_dir().parts


def test_a_cached_encoder_encodes_a_document_once(tmp_path):
    class Counting(FakeEncoder):
        seen = 0

        def forward(self, texts, kind, outputs):
            self.seen += len(texts)
            return super().forward(texts, kind, outputs)

    encoder = Counting(16)
    cached = CachedEncoder(encoder, tmp_path)
    texts = ["a lamp", "a chair", "a lamp"]
    expected = FakeEncoder(16).encode(texts)
    for _ in range(2):
        assert np.array_equal(cached.encode(texts), expected)
    assert encoder.seen == 2
    assert np.array_equal(cached.encode_queries(["a lamp"]), FakeEncoder(16).encode_queries(["a lamp"]))
    assert encoder.seen == 3, "queries bypass the cache"
    assert (cached.fingerprint, cached.to_config()) == (encoder.fingerprint, encoder.to_config())
    assert cached.states(["a lamp"], outputs=("tokens",)).tokens is not None
