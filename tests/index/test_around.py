"""Grouped and distinct hits, contexts and citations."""

from collections.abc import Iterator

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.index.grouping import PASSAGES_OF_A_DOCUMENT
from support.tiny import METHODS, documents

FRUITS = ("apple", "cherry", "quince", "pear", "plum", "medlar", "peach", "fig")
TASKS = ("prune", "water", "graft", "pick", "store", "dry")


def guide(fruit: str) -> Document:
    """A guide of one section per task."""
    sections = (
        f"## How to {task}\n\nTo {task} a {fruit} tree, take tool number {n}. Then {task} each {fruit} by hand.\n"
        for n, task in enumerate(TASKS)
    )
    return Document(
        f"{fruit}.md", f"# The {fruit}\n\nAll about the {fruit}.\n\n" + "\n".join(sections), {"fruit": fruit}
    )


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    model = SpaceModel.untrained(FakeEncoder(96))
    with Index.build([guide(fruit) for fruit in FRUITS], model, passages={"tokens": 30}) as made:
        yield made


QUERY = "how to graft a quince tree"


@pytest.mark.parametrize("k", [1, 3, 8, 20])
def test_a_grouped_search_ranks_documents_as_if_all_passages_were_ranked(index: Index, k: int) -> None:
    everything = index.search(QUERY, 1000)
    assert len(everything) > 40
    expected: dict[str, list[tuple[int, float]]] = {}
    for hit in everything:
        expected.setdefault(hit.id, []).append((hit.passage.number, pytest.approx(hit.score, abs=1e-6)))
    found = index.search(QUERY, k, group_by="document", explain=True)
    groups = [(hit.id, [(one.passage.number, one.score) for one in (hit, *hit.others)]) for hit in found]
    assert groups == [(id, passages[:PASSAGES_OF_A_DOCUMENT]) for id, passages in expected.items()][:k]
    for hit in found:
        assert hit.explain().score == pytest.approx(hit.score, abs=1e-5)
        assert {other.id for other in hit.others} <= {hit.id}
    several = index.search([QUERY, "dry figs"], k, group_by="document")
    assert [hit.id for hit in several[0]] == [hit.id for hit in found]
    assert several[1][0].id == "fig.md"


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_groups(method: str) -> None:
    with Index.build(documents(), METHODS[method]()) as index:
        plain = index.search("where does the red owl live?", 5)
        grouped = index.search("where does the red owl live?", 5, group_by="document", distinct=True)
        assert [hit.id for hit in grouped] == [hit.id for hit in plain]
        assert all(hit.others == () for hit in grouped)
        assert len(index.search("owl", 3, group_by="document", lexical=0, sentences=False)) == 3


def test_equal_passages_are_shown_once_and_named() -> None:
    text = "To prune a cherry tree, cut all the dead wood in the late winter before the first buds open."
    given = [
        Document("one", text),
        Document("two", text.replace(" ", "\n")),
        Document("three", f"{text} Not later."),
        Document("four", "Water the tree.", {"source": "guide.md"}),
    ]
    with Index.build(given, SpaceModel.untrained(FakeEncoder(64))) as index:
        assert len(index.search("prune a cherry", 4)) == 4
        hits = index.search("prune a cherry", 2, distinct=True)
        [original] = [hit for hit in hits if hit.copies]
        assert original.id in ("one", "two")
        assert [str(name).partition(",")[0] for name in original.copies] == [{"one": "two", "two": "one"}[original.id]]
        assert len(hits) == 2
        near = index.search("prune a cherry", 4, distinct="near")
        assert [len(hit.copies) for hit in near if hit.id != "four"] == [2]
        assert len(near) == 2
        assert near[0].to_dict()["copies"]


def test_equal_passages_of_different_pages_are_one() -> None:
    """Title and headings are in a passage's vector, which moves equal texts apart."""
    licence = "## License\n\nThis page is licensed under the\nMIT terms, and comes without any warranty."
    about = "which many people keep at home in a quiet place."
    given = [
        Document(f"d{n}", f"# Page {n} of {word}\n\nAbout {word} {about}\n\n{licence.replace('comes', spelled)}")
        for n, (word, spelled) in enumerate(
            {"owls": "comes", "cats": "comes", "dogs": "Comes", "bees": "comes"}.items()
        )
    ]
    given.append(Document("last", f"# Another\n\nOf things {about}\n\n{licence} Not here."))
    with Index.build(given, SpaceModel.untrained(FakeEncoder(64)), passages={"tokens": 28}) as index:
        question = "licensed under which terms?"
        assert sum("licensed" in hit.text for hit in index.search(question, 5)) == 5
        for options in ({}, {"lexical": 0}):
            hits = index.search(question, 5, distinct=True, **options)
            assert sum("licensed" in hit.text for hit in hits) == 2, options
        assert sorted(len(hit.copies) for hit in index.search(question, 5, distinct=True))[-2:] == [0, 3]
        assert max(len(hit.copies) for hit in index.search(question, 5, distinct="near")) == 4


def test_citations_name_document_headings_and_lines(index: Index) -> None:
    hit = index.search(QUERY, 1)[0]
    first, last = hit.passage.first_line, hit.passage.last_line
    assert str(hit.citation) == f"quince.md › The quince › How to graft, lines {first}–{last}"
    assert index.get(["quince.md"])[0].text.splitlines()[first - 1].strip() == hit.document.text.splitlines()[0].strip()
    assert hit.to_dict()["citation"] == str(hit.citation)
    with Index.build([Document("x", "One line.", {"source": "a/b.md"})], SpaceModel.untrained(FakeEncoder(8))) as one:
        assert str(one.search("line", 1)[0].citation) == "a/b.md"


@pytest.mark.parametrize("k", [3, 20])
@pytest.mark.parametrize("tokens", [30, 60, 200])
def test_a_context_is_made_of_slices_within_its_budget(index: Index, tokens: int, k: int) -> None:
    context = index.context(QUERY, tokens, k=k)
    assert context
    assert 0 < context.tokens <= tokens + 5 * len(context.excerpts)
    texts = {document.key: document.text for document in index.documents()}
    for one in context.excerpts:
        assert one.document.text == texts[one.document.key][one.place.start : one.place.end]
        assert texts[one.document.key].splitlines()[one.place.first_line - 1].strip() in one.document.text
        assert str(one.citation) in str(context)
    places = [(one.document.key, one.place.start, one.place.end) for one in context.excerpts]
    for (a, _, end), (b, start, _) in zip(places, places[1:], strict=False):
        assert a != b or end <= start
    assert context.excerpts[0].document.key == "quince.md"
    assert str(context).startswith("[1] quince.md › ")
    assert context.to_dict()["excerpts"][0]["metadata"] == {"fruit": "quince"}


def test_a_context_without_sentences_or_without_anything(index: Index) -> None:
    with Index.build(documents(), METHODS["taxonomy"]()) as taxonomy:
        assert "owl" in str(taxonomy.context("where does the red owl live?", 40))
    assert not index.context(QUERY, threshold=1.0)
    assert str(index.context(QUERY, threshold=1.0)) == ""
    fig = index.context(QUERY, filter={"fruit": "fig"})
    assert {one.document.key for one in fig.excerpts} == {"fig.md"}
