"""Every displayed formula of the "How it works" pages has one test, which computes it by hand.

Formulas of networks and losses belong to the tests of their method (``COVERED``); the others are computed here. A page
and its test spell a formula alike, so that a page cannot change without its test.
"""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from palmette.encoder import load_encoder
from palmette.methods.taxonomy.search import RelevanceCutoff
from palmette.ranking.score import Calibration, Evidence, ScoreScale, ScoreScales, expected_word_share, probability
from palmette.ranking.second_stage import Reranker
from palmette.reader import ReaderConfig
from palmette.reader.answer import AnswerCandidates
from palmette.reader.losses import reading_loss
from palmette.reader.scores import words_of
from palmette.reader.spans import SpanModule
from palmette.training.maths import ntvd
from support.pages import ROOT
from support.readers import encoder as encoder_folder
from support.reference import Doubles, sigmoid, softmax, unit

FOLDER = ROOT / "docs" / "how"
Check = Callable[[], None]
CHECKS: dict[tuple[str, str], Check] = {}
DRAW = np.random.default_rng(0)


def spaceless(formula: str) -> str:
    return " ".join(formula.split())


COVERED = {
    "methods/tree/test_equations.py::test_every_level_is_what_the_equations_say": [
        r"z_t(x) = \sigma\left( s_t \left( w_t^{\top} e(x) + b_t \right) \right)",
        r"p_{\ell}(x) = \prod_{t \in \mathrm{path}(\ell)} z_t(x)^{[\ell\ \mathrm{left\ of}\ t]} "
        r"\left( 1 - z_t(x) \right)^{[\ell\ \mathrm{right\ of}\ t]}",
    ],
    "methods/tree/test_losses.py::test_the_loss_is_its_formula": [
        r"L_{\mathrm{pairs}} = -\frac{1}{2B} \sum_{i} \left( \log \frac{e^{\tau\, \mathrm{nTVD}(q_i, d_i)}}"
        r"{\sum_j e^{\tau\, \mathrm{nTVD}(q_i, d_j)}} + \log \frac{e^{\tau\, \mathrm{nTVD}(q_i, d_i)}}"
        r"{\sum_j e^{\tau\, \mathrm{nTVD}(q_j, d_i)}} \right)"
    ],
    "methods/fields/test_equations.py::test_vectors_are_what_the_equations_say": [
        r"\mathrm{sees}(i, j) = \left[ f(j) \le f(i) \right]",
        r"h = \sum_{f} w_f\, h_f, \qquad w = \mathrm{softmax}\left( K\, h_{\mathrm{CLS}} + b \right)",
        r"h_f \leftarrow h_f + A_f h_f",
    ],
    "methods/fields/test_equations.py::test_the_loss_of_a_batch_is_equation_6": [
        r"L(q, h) = -\log \frac{e^{q \cdot h_{+} / \tau}}{\sum_{d} e^{q \cdot h_{d} / \tau}}",
        r"L = \lambda_{\mathrm{agg}}\, L(q, h) + \lambda_{\mathrm{fields}}\, \frac{1}{F} \sum_{f} L(q, h_f) + "
        r"\lambda_{\max}\, L\left( q, \max_f \right)",
    ],
    "methods/layers/test_equations.py::test_the_loss_of_a_batch_is_the_papers": [
        r"L = -\frac{1}{L} \sum_{\ell} \log \frac{e^{\tau\, q_{\ell} \cdot d_{+}}}{e^{\tau\, q_{\ell} \cdot d_{+}} + "
        r"\sum_{d_{-}} e^{\tau\, q_{\ell} \cdot d_{-}}}"
    ],
    "methods/layers/test_equations.py::test_a_fused_score_is_the_weighted_mean_of_the_layers": [
        r"s(d) = \frac{\sum_{\ell} w_{\ell}\, q_{\ell} \cdot d}{\sum_{\ell} w_{\ell}}"
    ],
    "methods/paths/test_equations.py::test_path_embeddings_and_beams_are_equation_1": [
        r"k = [\,\mathrm{path}\,;\; x\,], \qquad F(k) = k + \mathrm{ReLU}\left( U_h^{\top} k \right), \qquad p_h = "
        r"\mathrm{softmax}\left( W_h^{\top} F(k) + b_h \right) \cdot p_{\mathrm{parent}}"
    ],
    "methods/paths/test_equations.py::test_the_loss_of_a_batch_is_equation_6": [
        r"L = \lambda_1\, L\left( q, d_{+}, d_{-} \right) + \lambda_2\, L\left( T(q), T(d_{+}), T(d_{-}) \right) + "
        r"\lambda_3\, L\left( T(d_{+}), T(d_{+}), T(d_{-}) \right)"
    ],
    "methods/taxonomy/test_equations.py::test_a_search_compares_the_same_towers_at_the_same_temperature": [
        r"s(q, d) = T \left\langle f(q), g(d) \right\rangle"
    ],
    "methods/taxonomy/test_equations.py::test_the_loss_of_a_batch_is_its_formula": [
        r"w(d) = \frac{1}{1 - \left( 1 - p(d) \right)^{B}}",
        r"w_{\sigma}(d) = n(d)^{1 - \sigma}\, w(d)^{\sigma}",
        r"L = -\log \frac{e^{s(q, d^{+})}}{e^{s(q, d^{+})} + \sum_{d \ne d^{+}} w(d)\, e^{s(q, d)}}",
        r"L = -\log \frac{e^{s(q, d^{+})}}{e^{s(q, d^{+})} + \sum_{d \in \text{batch}} w(d)\, e^{s(q, d)} + "
        r"\sum_{d \in \text{hard}(q)} e^{s(q, d)}}",
    ],
}
"""Tests of formulas with the code of a method around them: test → formulas of the method's page."""


