"""The sum of evidence, against the formula on every document."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from palmette import Document, FakeEncoder, Index
from palmette.arrays import Ragged, unit_rows
from palmette.index.results import encode_query_batch
from palmette.methods.space import SpaceModel
from palmette.ranking import scales as measuring
from palmette.ranking import score
from palmette.ranking.score import Calibration, Evidence, ScoreScale, ScoreScales, best_sentences
from support.measured import score_scales_of
from support.stores import key_of
from support.taxonomies import zoo, zoo_model
from support.tiny import documents, paths

WORDS = [f"w{i}" for i in range(200)]


def texts(count: int) -> list[str]:
    """Texts of one to three sentences; some words are frequent, most are rare."""
    draw, chances = np.random.default_rng(0), 1 / np.arange(1, len(WORDS) + 1)
    chances /= chances.sum()
    return [
        " ".join(" ".join(draw.choice(WORDS, 14, p=chances)) + "." for _ in range(1 + at % 3)) for at in range(count)
    ]


QUERIES = [" ".join(text.split()[:4]) for text in texts(12)[::2]]


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    """More documents than both shortlists hold."""
    given = [Document(f"d{i}", text, {"part": i % 3}) for i, text in enumerate(texts(400))]
    with Index.build(given, SpaceModel.untrained(FakeEncoder(32))) as made:
        made.delete([f"d{i}" for i in range(0, 400, 11)])
        yield made


def measured(index: Index) -> ScoreScales:
    return score_scales_of(index, index.model.search_options({}))


def formula(index: Index, query: str, ids: list[str], lexical: float, sentences: bool) -> dict[str, float]:
    """Probabilities of documents, written out."""
    batch = encode_query_batch(index.model, [query], {}, lexical, sentences)
    with index.backend.read() as view:
        score_scales = score_scales_of(index, batch.options)
        keys = [key_of(view, id) for id in ids]
        own = view.rows("vector", keys).astype(np.float64) @ batch.arrays["vector"][0]
        words = view.words(query, 0, only=np.array(keys))
        share, held = words.scores, np.array(words.document_frequencies[: words.words.index(" ".join(words.words[:2]))])
        rare = np.log1p((words.documents - held + 0.5) / (held + 0.5)).sum()
        share = share - 0.8 * np.exp(-1.5 * rare / np.log1p((words.documents + 0.5) / 0.5))
        held, scales = view.ragged("sentences", keys), view.ragged("sentence_scales", keys)
    meaning = (own - score_scales.method.zero) / score_scales.method.unit
    if sentences:
        vector = batch.arrays["vector"][0]
        best = [np.max((held.row(i) * scales.row(i)[:, None]) @ vector) for i in range(len(ids))]
        meaning = (meaning + (np.array(best) - score_scales.sentence.zero) / score_scales.sentence.unit) / 2
    mix = batch.calibration
    total = (1 - lexical) * meaning + lexical * share
    return dict(zip(ids, expit(mix.slope * total + mix.prior_among(score_scales.documents)).tolist(), strict=True))


@pytest.mark.parametrize("lexical", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("sentences", [True, False])
@pytest.mark.parametrize("filter", [None, {"part": 1}])
def test_the_score_is_the_formula(index: Index, lexical: float, sentences: bool, filter: Any) -> None:
    for query, hits in zip(
        QUERIES, index.search(QUERIES, 7, lexical=lexical, sentences=sentences, filter=filter), strict=True
    ):
        listed = {d.key for d in index.documents(filter)}
        if lexical or sentences:  # candidates are the best of each ranking
            own = index.search(query, score.SHORTLIST, lexical=0, sentences=False, filter=filter)
            listed = {hit.id for hit in own}
        with index.filtered(filter).backend.read() as view:
            if lexical:
                listed |= set(view.ids(view.words(query, score.SHORTLIST).keys.tolist()))
        wanted = formula(index, query, sorted(listed), lexical, sentences)
        best = sorted(wanted.values(), reverse=True)[:7]
        assert [hit.score for hit in hits] == pytest.approx(best, abs=2e-4)
        assert [wanted[hit.id] for hit in hits] == pytest.approx(best, abs=2e-4)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_hits_show_their_evidence_and_places(index: Index) -> None:
    hit = index.search(QUERIES[0], 1)[0]
    assert set(hit.evidence) == {score.METHOD_SCORE, score.BEST_SENTENCE, score.WORD_SHARE, score.EXPECTED_WORD_SHARE}
    assert hit.evidence[score.WORD_SHARE] > 0
    start, end = hit.highlights.sentence or (0, 0)
    assert hit.document.text[start:end] in hit.document.text
    assert end > start
    marked = {hit.document.text[a:b] for a, b in hit.highlights.words}
    assert marked
    assert marked <= set(QUERIES[0].split())
    alone = index.search(QUERIES[0], 1, lexical=0, sentences=False)[0]
    assert set(alone.evidence) == {score.METHOD_SCORE}
    assert alone.highlights.sentence is None
    assert list(alone.highlights.words) == []


def test_reasons_are_words() -> None:
    texts = ["## Prune apple trees late. Rake.", "Prune roses in spring.", "Bake the bread."]
    made = Index.build(texts, SpaceModel.untrained(FakeEncoder(64)))
    told = {hit.document.text: hit.explain().text for hit in made.search("prune the apple trees", 3)}
    assert told[texts[0]].endswith("in common: “prune … apple” (1 of 3 documents), “apple trees” (1)")
    assert " in meaning: “Prune apple trees late. Rake.”; words" in told[texts[0]]
    assert told[texts[1]].endswith("words in common: “prune” (2 of 3 documents)")
    assert told[texts[2]].endswith("; no words in common")
    cut = Index.build(["\n\n".join(texts)], SpaceModel.untrained(FakeEncoder(64)), passages={"tokens": 8})
    assert "\u201cprune\u201d (2 of 3 passages)" in cut.search("prune", 1)[0].explain().text


def test_an_index_without_sentences_scores_documents_alone(index: Index) -> None:
    given = list(index.documents())
    plain = Index.build(given, index.model, sentences=False)
    hits = plain.search(QUERIES[0], 5)
    assert set(hits[0].evidence) == {score.METHOD_SCORE, score.WORD_SHARE, score.EXPECTED_WORD_SHARE}
    assert plain.stats().bytes < index.stats().bytes
    with_some = Index.build(given[:60], index.model)
    vectors = index.model.encoder.encode([d.content for d in given[60:80]])
    with_some.add(given[60:80], embeddings=vectors)  # no pass of the encoder: no sentences
    found = {hit.id: hit for hit in with_some.search(QUERIES[0], 80)}
    assert score.BEST_SENTENCE in found[given[0].key].evidence
    assert score.BEST_SENTENCE not in found[given[70].key].evidence
    assert found[given[70].key].highlights.sentence is None


def test_exact_codes_are_found_among_many(index: Index) -> None:
    """Words reach every document, whatever the method lists."""
    index.add([Document("part", f"{texts(1)[0]} Order code dv7-1211ea.")])
    assert index.search("dv7-1211ea", 1)[0].id == "part"
    index.delete(["part"])


def test_the_first_document_is_the_best_sentence() -> None:
    values = np.array([[1, 0], [0, 1], [3, 0], [0, 2], [1, 0], [1, 0]], np.int8)
    rows = Ragged(values, np.array([0, 2, 2, 4, 6]))
    scales = Ragged(np.array([1, 1, 0.5, 1, 1, 1], np.float32), rows.starts)
    best, at = best_sentences(rows, scales, np.array([1.0, 0.9], np.float32))
    assert best[[0, 2]] == pytest.approx([1.0, 1.8])
    assert np.isnan(best[1])
    assert at.tolist() == [0, -1, 1, 0], "the first of equal ones"


def test_scales_follow_the_scores() -> None:
    scores = np.random.default_rng(0).normal(size=(20, 500))
    usual, moved = ScoreScale.measured(scores), ScoreScale.measured(scores * 3 + 7)
    assert usual.unit == pytest.approx(6, rel=0.05)
    assert moved.unit == pytest.approx(3 * usual.unit)
    assert moved.apply(scores * 3 + 7) == pytest.approx(usual.apply(scores))
    assert usual.apply(scores).mean() == pytest.approx(score.USUAL_MEANING)
    sharp = np.zeros((20, 500))
    sharp[:, 3] = 1.0
    assert ScoreScale.measured(sharp).unit == pytest.approx(1, rel=0.01), "the best document's lead"
    assert ScoreScale.measured(np.ones((3, 4))).unit > 0
    scores[:, 7] = np.nan
    assert ScoreScale.measured(scores).unit == pytest.approx(usual.unit, rel=0.02)


def test_shipped_priors_sink_as_documents_become_many_and_learned_ones_stay() -> None:
    shipped, learned = Calibration(), Calibration(prior=-2.0, source="held-out questions")
    few, usual, many = (shipped.prior_among(count) for count in (100, score.USUAL_SIZE, 20_000))
    assert many < usual == score.PRIOR < few
    assert learned.prior_among(20_000) == learned.prior_among(100) == -2.0


def test_equal_documents_keep_their_order() -> None:
    made = Index.build([Document(name, "a green owl") for name in "abcdefg"], SpaceModel.untrained(FakeEncoder(32)))
    assert "".join(hit.id for hit in made.search("owl", 5)) == "abcde"


def test_words_stay_within_a_subtree() -> None:
    found = Index.build(zoo(), zoo_model()).search("owl 3, dog 5", 45, within="owl", lexical=0.9)
    assert {hit.id.split()[0] for hit in found} == {"owl"}


def test_documents_that_only_words_find_have_their_own_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "SHORTLIST", 1)
    index, query = Index.build(documents(), paths()), "where does the red owl live?"
    own = {hit.id: hit.evidence["method_score"] for hit in index.search(query, 48, visit=1.0, lexical=0)}
    found = index.search(query, 5, beam=1, lexical=0.9)
    assert [hit.evidence["method_score"] for hit in found] == pytest.approx([own[hit.id] for hit in found], abs=1e-5)


def test_units_leave_out_a_sentences_own_document() -> None:
    given = [" ".join(text.split()[:14]) for text in texts(60)]
    with Index.build(given, SpaceModel.untrained(FakeEncoder(32))) as made, made.backend.read() as view:
        vectors = unit_rows(view.rows("vector", view.keys()).astype(np.float32))
        score_scales = measuring.measure_score_scales(made.model, view, True, made.model.search_options({}))
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, np.nan)
    assert score_scales.method.unit == pytest.approx(
        ScoreScale.measured(cosines, measuring.PSEUDO_QUERY_SPREADS).unit, rel=0.02
    )


def test_documents_without_sentences_have_their_score_for_meaning() -> None:
    score_scales = ScoreScales(method=ScoreScale(unit=2.0), sentence=ScoreScale(zero=0.1))
    mix = Evidence(Calibration(words=0.5), score_scales, ("q",))
    total = mix.total(np.array([1.0, 1.0]), np.array([np.nan, 0.7]), np.array([0.4, 0.0]))
    assert total == pytest.approx([0.5 * 0.5 + 0.5 * 0.4, 0.5 * (0.5 + 0.6) / 2])


def test_an_untrained_model_measures_its_units_on_the_documents(index: Index) -> None:
    score_scales = measured(index)
    assert 0 < score_scales.method.unit < 10
    assert score_scales.sentence is not None
    for few in (1, 2):
        small = Index.build(list(index.documents())[:few], index.model)
        assert measured(small) == score.USUAL.replace(documents=few), "too few to measure"


def test_the_usual_units_stay_where_measured_ones_agree() -> None:
    usual = score.USUAL
    stretched = ScoreScale(zero=0.02, unit=0.55 * 1.25), ScoreScale(zero=-0.15, unit=0.55)
    for own in stretched:
        for sentence in stretched:
            assert measuring.near_usual(ScoreScales(method=own, sentence=sentence), usual, 1000) == usual
    far = ScoreScales(method=ScoreScale(zero=0.7, unit=0.15), sentence=ScoreScale(zero=0.65, unit=0.2))
    near = measuring.near_usual(far, usual, 1000)
    for kept, scale in ((near.method, far.method), (near.sentence, far.sentence)):
        assert kept is not None
        assert scale is not None
        assert (kept.zero, kept.unit) == pytest.approx((scale.zero, scale.unit))
    assert measuring.near_usual(ScoreScales(method=far.method), usual, 1000) == ScoreScales(method=near.method), (
        "without sentences"
    )


def test_units_blend_where_measured_ones_are_neither_near_nor_far() -> None:
    def unit(factor: float, documents: int) -> float:
        scale = ScoreScale(zero=-score.USUAL_MEANING * 0.55 * (factor - 1), unit=0.55 * factor)
        return measuring.near_usual(ScoreScales(method=scale), score.USUAL, documents).method.unit / 0.55

    assert [unit(factor, 10**6) for factor in (1, 1.3, 1.69, 3)] == pytest.approx([1, 1, 1.69, 3], abs=1e-4)
    assert 1 < unit(1.4, 1000) < unit(1.5, 1000) < 1.5
    assert 1 == unit(1.4, 20) < unit(3, 20) == pytest.approx(3), "few documents measure badly"
    assert unit(1e-6, 1000) == 1, "documents that are all alike say nothing of the encoder"


def test_an_encoders_name_decides_nothing() -> None:
    """Its cosines do: those of an export, or of another place, are the same."""
    score_scales = []
    for name in ("fake", "sentence-transformers/all-MiniLM-L6-v2"):
        encoder = FakeEncoder(32)
        encoder.name = name
        with Index.build(texts(60), SpaceModel.untrained(encoder)) as made:
            score_scales.append(measured(made))
    assert score_scales[0] == score_scales[1] != score.USUAL.replace(documents=60)


def test_units_are_measured_anew_when_a_fifth_of_the_documents_is_new(tmp_path: Path) -> None:
    given = texts(60)
    with Index.build(given[:40], SpaceModel.untrained(FakeEncoder(32))) as made:
        first = measured(made)
        made.add(given[40:45])
        assert measured(made) == first
        with made.copy_to(tmp_path / "copy") as copied:
            assert measured(copied) == first
        made.add(given[45:])
        assert (first.documents, measured(made).documents) == (40, 60)
