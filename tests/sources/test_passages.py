"""Passages are slices, cover the text, and keep blocks whole."""

from hypothesis import given
from hypothesis import strategies as st

from palmette.sources.passages import PassageOptions, split


def count(texts):
    return [len(text.split()) for text in texts]


LINES = st.sampled_from(
    [
        "# Head",
        "## Sub",
        "Setext",
        "===",
        "---",
        "```",
        "````",
        "~~~ py",
        "    code",
        "\tcode",
        "- item",
        "  - inner",
        "1. one",
        "| a | b |",
        "|---|---|",
        "> quote",
        "!!! note",
        "[x]: http://y",
        "",
        "",
        "  ",
        "def f(x):",
        "    return x",
        "class A:",
        "<div>",
        "plain words here.",
        "term",
        ":   def",
        "+++",
        "\x0b",
        "\u2028",
        "é𝒳 ش中文。次",
        "a" * 40,
        "one two. Three four! five six",
    ]
)
TEXTS = st.one_of(
    st.text(max_size=300),
    st.lists(LINES, max_size=40).flatmap(
        lambda lines: st.sampled_from(["\n", "\r\n", "\r"]).map(lambda end: end.join(lines))
    ),
    st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\t", ""])), max_size=30).map(
        lambda all: "".join(a + b for a, b in all)
    ),
)
KINDS = st.sampled_from(["markdown", "mdx", "text", "rst", "code:python", "code:javascript", "html", "other"])


@given(TEXTS, KINDS, st.integers(1, 30))
def test_passages_cover_every_character_once(text, kind, tokens):
    passages = split(text, kind, PassageOptions(tokens=tokens), count)
    reached = 0
    for passage in passages:
        assert text[reached : passage.start].strip() == ""
        assert reached <= passage.start < passage.end
        assert text[passage.start : passage.end].strip()
        reached = passage.end
    assert text[reached:].strip() == ""
