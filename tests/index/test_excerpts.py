"""Excerpts: the best sentences within a budget, whole and in order."""

from hypothesis import given
from hypothesis import strategies as st

from palmette.index.excerpts import Candidate, DocumentSpan, choose_excerpts


def blank_between(document, start, end):
    """Characters, where one between two sentences is a blank."""
    return 0 if end - start == 1 else end - start


def passage(document, log_odds, *cosines, start=0):
    """Sentences of ten characters, one after the other."""
    spans = [(start + 10 * at, start + 10 * at + 9) for at in range(len(cosines))]
    return Candidate(document, log_odds, spans, cosines)


def test_the_best_sentence_comes_with_what_follows_it():
    one = passage("a", 0.0, 0.1, 0.2, 0.9, 0.1, 0.1, 0.1)
    assert choose_excerpts([one], 9, blank_between) == [DocumentSpan("a", 20, 29)]
    assert choose_excerpts([one], 18, blank_between) == [DocumentSpan("a", 20, 39)]
    assert choose_excerpts([one], 36, blank_between) == [DocumentSpan("a", 10, 49)]
    assert choose_excerpts([one], 1000, blank_between) == [DocumentSpan("a", 0, 59)]


def test_a_better_passage_comes_first_and_a_far_sentence_of_it_last():
    best = passage("a", 2.0, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1)
    other = passage("b", 1.0, 0.5)
    assert choose_excerpts([best, other], 45, blank_between) == [DocumentSpan("a", 0, 39), DocumentSpan("b", 0, 9)]


def test_passages_of_one_document_are_in_the_order_of_its_text():
    later, earlier = passage("a", 1.0, 0.5, start=100), passage("a", 0.5, 0.5, start=0)
    apart = [DocumentSpan("a", 0, 9), DocumentSpan("a", 100, 109)]
    assert choose_excerpts([later, earlier], 100, blank_between) == apart, "text that nobody chose is between"
    following = passage("a", 0.4, 0.5, start=10)
    assert choose_excerpts([later, earlier, following], 100, blank_between) == [DocumentSpan("a", 0, 19), apart[1]]
    between = passage("a", -9.0, *[0.0] * 3, start=40)
    assert choose_excerpts([later, earlier, between], 18, blank_between) == apart


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(-5, 5), st.lists(st.floats(-1, 1), max_size=6)), max_size=6),
    st.integers(0, 200),
)
def test_excerpts_fit_the_budget_and_do_not_overlap(given, budget):
    candidates = [
        passage(name, odds, *cosines, start=100 * number) for number, (name, odds, cosines) in enumerate(given)
    ]
    excerpts = choose_excerpts(candidates, budget, blank_between)
    sentences = [
        (one.document, *span) for one in candidates for span in one.sentences
        for part in excerpts
        if part.document == one.document and part.start <= span[0] and span[1] <= part.end
    ]  # fmt: skip
    assert sum(end - start for _, start, end in sentences) <= budget
    blanks = len(sentences) - len(excerpts)
    assert sum(part.end - part.start for part in excerpts) == sum(end - start for _, start, end in sentences) + blanks
    assert len(sentences) == len(set(sentences))
    if any(one.sentences for one in candidates) and budget >= 9:
        assert excerpts
