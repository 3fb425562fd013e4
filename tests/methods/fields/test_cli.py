"""A shop in a table, from the shell: train, index, search."""

import json
from pathlib import Path

import pytest

from palmette.cli import main
from support.alone import Index
from support.shop import shop
from support.tiny import learner

pytestmark = pytest.mark.filterwarnings("ignore:.* has no labelled pairs")


def test_a_table_becomes_a_search_by_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{d.id},{d.fields.get('title', '')},{d.text},{d.metadata['brand']},{d.id}\n" for d in shop()]
    (tmp_path / "shop.csv").write_text("id,title,text,brand,price\n" + "".join(rows))
    ckpt, place = str(tmp_path / "ckpt"), str(tmp_path / "index")
    train = ["train", "fields", str(tmp_path / "shop.csv"), "--out", ckpt, "--encoder", learner().name]
    options = "--fields brand=metadata.brand,title,text --budgets text=9 --device cpu --quiet"
    assert main([*train, *options.split()]) == 0
    config = json.loads((tmp_path / "ckpt" / "config.json").read_text())["config"]
    own = ["brand=metadata.brand", "title", "text"]
    assert config["fields"] == [*own, "all=metadata.brand+title+text"]
    assert config["limits"][2] == 9
    assert main(["index", ckpt, str(tmp_path / "shop.csv"), "--out", place, "--quiet"]) == 0
    capsys.readouterr()
    cheap = ["--filter", '{"price": {"$lt": 9}}']
    assert main(["search", place, "golden owl", "-k", "2", "--explain", "--json", *cheap]) == 0
    found = json.loads(capsys.readouterr().out)
    hits = found["hits"] if isinstance(found, dict) else found
    assert "similarities" in json.dumps(hits)
    chosen = ["--fields", "title", "--weights", "title=2", "--blend", "0"]
    assert main(["search", place, "golden owl", "-k", "2", "--json", "--lexical", "0", *chosen]) == 0
    with Index.open(place) as index:
        options = {"fields": ["title"], "weights": {"title": 2}, "blend": 0.0}
        expected = index.search("golden owl", k=2, lexical=0, **options)
    assert [hit["id"] for hit in json.loads(capsys.readouterr().out)] == [hit.id for hit in expected]
