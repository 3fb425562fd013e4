"""A tree as data and as a page: inert to hostile documents, and used with mouse and keys in a real browser."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from palmette import Document
from palmette.errors import ConfigError, InputError, NotFoundError
from palmette.methods.tree import TreeInspection
from palmette.methods.tree.inspect import measure_congruence
from support.alone import Index
from support.chromium import BINARY, Tab
from support.tiny import documents, train_tree, tree

HOSTILE = "</script><script>hurt = 1</script><img src=x onerror='window.hurt = 1'> &lt; <!-- ${x} {{data}}"
QUERIES = ["where does the red owl live?", "who sings? <b>&amp; \u2028 '", "golden bee"]
browsing = pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(documents(), tree())


@pytest.fixture(scope="module")
def plain(index: Index) -> TreeInspection:
    return TreeInspection.of(index, queries=QUERIES[:1])


@pytest.fixture(scope="module")
def inspection() -> TreeInspection:
    bad = [Document(id=f"{HOSTILE}{n}", text=f"{HOSTILE} {n}", metadata={"title": HOSTILE}) for n in range(4)]
    return TreeInspection.of(Index.build([*documents(), *bad], tree()), queries=QUERIES)


def test_nodes_are_sums_of_the_stored_leaves(index: Index, plain: TreeInspection) -> None:
    with index.backend.read() as view:
        rows = np.asarray(view.rows("leaves", view.keys().tolist()), np.float64)
    rows /= rows.sum(1, keepdims=True)
    names = ["".join(turns) for turns in product("LR", repeat=5)]
    assert [node.name for node in plain.nodes if node.level == 5] == list(plain.leaves) == names
    for node in plain.nodes:
        share = rows[:, [name.startswith(node.name) for name in names]].sum(1).mean()
        assert node.share == pytest.approx(share, abs=1e-4)
        assert node.documents == sum(document.leaf.startswith(node.name) for document in plain.listed)
        assert node.decided is None if node.level == 5 else 0.5 <= node.decided <= 1
    left, entropy = rows[:, :16].sum(1), -(rows * np.log(rows + 1e-12)).sum(1)
    assert plain.node("L").documents == (left >= 0.5).sum()
    assert plain.node("").decided == pytest.approx(np.maximum(left, 1 - left).mean(), abs=1e-4)
    balance = plain.balance
    assert balance.leaves_per_document == pytest.approx(np.exp(entropy).mean(), rel=1e-3)
    assert balance.empty_leaves == sum(plain.node(leaf).documents == 0 for leaf in plain.leaves)
    assert 1 <= balance.effective_leaves <= 32
    assert 0 <= balance.gini < 1
    data = json.loads(json.dumps(plain.to_dict(), allow_nan=False))
    assert (data["documents"], data["nodes"][1]["name"]) == (48, "L")


def test_documents_are_listed_by_leaf_and_probability(index: Index, plain: TreeInspection) -> None:
    assert {d.id for d in plain.listed} == {d.id for d in documents()}
    assert list(plain.listed) == sorted(plain.listed, key=lambda document: (document.leaf, -document.score))
    few = TreeInspection.of(index, listed=10)
    assert len(few.listed) == len({d.leaf for d in few.listed}) == 10, "spread over the leaves"
    assert [next(d for d in plain.listed if d.leaf == one.leaf) for one in few.listed] == list(few.listed)
    bare = TreeInspection.of(index, listed=0, terms=0, progress=False)
    assert bare.listed == ()
    assert not any(node.words for node in bare.nodes)


def test_routes_follow_the_query(index: Index, plain: TreeInspection) -> None:
    (route,) = plain.routes
    assert route.reached[""] == 1
    for level, turn in enumerate(route.path):
        here, other = (route.reached.get(route.path[:level] + way, 0) for way in (turn, "LR".replace(turn, "")))
        assert here >= other - 1e-4
    hits = index.search(route.query, k=5, lexical=0)
    assert [(d.id, d.score) for d in route.found] == [(hit.id, round(hit.score, 4)) for hit in hits]
    leaves = {d.id: d.leaf for d in plain.listed}
    assert all(d.leaf == leaves[d.id] for d in route.found)
    assert TreeInspection.of(index, queries=QUERIES[0]).routes == plain.routes


def test_what_cannot_be_inspected_says_so(index: Index, plain: TreeInspection) -> None:
    with pytest.raises(InputError, match="no documents"):
        TreeInspection.of(Index.in_memory(tree()))
    with pytest.raises(NotFoundError, match="'LRX'"):
        plain.node("LRX")
    with pytest.raises(InputError, match="cannot be written"):
        plain.save_html("/nowhere/at/all.html")
    for queries, words in ((["red", 3], "a query must be a str, got int: 3"), ([" "], "empty")):
        with pytest.raises(InputError, match=words):
            TreeInspection.of(index, queries=queries)
    for options, words in (({"listed": -1}, "at least 0, got -1"), ({"terms": 2.5}, "a whole number, got 2.5")):
        with pytest.raises(ConfigError, match=f"{next(iter(options))} must be {words}"):
            TreeInspection.of(index, **options)

    with pytest.raises(ConfigError, match="'paths'"):
        TreeInspection.of(SimpleNamespace(model=SimpleNamespace(method="paths")))


def test_congruence_groups_pairs_by_their_common_ancestor() -> None:
    leaves = np.array([0, 0, 4, 5, 6])  # LLL twice, RLL, RLR, RRL
    vectors = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [1, 1]], np.float32)
    found, half = measure_congruence(vectors, leaves, 3), 0.5**0.5
    assert [(level, pairs) for level, _, pairs in found.steps] == [(0, 6), (1, 2), (2, 1), (3, 1)]
    assert [mean for _, mean, _ in found.steps] == pytest.approx([2 * half / 6, half, 1.0, 1.0])
    assert found.average == pytest.approx((4 * half + 2) / 10)


class Outline(HTMLParser):
    """Tags, and the content of the data block."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][1].get("id") == "data" and not self.data:
            self.data = data


