"""The page: inert to hostile documents, and used with mouse and keys in a real browser."""

import json
import re
import shutil
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from palmette import Document, Index
from palmette.methods.tree import TreeInspection
from palmette.methods.tree.inspection.page import frame, page
from support.chromium import BINARY, Page, browser
from support.tiny import documents, train_tree, tree

HOSTILE = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'> &lt; <!-- ${x}"
QUERIES = ["where does the red owl live?", "who sings? <b>&amp; \u2028 '", "golden bee"]
browsing = pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def inspection() -> TreeInspection:
    bad = [Document(id=f"{HOSTILE}{n}", text=f"{HOSTILE} {n}", metadata={"title": HOSTILE}) for n in range(4)]
    return TreeInspection.of(Index.build([*documents(), *bad], tree()), queries=QUERIES)


class Outline(HTMLParser):
    """Which tags there are, and what the data block holds."""

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


def test_documents_stay_inside_the_data(inspection: TreeInspection) -> None:
    html = inspection.to_html()
    outline = Outline(html)
    assert [tag for tag, _ in outline.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in outline.tags}
    assert "\u2028" not in html
    assert "onerror" in outline.data
    data = json.loads(outline.data)
    assert HOSTILE in {title for _, title, *_ in data["listed"]}
    assert [route["query"] for route in data["routes"]] == QUERIES
    assert not set("<>&\u2028") & set(outline.data)
    html.encode("utf-8")


def test_nothing_is_fetched(inspection: TreeInspection) -> None:
    html = page(inspection)
    used = [
        (tag, a[name]) for tag, a in Outline(html).tags for name in ("src", "href", "action") if name in a
    ]
    assert used == []
    assert "@import" not in html
    assert "url(" not in html
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "connect-src 'none'" in policy
    assert "connect-src 'self'" in page(inspection, live=True)


def test_a_cell_is_a_frame_of_its_own(inspection: TreeInspection) -> None:
    cell = inspection._repr_html_()
    outline = Outline(cell)
    assert [tag for tag, _ in outline.tags] == ["iframe"]
    assert outline.tags[0][1]["sandbox"] == "allow-scripts"
    assert unescape(cell).count("<!doctype html>") == 1
    assert len(json.loads(Outline(outline.tags[0][1]["srcdoc"]).data)["listed"]) == 52
    assert frame(inspection) == cell


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("chromium")
    with browser(folder) as running:
        yield running.page()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def url(inspection: TreeInspection, tmp_path_factory: pytest.TempPathFactory) -> str:
    return inspection.save_html(tmp_path_factory.mktemp("page") / "tree.html").as_uri()


NODES = "[...document.querySelectorAll('[role=treeitem]')].map(e => e.dataset.node)"
FOCUS = "document.activeElement.dataset.node"
HEADING = "document.querySelector('#panel h2').textContent"
LISTED = "[...document.querySelectorAll('#panel ul.documents bdi')].map(e => e.textContent)"
STATUS = "document.getElementById('status').textContent"


@browsing
def test_it_draws_the_upper_levels(tab: Page, url: str, inspection: TreeInspection) -> None:
    tab.goto(url)
    assert tab.evaluate(NODES) == [node.name for node in inspection.nodes if node.level <= 4]
    assert tab.evaluate(HEADING) == "All documents"
    assert tab.evaluate("document.querySelector('[data-node=LR]').getAttribute('aria-level')") == "3"
    assert tab.evaluate("document.querySelector('[data-node=LRLR]').getAttribute('aria-expanded')") == "false"
    widths = tab.evaluate(
        "[...document.querySelectorAll('.branch')].map(e => +e.getAttribute('stroke-width'))"
    )
    shares = [(node.documents / inspection.documents) ** 0.5 for node in inspection.nodes if node.level <= 4]
    assert widths == pytest.approx([max(1.25, 20 * share) for share in shares])
    assert tab.errors == []


@browsing
def test_clicks_select_open_and_close(tab: Page, url: str, inspection: TreeInspection) -> None:
    tab.goto(url)
    tab.click("[data-node=LR] .label")
    assert tab.evaluate(LISTED) == [d.title or d.id for d in inspection.examples("LR", 50)]
    assert tab.evaluate("document.querySelector('[aria-selected=true]').dataset.node") == "LR"
    assert tab.evaluate("location.hash") == "#node=LR"
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
    assert tab.errors == []


