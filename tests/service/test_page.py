"""The page in a real browser: questions, sources, reasons, filters and topics; mouse, keys, a phone; hostile texts."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from palmette import Document, Index
from palmette.index.written import Limits
from palmette.ranking.second_stage import Reranker
from palmette.service.callers import Token
from palmette.service.indexes import ServedIndex
from palmette.service.writer import Writer
from support.chat_stream import StreamServer, events
from support.chromium import BINARY, Tab
from support.services import Running, running, until
from support.tiny import documents, space, tree

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine")
HOSTILE = (
    "</script><script>hurt = 1</script><img src=x onerror='window.hurt = 1'> &lt; <!-- ${x} {{data}} javascript:hurt=1"
)
QUESTION = "where does the red owl live?"
LONG = "\n\n".join(
    [
        "# The sea",
        *[f"Line {n} says that nothing much happens at sea." for n in range(80)],
        "Ahoy 🐙🐙, the purple whale swims in harbour nine.",
        "Nobody else is seen on the water that evening.",
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page")
    bad = [
        Document(
            f"{HOSTILE}{n}",
            f"{HOSTILE} hostile words {n}\u2028 {HOSTILE}",
            {"title": HOSTILE, "colour": HOSTILE, "animal": "imp"},
        )
        for n in range(3)
    ]
    sea = Document("sea.md", LONG, {"source": "notes/sea.md", "colour": "purple"})
    Index.build([*documents(), *bad, sea], tree(), path / "colours").close()
    Index.build(documents(), space(), path / "plain").close()
    return path


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    with running(folder / "colours") as one:
        yield one


def wait(tab: Tab, script: str) -> None:
    until(lambda: tab.evaluate(f"!!({script})"))


def find(selector: str, inner: str, text: str) -> str:
    """Script of the element whose part has a text."""
    part = f"e.querySelector({json.dumps(inner)})" if inner else "e"
    return (
        f"[...document.querySelectorAll({json.dumps(selector)})].find(e => {part}.textContent === {json.dumps(text)})"
    )


def ask(tab: Tab, question: str) -> None:
    """Type a question and wait for the hits and the answer."""
    tab.evaluate("document.getElementById('results').replaceChildren(); document.getElementById('question').select()")
    tab.type(question)
    tab.press("Enter")
    wait(tab, "document.querySelector('.hit, .problem') && !document.querySelector('[aria-busy]')")


def opened(tab: Tab, service: Running, place: str = "", **screen: Any) -> None:
    tab.goto(f"{service.url}/{place}", **screen)
    wait(
        tab,
        "document.getElementById('state').textContent.match(/document/) && document.querySelector('#filters legend')",
    )


TITLES = "[...document.querySelectorAll('.hit .open')].map(e => e.textContent)"
MARKS = "[...document.querySelectorAll('.hit mark')].map(e => e.textContent)"
SOURCE = "document.querySelector('#source[open]')"


def test_a_question_finds_answers_and_their_places(tab: Tab, service: Running) -> None:
    opened(tab, service)
    assert tab.evaluate("document.activeElement.id") == "question"
    ask(tab, QUESTION)
    hits = service.post("search", query=QUESTION, k=10).json()["results"][0]["hits"]
    assert sorted(tab.evaluate(TITLES)) == sorted(hit["metadata"].get("title", hit["id"]) for hit in hits)
    assert tab.evaluate(TITLES)[0] == "red-owl"
    assert tab.evaluate(MARKS)[0] == "The red owl lives in house 2 and sings at night."
    assert tab.evaluate("[...document.querySelector('.hit mark').querySelectorAll('b')].map(e => e.textContent)") == [
        "red",
        "owl",
        "lives",
    ]
    assert tab.evaluate("document.querySelector('.hit small').textContent") == f"{round(100 * hits[0]['score'])} %"
    assert tab.evaluate("document.querySelector('.hit .place').textContent") == hits[0]["citation"]
    assert tab.evaluate("document.title") == f"{QUESTION} · palmette"
    answer = service.post("answer", question=QUESTION, k=10).json()["answers"][0]
    is_likely = bool(answer["supports"]) and answer["confidence"] >= 0.5
    assert tab.evaluate("document.querySelectorAll('.answer').length") == int(is_likely), "else the passages speak"
    nonsense = (f"zz{n} qq{n}" for n in range(99))
    scores = lambda text: [hit["score"] for hit in service.post("search", query=text).json()["results"][0]["hits"]]  # noqa: E731
    ask(tab, next(text for text in nonsense if max(scores(text)) < 0.2))
    assert "Nothing fits well" in tab.evaluate("document.getElementById('results').textContent")
    tab.evaluate("history.back()")
    wait(tab, f"{TITLES}[0] === 'red-owl'")
    assert tab.evaluate("document.getElementById('question').value") == QUESTION


def test_an_answer_is_told_and_leads_to_its_source(tab: Tab, folder: Path) -> None:
    few = [documents()[2], documents()[10]]
    Index.build(few, space(), folder / "few").close()
    with running(folder / "few") as service:
        tab.goto(f"{service.url}/")
        wait(tab, "document.getElementById('state').textContent.match(/2 documents/)")
        ask(tab, "The red owl lives in house 2 and sings at night.")
        assert tab.evaluate("document.querySelector('.answer blockquote').textContent") == few[0].text
        assert tab.evaluate("document.querySelector('.answer > p').textContent").endswith("red-owl")
        tab.click(".answer button")
        wait(tab, SOURCE)
        assert tab.evaluate("document.querySelector('#source mark').textContent") == few[0].text


@pytest.mark.filterwarnings("ignore:.*the hits of the first stage:UserWarning")
def test_a_reranker_that_fails_is_told_and_one_that_judges_is_a_reason(tab: Tab, folder: Path) -> None:
    def judge(question: str, texts: list[str]) -> list[float]:
        if question == "owl":
            raise OSError("the cable is cut")
        return [float("blue" in text) for text in texts]

    served = ServedIndex("plain", str(folder / "plain"), rerank=Reranker(judge, weight=9, within=99))
    with running(served) as service:
        opened(tab, service, "#f=animal:owl")
        ask(tab, QUESTION)
        assert tab.evaluate(TITLES)[0] == "blue-owl"
        assert "Note:" not in tab.evaluate("document.body.textContent")
        tab.click(".hit .more button")
        wait(tab, "document.querySelector('.hit .why table')")
        rows = "[...document.querySelectorAll('.hit .why tr')]"
        parts = dict(tab.evaluate(f"{rows}.map(row => [row.cells[0].textContent, row.cells[2].textContent])"))
        assert "reranker" in parts
        log_odds = sum(float(value.replace("\u2212", "-")) for value in parts.values())
        shown = tab.evaluate("document.querySelector('.hit small').textContent")
        assert shown == f"{round(100 / (1 + math.exp(-log_odds)))} %"
        ask(tab, "owl")
        assert "the cable is cut; these are the hits of the first stage" in tab.evaluate(
            "document.querySelector('#results .note').textContent"
        )


def test_sources_open_at_the_line(tab: Tab, service: Running) -> None:
    question = "Ahoy, the purple whale swims in harbour nine"
    found = service.post("search", query=question, k=1, filter={"colour": "purple"}).json()["results"][0]["hits"][0]
    shift = found["passage"]["start"]  # a long document is found by one of its passages
    start, end = (shift + at for at in found["highlights"]["sentence"])
    sentence, line = LONG[start:end], LONG[:start].count("\n") + 1
    assert "🐙🐙" in sentence, "characters are not JavaScript's units"
    assert line > 60
    opened(tab, service)
    ask(tab, question)
    tab.evaluate(f"{find('#filters label', 'bdi', 'purple')}.querySelector('input').click()")
    wait(tab, f"{TITLES}.every(title => title === 'sea.md')")  # its passages
    first = "[...document.querySelector('.hit').querySelectorAll('mark:not(.near)')].map(e => e.textContent).join(' ')"
    assert tab.evaluate(first).split() == sentence.split()
    assert tab.evaluate("document.querySelector('.hit .place').textContent") == found["citation"]
    tab.click(".hit .open")
    wait(tab, SOURCE)
    assert tab.evaluate("document.querySelector('#source h3').textContent") == "The sea", "Markdown is rendered"
    shown = "document.querySelector('#source mark').getBoundingClientRect()"
    frame = "document.getElementById('source-text').getBoundingClientRect()"
    assert tab.evaluate(f"{shown}.top > {frame}.top && {shown}.bottom < {frame}.bottom"), "scrolled into view"
    assert tab.evaluate("document.querySelector('#source mark').closest('[data-line]').dataset.line") == str(line)
    marks = "[...document.querySelectorAll('#source mark')].map(e => e.textContent)"
    assert tab.evaluate(marks) == [part for part in sentence.split("\n") if part]
    bold = tab.evaluate("[...document.querySelectorAll('#source b')].map(e => e.textContent)")
    assert bold == ["Ahoy", "purple", "whale", "swims", "harbour", "nine"]
    tab.press("Escape")
    wait(tab, f"!{SOURCE}")


def test_keys_do_everything(tab: Tab, service: Running) -> None:
    opened(tab, service)
    ask(tab, QUESTION)
    focus, current = "document.activeElement.textContent", "document.querySelector('.hit.current .open').textContent"
    tab.press("ArrowDown")
    assert tab.evaluate(focus) == "red-owl"
    tab.press("ArrowDown")
    assert tab.evaluate(current) == tab.evaluate(TITLES)[1]
    tab.press("ArrowUp")
    tab.press("w")
    wait(tab, "document.querySelector('.hit.current .why tr')")
    tab.press("Enter")
    wait(tab, SOURCE)
    tab.press("Escape")
    wait(tab, f"!{SOURCE}")
    tab.press("Escape")
    assert tab.evaluate("document.activeElement.id") == "question"
    tab.evaluate("document.activeElement.blur()")
    tab.press("/")
    assert tab.evaluate("document.activeElement.id") == "question"
    assert tab.evaluate("document.getElementById('question').value") == QUESTION, "the slash is not typed"


def test_hostile_documents_stay_texts(tab: Tab, service: Running) -> None:
    opened(tab, service)
    ask(tab, HOSTILE)
    assert HOSTILE in tab.evaluate(TITLES)
    tab.evaluate(f"{find('.hit', '.open', HOSTILE)}.querySelector('.more button').click()")
    wait(tab, "document.querySelector('.why tr')")
    tab.evaluate(f"{find('.open', '', HOSTILE)}.click()")
    wait(tab, SOURCE)
    assert HOSTILE in tab.evaluate("document.getElementById('source-text').textContent")
    tab.press("Escape")
    tab.goto(f"{service.url}/#q={'%3Cimg src=x onerror=hurt=1%3E'}&in=%3Cscript%3E")
    wait(tab, "document.querySelector('.problem')?.textContent.startsWith('There is no index “<script>” here')")
    tab.press("Enter")  # the question is kept, and asked in the index that there is
    wait(tab, "document.querySelector('.hit')")
    tab.click("#to-browse")
    wait(tab, "document.querySelector('#results .topic li button')")
    assert tab.evaluate("document.querySelectorAll('img, script:not([src])').length") == 0


def test_hostile_places_lead_nowhere(tab: Tab, tmp_path: Path) -> None:
    """Sources, headings, ids, names of metadata and filters of documents make no link, and no markup."""
    places = {"source": "javascript:hurt=1", "url": "file:///etc/passwd", HOSTILE: "imp", "__proto__": "imp"}
    text = f"# {HOSTILE}\n\n{'words ' * 400}\n\n## {HOSTILE}\n\nThe imp sings."
    bad = [Document(f"javascript:hurt={n}", f"{text} Number {n}.", places | {"t": HOSTILE[n:]}) for n in range(3)]
    Index.build([*documents(), *bad], space(), tmp_path / HOSTILE.replace("/", "")).close()
    with running(ServedIndex(HOSTILE, str(tmp_path / HOSTILE.replace("/", "")))) as service:
        opened(tab, service)
        ask(tab, "The imp sings. Number 1.")
        assert "javascript:hurt=" in tab.evaluate("document.getElementById('results').textContent")
        tab.click(".hit .open")
        wait(tab, SOURCE)
        tab.press("Escape")
        tab.click("#to-browse")
        wait(tab, "document.querySelectorAll('#results .hit').length === 20")
        wait(tab, "document.querySelector('.topic li button')")
        tab.evaluate(f"{find('#results button', '', 'More')}.click()")
        wait(tab, "document.querySelectorAll('#results .hit').length === 40")
        tab.evaluate(f"{find('#results button', '', 'More')}.click()")
        wait(tab, "document.querySelectorAll('#results .hit').length === 51")
        assert "javascript:hurt=" in tab.evaluate("document.getElementById('results').textContent")
        assert tab.evaluate("document.querySelectorAll('a:not(.skip), img, iframe, script:not([src])').length") == 0
        assert tab.evaluate("typeof hurt") == "undefined"


def test_the_policy_stops_what_slips_in(browser: Tab, service: Running) -> None:
    browser.goto(f"{service.url}/")
    browser.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hurt = 1\">')")
    browser.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'hurt = 1'}))")
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {src: 'data:text/javascript,hurt=1'}))"
    )
    until(lambda: len(browser.errors) >= 3)
    assert browser.evaluate("typeof hurt") == "undefined"
    assert browser.evaluate("fetch('https://palmette.example/').then(() => 'sent', () => 'refused')") == "refused"
    assert "Content Security Policy" in json.dumps(browser.errors)
    browser.errors.clear()


def test_the_files_name_no_other_host() -> None:
    for name in ("index.html", "page.js", "page.css"):
        text = (files("palmette.service") / "page" / name).read_text("utf-8")
        assert not re.search(r"https?://|@import|url\(|//[a-z]+\.[a-z]", text), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(| on[a-z]+=", text
        ), name


def test_an_index_is_browsed_by_its_topics_and_metadata(tab: Tab, folder: Path) -> None:
    with running(folder / "plain", folder / "colours") as service:
        opened(tab, service, "#in=plain")
        tab.click("#to-browse")
        wait(tab, "document.querySelectorAll('#results .hit').length === 20")
        wait(tab, "document.querySelectorAll('#results .topic li button').length > 10")
        topic = "document.querySelector('#results .topic')?.textContent"
        assert "passages" in tab.evaluate(topic)
        tab.click("#results .topic li button")
        wait(tab, SOURCE)
        tab.press("Escape")
        tab.evaluate(f"{find('#results button', '', 'More')}.click()")
        wait(tab, "document.querySelectorAll('#results .hit').length === 40")
        tab.evaluate(f"{find('#filters label', 'bdi', 'owl')}.querySelector('input').click()")
        wait(tab, "document.querySelectorAll('#results .hit').length === 6")
        tab.click("#to-ask")
        assert tab.evaluate("document.getElementById('index').value") == "plain"
        tab.evaluate(
            "const s = document.getElementById('index'); s.value = 'colours'; s.dispatchEvent(new Event('change'))"
        )
        wait(tab, "document.getElementById('state').textContent.match(/52 documents/)")


def test_a_token_is_asked_for(tab: Tab, folder: Path) -> None:
    secret = "eve's token, long enough"
    with running(folder / "plain", tokens=[Token(name="eve", token=secret, filter={"colour": "green"})]) as service:
        tab.goto(f"{service.url}/")
        for number, token in enumerate(("wrong, and long enough", secret)):
            wait(tab, "document.querySelector('#sign-in[open]')")
            assert bool(tab.evaluate("document.getElementById('sign-in-why').textContent")) == bool(number)
            tab.evaluate("document.getElementById('token').focus()")
            tab.type(token)
            tab.press("Enter")
        wait(tab, "document.getElementById('state').textContent.match(/8 documents/)")
        ask(tab, QUESTION)
        assert all(title.startswith("green") for title in tab.evaluate(TITLES))
        tab.evaluate("sessionStorage.clear()")
    tab.errors[:] = [one for one in tab.errors if "401" not in json.dumps(one)]


BLANK_PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
BLANK_PDF += b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def test_every_state_has_an_address(tab: Tab, folder: Path) -> None:
    """Each step goes into the address; Back takes it back, and a new page at the address shows the same."""
    with running(folder / "plain", folder / "colours") as service:
        opened(tab, service, "#in=plain")
        ask(tab, "owl")
        tab.evaluate(f"{find('#filters label', 'bdi', 'green')}.querySelector('input').click()")
        wait(tab, f"{TITLES}.length && {TITLES}.every(e => e.startsWith('green'))")
        tab.evaluate(f"{find('.open', '', 'green-owl')}.click()")
        wait(tab, SOURCE)
        marked = tab.evaluate("document.querySelector('#source mark').textContent")
        address = tab.evaluate("location.hash")
        tab.goto(f"{service.url}/{address}")
        wait(tab, SOURCE)
        assert tab.evaluate("document.querySelector('#source mark').textContent") == marked
        assert tab.evaluate("document.getElementById('question').value") == "owl"
        assert tab.evaluate(f"{find('#filters label', 'bdi', 'green')}.querySelector('input').checked")
        assert tab.evaluate("document.getElementById('index').value") == "plain"
        tab.press("Escape")
        wait(tab, f"!{SOURCE} && !location.hash.includes('doc=')")
        tab.click("#to-browse")
        wait(tab, "document.querySelectorAll('#results .hit').length === 8 && location.hash.includes('view=browse')")
        tab.evaluate("history.back()")
        wait(tab, f"{TITLES}[0] === 'green-owl' && !document.querySelector('.topic')")
        assert tab.evaluate("document.getElementById('to-ask').getAttribute('aria-pressed')") == "true"
        tab.evaluate("history.back()")  # the document again
        wait(tab, SOURCE)
        tab.evaluate("location.hash = '#q=bee&in=colours'")
        wait(tab, f"!{SOURCE} && document.title.startsWith('bee') && {TITLES}.length > 8")
        assert tab.evaluate("document.getElementById('index').value") == "colours"
        tab.evaluate("location.hash = '#q=bee&in=gone&doc=red-owl'")
        wait(tab, "document.querySelector('.problem')?.textContent.startsWith('There is no index “gone” here')")
        assert tab.evaluate(f"[{TITLES}.length, {SOURCE} === null]") == [0, True]
        ask(tab, "bee")
        assert tab.evaluate("location.hash") == "#q=bee&in=colours"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A followed folder of files of several kinds."""
    from palmette.service import indexes

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(indexes, "POLL", 0.05)
        path = tmp_path_factory.mktemp("mixed")
        space().save_pretrained(path / "model")
        notes = path / "notes"
        (notes / "code").mkdir(parents=True)
        (notes / "tables").mkdir()
        for document in documents()[:12]:
            (notes / f"{document.id}.md").write_text(
                f"# {document.id}\n\n{document.text}\n\nSee [code](code/turn.py).\n"
            )
        wide = "| " + " | ".join(f"column {n} of the owls" for n in range(14)) + " |\n|" + "---|" * 14 + "\n"
        (notes / "tables" / "wide.md").write_text("# Owls\n\n" + wide + "| red owl " * 14 + "|\n")
        (notes / "code" / "turn.py").write_text(
            "def owl(house):\n    return house + 1  # " + "the owl turns " * 30 + "\n"
        )
        (notes / "arabic.txt").write_text("البومة الحمراء تعيش في المنزل رقم اثنين وتغني في الليل (owl).\n", "utf-8")
        (notes / "prices.csv").write_text("id,owl,price\n1,red owl,12.50\n2,blue owl,9\n")
        (notes / "file.pdf").write_bytes(BLANK_PDF)
        served = ServedIndex("notes", str(notes), model=str(path / "model"))
        with running(served, wait=False) as service:
            until(lambda: service.http.get("/ready").status_code == 200)
            yield service


