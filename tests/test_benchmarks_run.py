"""The store of finished measurements, the generated parts of pages, and the driver over all benchmarks."""

from __future__ import annotations

import re
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
    monkeypatch.setattr(run, "QUICK", "hello.py DATA/here > said.txt\n# speed\nhello.py DATA/gone --out PAGE")
    how = ["--quick", "--data", str(tmp_path), "--work", str(tmp_path / "work")]
    assert run.main([*how, "--list"]) == 0
    assert f"speed: hello.py {tmp_path}/gone --out {tmp_path}/work/quick/speed.md" in capsys.readouterr().out
    for expected in ("== hello.py", "skipped, finished: hello.py"):
        assert run.main(how) == 0
        said = capsys.readouterr().out
        assert expected in said
        assert f"skipped, there is no {tmp_path}/gone" in said
    assert (tmp_path / "work" / "quick" / "said.txt").read_text() == "hello\n"
    (tmp_path / "hello.py").write_text("raise SystemExit(3)")
    (tmp_path / "gone").touch()
    assert run.main(how) == 1
    assert "failed: hello.py" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["FULL", "QUICK"])
def test_every_command_is_one_that_there_is(text: str) -> None:
    steps = list(run.steps(getattr(run, text), Path("/data"), Path("/work"), Path("/out")))
    assert {step.page for step in steps} == {path.stem for path in RESULTS.glob("*.md")}
    for step in steps:
        assert not {*run.SHORT} & {*step.command}
        if step.command[0] != "palmette":
            flags = options(run.HERE / step.command[0]) | options(run.HERE / "common.py")
            assert {word for word in step.command if word.startswith("--")} <= flags, step.command


def test_every_command_of_a_page_is_one_that_there_is() -> None:
    told = [(path.name, line.split()) for path in RESULTS.glob("*.md") for line in commands(path.read_text("utf-8"))]
    assert len(told) > 20
    for page, words in told:
        flags = options(run.HERE.parents[1] / words[0]) | options(run.HERE / "common.py")
        assert {word for word in words if word.startswith("--")} <= flags, (page, words)


def commands(page: str) -> list[str]:
    """Benchmarks with their arguments, shell variables filled in."""
    found = re.sub(r" \\\n +", " ", page)
    for name, value in re.findall(r"^    (\w)=\"(.*)\"$", found, re.M):
        found = found.replace(f"${name}", value)
    return re.findall(r"^    .*?python (tests/benchmarks/.*)", found, re.M)


def options(script: Path) -> set[str]:
    """Strings of a script that begin as an option does."""
    return set(re.findall(r'"(--[\w-]+)"', script.read_text("utf-8")))


def test_pages_ask_a_question_and_are_short() -> None:
    pages = {path.name: path.read_text("utf-8") for path in RESULTS.glob("*.md")}
    assert all(re.match(r"# .+\?\n", text) for text in pages.values())
    assert all("    python tests/benchmarks/" in text for text in pages.values())
    assert sum(len(text.split()) for text in pages.values()) <= 12_000
