"""Sentences that may answer, and vectors that are remembered."""

import numpy as np

from palmette import FakeEncoder
from palmette.reader.scores import UnitVectors
from palmette.reader.sentences import cut_sentences


def cut(text):
    return [text[start:end] for start, end in cut_sentences(text)]


def test_headings_answer_nothing():
    text = "# Trees\n\nA tree is pruned in winter.\n\n## A long heading of many words\n\nCherries are pruned in summer."
    assert cut(text) == ["A tree is pruned in winter.", "Cherries are pruned in summer."]
    assert cut("C# is a language. So is F# by now.") == ["C# is a language.", "So is F# by now."]


def test_vectors_used_last_are_remembered(monkeypatch):
    encoder, seen = FakeEncoder(16), []
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts, **how: (seen.extend(texts), encode(texts, **how))[1])
    vectors = UnitVectors(encoder, memory=3 * 16 * 4)
    texts = ["one", "a lone \ud800 surrogate", "three", "one"]
    expected = encode(texts) / np.linalg.norm(encode(texts), axis=1, keepdims=True)
    np.testing.assert_allclose(vectors.documents(texts), expected, rtol=1e-6)
    assert seen == texts[:3], "one of them is there twice"
    vectors.documents(["one", "four"])[:] = 0
    assert vectors.documents(["one", "three", "four"]).any(axis=1).all(), "a caller cannot change them"
    assert seen[3:] == ["four"]
    vectors.documents([texts[1]])
    assert seen[4:] == [texts[1]], "the one not used for longest went first"
    many = [f"text {number}" for number in range(10)]
    assert vectors.documents(many).shape == (10, 16)
    assert vectors.documents([]).shape == (0, 16)
    encoder.frozen, seen[:] = False, []
    learning = UnitVectors(encoder)
    learning.documents(["one"])
    learning.documents(["one"])
    assert seen == ["one", "one"], "an encoder that learns is read anew"
