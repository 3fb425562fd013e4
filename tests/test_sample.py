"""The standard library as documents, as data to train on, and the handwritten questions."""

import hashlib
import platform
import sys
from pathlib import Path

import pytest

from palmette import sample
from palmette.errors import InputError, NotFoundError
from palmette.sample import load_questions, python_catalogue, sample_data

NEWER = {"pathlib.Path.walk", "pdb.set_trace", "mimetypes.guess_file_type", "warnings.deprecated"}
"""Answers that Python 3.11 does not have."""


@pytest.fixture(scope="module")
def full():
    return {entry.id: entry for entry in python_catalogue()}


@pytest.fixture(scope="module")
def data():
    return sample_data()


def test_an_entry_says_what_it_is_and_where(full):
    entry = full["json.dumps"]
    assert entry.text.startswith("json.dumps(obj, *, skipkeys=False")
    assert entry.fields["name"] == "json.dumps"
    assert entry.fields["signature"] in entry.text
    assert entry.fields["summary"].startswith("Serialize ``obj``")
    assert entry.fields["body"].startswith("If ``skipkeys``")
    place = {"path": "json > json.dumps", "python": platform.python_version()}
    assert entry.metadata == dict.fromkeys(("module", "package", "parent"), "json") | {"kind": "function"} | place


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


def test_modules_narrow_it(full):
    found = python_catalogue(["json", "xml.etree"])
    assert {entry.metadata["module"] for entry in found} >= {"json", "json.tool", "xml.etree.ElementTree"}
    assert {entry.metadata["package"] for entry in found} == {"json", "xml"}
    of_json = [name for name, entry in full.items() if entry.metadata["package"] == "json"]
    assert [entry.id for entry in python_catalogue("json")] == of_json


def test_what_is_not_there_is_named(monkeypatch):
    with pytest.raises(InputError, match="no module 'jsn'"):
        python_catalogue(["jsn"])
    monkeypatch.setattr(sample, "library_entries", sample.library_entries.__wrapped__)
    monkeypatch.setattr(sample, "COLLECTOR", Path("nowhere.py"))
    with pytest.raises(NotFoundError, match=r"nowhere\.py"):
        python_catalogue()


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
