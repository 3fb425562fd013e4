"""The standard library as documents, as data to train on, and the handwritten questions."""

import argparse
import hashlib
import inspect
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from palmette import sample
from palmette.errors import InputError, NotFoundError
from palmette.sample import collect, load_questions, python_catalogue, sample_data

NEWER = {"pathlib.Path.walk", "pdb.set_trace", "mimetypes.guess_file_type", "warnings.deprecated"}
"""Answers that Python 3.11 does not have."""


@pytest.fixture(scope="module")
def full():
    return {entry.id: entry for entry in python_catalogue()}


@pytest.fixture(scope="module")
def data():
    return sample_data()


def test_it_is_large_and_wide(full):
    kinds = Counter(entry.metadata["kind"] for entry in full.values())
    assert 3000 < len(full) < 8000
    assert set(kinds) == {"module", "class", "function", "method", "property"}
    assert min(kinds.values()) > 100
    assert len({entry.metadata["package"] for entry in full.values()}) > 120


def test_an_entry_says_what_it_is_and_where(full):
    entry = full["json.dumps"]
    assert entry.text.startswith("json.dumps(obj, *, skipkeys=False")
    assert entry.fields["name"] == "json.dumps"
    assert entry.fields["signature"] in entry.text
    assert entry.fields["summary"].startswith("Serialize ``obj``")
    assert entry.fields["body"].startswith("If ``skipkeys``")
    place = {"path": "json > json.dumps", "python": platform.python_version()}
    assert entry.metadata == dict.fromkeys(("module", "package", "parent"), "json") | {"kind": "function"} | place


def test_places(full):
    for path in (
        "pathlib > pathlib.Path > pathlib.Path.glob",
        "os > os.path > os.path.join",
        "builtins > str > str.split",
        "builtins > len",
        "os > os.path",
        "json",
    ):
        *above, name = path.split(" > ")
        assert (full[name].metadata["parent"], full[name].metadata["path"]) == (above[-1] if above else "", path)


PUBLIC = {
    "collections.OrderedDict": ["typing.OrderedDict"],
    "asyncio.run": ["asyncio.runners.run"],
    "asyncio.TaskGroup": ["asyncio.taskgroups.TaskGroup"],
    "json.JSONDecoder": ["json.decoder.JSONDecoder"],
    "concurrent.futures.Future": ["concurrent.futures._base.Future"],
    "bisect.bisect_right": ["bisect.bisect"],
    "open": ["io.open", "builtins.open"],
    "random.randint": ["random.Random.randint"],
    "os.listdir": ["posix.listdir"],
    "socket.socket.connect": ["socket.SocketType.connect", "ssl.SSLSocket.bind"],
    "pathlib.PurePath.suffix": ["pathlib.Path.suffix"],
    "contextlib.ExitStack.enter_context": ["contextlib.AsyncExitStack.enter_context"],
    "unittest.mock.patch": ["unittest.patch"],
}


def test_one_entry_under_the_shortest_public_name(full):
    assert full.keys() >= PUBLIC.keys()
    assert not [name for others in PUBLIC.values() for name in others if name in full]


def test_nothing_private_obsolete_or_machine_dependent(full):
    assert not [name for name in full if any(part.startswith("_") for part in name.split("."))]
    packages = {entry.metadata["package"] for entry in full.values()}
    assert not packages & {"cgi", "distutils", "this", "antigravity", "idlelib"}
    assert not [entry.id for entry in full.values() if " at 0x" in entry.text]


def test_signatures_are_of_the_entry_alone(full):
    assert full["dict.get"].fields["signature"] == "dict.get(key, default=None, /)"
    assert full["dict.update"].fields["signature"].endswith(" -> None")
    assert full["dict.update"].fields["summary"].startswith("Update D from")
    assert full["itertools.islice"].fields["signature"].count("\n") == 1
    assert "formatter_class=HelpFormatter" in full["argparse.ArgumentParser"].fields["signature"]
    assert full["json"].fields["signature"] == ""


def test_the_same_every_time_and_untouched_by_this_process(full, monkeypatch, capfd):
    monkeypatch.setattr("json.dumps.__doc__", "patched")
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    monkeypatch.setattr(sample, "library_entries", sample.library_entries.__wrapped__)
    loaded = set(sys.modules)
    again = python_catalogue()
    assert set(sys.modules) == loaded, "nothing is imported into this process"
    assert capfd.readouterr() == ("", "")
    assert [entry.digest for entry in again] == [entry.digest for entry in full.values()]