def on(page: str, formula: str) -> Callable[[Check], Check]:
    """Register a check of a page's formula."""

    def register(check: Check) -> Check:
        CHECKS[page, spaceless(formula)] = check
        return check

    return register


def formulas() -> set[tuple[str, str]]:
    found = set()
    for path in FOLDER.glob("*.md"):
        blocks = re.findall(r"^\$\$\n(.+?)\n\$\$$", path.read_text(encoding="utf-8"), re.M | re.S)
        found |= {(path.stem, spaceless(block)) for block in blocks}
    return found


def same(found: object, expected: object) -> None:
    found = found.detach().numpy() if isinstance(found, torch.Tensor) else found
    np.testing.assert_allclose(np.asarray(found, float), expected, atol=1e-5, rtol=1e-5)


def numbers(*shape: int) -> tuple[Doubles, torch.Tensor]:
    """The same random numbers for the formula and for the code."""
    x = DRAW.normal(size=shape)
    return x, torch.from_numpy(x)


def distributions(n: int, columns: int) -> tuple[Doubles, torch.Tensor]:
    p = softmax(2 * DRAW.normal(size=(n, columns)))
    return p, torch.from_numpy(p)


# -- tree ---------------------------------------------------------------------------------------------------------


@on(
    "tree",
    r"\mathrm{nTVD}(q, d) = -\frac{1}{2} \sum_{i} \left| p_i(q) - p_i(d) \right| = "
    r"\sum_{i} \min\left( p_i(q), p_i(d) \right) - 1",
)
def _ntvd() -> None:
    (q, q_), (d, d_) = distributions(3, 8), distributions(4, 8)
    same(-0.5 * np.abs(q[:, None] - d).sum(2), np.minimum(q[:, None], d).sum(2) - 1)
    for kind in (torch.float64, torch.float32):  # by torch, and by the search's kernel
        same(ntvd(q_.to(kind), d_.to(kind)), np.minimum(q[:, None], d).sum(2) - 1)


# -- taxonomy -----------------------------------------------------------------------------------------------------


def gaps_and_cutoff() -> tuple[Doubles, Doubles, tuple[float, float, float], RelevanceCutoff, Doubles]:
    """Widest gaps at or under three scores, the scores, a, b and c, and the code with a query."""
    (nodes, nodes_), (query, _), coefficients = numbers(6, 3), numbers(1, 3), (0.7, 0.2, -1.1)
    every = np.sort(nodes @ query[0])
    scores = np.array([every[5], every[4], (every[4] + every[3]) / 2])
    gaps = []
    for score in scores:
        at_or_under = [score, *every[every < score]]
        gaps.append(max(s - np.log(np.exp(every[every < s]).sum()) for s in at_or_under if (every < s).any()))
    cut = RelevanceCutoff(nodes_.float(), torch.tensor([*coefficients, 6.0]))
    return np.array(gaps), scores, coefficients, cut, query.astype(np.float32)


@on("taxonomy", r"P(d) = \sigma\left( a\, g(d) + b\, s(q, d) + c \right)")
def _chance() -> None:
    g, s, (a, b, c), cut, query = gaps_and_cutoff()
    same(cut.probability(query, s[None].astype(np.float32))[0], sigmoid(a * g + b * s + c))


@on("taxonomy", r"\mathrm{score}(d) = \frac{1}{2} + \frac{x}{2 \left( 1 + |x| \right)}")
def _scale() -> None:
    g, s, (a, b, c), cut, query = gaps_and_cutoff()
    x = a * g + b * s + c + s / 1000
    same(cut.scaled(query, s[None].astype(np.float32))[0], 0.5 + x / (2 * (1 + np.abs(x))))