def test_documents_stay_inside_the_data_and_nothing_is_fetched(inspection: TreeInspection) -> None:
    html = inspection.to_html()
    outline = Outline(html)
    assert [tag for tag, _ in outline.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in outline.tags}
    data = json.loads(outline.data)
    assert HOSTILE in {document["title"] for document in data["listed"]}
    assert [route["query"] for route in data["routes"]] == QUERIES
    assert not set("<>&\u2028") & set(outline.data)
    html.encode("utf-8")
    assert not [(tag, a) for tag, a in outline.tags if {"src", "href", "action"} & set(a)]
    assert not [loaded for loaded in ("\u2028", "@import", "url(") if loaded in html]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_cell_is_a_frame_of_its_own(inspection: TreeInspection) -> None:
    cell = inspection._repr_html_()
    outline = Outline(cell)
    assert [tag for tag, _ in outline.tags] == ["iframe"]
    assert outline.tags[0][1]["sandbox"] == "allow-scripts"
    assert unescape(cell).count("<!doctype html>") == 1
    assert len(json.loads(Outline(outline.tags[0][1]["srcdoc"]).data)["listed"]) == 52
    assert len(json.loads(Outline(inspection.to_html(most=26)).data)["listed"]) == 26


@pytest.fixture(scope="module")
def url(inspection: TreeInspection, tmp_path_factory: pytest.TempPathFactory) -> str:
    return inspection.save_html(tmp_path_factory.mktemp("page") / "tree.html").as_uri()


NODES = "[...document.querySelectorAll('[role=treeitem]')].map(e => e.dataset.node)"
FOCUS = "document.activeElement.dataset.node"
HEADING = "document.querySelector('#panel h2').textContent"
LISTED = "[...document.querySelectorAll('#panel ul.documents bdi')].map(e => e.textContent)"
STATUS = "document.getElementById('status').textContent"
SELECTED = "document.querySelector('[aria-selected=true]').dataset.node"
PRESSED = "[...document.querySelectorAll('#chips [aria-pressed=true]')].map(e => e.textContent)"
STOPS = "[...document.querySelectorAll('[role=treeitem][tabindex=\"0\"]')].map(e => e.dataset.node)"
ENTER = "document.querySelector('[role=treeitem][tabindex=\"0\"]').focus()"


def names_in(inspection: TreeInspection, node: str) -> list[str]:
    """Documents under a node, the most probable first, as the page lists them."""
    inside = [d for d in inspection.listed if d.leaf.startswith(node)]
    return [d.title or d.id for d in sorted(inside, key=lambda d: -d.score)][:50]


