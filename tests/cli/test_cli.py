"""The command line, run as a user runs it (in this process, or a child where that matters)."""

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from palmette import Index
from palmette.cli import COMMANDS, build_parser, main, parse
from palmette.cli.train import add_config_options
from palmette.encoder import EncodingCache, load_encoder
from palmette.errors import PalmetteError
from palmette.methods import load_model
from palmette.methods.fields.config import FieldsConfig
from palmette.methods.layers.config import LayersConfig
from palmette.methods.paths.config import PathsSearch
from palmette.methods.taxonomy.config import TaxonomySearch
from palmette.methods.tree.config import TreeConfig
from palmette.training.loop import Loop
from support import readers
from support.stores import watching
from support.tiny import documents, pairs, tree


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data files, a checkpoint and an index."""
    folder = tmp_path_factory.mktemp("cli")
    write(folder / "pairs.jsonl", [{"query": q, "positive": p} for q, p in pairs()])
    rows = [{"id": d.id, "text": d.text, "metadata": dict(d.metadata)} for d in documents()]
    write(folder / "docs.jsonl", rows)
    tree().save_pretrained(folder / "ckpt")
    index = ["index", folder / "ckpt", folder / "docs.jsonl", "--out", folder / "index", "--quiet"]
    assert main(list(map(str, index))) == 0
    return folder


@pytest.fixture
def run(capsys):
    """Run a command and return what it prints: its errors where it should fail, and nothing else then."""

    def run(*words, status=0):
        assert main(list(map(str, words))) == status
        shown = capsys.readouterr()
        assert not status or not shown.out
        return shown.err if status else shown.out

    return run


def test_no_arguments_teach(run):
    shown = run()
    assert "from nothing to answers" in shown
    assert all(f"\n  {name}" in shown for name in COMMANDS), "every command is listed"
    steps = [shlex.split(line) for line in shown.splitlines() if line.startswith("    palmette ")]
    assert len(steps) >= 6
    for _, *words in steps:
        assert parse(build_parser(words), words).handler, "every step of the tour is a command that parses"


def test_every_command_shows_its_help(capsys):
    for words in (*([command] for command in COMMANDS), ["train", "tree"]):
        with pytest.raises(SystemExit) as left:
            main([*words, "--help"])
        assert left.value.code == 0
        assert f"palmette {words[0]}" in capsys.readouterr().out.partition("examples:")[2] or words[1:]


@pytest.mark.parametrize(
    ("config", "words", "options"),
    [
        (TreeConfig, "--depth 3 --sharpness 1e-3 --start random", {"depth": 3, "sharpness": 0.001, "start": "random"}),
        (FieldsConfig, "--fields x,y --whole false", {"fields": ("x", "y"), "whole": False}),
        (FieldsConfig, "--fields x", {"fields": ("x",)}),
        (LayersConfig, "--layers 1,4", {"layers": (1, 4)}),
        (LayersConfig, "--layers 2", {"layers": (2,)}),
        (PathsSearch, "--visit 0.5", {"visit": 0.5}),
        (PathsSearch, "--visit auto", {"visit": "auto"}),
        (TaxonomySearch, "--within 9", {"within": "9"}),
    ],
)
def test_flags_come_from_a_config(config, words, options):
    parser = argparse.ArgumentParser()
    add_config_options(parser, config, {})
    assert vars(parser.parse_args([])) == {}, "defaults are the config's"
    assert config(**vars(parser.parse_args(words.split()))) == config(**options)


def test_train_and_resume(place, tmp_path, monkeypatch, capsys, run):
    out, step = tmp_path / "ckpt", Loop.step
    words = ["train", "tree", str(place / "pairs.jsonl"), "--out", str(out)]
    words += "--encoder fake:16 --quiet --start random --depth 4 --steps 9 --batch-size 8".split()
    words += ["--evaluate-every", "3"]

    def interrupt(self, number):
        if self.config.steps == 9 and number == 7:
            raise KeyboardInterrupt
        step(self, number)

    monkeypatch.setattr(Loop, "step", interrupt)
    assert "with --resume goes on" in run(*words, status=130)
    monkeypatch.undo()
    assert main([*words, "--resume", "--json"]) == 0
    shown = capsys.readouterr()
    made = json.loads(shown.out)
    assert shown.err == ""
    assert (made["checkpoint"], made["steps"]) == (str(out), 9)
    assert (tmp_path / "ckpt.training" / "training.jsonl").exists()
    facts = json.loads(run("inspect", out, "--json"))["model"]
    assert facts["fingerprint"] == made["fingerprint"]
    assert facts["structure"]["leaves"] == 16
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "--resume would go on" in shown.err
    assert re.search(r"tree trained on \d+ pairs of pairs in .* on held-out queries\n", shown.out)
    assert f"next: palmette index {out} DOCUMENTS --out my-index" in shown.out
    assert load_model(out).fingerprint == made["fingerprint"], "the same as the run that was interrupted"


def test_index_again_touches_only_what_changed(place, tmp_path, run):
    changed, words = (tmp_path / "docs.jsonl", ["index", place / "ckpt", "--out", tmp_path / "index", "--quiet"])
    rows = [json.loads(line) for line in (place / "docs.jsonl").read_text().splitlines()]
    rows[3]["text"] = "entirely new words"
    rows.append({"id": "extra", "text": "one more"})
    changed.write_bytes((place / "docs.jsonl").read_bytes())
    first = json.loads(run(*words, "--json", changed))
    write(changed, rows)
    second = json.loads(run(*words, "--json", changed))
    assert [first[key] for key in ("documents", "added", "changed", "unchanged")] == [48, 48, 0, 0]
    assert [second[key] for key in ("documents", "added", "changed", "unchanged")] == [49, 1, 1, 47]
    write(changed, rows[:10])
    third = json.loads(run(*words, "--json", changed))
    assert [third[key] for key in ("documents", "removed", "encoded")] == [10, 39, 0]
    assert "10 documents, 10 passages" in run(*words, changed)
    other = tmp_path / "other" / "docs.jsonl"
    other.parent.mkdir()
    write(other, rows[:1])
    assert "give this one a name of its own" in run(*words, other, status=1)
    assert "skipped" in run(*words, other, "--source", "other"), "its id belongs to the first source"


def test_options_that_would_do_harm_or_nothing_are_refused(place, tmp_path, run):
    folder, index = tmp_path / "notes", tmp_path / "index"
    folder.mkdir()
    (folder / "owls.md").write_text("The green owl lives in house 9.")
    words = ["index", place / "ckpt", folder, "--out", index, "--quiet"]
    run(*words)
    assert "--include *.mdd matches no file" in run(*words, "--include", "*.mdd", status=1)
    assert "stems its words as english, not german" in run(*words, "--language", "german", status=1)
    run(*words, "--language", "english", "--include", "*.md")
    with Index.open(index) as opened:
        assert len(opened) == 1
    (tmp_path / "pairs.jsonl").write_text('{"query": "who sings?", "positive": "Nobody here does."}')
    said = run("compare", index, index, tmp_path / "pairs.jsonl")
    assert "none of the judged documents was found" in said


def test_index_several_folders(place, tmp_path, run):
    files = {"one/a.md": "# Owls\n\nOwls sing.", "two/a.md": "Hens eat.", "two/draft.md": "no", "two/b.py": "x"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    words = ["index", place / "ckpt", tmp_path / "one", "--out", tmp_path / "index", "--quiet", tmp_path / "two"]
    shown = json.loads(run(*words, "--exclude", "draft.*", "--include", "*.md", "--passages", "none", "--json"))
    assert (shown["documents"], [Path(path).name for path, _ in shown["skipped"]]) == (2, ["b.py", "draft.md"])
    with Index.open(tmp_path / "index") as index:
        assert sorted(document.key for document in index.documents()) == ["one/a.md", "two/a.md"]
        assert index.backend.passages is None
    (tmp_path / "two" / "broken.md").write_bytes(b"\0\1\2" * 9)
    for name in ("a", "b"):
        (tmp_path / "two" / f"{name}.png").write_bytes(b"\x89PNG")
    lines = [line.replace(str(tmp_path), "") for line in run(*words).splitlines() if line.startswith("  ")]
    assert lines == [
        "  skipped /two/broken.md: it holds zero bytes: not a text",
        "  skipped /two/a.png and 1 more: no text in .png files",
        "  --json names them all",
    ]
    assert "index them one by one" in run(*words, "--source", "x", status=1)
    assert "the same name" in run("index", place / "ckpt", tmp_path / "one", tmp_path / "one", "--out", "x", status=1)
    assert "a number of tokens, or none" in run(*words, "--passages", "many", status=1)


def test_index_follows_changes(place, tmp_path):
    """A real process that watches: a change, a new file and one that went away, then an interrupt."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("Owls sing.")
    with watching(place / "ckpt", folder, "--out", tmp_path / "index") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["added"] == 1
        (folder / "b.md").write_text("Hens eat.")
        (folder / "a.md").write_text("Owls sing at night.")
        seen = {"added": 0, "changed": 0}
        while seen != {"added": 1, "changed": 1}:
            told = json.loads(process.stdout.readline())
            seen = {name: seen[name] + told[name] for name in seen}
        (folder / "b.md").unlink()
        assert json.loads(process.stdout.readline())["removed"] == 1
        process.terminate()  # an interrupt would be ignored where the tests run in the background
        assert process.wait(60) != 0
    with Index.open(tmp_path / "index") as index:
        assert {one.key: one.text for one in index.documents()} == {"notes/a.md": "Owls sing at night."}


