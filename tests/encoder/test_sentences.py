"""Sentences: where texts are split, and what their vectors are."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.arrays import to_numpy
from palmette.encoder import Encoder, FakeEncoder, States, load_encoder
from palmette.encoder.sentences import Sentences
from palmette.encoder.sentences.splitting import split_sentences
from palmette.encoder.states import like
from support.tiny_encoder import save_tiny_encoder, states_of

LONG = "One two three four five six seven eight nine ten eleven twelve"


def pieces(text: str) -> list[str]:
    return [text[first:last] for first, last in split_sentences(text)]


@pytest.mark.parametrize(
    "text",
    [
        "We met Dr. Smith, J. K. Rowling and the U.S. envoy at St. Mary's, i.e. the old house near Fig. 3 of the plan",
        "It costs 3.14 or 1.000,50 at www.example.com/a.b?c=d.e and in main.py, says Meyer et al. in No. 7 of the list",
        "So ... we waited … and waited for the bus that would take us home again before the night fell upon the town",
        'She asked "Why now?" and he said "Never!" to her without a smile, as if nobody had come to the door at all',
        "Das gilt z.B. für Häuser bzw. Wohnungen, d.h. für alles, was vgl. Abs. 3 gebaut wird oder gebaut werden soll",
    ],
)
def test_marks_within_a_sentence_end_none(text):
    assert pieces(f"{text}. {LONG}.") == [f"{text}.", f"{LONG}."]


@pytest.mark.parametrize(
    "text",
    [
        "El gato duerme en la casa grande de mi abuela y no despierta nunca. ",
        "¿Dónde está la biblioteca de la ciudad que visitamos el año pasado con Ana? ",
        "我们昨天去了北京的故宫博物院参观了很多有意思的展览和书画。",
        "然后我们在附近的小饭馆吃了一顿非常好吃的晚饭！",
        "你明天想不想和我们一起去看看北京郊外的长城和十三陵？",
        "यह एक लंबा वाक्य है जिसमें बारह से अधिक शब्द हैं ताकि वह अकेला रहे। ",
        "هل تعرف أين تقع المكتبة الكبيرة التي زرناها معا في العام الماضي مع أصدقائنا؟ ",
        "Он пришёл домой поздно вечером и сразу лёг спать, потому что очень устал. ",
        "this text is all in lower case and yet its sentences end where they do. ",
    ],
)
def test_sentences_of_any_script(text):
    assert len(pieces(text * 3)) == 3


def test_short_sentences_join_a_neighbour():
    assert pieces("Yes. No. Perhaps.") == ["Yes. No. Perhaps."]
    assert pieces(f"{LONG}. Short rest.") == [f"{LONG}. Short rest."]
    assert pieces(f"Short. Start. {LONG}. {LONG}.") == [f"Short. Start. {LONG}.", f"{LONG}."]
    assert pieces(f"{LONG}. A rest.\n\nNew {LONG}.") == [f"{LONG}. A rest.", f"New {LONG}."]


def test_long_sentences_are_cut_at_commas_then_words_then_anywhere():
    clause = "the ship sailed on through the night without lights"
    found = pieces(", ".join([clause] * 20) + ".")
    assert len(found) == 3
    assert all(piece.startswith("the ship") and piece.endswith(("lights,", "lights.")) for piece in found)
    assert all(30 <= len(piece.split()) <= 65 for piece in pieces("word " * 500))
    blob = "A1b2" * 2_000
    assert "".join(pieces(blob)) == blob
    assert max(map(len, pieces(blob))) < 1_500


def test_headings_go_with_what_follows():
    parts = [f"# Title\n\n{LONG}. A rest.", f"## Section\n\n{LONG}.\n## Another\nShort text."]
    assert pieces("\n\n".join(parts) + "\n") == parts


def test_items_and_rows():
    items = [f"- {LONG} item {i}" for i in range(3)] + [f"{i}. {LONG} number" for i in range(3)]
    assert pieces("\n".join(items)) == items
    rows = [f"| {LONG} | {i} |" for i in range(4)]
    assert pieces("\n".join(rows)) == rows
    wrapped = textwrap.fill(f"{LONG} and {LONG}, and then {LONG} at last. And now {LONG}.", 60)
    assert len(pieces(wrapped)) == 2, "lines of a paragraph belong together"


CODE = '''import os


@cache
def first(a, b):
    """Add two numbers, and return their sum as it is."""
    total = a + b

    return total  # done.


def second(a):
    if a:
        return {key: value for key, value in a.items() if key not in SKIPPED}
    raise ValueError(f"bad {a!r}. Give another")


class Third:
    def method(self, value, other=None):
        self.value = value
        self.other = other or self.default(value)
        return self.value + self.other
'''


def test_code_is_split_at_definitions():
    found = pieces(CODE)
    assert [piece.split("\n")[0] for piece in found] == ["import os", "def second(a):", "class Third:"]
    fenced = f"Call it so:\n\n```python\n{CODE}```\n\nThen {LONG}."
    assert pieces(fenced)[0].startswith("Call it so:\n\n```python\nimport os")
    assert pieces(fenced)[-1] == f"Then {LONG}."
    java = """public class Pair<A, B> {
    private final A first;
    private final B second;

    public Pair(A first, B second) {
        this.first = first;
        this.second = second;
        this.hash = Objects.hash(first, second, Pair.class, SEED);
    }

    public static List<String> names(Map<String, Integer> counts, int least) {
        return counts.entrySet().stream().filter(e -> e.getValue() > least).map(Map.Entry::getKey).toList();
    }
}
"""
    assert [piece.split("(")[0] for piece in pieces(java)][1:] == ["public static List<String> names"]
    body = "\n".join(f"    value_{i} = compute(value_{i - 1}, other, third, fourth)" for i in range(1, 60))
    found = pieces(f"def long(value_0):\n{body}\n")
    assert len(found) > 2
    assert all(piece.startswith(("def long", "value_")) and piece.endswith(")") for piece in found)


PARTS = "word~Word~. ~! ~\n~\n\n~- ~# ~```\n~| ~, ~。~是~...~def f():\n~  ~3.5~\t~e.g. ".split("~")


@settings(max_examples=100)
@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PARTS), max_size=200).map("".join)))
def test_spans_cover_every_text_in_order(text):
    at = 0
    for first, last in split_sentences(text):
        assert at <= first < last
        assert not text[at:first].strip()
        assert text[first:last] == text[first:last].strip()
        at = last
    assert not text[at:].strip()


STORY = f"The cat sat on the mat. {LONG}. A dog ran on the roof. {LONG}. A bird."
TEXTS = [STORY, "", "A lamp.", "  \n", f"{LONG}. " * 30]


def saved(folder: Path, **options) -> Encoder:
    return load_encoder(save_tiny_encoder(folder, **options), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Encoder:
    return saved(tmp_path_factory.mktemp("sentences") / "tiny", words=tuple(LONG.lower().split()))


def check(encoder: Encoder, texts: list[str]) -> Sentences:
    pooled, found = encoder.encode_sentences(texts)
    np.testing.assert_allclose(pooled, encoder.encode(texts), atol=1e-6)
    types = {name: value.dtype for name, value in vars(found).items()}
    assert types == {"vectors": np.int8, "scales": np.float32, "spans": np.int32, "starts": np.int64}
    np.testing.assert_allclose(np.linalg.norm(found.floats(), axis=1), 1, atol=1e-6)
    assert len(found) == len(texts)
    for text, spans in zip(texts, np.split(found.spans, found.starts[1:-1]), strict=True):
        assert list(map(tuple, spans.tolist())) == split_sentences(text)
    return found


def test_a_sentence_is_the_mean_of_its_tokens(tiny):
    for encoder in (tiny, FakeEncoder(16)):
        found = check(encoder, TEXTS)
        states = states_of(encoder, TEXTS[:1], outputs=("tokens",))
        first, last = found.spans[1]
        places = states.offsets[0]
        mine = (places[:, 0] >= first) & (places[:, 1] <= last) & (places[:, 1] > 0)
        assert mine.sum() >= 12
        mean = to_numpy(states.tokens)[0, mine].mean(0)
        expected = mean / np.linalg.norm(mean)
        np.testing.assert_allclose(found.floats()[1], expected, atol=0.01)
        alone = encoder.encode([TEXTS[0][first:last]])[0]
        assert found.floats()[1] @ expected > found.floats()[1] @ alone, "it has the context of its text"


def test_offsets_are_the_characters_of_the_text(tiny, tmp_path):
    text = "  The cat İİ sat, on 3 mats"  # two letters that are longer in lower case
    for encoder in (tiny, FakeEncoder(8), saved(tmp_path / "p", prompts={"passage": "passage : "})):
        states = states_of(encoder, ["a", text], outputs=("tokens",))
        assert states.offsets.shape == (*states.mask.shape, 2)
        words = [text[first:last] for first, last in states.offsets[1] if first < last]
        assert words[:2] == ["The", "cat"]
        assert words[-5:] == ["sat", ",", "on", "3", "mats"] or words[-1] == "s"
        assert states.offsets[0].max(axis=0).tolist() == [0, 1]


def test_what_follows_the_pooling_applies(tmp_path):
    encoder = saved(tmp_path / "d", dense=6)
    found = check(encoder, TEXTS)
    assert found.vectors.shape[1] == 6
    whole = states_of(encoder, ["the cat sat"], outputs=("pooled", "tokens"))
    np.testing.assert_allclose(encoder.finish(whole.tokens.mean(1)), whole.pooled, atol=1e-6)
    for options in ({"pooling": "cls"}, {"prompts": {"passage": "passage : "}}):
        check(saved(tmp_path / next(iter(options)), **options), TEXTS)


@pytest.mark.parametrize("limit", [8, 16, 40])
def test_long_texts_are_read_to_their_ends(limit):
    text = ". ".join(f"{LONG} {i}" for i in range(1, 25)) + "."
    other = text.replace("eleven twelve 24", "twelve twelve 3")
    encoder = FakeEncoder(16, max_length=limit)
    found = check(encoder, [text, "short", other])
    a, _, b = np.split(found.floats(), found.starts[1:-1])
    assert np.array_equal(a[:-1], b[:-1])
    pooled = to_numpy(states_of(encoder, [text]).pooled)
    if limit > len(LONG.split()):
        assert not np.array_equal(a[-1], b[-1])
        assert len({row.tobytes() for row in found.vectors[: found.starts[1]]}) == 24
        assert np.array_equal(pooled, encoder.encode([text])), "by its beginning"
    assert np.array_equal(encoder.encode([text], kind="query"), pooled)


def test_words_that_a_tokenizer_drops_have_the_texts_vector(tiny):
    text = f"{LONG}.\n\n\x00\x00 \x01.\n\n"
    found = check(tiny, [text, "\x00\x00", "x" * 5_000])
    assert np.isfinite(found.floats()).all()


def test_an_encoder_without_offsets_gives_whole_texts():
    class Plain(FakeEncoder):
        has_offsets = False

        def forward(self, texts, kind, outputs):
            assert outputs == {"pooled"}
            return States(super().forward(texts, kind, outputs).pooled)

    texts = [" a cat. ", "", "two dogs"]
    pooled, found = Plain(8).encode_sentences(texts)
    assert np.array_equal(pooled, FakeEncoder(8).encode(texts))
    assert found.spans.tolist() == [[1, 7], [0, 8]]
    assert found.starts.tolist() == [0, 1, 1, 2]
    np.testing.assert_allclose(found.floats(), pooled[[0, 2]], atol=0.01)


TITLE = "Trees › Pruning cherries"


def test_what_stands_above_is_read_and_left_out_of_all_means(tiny):
    """The reference is one pass over title and text whose means are taken over the text's tokens alone."""
    for encoder in (tiny, FakeEncoder(16)):
        text = f"{LONG}. A cat sleeps on the red mat."
        whole = f"{TITLE}\n{text}"
        states = states_of(encoder, [whole], outputs=("tokens",))
        last = states.offsets[0, :, 1]
        head = (last > states.offsets[0, :, 0]) & (last <= len(TITLE) + 1)
        assert head.any()
        pooled, found = encoder.encode_sentences([text], above=[TITLE])
        expected = encoder.pool(states.tokens, states.mask & like(~head[None], states.mask))
        np.testing.assert_allclose(pooled, to_numpy(expected), atol=1e-6)
        plain, bare = encoder.encode_sentences([text], above=[""])
        assert np.array_equal(found.spans, bare.spans), "no sentence is of the title, and none moves"
        assert not np.allclose(pooled, plain, atol=1e-4), "the text knows of it"
        assert np.array_equal(plain, encoder.encode_sentences([text])[0])