@browsing
def test_mouse_and_keys_walk_the_tree(tab: Tab, url: str, inspection: TreeInspection) -> None:
    tab.goto(url)
    drawn = tab.evaluate(NODES)
    assert sorted(drawn) == sorted(node.name for node in inspection.nodes if node.level <= 4)
    assert tab.evaluate(HEADING) == "All documents"
    assert tab.evaluate("document.querySelector('[data-node=LR]').getAttribute('aria-level')") == "3"
    assert tab.evaluate("document.querySelector('[data-node=LRLR]').getAttribute('aria-expanded')") == "false"
    widths = "[...document.querySelectorAll('.branch')].map(e => +e.getAttribute('stroke-width'))"
    shares = [(inspection.node(name).documents / inspection.documents) ** 0.5 for name in drawn]
    assert tab.evaluate(widths) == pytest.approx([max(1.25, 20 * share) for share in shares])
    tab.click("[data-node=LR] .label")
    assert tab.evaluate(LISTED) == names_in(inspection, "LR")
    assert (tab.evaluate(SELECTED), tab.evaluate("location.hash")) == ("LR", "#node=LR")
    tab.click("[data-node=LR] .toggle")
    assert [name for name in tab.evaluate(NODES) if name.startswith("LR")] == ["LR"]
    tab.click("[data-node=LR] .toggle")
    assert [name for name in tab.evaluate(NODES) if name.startswith("LR")] == ["LR", "LRL", "LRR"]
    tab.click("#more")
    assert len(tab.evaluate(NODES)) == 63
    tab.click("#fewer")
    tab.click("#fewer")
    assert max(map(len, tab.evaluate(NODES))) == 3
    tab.click("#panel .turns button")
    assert tab.evaluate("location.hash") == "#node=LRL&level=3"
    tab.goto(f"{url}#")
    tab.evaluate(ENTER)
    tab.press("ArrowDown", "ArrowDown")
    assert tab.evaluate(FOCUS) == "LL"
    assert tab.evaluate("getComputedStyle(document.activeElement.querySelector('.ring')).stroke") != "none"
    tab.press("ArrowLeft")
    assert "LLL" not in tab.evaluate(NODES)
    tab.press("ArrowLeft")
    assert tab.evaluate(FOCUS) == "L"
    tab.press("ArrowDown", "ArrowRight", "ArrowRight", "Enter")
    assert (tab.evaluate(FOCUS), tab.evaluate(LISTED)) == ("LLL", names_in(inspection, "LLL"))
    tab.press("End")
    assert tab.evaluate(FOCUS) == max(tab.evaluate(NODES))
    tab.press("Home", "Escape")
    assert (tab.evaluate(FOCUS), tab.evaluate(HEADING)) == ("", "All documents")


@browsing
def test_a_query_lights_its_way_and_links_lead_back(tab: Tab, url: str, inspection: TreeInspection) -> None:
    route = inspection.routes[0]
    tab.goto(f"{url}#query=0")
    bright = "filter(e => e.getAttribute('stroke-opacity') === '1').length"
    assert tab.evaluate(f"[...document.querySelectorAll('.lit')].{bright}") == len(route.path) + 1
    assert route.path in tab.evaluate(STATUS)
    found = "[...document.querySelectorAll('#panel details li')].map(e => e.querySelector('bdi').textContent)"
    assert tab.evaluate(found) == [d.title or d.id for d in route.found]
    tab.click("#panel details li:first-child button")
    assert tab.evaluate(SELECTED) == route.found[0].leaf
    tab.click("#chips button:nth-child(2)")
    assert tab.evaluate(PRESSED) == QUERIES[1:2]
    tab.click("#chips button:nth-child(2)")
    assert tab.evaluate("document.querySelectorAll('.lit').length") == 0
    tab.goto(f"{url}#node=LRLRL&query=1&level=2")
    assert tab.evaluate(SELECTED) == "LRLRL"
    assert tab.evaluate(PRESSED) == QUERIES[1:2]
    assert tab.evaluate("location.hash") == "#node=LRLRL&query=1&level=2"
    tab.goto(f"{url}#node=nowhere&query=99&level=x")
    assert tab.evaluate(HEADING) == "All documents"
    leaf = next(d.leaf for d in inspection.listed if d.title)
    tab.goto(f"{url}#node={leaf}")
    assert HOSTILE in tab.evaluate(LISTED)
    assert tab.evaluate("window.hurt === undefined && document.querySelectorAll('script').length === 2")