# -- reader -------------------------------------------------------------------------------------------------------


@on("ranking", r"m = \tfrac12\,\frac{s - z_s}{u_s} + \tfrac12\,\frac{c - z_c}{u_c}")
@on("ranking", r"x = (1 - \lambda)\, m + \lambda\, (w - h)")
@on("ranking", r"P = \frac{1}{1 + e^{-(a x + b)}}")
def _evidence() -> None:
    s, c, w = DRAW.normal(size=(3, 7))
    h = expected_word_share(1.7)
    same(h, 0.8 * np.exp(-1.5 * 1.7))
    (z, u), (zc, uc), lam, a, b = (0.3, 0.7), (0.2, 0.4), 0.35, 5.0, -3.0
    score_scales = ScoreScales(method=ScoreScale(zero=z, unit=u), sentence=ScoreScale(zero=zc, unit=uc))
    mix = Calibration(words=lam, slope=a, prior=b, source="held-out questions")
    evidence = Evidence(mix, score_scales, ("a question",))
    m = (s - z) / u / 2 + (c - zc) / uc / 2
    same(probability(evidence.logit(evidence.total(s, c, w - h))), sigmoid(a * ((1 - lam) * m + lam * (w - h)) + b))


@on("ranking", r"\text{log-odds} = \text{log-odds of the first stage} + w\,z - c")
def _second_stage() -> None:
    first, scores = DRAW.normal(size=(2, 6))
    moved = first + 0.7 * (scores - scores.mean()) / scores.std()
    reranker = Reranker(lambda question, texts: [0.0] * len(texts), weight=0.7)
    added, c = reranker.added(first.astype(np.float32), scores)
    same(first + added, moved - (moved.max() - first.max()))
    same(c, first.max() - moved.max())


@on("reader", r"P(a, p) = \frac{e^{s(a, p)}}{1 + \sum_{p'} \sum_{a'} e^{s(a', p')}}")
def _answer() -> None:
    s = DRAW.normal(size=5)
    chances = np.exp(s) / (1 + np.exp(s).sum())
    places = np.stack([np.array([0, 0, 1, 2, 2]), np.arange(5), np.arange(1, 6)], axis=1)
    found = AnswerCandidates.of(places, s, float(np.log1p(np.exp(s).sum())))
    same(found.shares, np.sort(chances)[::-1])
    same(found.none, 1 - chances.sum())
    right = np.where(np.arange(5) == 3, s, -1e4)
    loss = reading_loss(torch.from_numpy(s), torch.from_numpy(right), torch.zeros(5, dtype=torch.int64), 1)
    same(loss[0], -np.log(chances[3]))


@on("reader", r"s(a, p) = n(a, p) + w_1 \cos(q, p) + w_2 \frac{|W_q \cap W_p|}{|W_q|} + b")
def _passage() -> None:
    encoder = load_encoder(encoder_folder(), dtype="float32", device="cpu")
    config = ReaderConfig(max_length=40, overlap=6, max_answer=4, max_question=16)
    reader, question = SpanModule(config, encoder).eval(), "where does the red cat live?"
    passages, w, b = ["the red cat lives in house 7", "a blue dog sings"], np.array([1.5, -0.7]), 0.4
    reader.bias_layer.weight.copy_(torch.from_numpy(w)[None])
    reader.bias_layer.bias.fill_(b)
    cosine = unit(encoder.encode(passages)) @ unit(encoder.encode_queries([question]))[0]
    asked = words_of(question)
    common = np.array([len(asked & words_of(passage)) / len(asked) for passage in passages])
    gain = w[0] * cosine + w[1] * common + b
    read = reader.read([question], [passages])[0]
    by_hand = [n + gain[passage] for n, (passage, _, _) in zip(read.scores, read.places, strict=True)]
    found = reader.candidates([question], [passages])[0]
    same(np.log(found.shares / found.none), sorted(by_hand, reverse=True))


def test_every_formula_has_a_check_and_every_check_a_formula() -> None:
    elsewhere = {(test.split("/")[1], spaceless(formula)) for test, listed in COVERED.items() for formula in listed}
    assert formulas() == CHECKS.keys() | elsewhere
    assert not CHECKS.keys() & elsewhere, "a formula is checked in one place"


@pytest.mark.parametrize("test", list(COVERED))
def test_the_tests_of_other_formulas_exist(test: str) -> None:
    path, name = test.split("::")
    assert f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("place", list(CHECKS), ids=lambda place: f"{place[0]}: {place[1][:24]}")
def test_the_formula_is_what_the_code_does(place: tuple[str, str]) -> None:
    CHECKS[place]()