def test_an_overview_for_programs_and_for_people(place, run):
    found = json.loads(run("overview", place / "index", "--topics", "3", "--json", "--filter", '{"colour": "red"}'))
    assert found["documents"] == 8
    assert len(found["topics"]) <= 3
    shown = run("overview", place / "index")
    assert "48 documents, 48 passages" in shown


def test_a_context_for_programs_and_for_people(place, run):
    words = ["context", place / "index", "where does the red owl live?", "--tokens", "40"]
    found = json.loads(run(*words, "--json", "--level", "3"))
    assert found["tokens"] <= 40
    assert found["excerpts"][0]["id"] == "red-owl"
    assert run(*words).startswith("[1] red-owl\nThe red owl")
    assert run(*words, "--threshold", "1").strip() == "nothing found within 40 tokens"
    shown = run("search", place / "index", "red owl", "--group-by", "document", "--distinct", "near")
    assert " 1. 0." in shown


def test_search_for_programs_and_for_people(place, capsys, run):
    index = place / "index"
    words = ["search", index, "where does the red owl live?", "-k", "3", "--json", "--explain"]
    hits = json.loads(run(*words, "--level", "3", "--filter", '{"colour": "red"}'))
    assert len(hits) == 3
    assert {hit["metadata"]["colour"] for hit in hits} == {"red"}
    assert all(len(hit["explanation"]["method"]["detail"]["path"]) == 3 for hit in hits)
    start, end = hits[0]["highlights"]["sentence"]
    assert hits[0]["text"][start:end]
    hits = json.loads(run(*words, "--boost", '{"colour": {"blue": 9}, "house": {"half_life": "9d"}}'))
    assert hits[0]["metadata"]["colour"] == "blue"
    assert "boost 'colour'" in {part["name"] for part in hits[0]["explanation"]["parts"]}
    hits = json.loads(run(*words, "--lexical", "0.5"))
    assert hits[0]["id"] == "red-owl"
    assert "word 'owl'" in {part["name"] for part in hits[0]["explanation"]["parts"]}
    with pytest.raises(SystemExit):
        run("search", index, "owl", "--lexical", "much")
    assert "argument --lexical: must be a number" in capsys.readouterr().err
    found = json.loads(run("search", index, "red owl", "white hen", "--json"))
    assert list(map(len, found)) == [5, 5]
    assert "Engines: exact, faiss, ivf" in run("search", index, "red owl", "--engine", "annoy", status=1)
    shown = run("search", index, "the red owl", "-k", "2", "--explain")
    assert " 1. 0." in shown
    assert shown.count("in meaning: “") == shown.count("words in common: ") == 2


