"""What counts as a sentence that may answer."""

from palmette.reader.sentences import _cut


def cut(text: str) -> list[str]:
    return [text[start:end] for start, end in _cut(text)]


def test_headings_answer_nothing() -> None:
    text = "# Trees\n\nA tree is pruned in winter.\n\n## A long heading of many words\n\nCherries are pruned in summer."
    assert cut(text) == ["A tree is pruned in winter.", "Cherries are pruned in summer."]
    assert cut("C# is a language. So is F# by now.") == ["C# is a language.", "So is F# by now."]


def test_where_there_is_nothing_else_the_text_stands() -> None:
    assert cut("## Only a heading") == ["## Only a heading"]