def test_nothing_is_imported_into_a_clean_process():
    code = (
        "import sys; from palmette.sample import python_catalogue; before = set(sys.modules)\n"
        "assert python_catalogue(['json']); print(*sorted(set(sys.modules) - before))"
    )
    root = Path(sample.__file__).parents[2]
    command = [sys.executable, "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == ([], "")


def test_modules_narrow_it(full):
    found = python_catalogue(["json", "xml.etree"])
    assert {entry.metadata["module"] for entry in found} >= {"json", "json.tool", "xml.etree.ElementTree"}
    assert {entry.metadata["package"] for entry in found} == {"json", "xml"}
    of_json = [name for name, entry in full.items() if entry.metadata["package"] == "json"]
    assert [entry.id for entry in python_catalogue("json")] == of_json


def test_the_sample_is_a_part_of_the_catalogue(full, data):
    assert 1500 < len(data.corpus) < 2500
    assert all(full[entry.id].digest == entry.digest for entry in data.corpus)
    assert len({entry.metadata["module"] for entry in data.corpus}) > 80


def test_texts_are_cut_between_words(full):
    assert max(len(entry.text) for entry in full.values()) <= 500
    cut, whole = full["argparse"].fields["body"], sample.summarise(inspect.cleandoc(argparse.__doc__))[1]
    assert len(full["argparse"].text) > 450
    assert whole.startswith(cut)
    assert whole[len(cut)].isspace()


def test_what_is_not_there_is_named(monkeypatch):
    with pytest.raises(InputError, match="no module 'jsn'"):
        python_catalogue(["jsn"])
    monkeypatch.setattr(sample, "library_entries", sample.library_entries.__wrapped__)
    monkeypatch.setattr(sample, "COLLECTOR", Path("nowhere.py"))
    with pytest.raises(NotFoundError, match=r"nowhere\.py"):
        python_catalogue()


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        ("f(x) -> int\nf(x, y) -> int\n\nText.", (["(x) -> int", "(x, y) -> int"], "Text.")),
        ("D.f([E, ]**F) -> None.  Do it.\nMore.", (["([E, ]**F) -> None"], "Do it.\nMore.")),
        ("f(*its) --> Yield tuples until one is out.", (["(*its)"], "Yield tuples until one is out.")),
        ("f(x=g(1)): do it", (["(x=g(1))"], "do it")),
        ("f(x) does it (really).", ([], "f(x) does it (really).")),
        ("Do it.", ([], "Do it.")),
    ],
)
def test_calls_at_the_head_of_a_docstring(doc, expected):
    assert collect.leading_calls("f", doc) == expected


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        ("Do it.\n\nMore.", ("Do it.", "More.")),
        ("Do it,\nnow. Then rest.\n\nMore.", ("Do it, now.", "Then rest.\n\nMore.")),
        ("Use e.g. This one. Next.", ("Use e.g. This one.", "Next.")),
        ("no stop", ("no stop", "")),
        ("word " * 100, (" ".join(["word"] * 60)[:299], " ".join(["word"] * 40))),
    ],
)
def test_the_first_sentence_is_the_summary(doc, expected):
    assert sample.summarise(doc.strip()) == expected


def test_splits_and_their_answers(data):
    assert (list(data.qrels), data.labelled) == (["train", "heldout", "dev", "test"], True)
    assert len(data.split("train").queries) > 1500
    assert len(data.split("heldout").queries) > 100
    asked = data.split("dev").queries | data.split("test").queries
    assert asked == {question.id: question.question for question in load_questions()}
    documents, queries = data.pairs("test")
    assert len(documents) == len(queries) >= len(data.split("test").queries)


def test_training_never_sees_questions_or_held_out_modules(data):
    by_id = {entry.id: entry for entry in data.corpus}

    def modules(split):
        first = (next(iter(judged)) for judged in data.qrels[split].values())
        return {by_id[name].metadata["module"] for name in first}

    assert not modules("train") & modules("heldout")
    assert all(query.startswith("summary:") for query in data.qrels["train"])


def test_a_summary_shared_by_entries_is_one_query(data):
    texts = [data.queries[query] for query in data.qrels["train"]]
    assert len(set(texts)) == len(texts)
    assert {len(judged) for judged in data.qrels["train"].values()} == {1, 2, 3}


def test_every_question_has_an_answer_on_every_python(full):
    asked = [set(question.gold) for question in load_questions()]
    assert set.union(*asked) - full.keys() <= NEWER
    assert not [gold for gold in asked if gold <= NEWER]


def test_questions_are_numbered_and_halved_by_hash():
    questions = load_questions()
    assert [question.id for question in questions] == [f"howto-{n:03d}" for n in range(1, len(questions) + 1)]
    assert len({question.question for question in questions}) == len(questions)
    for question in questions:
        assert question.question == question.question.strip() != ""
        assert 1 <= len(question.gold) == len(set(question.gold)) <= 5
        odd = hashlib.sha256(question.id.encode()).digest()[-1] % 2
        assert question.split == ("test" if odd else "dev")
    assert 0.4 < sum(question.split == "dev" for question in questions) / len(questions) < 0.6