@browsing
def test_it_works_without_a_mouse(tab: Page, url: str, inspection: TreeInspection) -> None:
    tab.goto(url)
    tab.evaluate("document.querySelector('[role=treeitem][tabindex=\"0\"]').focus()")
    tab.press("ArrowDown", "ArrowDown")
    assert tab.evaluate(FOCUS) == "LL"
    assert tab.evaluate("getComputedStyle(document.activeElement.querySelector('.ring')).stroke") != "none"
    tab.press("ArrowLeft")
    assert "LLL" not in tab.evaluate(NODES)
    tab.press("ArrowLeft")
    assert tab.evaluate(FOCUS) == "L"
    tab.press("ArrowDown", "ArrowRight", "ArrowRight")
    assert tab.evaluate(FOCUS) == "LLL"
    tab.press("Enter")
    assert tab.evaluate(LISTED) == [d.title or d.id for d in inspection.examples("LLL", 50)]
    tab.press("End")
    assert tab.evaluate(FOCUS) == "RRRR"
    tab.press("Home")
    assert tab.evaluate(FOCUS) == ""
    tab.press("Escape")
    assert tab.evaluate(HEADING) == "All documents"
    tab.press("/")
    assert tab.evaluate("document.activeElement.id") == "query"
    tab.type("GOLDEN bee")
    tab.press("Enter")
    path = inspection.routes[2].path
    assert path in tab.evaluate(STATUS)
    assert path in tab.evaluate(NODES)
    tab.press("Escape")
    assert tab.evaluate(STATUS) == ""
    assert tab.evaluate("document.activeElement.getAttribute('role')") == "treeitem"
    assert tab.errors == []


@browsing
def test_a_query_lights_its_way(tab: Page, url: str, inspection: TreeInspection) -> None:
    route = inspection.routes[0]
    tab.goto(f"{url}#query=0")
    ways = (
        "[...document.querySelectorAll('.lit')].filter(e => e.getAttribute('stroke-opacity') === '1').length"
    )
    assert tab.evaluate(ways) == len(route.path) + 1
    found = "[...document.querySelectorAll('#panel details li')].map(e => e.querySelector('bdi').textContent)"
    assert tab.evaluate(found) == [d.title or d.id for d in route.found]
    tab.click("#panel details li:first-child button")
    assert tab.evaluate("document.querySelector('[aria-selected=true]').dataset.node") == route.found[0].leaf
    tab.click("#chips button:nth-child(2)")
    assert tab.evaluate("document.querySelector('#chips [aria-pressed=true]').textContent") == QUERIES[1]
    tab.click("#chips button:nth-child(2)")
    assert tab.evaluate("document.querySelectorAll('.lit').length") == 0
    tab.click("#query")
    tab.type("never asked")
    tab.press("Enter")
    assert "--serve" in tab.evaluate(STATUS)
    assert tab.errors == []


