"""What counts as a word, in prose, code and scripts without blanks."""

import pytest

from palmette.errors import ConfigError
from palmette.lexical import analyser
from palmette.lexical.analyser import (
    FUNCTION_WORDS,
    Analyser,
    WordKind,
    analyser_of,
    check_language,
    languages,
    with_few_marks,
)


def spelled(text: str, language: str | None = "english", *kinds: WordKind) -> list[str]:
    words = analyser_of(language).words(text)
    return [word.text for word in words if not kinds or word.kind in kinds]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Searching, searched; SEARCHES!", ["search", "search", "search"]),
        ("os.path.join", ["os", "path", "join", "os.path.join"]),
        ("snake_case", ["snake", "case", "snake_case"]),
        ("CamelCase HTTPServer", ["camel", "case", "camelcase", "http", "server", "httpserver"]),
        ("C++ or C#", ["c++", "c", "or", "c#", "c"]),
        ("Python 3.11", ["python", "3", "11", "3.11"]),
        ("1,234,567 owls", ["1234567", "owl"]),
        ("e-mail", ["e", "mail", "email"]),
        ("DV7-1211ea", ["dv7", "1211ea", "dv71211ea"]),
        ("1960s 12es series route66s", ["1960s", "12es", "seri", "route66s"]),
        ("pH mRNA iPhones getXAxis a_b x-1", "ph mrna iphon get axi getxaxis a b a_b x 1 x1".split()),
        ("Luther's café, naïve Straße", ["luther", "cafe", "naiv", "strass"]),
        ("ﬁne ＡＢＣ", ["fine", "abc"]),
        ("", []),
        ("… — !?", []),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert spelled(text) == words


@pytest.mark.parametrize("text", ["中文检索", "ひらがな", "한국어", "ภาษาไทย"])
def test_scripts_without_blanks_are_found_by_pieces(text: str) -> None:
    whole = set(spelled(f"x{text}y"))
    for start in range(len(text) - 1):
        assert set(spelled(text[start : start + 2])) <= whole
    assert set(spelled(text[0])) <= whole


def test_documents_and_queries_meet_however_they_are_written() -> None:
    for one, other in [
        ("the E-Mail server", "email"),
        ("call os.path.join(a, b)", "os.path.join"),
        ("getUserName()", "user name"),
        ("résumé", "RESUME"),
        ("price: 1,000", "1000"),
    ]:
        assert set(spelled(other)) <= set(spelled(one))


def test_neighbours_pair_across_function_words_and_wholes() -> None:
    for text, linked in (
        ("What is the capital of France?", "capit franc"),
        ("call os.path.join(a, b)", "call os path join b"),
        ("getUserName of my_app", "get user name app"),
        ("a C++ class", "c++ class"),
        ("France's capital", "franc capit"),
        ("WHO and the IT team", "who it team"),
        ("東京 is 大きい", ""),
    ):
        assert " ".join(spelled(text, "english", WordKind.WORD)) == linked
    assert spelled("L'état de la France", "french", WordKind.WORD) == ["etat", "franc"]
    assert spelled("talo ja koira", "finnish", WordKind.FUNCTION) == []
    assert set(FUNCTION_WORDS) <= set(languages())


def test_languages_differ_and_none_leaves_endings() -> None:
    assert spelled("Häuser Haus", "german") == ["haus", "haus"]
    assert spelled("houses house", None) == ["houses", "house"]
    assert check_language(None) is None
    with pytest.raises(ConfigError, match=r"'english'.*|klingon.*english"):
        check_language("klingon")


def test_marks_beyond_thirty_are_dropped() -> None:
    text = "z" + "\u0301\u0327" * 40 + "owl"
    short = with_few_marks(text)
    assert (short[0], short[-3:], len(short)) == ("z", "owl", 34)
    assert spelled("Ca\u0301fe\u0301 nai\u0308ve") == ["cafe", "naiv"], "usual texts are left alone"


@pytest.mark.parametrize("gap", [" ", "。", "、", "\n"])
def test_long_texts_are_split_piece_by_piece(gap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        "os.path.join",
        "snake_case",
        "1,000",
        "C++",
        "中文检索",
        "e-mail",
        "café",
        "5㎏",
        "ﬁne…x",
        "Luther's",
    ] * 30
    whole = gap.join(parts)
    expected = Analyser().words(whole)
    monkeypatch.setattr(analyser, "_PIECE", 50)
    assert Analyser().words(whole) == expected
    unbroken = "a" * 1000
    assert "".join(word.text for word in Analyser(None).words(unbroken)) == unbroken, "nothing is lost"
