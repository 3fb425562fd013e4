from pathlib import Path

import pytest

from palmette.errors import InputError
from palmette.methods.taxonomy.hyperlex import hyperlex, read_hyperlex, spearman

HEADING = "WORD1 WORD2 POS TYPE AVG_SCORE AVG_SCORE_0_10 STD"
LINES = ["girl person N hyp-1 5.9 9.8 0.3", "guest person N hyp-3 4.3 7.2 2.1", "eat run V no-rel 0 0.5 0.4"]
LINES += ["person girl N r-hyp-1 1.0 1.6 0.9", "rock song N no-rel 0.1 0.2 0.3", "zebu cow N hyp-1 5 9 1"]


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "hyperlex-all.txt"
    path.write_text("\n".join([HEADING, *lines]))
    return path


def test_the_public_file_is_read_and_scored(tmp_path: Path) -> None:
    ratings = read_hyperlex(written(tmp_path, *LINES))
    assert len(ratings) == 6
    assert ratings[0] == ("girl", "person", "N", 9.8)
    senses = {"girl": ["g"], "guest": ["u"], "person": ["p1", "p2"], "rock": ["r"], "song": ["s"]}
    score = {("g", "p1"): 0.1, ("g", "p2"): 3.0, ("u", "p1"): 2.0, ("p1", "g"): 1.0, ("r", "s"): 0.5}
    found, pairs = hyperlex(ratings, lambda w: senses.get(w, []), lambda a, b: score.get((a, b), 0.0))
    assert (found, pairs) == (1.0, 4), "nouns whose words are both known"


def test_what_is_no_such_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r":3: expected 7 columns"):
        read_hyperlex(written(tmp_path, LINES[0], "girl person N hyp"))
    other = tmp_path / "other.txt"
    other.write_text("a b c\n")
    with pytest.raises(InputError, match="heading lacks 'WORD1'"):
        read_hyperlex(other)


def test_rank_correlation_with_ties() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 45]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)
    with pytest.raises(InputError, match="at least two values that differ"):
        spearman([1, 1], [1, 2])
