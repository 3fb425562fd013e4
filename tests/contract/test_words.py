"""Words and structure together, whatever the method."""

import pytest

from palmette import Document, Index, Model
from palmette.errors import ConfigError
from support.logistic import expit
from support.measured import score_scales_of

QUERIES = ["where does the red owl live?", "white hen", "golden bee sings"]


def matching(index: Index, query: str) -> list[str]:
    """Ids of documents that share a word with a query, best first."""
    return [hit.id for hit in index.search(query, k=48, lexical=1) if hit.evidence["word_share"] > 0]


def test_a_score_is_the_sum_of_its_evidence(shared: Index, model: Model) -> None:
    for lexical in (0.0, 0.3, 1.0):
        mix = model.calibration(model.search_options({}), lexical)
        score_scales = score_scales_of(shared, model.search_options({}))
        for hit in [hit for hits in shared.search(QUERIES, k=48, lexical=lexical) for hit in hits]:
            meaning = score_scales.method.apply(hit.evidence["method_score"])
            if "best_sentence" in hit.evidence:
                meaning = (meaning + score_scales.sentence.apply(hit.evidence["best_sentence"])) / 2
            total = (1 - lexical) * meaning + lexical * (
                hit.evidence.get("word_share", 0) - hit.evidence.get("expected_word_share", 0)
            )
            assert hit.score == pytest.approx(
                expit(mix.slope * total + mix.prior_among(score_scales.documents)), abs=1e-5
            )


def test_without_words_a_search_is_the_pure_method(shared: Index, model: Model) -> None:
    pure = shared.search(QUERIES, k=48, lexical=0, sentences=False)
    with shared.backend.read() as view:
        options = model.search_options({})
        found = model.search(view, model.encode_queries(QUERIES, options), 48, options)
        assert [[hit.id for hit in hits] for hits in pure] == [view.ids(row.tolist()) for row in found.keys]
    assert [[hit.evidence["method_score"] for hit in hits] for hits in pure] == found.scores.tolist()


def test_words_find_what_only_words_can(index: Index) -> None:
    index.add([Document(id="part", text="Order code dv7-1211ea, nothing else."), "An order without a code."])
    for query in ("dv7-1211ea", "DV7 1211EA", "code of dv7-1211ea?"):
        assert index.search(query, k=1, lexical=0.9)[0].id == "part"
    assert matching(index, "dv7-1211ea") == ["part"]


def test_neighbours_and_phrases_count(stored: Index) -> None:
    stored.add([Document(id="near", text="A zebra owl."), Document(id="far", text="An owl beside a zebra.")])
    with stored.backend.read({"$id": ["near", "far"]}) as view:
        found = view.words("the zebra owl", 2)
        assert found.words == ["zebra", "owl", "zebra owl"]
        assert view.ids(found.keys.tolist()) == ["near", "far"]
        (_, _, near), (_, _, far) = (view.word_parts("the zebra owl", int(key)) for key in found.keys)
        assert near > 0 == far
        phrase = view.words('"zebra owl"', 0, only=found.keys).scores
        assert phrase[0] == pytest.approx(found.scores[0])
        assert phrase[1] == 0
        assert view.words('"zebra owl"', 9).keys.tolist() == found.keys[:1].tolist()
    assert [hit.id for hit in stored.search('"zebra owl"', k=48)] == ["near"]
    assert len(stored.search('who calls it a "zebra owl"?', k=48)) == 48, "a name in a sentence is no condition"


def test_the_parts_of_a_hybrid_explanation_add_up_and_name_the_words(index: Index) -> None:
    found = index.search(QUERIES, k=48, lexical=0.5)
    index.add(["another red owl that makes the words less rare", "and one more owl"])
    for hit in [hit for hits in found for hit in hits]:
        explanation = hit.explain()
        assert expit(sum(part.value for part in explanation.parts)) == pytest.approx(hit.score, abs=1e-5)
    explained = index.explain(QUERIES[0], "red-owl", lexical=0.5)
    assert {"word 'red'", "word 'owl'"} <= {part.name for part in explained.parts}
    assert "red" in explained.text
    again = index.search(QUERIES[0], k=48, lexical=0.5)
    assert explained.score == pytest.approx({h.id: h.score for h in again}["red-owl"], abs=1e-5)


def test_a_weight_that_cannot_be_is_refused(shared: Index, model: Model) -> None:
    for lexical in (-0.1, 1.5, "much", True, None, float("nan")):
        with pytest.raises(ConfigError, match="lexical must be a number from 0"):
            shared.search("owl", lexical=lexical)
    vectors = model.encoder.plain.encode_queries(["red owl"])
    with pytest.raises(ConfigError, match="needs the words of a query"):
        shared.search(vectors, lexical=0.5)


def test_the_language_of_words_is_kept(model: Model, tmp_path) -> None:
    texts = ["Das Haus steht.", "Viele Häuser stehen.", "Ein Boot."]
    index = Index.build(texts, model, tmp_path / "i", language="german")
    assert len(matching(index, "haus")) == 2
    index.close()
    for opened in (Index.open(tmp_path / "i"), Index.build([], model, tmp_path / "i")):
        assert opened.backend.language == "german"
    plain = Index.build(["one house", "two houses"], model, language=None)
    assert len(matching(plain, "house")) == 1
    with pytest.raises(ConfigError, match="no stemmer for language='klingon'"):
        Index.create(tmp_path / "k", model, language="klingon")