def test_every_window_reads_what_stands_above():
    encoder = FakeEncoder(16, max_length=40)
    seen: list[str] = []
    forward = encoder.forward
    encoder.forward = lambda texts, *rest: (seen.extend(texts), forward(texts, *rest))[1]
    _, found = encoder.encode_sentences([". ".join([LONG] * 20) + "."], above=[f"Lost\n{TITLE}"])
    assert len(seen) > 7
    head = f"{TITLE[-20:]}\n"
    assert all(piece.startswith(head) for piece in seen), "at most half as many characters as a pass has tokens"
    assert found.starts.tolist() == [0, 20]


def test_tokens_are_counted(tiny, tmp_path):
    texts = ["a cat sleeps", "", "語" * 5 + "\ud800", "x" * 30]
    for encoder in (tiny, FakeEncoder(8)):
        counts = encoder.count_tokens(texts)
        states = states_of(encoder, texts, outputs=("tokens",))
        inside = (states.offsets[..., 1] > states.offsets[..., 0]).sum(axis=1)
        assert [*counts[:1], *counts[2:]] == [*inside.tolist()[:1], *inside.tolist()[2:]]
        assert counts[1] == 0
    assert tiny.count_tokens([]) == []
    assert Encoder.count_tokens(tiny, ["a cat, 2024.", "internationalisation", "語語"]) == [6, 3, 2]