AXE = find_spec("axe_playwright_python")


def violations(tab: Tab) -> list[Any]:
    """Serious violations of what the page shows."""
    assert AXE is not None
    script = (Path(AXE.submodule_search_locations[0]) / "axe.min.js").read_text("utf-8")
    run = "axe.run().then(found => found.violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html).slice(0, 3)]))"
    tab.evaluate(script + ";0")
    return [one for one in tab.evaluate(run) if one[0] in ("serious", "critical")]


@pytest.mark.skipif(AXE is None, reason="needs axe-playwright-python")
@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)])
def test_axe_finds_no_serious_violation(tab: Tab, mixed: Running, dark: bool, width: int) -> None:
    states = (
        "#",
        "#q=owl+price+red",
        "#view=browse",
        "#q=owl&doc=notes/code/turn.py&line=2",
        "#doc=notes/tables/wide.md",
    )
    for state in (*states, "#doc=notes/prices.csv%231", "#doc=notes/arabic.txt"):
        tab.goto(f"{mixed.url}/{state}", width=width, height=844, dark=dark)
        wait(tab, "document.querySelector('#filters legend') && !document.querySelector('[aria-busy]')")
        wait(tab, "document.querySelector('.topic') || !location.hash.includes('browse')")
        wait(tab, "document.querySelector('#source-text > div') || !location.hash.includes('doc=')")
        assert tab.evaluate("document.documentElement.scrollWidth") == width, state
        assert violations(tab) == [], state
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 150) == dark


