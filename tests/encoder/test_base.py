"""What every encoder does, whatever produces its vectors."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

from palmette.encoder import FakeEncoder, Kind, Output, States, load_encoder
from palmette.encoder.coalesce import Coalescer, FairLock
from palmette.errors import ConfigError, EncodingError, InputError
from support.tiny_encoder import states_of

TEXTS = ["a cat sat on the mat", "dogs", "", "one two three four five six seven eight", "naïve café"]


class Spy(FakeEncoder):
    """Notes the texts of each pass; a text with the word NaN gets one."""

    def __init__(self, batch_size: int = 32, **options) -> None:
        super().__init__(8, **options)
        self.batch_size = batch_size
        self.passes: list[list[str]] = []

    def forward(self, texts, kind: Kind, outputs: frozenset[Output]) -> States:
        self.passes.append(list(texts))
        states = super().forward(texts, kind, outputs)
        for row, text in enumerate(texts):
            if "NaN" in text:
                for value in (states.pooled, states.tokens, states.layers):
                    if value is not None:
                        value[row].flat[0] = float("nan")
        return states


def test_rows_come_back_in_the_order_of_the_texts():
    encoder = Spy(batch_size=2)
    together = encoder.encode(TEXTS)
    assert [len(batch) for batch in encoder.passes] == [2, 2, 1]
    lengths = [len(text) for batch in encoder.passes for text in batch]
    assert lengths == sorted(lengths, reverse=True)
    alone = np.vstack([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_array_equal(together, alone)
    assert together.dtype == np.float32
    assert encoder.encode([]).shape == encoder.encode_queries([]).shape == (0, 8)


def test_passes_are_kept_to_a_number_of_tokens():
    encoder = Spy(batch_size=4)
    encoder.tokens_per_pass = 60
    encoder.encode(["w " * 80] * 3 + ["w"] * 5)
    assert [len(batch) for batch in encoder.passes] == [1, 1, 1, 4, 1]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda e: e.encode("one text"), InputError, r"\['?text'?\]|list"),
        (lambda e: e.encode(["fine", None]), InputError, "text 1 must be a str, got NoneType"),
        (lambda e: e.encode_queries(["fine", " \n"]), InputError, "query 1 is empty"),
        (lambda e: states_of(e, [""], kind="query"), InputError, "query 0 is empty"),
        (lambda e: states_of(e, ["a"], kind="passage"), ConfigError, "passage"),
        (lambda e: states_of(e, ["a"], outputs=("pooled", "words")), ConfigError, "words"),
        (lambda e: states_of(e, ["a"], outputs=()), ConfigError, "outputs"),
        (lambda e: e.encode(["a"], batch_size=0), ConfigError, "batch_size must be at least 1, got 0"),
        (lambda _: load_encoder(None), InputError, "NoneType"),
        (lambda e: load_encoder({**e.to_config(), "fingerprnt": 1}), ConfigError, "fingerprint"),
        (lambda _: load_encoder("fake:wide"), ConfigError, "fake:32"),
        (lambda _: load_encoder("fake", threads=0), ConfigError, "threads"),
    ],
)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call(FakeEncoder(8))


def test_megabytes_reach_the_model_cut_and_equal_texts_stay_equal():
    encoder = Spy(max_length=16)
    long = "word " * 1_000_000
    few = encoder.encode(["word " * 100], kind="query")
    assert np.array_equal(encoder.encode([long], kind="query"), few)
    assert len(encoder.passes[-1][0]) <= 16_384
    padded = encoder.encode([" " * 3_000 + "word " * 100_000], kind="query")
    assert np.array_equal(padded, few), "blanks must not push the words out"
    encoder.passes.clear()
    pooled, _ = encoder.encode_sentences([" " * 20_000 + "word " * 5_000])
    np.testing.assert_allclose(pooled, few, atol=1e-6)
    assert max(len(text) for batch in encoder.passes for text in batch) <= 16_384
    assert sum(len(text.split()) for batch in encoder.passes[1:] for text in batch) > 4_900


def test_concurrent_queries_get_their_own_rows_and_errors():
    encoder = Spy()
    texts = [f"question {i}" for i in range(40)]
    expected = FakeEncoder(8).encode(texts, kind="query")
    gate = threading.Barrier(len(texts))

    def ask(i: int) -> None:
        gate.wait()
        if i % 10:
            np.testing.assert_array_equal(encoder.encode_queries([texts[i]])[0], expected[i])
        else:
            with pytest.raises(EncodingError):
                encoder.encode_queries(["NaN"])

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(ask, range(len(texts))))


class Line:
    """A pass that can be held open, so that others queue behind it."""

    def __init__(self) -> None:
        self.passes: list[list[str]] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def run(self, texts: list[str]) -> np.ndarray:
        self.passes.append(texts)
        if "hold" in texts:
            self.entered.set()
            assert self.go.wait(30)
        if "bad" in texts:
            raise ValueError("bad text")
        return np.array([[float(len(text))] for text in texts], np.float32)


def gather(coalescer: Coalescer, line: Line, calls: list[list[str]]) -> list[object]:
    """Start ``calls`` while a pass is held, let go when all have queued, and return what each got."""
    with ThreadPoolExecutor(len(calls) + 1) as pool:
        pool.submit(coalescer, ["hold"], line.run)
        assert line.entered.wait(30)
        futures = []
        for call in calls:
            futures.append(pool.submit(coalescer, call, line.run))
            while len(coalescer._queue) < len(futures):
                time.sleep(0.001)
        line.go.set()
        return [future.exception(30) or future.result() for future in futures]


def test_what_queues_up_shares_the_next_pass_which_has_room_for_so_many_texts():
    line = Line()
    found = gather(Coalescer(), line, [["a"], ["bb", "ccc"], ["dddd"]])
    assert line.passes == [["hold"], ["a", "bb", "ccc", "dddd"]]
    assert [rows.tolist() for rows in found] == [[[1.0]], [[2.0], [3.0]], [[4.0]]]
    line = Line()
    found = gather(Coalescer(3), line, [["a"], ["b", "c"], ["d", "e", "f"], ["h"]])
    assert line.passes[1:] == [["a", "b", "c"], ["d", "e", "f"], ["h"]]
    assert [len(rows) for rows in found] == [1, 2, 3, 1]
    assert Coalescer(3)(["d", "e", "f", "g"], line.run).tolist() == [[1.0]] * 4, "too many to share a pass"


def test_one_callers_error_is_its_own():
    line = Line()
    found = gather(Coalescer(), line, [["a"], ["bad"], ["ccc"]])
    assert isinstance(found[1], ValueError)
    assert (found[0].tolist(), found[2].tolist()) == ([[1.0]], [[3.0]])


def test_an_interrupted_leader_leaves_nobody_waiting():
    coalescer = Coalescer()
    with pytest.raises(KeyboardInterrupt):
        coalescer(["mine"], Mock(side_effect=KeyboardInterrupt))
    assert coalescer(["next"], Line().run).tolist() == [[4.0]]


def test_a_waiting_thread_gets_the_lock_before_a_loop_takes_it_again():
    lock, turns, waiting = FairLock(), [], threading.Event()

    def query() -> None:
        waiting.set()
        with lock:
            turns.append("query")

    thread = threading.Thread(target=query)
    with lock:
        thread.start()
        assert waiting.wait(30)
        while not lock._door.locked():
            thread.join(0.001)
        turns.append("batch 1")
    with lock:
        turns.append("batch 2")
    thread.join(30)
    assert turns == ["batch 1", "query", "batch 2"]


def test_bits_are_the_same_in_every_process_and_release():
    encoder = FakeEncoder(16, num_layers=2)
    states = states_of(encoder, ["The cat sat.", "", "naïve ☃"], outputs=("pooled", "tokens", "layers"))
    content = b"".join(t.tobytes() for t in (states.pooled, states.tokens, states.layers))
    assert hashlib.sha256(content).hexdigest()[:16] == "70b029dc87051973"
