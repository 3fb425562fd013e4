"""Answers with their confidence and places, from both kinds of reader."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import TextNode

from palmette import Document, FakeEncoder, Index, load_model
from palmette.data.metrics import f1, normalise
from palmette.errors import CheckpointError, InputError
from palmette.reader import Answer, Reader
from palmette.reader.answer import AnswerCandidates, answer_of, calibrated
from palmette.types import Hit
from support import readers, tiny

QUESTION = "where does the green owl live?"


def fit(data, folder, **options):
    """A span reader over the tiny encoder."""
    small = {"encoder": str(readers.encoder()), "cache": folder / "cache", **readers.span_options()}
    return Reader.fit(data, **small | options)


@pytest.fixture(scope="module")
def spans(tmp_path_factory):
    """Trained until it finds the house of the animal asked for."""
    loop = {"steps": 100, "batch_size": 16, "learning_rate": 1e-2, "evaluate_every": 50}
    return fit(readers.records(), tmp_path_factory.mktemp("spans"), dropout=0.0, passages=2, **loop)


@pytest.fixture(scope="module", params=["spans", "sentences"])
def reader(request):
    return readers.sentence_reader() if request.param == "sentences" else request.getfixturevalue("spans")


def test_a_span_reader_learns_where_answers_stand(spans):
    assert spans.record.metrics["f1 answered"] >= 0.4  # untrained, one span in dozens is right
    assert spans.record.metric == "f1 of answers"
    text = tiny.documents()[10].text
    answer = spans.answer(QUESTION, [text], threshold=0)
    assert f1(answer.text, ["house 10"]) > 0
    assert answer.sentence == text


def test_a_sentence_reader_needs_only_to_know_which_document_answers():
    sentences = readers.sentence_reader()
    assert sentences.record.metrics["accuracy answered"] >= 0.8
    texts = readers.texts()
    answer = sentences.answer(QUESTION, texts[8:12])
    assert answer.text == tiny.documents()[10].text
    assert answer.supports[0].passage == 2
    assert not sentences.answer("who invented the telephone?", texts[8:12])


def test_sentences_are_read_without_training(tmp_path):
    texts = readers.texts()
    made = Reader.untrained(FakeEncoder(64))
    assert (made.config.unit, made.threshold, made.record.pairs) == ("sentence", 0.5, 0)
    with pytest.raises(InputError, match=r"no training questions.*Reader.untrained\(\) reads sentences without any"):
        Reader.fit(texts, encoder=FakeEncoder(64), unit="sentence", progress=False)
    best = made.answer(QUESTION, texts[8:12], threshold=0).document
    assert best is not None
    assert best.text == texts[10]
    with pytest.raises(InputError, match="no answers are given.*unit='sentence'"):
        fit([(f"who is {n}?", text) for n, text in enumerate(texts)], tmp_path)


def test_the_same_seed_trains_the_same_reader(tmp_path):
    first, again = (fit(readers.records(), tmp_path, steps=2, batch_size=8) for _ in range(2))
    assert again.fingerprint == first.fingerprint


def test_passages_that_were_met_are_not_encoded_again(reader, monkeypatch):
    texts = ["A purple owl lives in the barn. Nobody has read of it before."]
    (first,) = reader.module.candidates([QUESTION], [texts])
    kinds, forward = [], reader.encoder.forward

    def noted(given, kind, *how):
        kinds.append(kind)
        return forward(given, kind, *how)

    monkeypatch.setattr(reader.encoder, "forward", noted)
    (again,) = reader.module.candidates([QUESTION], [texts])
    assert set(kinds) == {"query"}
    assert again.shares.tolist() == first.shares.tolist()


def test_training_goes_on_from_a_reader(spans, tmp_path):
    again = fit(readers.records(), tmp_path, start=spans, steps=0, passages=2)
    kept, first = again.module.kept(), spans.module.kept()
    assert all(torch.equal(kept[name], first[name]) for name in first if not name.startswith("weigh"))
    with pytest.raises(CheckpointError, match="start=.*do not fit"):
        fit(readers.records(), tmp_path, start=spans, trained_layers=1, steps=0)


def test_passages_that_say_the_same_add_up(reader):
    text = readers.texts()[10]
    answer = reader.answer(QUESTION, [Document("a", text), Document("b", text)], threshold=0)
    assert [support.document.key for support in answer.supports] == ["a", "b"]
    assert {normalise(support.text) for support in answer.supports} == {normalise(answer.text)}
    explanation = answer.explain()
    assert sum(part.value for part in explanation.parts) == pytest.approx(answer.confidence)
    assert explanation.score == answer.confidence
    assert answer.text in explanation.text
    for support in answer.supports:
        assert support.document.content[support.start : support.end] == support.text
        assert support.text in support.sentence
    for text, confidence in answer.alternatives.items():
        assert normalise(text) != normalise(answer.text)
        assert confidence <= answer.confidence
    assert answer.to_dict()["supports"][0]["id"] == answer.supports[0].document.key


def test_no_answer_is_a_value(reader):
    for passages in ([], ["", "  "]):
        nothing = reader.answer(QUESTION, passages, threshold=0)
        assert (bool(nothing), nothing.text, nothing.confidence, nothing.document, nothing.sentence) == (
            False,
            "",
            0.0,
            None,
            "",
        )
        assert (str(nothing), nothing) == ("", Answer(QUESTION))
    texts = readers.texts()[8:12]
    hits = [[Hit(Document(text=text), score) for text in texts] for score in (0.1, 0.3)]
    far, near = reader.answer([QUESTION] * 2, hits, threshold=1e-6)
    alone = reader.answer(QUESTION, [hit.document for hit in hits[1]], threshold=1e-6)
    assert (near.text, near.sentence, near.document) == (alone.text, alone.sentence, alone.document)
    assert [*near.alternatives] == [*alone.alternatives]
    assert [one.document for one in near.supports] == [one.document for one in alone.supports]
    assert near.no_answer == pytest.approx(alone.no_answer, rel=1e-7)  # last digits depend on the batch
    assert not far, "no hit is relevant"
    assert far.no_answer == 0.9
    assert reader.answer(QUESTION, hits[0], threshold=0).text == near.text
    sure = reader.answer(QUESTION, texts, threshold=1)
    assert not sure
    assert next(iter(sure.alternatives)) == reader.answer(QUESTION, texts, threshold=0).text
    assert sure.explain().parts[0].value == sure.no_answer


def test_a_sentence_has_one_confidence_however_many_hits_are_shown():
    texts = readers.texts()[8:20]
    hits = [Hit(Document(text=text), 0.9 - number / 20) for number, text in enumerate(texts)]
    sentences = Reader.untrained(FakeEncoder())
    five, more, turned = sentences.answer([QUESTION] * 3, [hits[:5], hits, hits[::-1]], threshold=0)
    assert five.text == more.text == turned.text
    assert five.confidence == pytest.approx(more.confidence) == pytest.approx(turned.confidence)
    assert turned.supports[0].document == hits[::-1][turned.supports[0].passage].document
    assert sum(support.share for support in five.supports) == pytest.approx(five.confidence)
    plain = sentences.answer(QUESTION, [hit.document for hit in hits[:5]], threshold=0)
    assert five.text == plain.text
    assert plain.confidence == pytest.approx(five.confidence)


def test_half_and_more_is_said_of_sentences_with_the_question_s_words_and_a_lead():
    documents = [Document("0", "The green owl lives in house 9."), Document("1", "It was painted by a fox.")]

    def sure(question, *shares):
        places = np.array([(0, 0, 31), (1, 0, 24)])
        found = AnswerCandidates(places, np.array(shares), 1 - sum(shares))
        given = calibrated(answer_of(question, found, documents, 0), found)
        assert sum(support.share for support in given.supports) == pytest.approx(given.confidence)
        assert all(share < given.confidence for share in given.alternatives.values())
        return given.confidence

    clear, close = sure("green owl house?", 0.6, 0.05), sure("green owl house?", 0.35, 0.3)
    unlike, nothing = sure("colour of owl, birds, walls?", 0.35, 0.3), sure("where do pandas eat?", 0.35, 0.3)
    assert 1 > clear > 0.8 > 0.5 > close > unlike > nothing > 0
    assert nothing < 0.2
    assert sure("green owl house?", 0.6, 0.05) == pytest.approx(sure("green owl house?", 0.06, 0.005))


def test_passages_come_in_every_form(reader):
    text = readers.texts()[10]
    index = Index.in_memory(tiny.tree())
    index.add([Document("d", text)])
    forms = [text, Document("d", text), index.search("owl", k=1)[0], {"text": text}]
    forms += [LangChainDocument(page_content=text), TextNode(text=text)]
    answers = [reader.answer(QUESTION, [form], threshold=0) for form in forms]
    for blank in ("", LangChainDocument(page_content=" "), TextNode(text="")):
        assert reader.answer(QUESTION, [blank, text], threshold=0).supports[0].passage == 1
    assert {answer.text for answer in answers} == {answers[0].text}
    together = reader.answer([QUESTION, "where does the red cat live?"], [forms[:2], forms[3:]], threshold=0)
    assert [answer.question for answer in together] == [QUESTION, "where does the red cat live?"]
    assert together[0].text == answers[0].text


def test_a_checkpoint_gives_the_same_reader(reader, tmp_path):
    texts = readers.texts()[8:12]
    path = reader.save_pretrained(tmp_path / "reader", license="mit")
    loaded = Reader.from_pretrained(path)
    assert loaded.fingerprint == reader.fingerprint
    assert loaded.threshold == reader.threshold
    assert Reader.from_pretrained(path) is loaded
    assert loaded.answer(QUESTION, texts, threshold=0) == reader.answer(QUESTION, texts, threshold=0)
    questions = [record["question"] for record in readers.records()]
    given = [one.answer(questions, [texts] * len(questions)) for one in (loaded, reader)]
    assert [answer.text for answer in given[0]] == [answer.text for answer in given[1]]
    card = (path / "README.md").read_text()
    assert "license: mit" in card
    assert "Reader.from_pretrained" in card
    with pytest.raises(CheckpointError, match=r"Reader\.from_pretrained"):
        load_model(path)
    model = tiny.tree().save_pretrained(tmp_path / "tree")
    with pytest.raises(CheckpointError, match="not a reader"):
        Reader.from_pretrained(model)


def test_a_span_reader_of_few_passages_knows_when_they_have_no_answer(tmp_path):
    """All six are found for every held-out question: what no answer looks like must still be learned."""
    asked = [
        record | {"question": question}
        for record in readers.records()[:6]
        for name in [record["question"]]
        for question in (name, name.replace("live", "sing"), f"the {name}")
    ]
    loop = {"steps": 160, "batch_size": 16, "learning_rate": 5e-3, "evaluate_every": 160}
    reader = fit(asked, tmp_path, dropout=0.0, passages=2, **loop)
    texts = [one.text for one in tiny.documents()[:6]]
    for question in ("who invented the telephone?", "what is the sum of two numbers?"):
        nothing = reader.answer(question, texts)
        assert not nothing
        assert nothing.no_answer > 0.5
    answers = reader.answer([record["question"] for record in asked], [texts] * len(asked))
    assert sum(map(bool, answers)) > len(asked) / 2
    right = [f1(answer.text, record["answers"]) for answer, record in zip(answers, asked, strict=True)]
    assert np.mean(right) >= 0.5


def test_lone_surrogates_are_read_over(reader):
    text = readers.texts()[10]
    broken = f"\ud83d {text} \udc00"  # halves of an emoji, as a cut through UTF-16 leaves them
    answer = reader.answer(f"{QUESTION} \ud83d", [broken], threshold=0)
    assert answer.supports[0].document.content == broken
    assert answer.text == broken[answer.supports[0].start : answer.supports[0].end]
    plain = reader.answer(f"{QUESTION} ?", [f"? {text} ?"], threshold=0)
    first, same = (one.supports[0] for one in (answer, plain))
    assert (first.start, first.end) == (same.start, same.end)


@pytest.mark.parametrize(
    ("question", "passages", "message"),
    [
        ("", ["text"], "question"),
        ("q", "text", "list"),
        ("q", None, "list, got one NoneType"),
        (["a", "b"], [["text"]], "2 questions"),
        ("q", [3], "int"),
        (None, ["text"], "a list of them, got NoneType None"),
    ],
)
def test_unusable_input_is_named(reader, question, passages, message):
    with pytest.raises(InputError, match=message):
        reader.answer(question, passages)


def test_what_an_answer_reads_is_bounded(reader):
    """A question has the limit of a query; passages have one together, and words are counted in linear time."""
    with pytest.raises(InputError, match="the query has 100,001 characters"):
        reader.answer("a" * 100_001, ["the owl lives in house 9"])
    with pytest.raises(InputError, match=r"have 2,097,16\d characters, and may have 2,097,152"):
        reader.answer(QUESTION, [Document("a", "owl " * 300_000), Document("b", "fox " * 224_290)])