def test_kinds_are_shown_as_what_they_are(tab: Tab, mixed: Running) -> None:
    opened(tab, mixed, "#q=owl+turns+house")
    wait(tab, "document.querySelector('.hit .code .line')")
    assert "mono" in tab.evaluate("getComputedStyle(document.querySelector('.hit .code')).fontFamily").lower()
    names = tab.evaluate("[...document.querySelectorAll('#filters legend')].map(e => e.textContent)")
    assert names == ["folder", "kind"]
    tab.evaluate(f"{find('#filters label', 'bdi', 'code/')}.querySelector('input').click()")
    wait(tab, f"{TITLES}.length === 1")
    tab.goto(f"{mixed.url}/#doc=notes/red-owl.md")
    wait(tab, "document.querySelector('#source-text a')")
    tab.evaluate("document.querySelector('#source-text a').click()")
    wait(tab, "document.getElementById('source-place').textContent === 'code/turn.py'")
    tab.evaluate("history.back()")
    wait(tab, "document.getElementById('source-title').textContent === 'red-owl'")


def test_changes_and_silence_are_said(tab: Tab, tmp_path: Path) -> None:
    Index.build(documents()[:12], space(), tmp_path / "few").close()
    notice = "document.getElementById('notice').textContent"
    with running(tmp_path / "few", write=True) as service:
        tab.goto(f"{service.url}/#q=owl")
        wait(tab, "document.querySelector('.hit') && !document.querySelector('[aria-busy]')")
        service.post("add", documents=[{"id": "new", "text": "A new owl sings."}])
        wait(tab, f"{notice}.startsWith('The sources have changed since this was asked.')")
        tab.click("#notice button")
        wait(tab, f"{TITLES}.includes('new') && document.getElementById('notice').hidden")
    ask(tab, "bee")
    assert tab.evaluate("document.querySelector('.problem').textContent").startswith("The service does not answer")
    assert tab.evaluate("document.querySelector('.problem button').textContent") == "Try again"
    tab.goto("about:blank#")
    tab.errors[:] = [one for one in tab.errors if "ERR_CONNECTION" not in json.dumps(one)]