@browsing
def test_the_keyboard_stays_in_a_tree_that_folds(tab: Tab, tmp_path: Path) -> None:
    deep = train_tree(depth=7)  # levels below those that the page opens by itself
    seen = TreeInspection.of(Index.build(documents(), deep), queries=QUERIES)
    url = seen.save_html(tmp_path / "deep.html").as_uri()
    for way in ("Escape", "chip"):
        tab.goto(f"{url}#")
        tab.goto(f"{url}#query=0")
        tab.evaluate(ENTER)
        tab.press("End", *["ArrowRight"] * 6)
        below = tab.evaluate(FOCUS)
        assert len(below) == 7
        if way == "chip":
            tab.click("#chips button:nth-child(1)")
        else:
            tab.press("Escape")
        assert (tab.evaluate(PRESSED), tab.evaluate(STATUS)) == ([], "")
        [stop] = tab.evaluate(STOPS)
        assert below not in tab.evaluate(NODES)
        assert below.startswith(stop)
    tab.goto(f"{url}#query=0")
    tab.click("#more")
    tab.click("#more")
    address, shown = tab.evaluate("location.hash"), tab.evaluate(NODES)
    assert address.endswith("level=6")
    tab.goto(f"{url}#")
    tab.goto(url + address)
    assert (tab.evaluate("location.hash"), tab.evaluate(NODES)) == (address, shown)
    tab.press("Escape")
    assert tab.evaluate("location.hash").endswith("level=6")


READ = {
    ("color", "body"): ["body", "#status"],
    ("fill", "body"): [".inner", ".count", ".share"],
    ("color", "#panel"): [".meta", ".trail button"],
    ("color", "details"): ["summary"],
}
"""Elements by their colour's property and their ground."""


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two CSS colours."""

    def luminance(colour: str) -> float:
        channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@browsing
@pytest.mark.parametrize(("width", "height", "dark"), [(1280, 800, False), (390, 844, True)])
def test_it_is_readable_everywhere(tab: Tab, url: str, width: int, height: int, dark: bool) -> None:
    tab.goto(f"{url}#query=0&level=5", width=width, height=height, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width, "no sideways scrolling of the page"
    for property, behind, selector in ((*how, one) for how, listed in READ.items() for one in listed):
        colour, paper = tab.evaluate(
            f"[getComputedStyle(document.querySelector('{selector}')).{property},"
            f" getComputedStyle(document.querySelector('{behind}')).backgroundColor]"
        )
        assert contrast(colour, paper) >= 4.5, (selector, colour, paper)
    assert len(tab.screenshot()) > 10_000


@browsing
def test_dragging_pans_and_keys_zoom(tab: Tab, url: str) -> None:
    tab.goto(f"{url}#level=5", width=700, height=600)
    before = tab.evaluate("document.getElementById('scroll').scrollTop")
    tab.drag((60, 420), (60, 300))
    assert tab.evaluate("document.getElementById('scroll').scrollTop") > before
    wide = tab.evaluate("document.getElementById('tree').getBoundingClientRect().width")
    tab.press("+")
    assert tab.evaluate("document.getElementById('tree').getBoundingClientRect().width") > 1.1 * wide
    tab.press("0")
    high = tab.evaluate("tree.getBoundingClientRect().height")
    assert high <= tab.evaluate("document.getElementById('scroll').clientHeight") + 1


@browsing
def test_two_cells_of_a_notebook(tab: Tab, inspection: TreeInspection, plain: TreeInspection, tmp_path: Path) -> None:
    cells = "<!doctype html><meta charset=utf-8>" + inspection._repr_html_() + plain._repr_html_()
    (tmp_path / "cells.html").write_text(cells, encoding="utf-8")
    tab.goto((tmp_path / "cells.html").as_uri())
    tab.click("iframe")
    assert tab.evaluate("document.querySelectorAll('iframe').length") == 2
