import pickle
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette import Document, Explanation, Hit, Part
from palmette.errors import InputError, PalmetteError
from palmette.machine.text import shorten
from palmette.types.values import written


def test_an_id_is_made_from_the_content_and_only_from_it() -> None:
    first = Document(text="a", metadata={"x": 1, "y": 2})
    assert first.id == Document(text="a", metadata={"y": 2, "x": 1}).id
    others = (Document(text="a"), Document(text="b"), Document(text="a", fields={"t": "a"}))
    assert len({first.id, *(other.id for other in others)}) == 4


@given(st.text(min_size=1).filter(str.strip), st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_digest_tells_every_change(text: str, metadata: dict) -> None:
    document = Document(id="x", text=text, metadata=metadata)
    assert document.digest == Document(id="y", text=text, metadata=dict(metadata)).digest
    assert document.digest != Document(id="x", text=text + " ", metadata=metadata).digest
    assert document.digest != Document(id="x", text=text, metadata={**metadata, "new key!": 1}).digest
    assert document.digest != Document(id="x", text=text, metadata=metadata, payload={"p": 1}).digest


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text": 3}, "text must be a str, got int"),
        ({"text": ""}, "is empty"),
        ({"text": " \n"}, "is empty"),
        ({"id": 7, "text": "a"}, "use str"),
        ({"id": "", "text": "a"}, "1 to 16,384 characters"),
        ({"text": "a", "metadata": [1]}, "metadata must be a mapping"),
        (
            {"text": "a", "metadata": {"x": {"y": {1, 2}}}},
            r"JSON values only: 'x.y' is \{1, 2\} \(set\); write a sorted list",
        ),
        ({"text": "a", "metadata": {"d": date(2020, 1, 2)}}, r"'d' is .*; write its isoformat\(\)"),
        ({"text": "a", "metadata": {"d": [{3: 4}]}}, "d.0 has the key 3; write '3'"),
    ],
)
def test_unusable_documents_are_refused(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Document(**options).digest  # noqa: B018 (metadata is looked at when the digest is made)


def test_a_pickled_hit_keeps_everything_but_its_index() -> None:
    hit = Hit(Document(id="a", text="a"), 0.5, lambda: Explanation(0.5, [], "why"))
    assert hit.explain().text == "why"
    copy = pickle.loads(pickle.dumps(hit))
    assert copy == hit
    with pytest.raises(PalmetteError, match=r"index\.explain"):
        copy.explain()


def test_an_explanation_in_a_notebook_is_a_table_and_nothing_of_it_is_markup() -> None:
    html = Explanation(0.5, [Part("word <b>", 0.3), Part("b", 0.2)], "because <script>")._repr_html_()
    assert "<td>word &lt;b&gt;</td><td>0.3000</td>" in html
    assert "<th>0.5000</th>" in html
    assert "<script>" not in html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("  a text ", "a text"), (3, "3"), (17.0, "17"), (0.1 + 0.2, "0.3"), (float("nan"), ""), (None, ""),
        (True, "yes"), (["a", None, 2], "a, 2"), ({}, ""),
        ({"colour": "red", "none": None, "ports": ["usb", "audio"]}, "colour: red, ports: usb, audio"),
    ],
)  # fmt: skip
def test_values_become_text(value: object, text: str) -> None:
    assert written(value) == text


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