WRITTEN = "They are picked in `September` [1]. They are <img src=x onerror='hurt = 1'> blue [1][7].\n```sh\npick\n```"
TURNS = "[...document.querySelectorAll('.turn')].map(e => e.querySelector('h2').textContent)"


def test_a_model_answers_in_a_conversation(tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(body: Any) -> tuple[int, dict[str, str], Any]:
        prompt = body["messages"][1]["content"]
        last = prompt.rpartition("uestion: ")[2]
        if last == "and bees?":
            return 200, {}, events("When do bees need flowers?")
        if last == "When do bees need flowers?":
            return 200, {}, events("Bees need flowers from March ", "to October [1].")
        if last == "When are apples picked?":
            return 200, {}, events(WRITTEN[:30], WRITTEN[30:])
        is_rewritten = "The last question" not in prompt
        return (400, {}, [b"{}"]) if is_rewritten else (200, {}, events("Do bees need flowers?"))

    def written(question: str) -> str:
        tab.evaluate("document.getElementById('question').select()")
        tab.type(question)
        tab.press("Enter")
        wait(tab, f"{TURNS}.at(-1) === {json.dumps(question)} && !document.querySelector('[aria-busy]')")
        return str(tab.evaluate("document.querySelector('.turn.last').textContent"))

    texts = {"apples": "Apples are picked in September.", "bees": "Bees need flowers from March to October."}
    rows = [{"id": id, "text": text} for id, text in texts.items()]
    Index.build(rows, path=tmp_path / "orchard", encoder="packaged:all-MiniLM-L6-v2", progress=False).close()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    model = StreamServer()
    model.reply = reply
    with running(tmp_path / "orchard") as service:
        service.service.writer = Writer(f"openai:small@{model.url}", Limits(seconds=5), shared=False)
        tab.goto(f"{service.url}/")
        wait(tab, "document.getElementById('state').textContent.match(/2 documents/)")
        assert "No answer: no passage fits" in written("quantum chromodynamics lattice")
        assert not model.bodies
        tab.click(".turn.last .more button:last-child")
        wait(tab, "!document.querySelector('.turn')")

        told = written("When are apples picked?")
        assert "<img src=x" in told, "a model's text is text"
        assert tab.evaluate("[...document.querySelectorAll('.unsupported')].map(e => e.textContent)") == [
            "They are <img src=x onerror='hurt = 1'> blue [1][7]. not found in the sources",
            "pick not found in the sources",
        ]
        assert tab.evaluate("document.querySelector('.written code').textContent") == "September"
        assert tab.evaluate("document.querySelector('.written pre').textContent").startswith("pick")
        assert tab.evaluate("[...document.querySelectorAll('.sources button')].map(e => e.textContent)") == ["apples"]
        assert tab.evaluate(TITLES)[0] == "apples"
        assert tab.evaluate(MARKS)[0] == texts["apples"], "passages come as the page shows them"
        tab.click(".cite")
        wait(tab, SOURCE)
        assert tab.evaluate("document.querySelector('#source mark').textContent") == texts["apples"]
        tab.evaluate("history.back()")
        wait(tab, f"!{SOURCE}")

        assert "Understood as: When do bees need flowers?" in written("and bees?")
        assert tab.evaluate(TURNS) == ["When are apples picked?", "and bees?"]
        assert tab.evaluate(TITLES)[0] == "bees"
        assert AXE is None or violations(tab) == []
        calls = len(model.bodies)
        tab.evaluate("history.back()")
        wait(tab, f"{TURNS}.length === 1 && !document.querySelector('[aria-busy]')")
        tab.evaluate("window.old = 1; location.reload()")
        wait(tab, "!window.old && document.querySelector('.hit') && document.querySelector('.unsupported')")
        assert len(model.bodies) == calls, "what was answered is not paid for again"

        assert "Try again" in written("Do bees need flowers?")
        assert tab.evaluate(TITLES)[0] == "bees", "passages stay where the model fails"
        assert tab.evaluate("typeof hurt") == "undefined"
    model.close()


def test_a_press_and_an_opened_source_while_the_model_writes(
    tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = threading.Event()

    def slowly() -> Iterator[Any]:
        while not whole.is_set():
            yield from (*events("Apples are picked. ", finish=None), 0.02)
        yield from events("Enough.", finish="length")

    def ask(question: str) -> None:
        tab.evaluate("document.getElementById('question').select()")
        tab.type(question)
        tab.press("Enter")
        wait(tab, f"{TURNS}.at(-1) === {json.dumps(question)} && document.querySelector('.turn.last .written')")

    rows = [{"id": "apples", "text": "Apples are picked in September."}]
    Index.build(rows, path=tmp_path / "orchard", encoder="packaged:all-MiniLM-L6-v2", progress=False).close()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    model = StreamServer()
    model.reply = lambda body: (
        (200, {}, events("When are apples picked?"))
        if "The last question" in body["messages"][1]["content"]
        else (200, {}, slowly())
    )
    with running(tmp_path / "orchard") as service:
        service.service.writer = Writer(f"openai:small@{model.url}", Limits(100_000, 30), shared=False)
        tab.goto(f"{service.url}/")
        wait(tab, "document.getElementById('state').textContent.match(/1 document/)")
        ask("When are apples picked?")
        x, y = tab.evaluate(
            "(() => { const stop = document.querySelector('.turn.last .more button').getBoundingClientRect();"
            "return [stop.x + stop.width / 2, stop.y + stop.height / 2]; })()"
        )
        tab.send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        time.sleep(0.2)
        tab.send("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)
        wait(tab, "document.querySelector('.turn.last .more').textContent.startsWith('Stopped')")

        ask("Are apples picked in September?")
        wait(tab, "document.querySelector('.hit')")
        tab.evaluate("document.querySelector('.hit .open').click()")
        wait(tab, SOURCE)
        whole.set()
        wait(tab, "document.querySelector('.turn.last').textContent.includes('was cut at its budget')")
        tab.evaluate("history.back()")
        wait(tab, f"!{SOURCE}")
        ask("When?")
        assert tab.evaluate(TURNS) == ["Are apples picked in September?", "When?"], "the answer is kept"
    model.close()