def test_the_cache_is_shown_and_cleared(tmp_path, monkeypatch, run):
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path))
    for name in ("fake:8", "fake:8192"):
        EncodingCache().encode(load_encoder(name), ["a cat", "a dog"])
    head, *rows = run("cache").splitlines()
    assert head.startswith(f"{tmp_path}: 0.1 MB of 10,000")
    assert sorted(row.split()[-1] for row in rows) == ["fake:8192:3", "fake:8:3"]
    refused = run("cache", "--clear", "fake:9", status=1)
    assert "has nothing of 'fake:9', but of: fake:8192:3, fake:8:3" in refused
    assert "freed 0.1 MB" in run("cache", "--clear", "fake:8192:3")
    [entry] = json.loads(run("cache", "--json"))["entries"]
    assert (entry["encoder"], entry["texts"]) == ("fake:8:3", 2)
    run("cache", "--clear")
    assert EncodingCache().entries() == []


def test_inspect_an_index_and_outline_it(place, run):
    shown = run("inspect", place / "index")
    assert "documents: 48" in shown
    assert "depth: 5" in shown
    lines = run("inspect", place / "index", "--outline").splitlines()
    assert lines[0] == "48 documents"
    assert "`palmette index`" in run("inspect", place / "ckpt", "--outline", status=1)


