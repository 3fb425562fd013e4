"""The method that CONTRIBUTING shows works, from the page itself."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from palmette import FakeEncoder, Index, methods
from support.tiny import documents

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_method_on_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    module = ModuleType("plain_method")
    monkeypatch.setitem(sys.modules, "plain_method", module)
    exec(compile(code, str(PAGE), "exec"), vars(module))
    monkeypatch.setitem(methods.METHODS, "plain", "plain_method:PlainModel")
    model = module.PlainModel.fit(documents(), encoder=FakeEncoder(48), progress=False)
    with Index.build(documents(), model, tmp_path / "index") as index:
        found = index.search("The red cat lives in house 0", k=3, lexical=0)
        vectors = model.encoder.encode([document.text for document in documents()])
        best = (vectors @ model.encoder.encode_queries(["The red cat lives in house 0"])[0]).argmax()
        assert found[0].id == documents()[best].id
        assert found[0].explain().score == pytest.approx(found[0].score, abs=1e-6)
        assert index.search("owl", k=2, filter={"animal": "owl"}, lexical=0.5)[0].document.metadata["animal"] == "owl"
        ids = [hit.id for hit in found]
    with Index.open(tmp_path / "index", model) as again:
        assert [hit.id for hit in again.search("The red cat lives in house 0", k=3, lexical=0)] == ids
