"""Sentences that may answer, and vectors that are remembered."""

from dataclasses import replace

import numpy as np
import pytest

from palmette import FakeEncoder, Index, SpaceModel
from palmette.reader import Reader
from palmette.reader.scores import UnitVectors
from palmette.reader.sentences import cut_sentences
from support import readers


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


def test_hits_are_read_by_the_vectors_that_the_index_stores(monkeypatch):
    question, encoder = "where does the green owl live?", FakeEncoder(64)
    long = "\n\n".join(readers.texts()[8:12])  # a passage of several sentences
    index = Index.build([long, *readers.texts()[20:24]], SpaceModel.untrained(encoder))
    hits, plain = index.search(question, 5), index.search(question, 5, sentences=False)
    kinds, forward = [], encoder.forward
    monkeypatch.setattr(
        encoder, "forward", lambda texts, kind, *how: (kinds.append(kind), forward(texts, kind, *how))[1]
    )

    def answer(hits):
        kinds.clear()
        return Reader.untrained(encoder).answer(question, hits, threshold=0)

    read, encoded = answer(hits), set(kinds)
    expected = answer(plain)
    assert (encoded, set(kinds)) == ({"query"}, {"query", "document"})
    assert read.text == expected.text
    assert read.confidence == pytest.approx(expected.confidence, abs=0.01)
    # without the passages' own vectors; and vectors of another encoder are left alone
    mean = answer([replace(hit, vectors=hit.vectors._replace(whole=None)) for hit in hits])
    assert mean.confidence == pytest.approx(expected.confidence, abs=0.05)
    others = answer([replace(hit, vectors=hit.vectors._replace(encoder="another")) for hit in hits])
    assert "document" in kinds
    assert others == expected


def test_an_encoder_of_whole_texts_is_asked_anew(monkeypatch):
    class Whole(FakeEncoder):
        has_offsets = False

    encoder, kinds = Whole(64), []
    forward = encoder.forward
    monkeypatch.setattr(
        encoder, "forward", lambda texts, kind, *how: (kinds.append(kind), forward(texts, kind, *how))[1]
    )
    model = SpaceModel.untrained(encoder)
    hits = Index.build(["\n\n".join(readers.texts()[8:12])], model).search("where does the green owl live?", 5)
    kinds.clear()
    answer = Reader.untrained(model.encoder).answer("where does the green owl live?", hits, threshold=0)
    assert set(kinds) == {"query", "document"}
    assert "green owl" in answer.text
