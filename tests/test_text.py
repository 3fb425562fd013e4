"""Shortened texts and progress bars."""

import sys

import pytest

from palmette.machine.progress import progress_bar
from palmette.machine.text import shorten


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Owls\n hunt.", "Owls hunt."),
        ("Owls hunt at night.", "Owls hunt …"),
        ("a bbbbbbbbbbbbbbbbb", "a bbbbbbbb …"),
        ("夜行性の鳥は夜に狩りをする。", "夜行性の鳥は夜に狩り …"),
        ("", ""),
    ],
)
def test_a_text_becomes_one_line_of_at_most_so_many_characters(text: str, line: str) -> None:
    assert shorten(text, 12) == line
    assert len(line) <= 12


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_a_bar_is_shown_on_demand_and_on_a_terminal(
    progress: bool | None, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not sys.stderr.isatty()
    assert list(progress_bar(progress, [1, 2], desc="Counting")) == [1, 2]
    assert ("Counting" in capsys.readouterr().err) == shown
