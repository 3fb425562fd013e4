"""Shortened texts and progress bars."""

import pytest

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