@browsing
def test_links_lead_back(tab: Page, url: str) -> None:
    tab.goto(f"{url}#node=LRLRL&query=1&level=2")
    assert tab.evaluate("document.querySelector('[aria-selected=true]').dataset.node") == "LRLRL"
    assert tab.evaluate("document.getElementById('query').value") == QUERIES[1]
    assert tab.evaluate("location.hash") == "#node=LRLRL&query=1&level=2"
    tab.goto(f"{url}#node=nowhere&query=99&level=x")
    assert tab.evaluate(HEADING) == "All documents"
    assert tab.errors == []


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a tree with levels below those that it opens by itself."""
    seen = TreeInspection.of(Index.build(documents(), train_tree(depth=7)), queries=QUERIES)
    return seen.save_html(tmp_path_factory.mktemp("deep") / "tree.html").as_uri()


STOPS = "document.querySelectorAll('[role=treeitem][tabindex=\"0\"]').length"
PRESSED = "document.querySelectorAll('#chips [aria-pressed=true]').length"


@browsing
@pytest.mark.parametrize("way", ["Escape", "the query's chip", "the field"])
def test_the_keyboard_stays_in_a_tree_that_folds(tab: Page, deep: str, way: str) -> None:
    tab.goto(f"{deep}#query=0")
    tab.evaluate("document.querySelector('[role=treeitem][tabindex=\"0\"]').focus()")
    tab.press("End", *["ArrowRight"] * 6)
    below = tab.evaluate(FOCUS)
    assert len(below) == 7
    if way == "the field":
        tab.press("/")
        tab.type("zzz")
    if way == "the query's chip":
        tab.click("#chips button:nth-child(1)")
    else:
        tab.press("Escape")
    assert (tab.evaluate(PRESSED), tab.evaluate(STATUS), tab.evaluate(STOPS)) == (0, "", 1)
    assert below not in tab.evaluate(NODES)
    assert below.startswith(
        tab.evaluate("document.querySelector('[tabindex=\"0\"][role=treeitem]').dataset.node")
    )
    tab.evaluate("document.getElementById('chart').style.width = '60%'")
    assert tab.evaluate("new Promise(done => setTimeout(() => done(1), 100))") == 1
    assert tab.errors == []


@browsing
def test_a_query_leaves_the_chosen_level(tab: Page, deep: str) -> None:
    tab.goto(f"{deep}#query=0")
    tab.click("#more")
    tab.click("#more")
    address, open_ = tab.evaluate("location.hash"), tab.evaluate(NODES)
    assert address.endswith("level=6")
    tab.goto(f"{deep}#")
    tab.goto(deep + address)
    assert (tab.evaluate("location.hash"), tab.evaluate(NODES)) == (address, open_)
    tab.press("Escape")
    assert tab.evaluate("location.hash").endswith("level=6")
    assert tab.errors == []


@browsing
def test_hostile_documents_are_text(tab: Page, url: str, inspection: TreeInspection) -> None:
    leaf = next(d.leaf for d in inspection.listed if d.title)
    tab.goto(f"{url}#node={leaf}")
    assert HOSTILE in tab.evaluate(LISTED)
    assert tab.evaluate("window.hurt === undefined && document.querySelectorAll('script').length === 2")
    assert tab.errors == []


READ = [
    ("body", "color", "body"),
    (".inner", "fill", "body"),
    (".count", "fill", "body"),
    (".share", "fill", "body"),
    ("#status", "color", "body"),
    (".meta", "color", "#panel"),
    (".trail button", "color", "#panel"),
    ("summary", "color", "details"),
    ("#ask button", "color", "#ask button"),
]
"""What is read, and on which ground."""


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two CSS colours."""

    def luminance(colour: str) -> float:
        channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@browsing
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_it_is_readable_everywhere(
    tab: Page, url: str, tmp_path: Path, dark: bool, width: int, height: int
) -> None:
    tab.goto(f"{url}#query=0&level=5", width=width, height=height, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width, "no sideways scrolling of the page"
    for selector, property, behind in READ:
        colour, paper = tab.evaluate(
            f"[getComputedStyle(document.querySelector('{selector}')).{property},"
            f" getComputedStyle(document.querySelector('{behind}')).backgroundColor]"
        )
        assert contrast(colour, paper) >= 4.5, (selector, colour, paper)
    assert tab.screenshot(tmp_path / "page.png").stat().st_size > 10_000
    assert tab.errors == []


@browsing
def test_dragging_pans_and_keys_zoom(tab: Page, url: str) -> None:
    tab.goto(f"{url}#level=5", width=700, height=600)
    before = tab.evaluate("document.getElementById('scroll').scrollTop")
    tab.drag((60, 420), (60, 300))
    assert tab.evaluate("document.getElementById('scroll').scrollTop") > before
    wide = tab.evaluate("document.getElementById('tree').getBoundingClientRect().width")
    tab.press("+")
    assert tab.evaluate("document.getElementById('tree').getBoundingClientRect().width") > 1.1 * wide
    tab.press("0")
    high, room = tab.evaluate(
        "[tree.getBoundingClientRect().height, document.getElementById('scroll').clientHeight]"
    )
    assert high <= room + 1


@browsing
def test_two_cells_of_a_notebook(tab: Page, inspection: TreeInspection, tmp_path: Path) -> None:
    cells = (
        "<!doctype html><meta charset=utf-8>"
        + inspection._repr_html_()
        + inspection.show("red owl")._repr_html_()
    )
    (tmp_path / "cells.html").write_text(cells, encoding="utf-8")
    tab.goto((tmp_path / "cells.html").as_uri())
    tab.click("iframe")
    assert tab.evaluate("document.querySelectorAll('iframe').length") == 2
    assert tab.errors == []
