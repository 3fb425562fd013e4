"""The method that CONTRIBUTING shows works in every storage, and passes ruff and mypy as it is."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from palmette import FakeEncoder, Index, Model, load_model, methods
from palmette.methods import model_class
from support.tiny import documents, pairs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
[CODE] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
QUERY = "The red cat lives in house 0"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> type[Model]:
    """The class of the page, as a method of its own."""
    module = ModuleType("plain_method")
    monkeypatch.setitem(sys.modules, "plain_method", module)
    exec(compile(CODE, str(PAGE), "exec"), vars(module))
    monkeypatch.setitem(methods.METHODS, "plain", "plain_method:PlainModel")
    return model_class("plain")


def test_it_is_searched_in_every_storage(plain: type[Model], place: Callable[[], str | Path]) -> None:
    model = plain.fit(documents(), encoder=FakeEncoder(48), progress=False)
    where = place()
    with Index.build(documents(), model, where) as index:
        found = index.search(QUERY, k=3, lexical=0)
        vectors = model.encoder.encode([document.text for document in documents()])
        best = (vectors @ model.encoder.encode_queries([QUERY])[0]).argmax()
        assert found[0].id == documents()[best].id
        assert found[0].explain().score == pytest.approx(found[0].score, abs=1e-6)
        assert index.search("owl", k=2, filter={"animal": "owl"}, lexical=0.5)[0].document.metadata["animal"] == "owl"
        ids = [hit.id for hit in found]
    with Index.open(where, model) as again:
        assert [hit.id for hit in again.search(QUERY, k=3, lexical=0)] == ids


def test_its_checkpoint_is_loaded_and_its_card_imports_what_there_is(plain: type[Model], tmp_path: Path) -> None:
    plain.fit(documents(), encoder=FakeEncoder(48), progress=False).save_pretrained(tmp_path / "plain")
    assert type(load_model(tmp_path / "plain", encoder=FakeEncoder(48))) is plain
    card = (tmp_path / "plain" / "README.md").read_text("utf-8")
    assert "none: the encoder as it is" in card
    for line in re.findall(r"^from (?:langchain_palmette|llama_index\S+) import \w+$", card, flags=re.MULTILINE):
        exec(line)
    assert card.count("PalmetteRetriever") >= 2


def test_labelled_pairs_teach_its_coefficients(plain: type[Model]) -> None:
    unlabelled = plain.fit(documents(), encoder=FakeEncoder(48), progress=False)
    assert (unlabelled.calibrations, unlabelled.record.pairs) == ({}, 0)
    labelled = plain.fit(pairs(), encoder=FakeEncoder(48), progress=False)
    assert labelled.calibrations[""].source == "held-out questions"
    assert 0 < labelled.record.pairs < 48, "some are held out"


def test_the_page_passes_ruff() -> None:
    where = "--stdin-filename=plugin/palmette/methods/plain/model.py"
    for command in (["check", where, "-"], ["format", "--diff", where, "-"]):
        ruff = [sys.executable, "-m", "ruff", *command]
        done = subprocess.run(ruff, input=CODE, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_passes_mypy(tmp_path: Path) -> None:
    (tmp_path / "plain_method.py").write_text(CODE, "utf-8")
    mypy = [sys.executable, "-m", "mypy"]  # with the options of `make types`, whose cache it finds
    done = subprocess.run([*mypy, str(tmp_path / "plain_method.py")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