def test_evaluate_beside_baselines_and_in_the_card(place, tmp_path, run):
    tree().save_pretrained(tmp_path / "ckpt", license="apache-2.0")
    card = tmp_path / "ckpt" / "README.md"
    assert "license: apache-2.0" in card.read_text()
    words = ["evaluate", tmp_path / "ckpt", place / "pairs.jsonl", "--split", "train", "--quiet"]
    rows = run(*words, "--baselines", "--card").splitlines()[2:7]
    assert [row.split()[0] for row in rows] == ["tree", "tree", "untrained", "encoder", "BM25"]
    assert "| BM25 |" in card.read_text()
    assert "Measured on pairs, train" in card.read_text()
    assert load_model(tmp_path / "ckpt").fingerprint == tree().fingerprint, "the card is no part of the model"
    report = json.loads(run(*words, "--baselines", "--json", "--level", "2"))
    assert report["rows"][0]["name"] == "tree (level=2)"
    assert set(report["rows"][0]["latency_ms"]) == {"p50", "p95", "p99"}
    level, full, untrained, encoder, words_alone = (row["metrics"]["ndcg@10"] for row in report["rows"])
    assert words_alone > 0.9, "BM25 finds documents by their own words"
    assert min(full, untrained) > max(level, encoder), "words and sentences count before and after training"
    mixed = json.loads(run(*words, "--json", "--lexical", "0.9"))["rows"][0]
    assert mixed["name"] == "tree (lexical=0.9)"
    assert mixed["metrics"]["ndcg@10"] > level


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "nowhere", "q"], "nowhere"),
        (["search", "nosuch://place/index", "q"], "or at the URL of an engine\n"),
        (["search", "{index}", "q", "-k", "0"], "k must be a whole number of at least 1, got 0"),
        (["search", "{index}", "q", "--levle", "3"], "--levle: did you mean --level? Options of search: --help"),
        (["search", "{index}", "q", "--level", "9"], "between 1 and 5, got 9"),
        (["search", "{index}", "q", "--filter", "{oops"], "--filter must be JSON"),
        (["search", "{index}", "q", "--boost", '{"kind": {"a": "b"}}'], "boost of 'kind' for 'a' must be log-odds"),
        (["search", "{index}", "q", "--filter", '{"color": 1}'], "colour"),
        ("train tree missing.jsonl --out x --encoder fake".split(), "missing.jsonl"),
        ("train tree {pairs} --out x --encoder fake --depth 99".split(), "depth must be at most 14, got 99"),
        (["evaluate", "{ckpt}", "{pairs}", "--split", "test"], "test"),
        ("train tree {pairs} --out {index} --encoder not-looked-for".split(), "cannot save over"),
    ],
)
def test_errors_are_one_paragraph(words, message, place, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    names = {"{index}": place / "index", "{ckpt}": place / "ckpt", "{pairs}": place / "pairs.jsonl"}
    given = [str(names.get(word, word)) for word in words]
    shown = run(*given, status=1)
    assert message in shown
    assert "Traceback" not in shown
    with pytest.raises(PalmetteError):
        main([*given, "--debug"])
    assert list(tmp_path.iterdir()) == [], "a refused command leaves nothing behind"


def test_as_a_module_and_into_a_closed_pipe(place, monkeypatch):
    search = f"{sys.executable} -m palmette search {place / 'index'} owl cat dog -k 48 --json | head -1"
    env = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin", "HOME": str(place)}
    done = subprocess.run(search, shell=True, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "["
    assert "Traceback" not in done.stderr
    monkeypatch.setattr(sys, "stdout", Mock(write=Mock(side_effect=BrokenPipeError)))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert main([]) == 0


def test_a_reader_is_trained_and_answers(place, tmp_path, run):
    write(tmp_path / "asked.jsonl", [{"query": query, "positive": text} for query, text in readers.pairs()])
    out, index, green = tmp_path / "reader", place / "index", "where does the green owl live?"
    words = "--unit sentence --encoder fake:64 --steps 200 --quiet".split()
    shown = run("train", "reader", tmp_path / "asked.jsonl", "--out", out, *words)
    assert re.search(r"reader trained on \d+ questions of asked .*accuracy of answers", shown)
    assert f"--reader {out}" in shown
    words = "-k 9 --lexical 1 --explain".split()
    shown = run("answer", index, green, "who invented the telephone?", "--reader", out, *words)
    assert "The green owl lives in house 10 and sings at night." in shown
    assert "from green-owl: " in shown
    assert "no answer found" in shown
    told = json.loads(run("answer", index, green, "--reader", out, *"--json --level 3 --threshold 1".split()))
    assert told["answer"] == ""
    assert told["alternatives"]
    assert "not a reader" in run("answer", index, green, "--reader", place / "ckpt", status=1)
