"""The catalogue as data to train on and to measure by."""

import pytest

from palmette.sample import load_questions, sample_data


def test_splits(data):
    assert data.splits == ["train", "heldout", "dev", "test"]
    assert data.labelled
    assert len(data.split("train").queries) > 1500
    assert len(data.split("heldout").queries) > 100
    asked = data.split("dev").queries | data.split("test").queries
    assert asked == {question.id: question.question for question in load_questions()}


def test_answers_are_in_the_corpus(data):
    documents, queries = data.pairs("test")
    assert len(documents) == len(queries) >= len(data.split("test").queries)


def test_training_never_sees_questions_or_held_out_modules(data):
    by_id = {entry.id: entry for entry in data.corpus}

    def modules(split):
        first = (next(iter(judged)) for judged in data.qrels[split].values())
        return {by_id[name].metadata["module"] for name in first}

    assert not modules("train") & modules("heldout")
    assert all(query.startswith("summary:") for query in data.qrels["train"])


def test_a_summary_shared_by_entries_is_one_query(data):
    texts = [data.queries[query] for query in data.qrels["train"]]
    assert len(set(texts)) == len(texts)
    sizes = {len(judged) for judged in data.qrels["train"].values()}
    assert sizes == {1, 2, 3}


@pytest.fixture(scope="module")
def masked():
    return sample_data(masked=True)


def test_masked_answers_do_not_hold_the_question(data, masked):
    assert not data.remainders
    assert 500 < len(masked.remainders) < len(masked.queries)
    whole = {entry.id: entry.text for entry in masked.corpus}
    for query, rest in masked.remainders.items():
        text, summary = whole[query.removeprefix("summary:")], masked.queries[query]
        assert rest.count(summary) == text.count(summary) - 1
    assert masked.queries == data.queries
    assert [entry.text for entry in masked.corpus] == [entry.text for entry in data.corpus]
