"""The store of finished measurements, the generated parts of pages, and the driver over all benchmarks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import run
from recording import append, find, read, table, write_part

RESULTS = run.HERE / "results"


def test_a_line_is_found_by_its_values_and_the_last_one_counts(tmp_path: Path) -> None:
    store = tmp_path / "some" / "x.jsonl"
    assert read(store) == []
    assert find(store, data="a") is None
    append(store, {"data": "a", "options": {"sizes": (1, 2)}, "value": 1})
    append(store, {"data": "a", "options": {"sizes": (1, 2)}, "value": 2})
    append(store, {"data": "b", "value": 3})
    assert (find(store, data="a", options={"sizes": (1, 2)}) or {})["value"] == 2
    assert find(store, data="a", options={}) is None
    assert [line["value"] for line in read(store)] == [1, 2, 3]
    assert [line["value"] for line in read(store, "data")] == [2, 3]


def test_a_part_is_written_anew_and_the_rest_of_the_page_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A question?\n\nA conclusion.\n")
    write_part(page, "one", table(["", "ms"], [["ours", "1.0"]]))
    write_part(page, "two", "second")
    page.write_text(page.read_text() + "\nThe end.\n")
    before = page.read_text()
    assert before.startswith(
        "# A question?\n\nA conclusion.\n\n<!-- one -->\n\n|  | ms |\n|---|---:|\n| ours | 1.0 |\n"
    )
    write_part(page, "one", "anew")
    after = page.read_text()
    assert after.partition("<!-- end of one -->")[2] == before.partition("<!-- end of one -->")[2]
    assert "\n\nanew\n\n" in after
    assert "ours" not in after


def test_commands_are_run_once_and_named_where_data_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "hello.py").write_text("print('hello')")
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "QUICK", "some: hello.py DATA/here\nspeed: hello.py DATA/gone --out RESULTS/speed.md")
    how = ["--quick", "--data", str(tmp_path), "--work", str(tmp_path / "work")]
    assert run.main([*how, "--list"]) == 0
    assert f"speed: hello.py {tmp_path}/gone --out {tmp_path}/work/quick/speed.md" in capsys.readouterr().out
    for expected in ("== hello.py", "skipped, finished: hello.py"):
        assert run.main(how) == 0
        said = capsys.readouterr().out
        assert expected in said
        assert f"skipped, there is no {tmp_path}/gone" in said
    assert (tmp_path / "work" / "quick" / "some-0.txt").read_text() == "hello\n"
    (tmp_path / "hello.py").write_text("raise SystemExit(3)")
    (tmp_path / "gone").touch()
    assert run.main(how) == 1
    assert "failed: hello.py" in capsys.readouterr().err


@pytest.mark.parametrize("quick", [True, False])
def test_every_command_is_one_that_there_is(quick: bool, capsys: pytest.CaptureFixture[str]) -> None:
    run.main(["--list", "--data", "data", "--work", "work", *["--quick"] * quick])
    told = [line.split(": ", 1) for line in capsys.readouterr().out.splitlines()]
    pages = {path.stem for path in RESULTS.glob("*.md")} - {"gpu"}  # its commands need a GPU
    assert {page for page, _ in told} == pages
    for page, command in told:
        words = shlex.split(command)
        if words[0] != "palmette":
            files = (run.HERE / words[0], run.HERE / "common.py")
            known = {flag for file in files for flag in re.findall(r'"(--[\w-]+)"', file.read_text("utf-8"))}
            assert {word for word in words if word.startswith("--")} <= known, command
        assert not re.search(r"\$|DATA|WORK|RESULTS|benchmarks/results", command)
        outs = [words[at + 1] for at, word in enumerate(words) if word == "--out"]
        assert all(Path(path).name == f"{page}.md" for path in outs), command


def test_pages_ask_a_question_and_are_short() -> None:
    pages = {path.name: path.read_text("utf-8") for path in RESULTS.glob("*.md")}
    assert all(re.match(r"# .+\?\n", text) for text in pages.values())
    assert sum(len(text.split()) for text in pages.values()) <= 12_800
