"""Telling terms of groups of texts: words and pairs that are frequent in one and rare in the others."""

import numpy as np
import pytest

from palmette.lexical.terms import add_counts, count_terms, divergence, terms_to_json, top_terms


def terms_of(*groups: list[str]) -> list[dict[str, float]]:
    """The best terms of each group of texts."""
    texts = [text for group in groups for text in group]
    group = np.repeat(np.arange(len(groups)), [len(one) for one in groups])
    spelled, text, term = count_terms(texts)
    totals, sizes = np.bincount(term, minlength=len(spelled)), np.bincount(group, minlength=len(groups))
    at, term, count = add_counts(group[text], term, np.ones(len(term), np.int64), len(spelled))
    weight = divergence(count, sizes[at], totals[term], max(1, len(texts)))
    found = dict(top_terms(at, term, weight, spelled, 8))
    return [dict(found.get(one, [])) for one in range(len(groups))]


def test_terms_are_frequent_in_their_group_and_named_once() -> None:
    kinds = (
        "the comet {} passed the old star",
        "she bakes bread number {} with rye",
        "he boils soup number {} with leeks",
    )
    found = terms_of(*([kind.format(n) for n in range(30)] for kind in kinds))
    assert "comet" in " ".join(found[0])
    assert "bakes bread" in found[1], "a pair goes before its words"
    assert not {word for terms in found for word in terms} & {"the", "with", "she", "he", "12"}
    for terms in found:
        assert list(terms.values()) == sorted(terms.values(), reverse=True)
        parts = [part for term in terms for part in term.split()]
        assert len(parts) == len(set(parts))


@pytest.mark.parametrize(
    ("texts", "term"),
    [
        ([f"Ökonomie wächst ({n})" for n in range(20)], "ökonomie wächst"),
        ([f"हिन्दी भाषा {n}" for n in range(20)], "हिन्दी भाषा"),
        ([f"東京は大きい{n}" for n in range(20)], "東京"),
        ([f"L'école d’été n°{n}" for n in range(20)], "l'école d'été"),
        (["the Tesla’s", "a 'Tesla'", "TESLA"] * 3, "tesla"),
        (["</script><img src=x> \u2028 \ud800 zebra"] * 9, "src"),
    ],
)
def test_scripts_quotes_and_hostile_texts(texts: list[str], term: str) -> None:
    found = terms_of(texts, [f"plain text number {n}" for n in range(30)])[0]
    assert term in " ".join(found)
    terms_to_json({"group": list(found.items())})


@pytest.mark.parametrize("texts", [[], ["", "  ", "the of and"], ["one text alone"]])
def test_nothing_to_say_is_no_term(texts: list[str]) -> None:
    assert count_terms(texts)[0] == []
