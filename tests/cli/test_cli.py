"""The command line, run as a user runs it (in this process, or a child where that matters)."""

import argparse
import io
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal
from unittest.mock import Mock

import pytest
from pydantic import Field

from palmette.cli import COMMANDS, build_parser, main, parse
from palmette.cli.commands import read_options
from palmette.cli.train import _add_options, _report
from palmette.config import FILLED_IN, Config
from palmette.encoder import EncodingCache, load_encoder
from palmette.errors import ConfigError, PalmetteError
from palmette.methods import load_model, names
from support import readers
from support.tiny import documents, pairs, tree


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data files, a checkpoint and an index."""
    folder = tmp_path_factory.mktemp("cli")
    rows = {
        "pairs.jsonl": [{"query": q, "positive": p} for q, p in pairs()],
        "docs.jsonl": [{"id": d.id, "text": d.text, "metadata": dict(d.metadata)} for d in documents()],
    }
    for name, records in rows.items():
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    tree().save_pretrained(folder / "ckpt")
    index = ["index", str(folder / "ckpt"), str(folder / "docs.jsonl"), "--out", str(folder / "index")]
    assert main([*index, "--quiet"]) == 0
    return folder


def test_no_arguments_teach(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "from nothing to answers" in shown
    assert all(f"\n  {name}" in shown for name in COMMANDS), "every command is listed"
    steps = [shlex.split(line) for line in shown.splitlines() if line.startswith("    palmette ")]
    assert len(steps) >= 6
    for _, *words in steps:
        assert parse(build_parser(words), words).handler, "every step of the tour is a command that parses"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_examples_in_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert f"palmette {command}" in shown.partition("examples:")[2]


def test_train_help_says_what_each_method_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    for name in names():
        assert re.search(rf"^  {name} +\S+ \S+", shown, flags=re.MULTILINE), name


def test_errors_are_wrapped_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", "nowhere-" * 4, "a question"]
    assert main(words) == 1
    [alone] = capsys.readouterr().err.splitlines()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(words) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert " ".join(lines) == alone
    assert all(len(line) <= 40 or " " not in line for line in lines)


def test_train_help_shows_the_methods_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "tree", "--help"])
    shown = capsys.readouterr().out
    for option in ("--depth", "--schedule", "--steps", "--learning-rate", "(default: 6)"):
        assert option in shown
    assert "--width" not in shown


class Options(Config):
    """Every kind of option."""

    depth: Annotated[int, Field(ge=1)] = 4
    """Levels (2 % more)."""
    rate: float | None = None
    """A ``rate``."""
    mode: Literal["a", "b"] = "a"
    """A choice."""
    visit: float | Literal["auto"] = "auto"
    """A number or a word."""
    layers: tuple[int, ...] | None = None
    """Some layers."""
    tags: tuple[str, ...] = ()
    """Some texts."""
    exact: bool = False
    """A switch."""
    title: str = "8"
    """A text."""
    width: Annotated[int, FILLED_IN] = 0
    """Not for users."""


def test_flags_come_from_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    _add_options(parser, Options, {"depth": 7})
    assert vars(parser.parse_args([])) == {}, "defaults are the config's"
    words = "--depth 3 --rate 1e-3 --mode b --visit 0.5 --layers 1,4 --tags x,y --exact true --title 9"
    given = vars(parser.parse_args(words.split()))
    assert Options(**given) == Options(
        depth=3, rate=0.001, mode="b", visit=0.5, layers=(1, 4), tags=("x", "y"), exact=True, title="9"
    )
    alone = vars(parser.parse_args("--layers 2 --tags z --visit auto".split()))
    assert Options(**alone) == Options(layers=(2,), tags=("z",))
    with pytest.raises(ConfigError, match="depth must be a valid integer, got 'x'"):
        Options(**vars(parser.parse_args(["--depth", "x"])))
    parser.print_help()
    shown = " ".join(capsys.readouterr().out.split())
    assert "Levels (2 % more). (default: 7)" in shown
    assert "{a,b}" in shown
    assert "--width" not in shown


def test_train_and_resume(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from palmette.training.loop import _Loop

    out, step = tmp_path / "ckpt", _Loop.step
    words = [
        "train",
        "tree",
        str(place / "pairs.jsonl"),
        "--out",
        str(out),
        "--encoder",
        "fake:16",
        "--quiet",
    ]
    words += "--start random --depth 4 --steps 9 --batch-size 8 --evaluate-every 3".split()

    def interrupt(self: _Loop, number: int) -> None:
        if self.config.steps == 9 and number == 7:
            raise KeyboardInterrupt
        step(self, number)

    monkeypatch.setattr(_Loop, "step", interrupt)
    assert main(words) == 130
    assert "with --resume goes on" in capsys.readouterr().err
    monkeypatch.undo()
    assert main([*words, "--resume", "--json"]) == 0
    shown = capsys.readouterr()
    made = json.loads(shown.out)
    assert shown.err == ""
    assert (made["checkpoint"], made["steps"]) == (str(out), 9)
    assert (tmp_path / "ckpt.training" / "training.jsonl").exists()
    assert main(["inspect", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["model"]
    assert facts["fingerprint"] == made["fingerprint"]
    assert facts["structure"]["leaves"] == 16
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "--resume would go on" in shown.err
    assert re.search(r"tree trained on \d+ pairs of pairs in .* on held-out queries\n", shown.out)
    assert f"next: palmette index {out} DOCUMENTS --out my-index" in shown.out
    assert load_model(out).fingerprint == made["fingerprint"], "the same as the run that was interrupted"


def test_synthetic_pairs_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"data": "notes", "seconds": 1.0, "metric": "", "metrics": {}, "labelled": False}
    args = argparse.Namespace(json=False, method="tree", data=str(tmp_path))
    for more, told in (
        ({"pairs": 7}, "tree trained on 7 questions made of notes in 1 s\n"),
        ({"pairs": 0}, "tree kept the encoder's own vectors in 1 s\n"),
    ):
        _report(args, SimpleNamespace(record=SimpleNamespace(**facts, **more)), tmp_path / "ckpt")
        shown = capsys.readouterr().out
        assert told in shown
        assert f"index {tmp_path / 'ckpt'} {tmp_path} --out" in shown


def test_index_again_touches_only_what_changed(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "docs.jsonl"
    rows = [json.loads(line) for line in (place / "docs.jsonl").read_text().splitlines()]
    rows[3]["text"] = "entirely new words"
    rows.append({"id": "extra", "text": "one more"})
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["index", str(place / "ckpt"), "--out", str(tmp_path / "index"), "--quiet", "--json"]
    assert main([*words, str(place / "docs.jsonl")]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*words, str(changed)]) == 0
    second = json.loads(capsys.readouterr().out)
    assert [first[key] for key in ("documents", "added", "updated", "unchanged")] == [48, 48, 0, 0]
    assert [second[key] for key in ("documents", "added", "updated", "unchanged")] == [49, 1, 1, 47]
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows[:10]))
    assert main([*words[:-1], str(changed)]) == 0
    assert "39 more were there before and stay" in capsys.readouterr().out
    assert main([*words, str(changed), "--prune"]) == 0
    third = json.loads(capsys.readouterr().out)
    assert [third[key] for key in ("documents", "deleted")] == [10, 39]


def test_search_json_filter_level_and_explanation(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", str(place / "index"), "where does the red owl live?", "-k", "3", "--json", "--explain"]
    assert main([*words, "--level", "3", "--filter", '{"colour": "red"}']) == 0
    hits = json.loads(capsys.readouterr().out)
    assert len(hits) == 3
    assert {hit["metadata"]["colour"] for hit in hits} == {"red"}
    assert all(len(hit["explanation"]["method"]["detail"]["path"]) == 3 for hit in hits)
    logit = sum(part["value"] for part in hits[0]["explanation"]["parts"])
    assert 1 / (1 + math.exp(-logit)) == pytest.approx(hits[0]["score"], abs=1e-5)
    start, end = hits[0]["highlights"]["sentence"]
    assert hits[0]["text"][start:end]
    assert main([*words, "--lexical", "0.5"]) == 0
    hits = json.loads(capsys.readouterr().out)
    assert hits[0]["id"] == "red-owl"
    assert "word 'owl'" in {part["name"] for part in hits[0]["explanation"]["parts"]}
    with pytest.raises(SystemExit):
        main(["search", str(place / "index"), "owl", "--lexical", "much"])
    assert "argument --lexical: must be a number" in capsys.readouterr().err
    assert main(["search", str(place / "index"), "red owl", "white hen", "--json"]) == 0
    assert [len(found) for found in json.loads(capsys.readouterr().out)] == [5, 5]
    assert main(["search", str(place / "index"), "red owl", "--engine", "annoy"]) == 1
    assert "Engines: exact, faiss, ivf, hnsw" in capsys.readouterr().err


def test_search_for_people(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(place / "index"), "the red owl", "-k", "2", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert " 1. 0." in shown
    assert shown.count("in meaning: “") == 2
    assert shown.count("words in common: ") == 2


def test_the_cache_is_shown_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path))
    for name in ("fake:8", "fake:8192"):
        EncodingCache().encode(load_encoder(name), ["a cat", "a dog"])
    assert main(["cache"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{tmp_path}: 0.1 MB of 10,000")
    assert sorted(row.split()[-1] for row in rows) == ["fake:8192:3", "fake:8:3"]
    assert main(["cache", "--clear", "fake:9"]) == 1
    assert "has nothing of 'fake:9', but of: fake:8192:3, fake:8:3" in capsys.readouterr().err
    assert main(["cache", "--clear", "fake:8192:3"]) == 0
    assert "freed 0.1 MB" in capsys.readouterr().out
    assert main(["cache", "--json"]) == 0
    [entry] = json.loads(capsys.readouterr().out)["entries"]
    assert (entry["encoder"], entry["texts"]) == ("fake:8:3", 2)
    assert main(["cache", "--clear"]) == 0
    assert EncodingCache().entries() == []


def test_inspect_an_index_and_draw_it(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(place / "index")]) == 0
    shown = capsys.readouterr().out
    assert "documents: 48" in shown
    assert "depth: 5" in shown
    page = tmp_path / "tree.html"
    words = ["inspect", str(place / "index"), "--html", str(page)]
    assert main([*words, "--query", "red owl", "--query", "golden bee"]) == 0
    assert "48 documents on 32 leaves" in capsys.readouterr().out
    assert page.read_text("utf-8").count('"query":') == 2
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["html"] == str(page)
    assert facts["index"]["documents"] == 48
    page.unlink()
    assert main(["inspect", str(place / "ckpt"), "--html", str(page)]) == 1
    assert "`palmette index`" in capsys.readouterr().err
    assert main(["inspect", str(place / "index"), "--html", str(tmp_path / "no" / "tree.html")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_evaluate_beside_baselines(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(place / "ckpt"), str(place / "pairs.jsonl"), "--split", "train", "--baselines"]
    assert main([*words, "--quiet"]) == 0
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()[2:]] == [
        "tree",
        "tree",
        "untrained",
        "encoder",
        "BM25",
    ]
    assert main([*words, "--quiet", "--json", "--level", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows"][0]["name"] == "tree (level=2)"
    assert main([*words, "--quiet", "--json", "--lexical", "0.9"]) == 0
    mixed = json.loads(capsys.readouterr().out)["rows"][0]
    assert mixed["name"] == "tree (lexical=0.9)"
    assert mixed["metrics"]["ndcg@10"] > report["rows"][0]["metrics"]["ndcg@10"]
    tree, full, untrained, encoder, words_alone = (row["metrics"]["ndcg@10"] for row in report["rows"])
    assert words_alone > 0.9, "BM25 finds documents by their own words"
    assert min(full, untrained) > max(tree, encoder), "words and sentences count before and after training"
    assert set(report["rows"][0]["latency_ms"]) == {"p50", "p95", "p99"}


def test_evaluate_fills_the_card(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree().save_pretrained(tmp_path / "ckpt", license="apache-2.0")
    before = (tmp_path / "ckpt" / "README.md").read_text()
    assert "license: apache-2.0" in before
    words = ["evaluate", str(tmp_path / "ckpt"), str(place / "pairs.jsonl"), "--split", "train", "--quiet"]
    assert main([*words, "--baselines", "--card"]) == 0
    capsys.readouterr()
    card = (tmp_path / "ckpt" / "README.md").read_text()
    assert "| BM25 |" in card
    assert "Measured on pairs, train" in card
    assert load_model(tmp_path / "ckpt").fingerprint == tree().fingerprint, "the card is no part of the model"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "nowhere", "q"], "nowhere"),
        (["search", "{index}", "q", "-k", "0"], "k must be a whole number of at least 1, got 0"),
        (["search", "{index}", "  "], "the query is empty"),
        (["search", "{index}", "q", "--levle", "3"], "Did you mean 'level'"),
        (["search", "{index}", "q", "--level", "9"], "between 1 and 5, got 9"),
        (["search", "{index}", "q", "--filter", "{oops"], "--filter must be JSON"),
        (["search", "{index}", "q", "--filter", '{"color": 1}'], "colour"),
        (["index", "{ckpt}", "missing.jsonl", "--out", "x"], "missing.jsonl"),
        (["inspect", "./missing-dir"], "missing-dir"),
        (["train", "tree", "missing.jsonl", "--out", "x", "--encoder", "fake"], "missing.jsonl"),
        (
            ["train", "tree", "{pairs}", "--out", "x", "--encoder", "fake", "--depth", "99"],
            "depth must be at most 14, got 99",
        ),
        (["evaluate", "{ckpt}", "{pairs}", "--split", "test"], "test"),
        (
            ["train", "tree", "{pairs}", "--out", "{index}", "--encoder", "no-such-encoder"],
            "cannot save over",  # said before anything is loaded
        ),
    ],
)
def test_errors_are_one_paragraph(
    words: list[str],
    message: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"index": place / "index", "ckpt": place / "ckpt", "pairs": place / "pairs.jsonl"}
    given = [str(names[word[1:-1]]) if word[1:-1] in names else word for word in words]
    assert main(given) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
    with pytest.raises(PalmetteError):
        main([*given, "--debug"])
    assert list(tmp_path.iterdir()) == [], "a refused command leaves nothing behind"


def test_bad_usage_is_status_2(place: Path) -> None:
    for words in (["nonsense"], ["index", "a"], ["inspect", "x", "--level", "3"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 2


def test_options_are_read_as_json_where_they_are() -> None:
    assert read_options(["--level", "5", "--rerank=encoder", "--flat", "--x-y", "-1"]) == {
        "level": 5,
        "rerank": "encoder",
        "flat": True,
        "x_y": -1,
    }
    assert read_options(["--layers", "1,4", "--fields=a,b", "--only", "[2]"]) == {
        "layers": [1, 4],
        "fields": "a,b",
        "only": [2],
    }
    with pytest.raises(ConfigError, match="stray"):
        read_options(["stray"])


def test_as_a_module_and_into_a_closed_pipe(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = f"{sys.executable} -m palmette search {place / 'index'} owl cat dog -k 48 --json | head -1"
    env = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin", "HOME": str(place)}
    done = subprocess.run(search, shell=True, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "["
    assert "Traceback" not in done.stderr
    monkeypatch.setattr(sys, "stdout", Mock(write=Mock(side_effect=BrokenPipeError)))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert main([]) == 0


def test_a_reader_is_trained_and_answers(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"query": query, "positive": text} for query, text in readers.pairs()]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    out, index = str(tmp_path / "reader"), str(place / "index")
    train = ["train", "reader", str(tmp_path / "asked.jsonl"), "--unit", "sentence", "--encoder", "fake:64"]
    assert main([*train, "--steps", "200", "--out", out, "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"reader trained on \d+ questions of asked .*accuracy of answers", shown)
    assert f"--reader {out}" in shown
    green, phone = "where does the green owl live?", "who invented the telephone?"
    assert (
        main(["answer", index, green, phone, "--reader", out, "-k", "9", "--lexical", "1", "--explain"]) == 0
    )
    shown = capsys.readouterr().out
    assert "The green owl lives in house 10 and sings at night." in shown
    assert "from green-owl: " in shown
    assert "no answer found" in shown
    assert main(["answer", index, green, "--reader", out, "--json", "--level", "3", "--threshold", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answer"] == ""
    assert told["alternatives"]
    assert main(["answer", index, green, "--reader", str(place / "ckpt")]) == 1
    assert "not a reader" in capsys.readouterr().err
