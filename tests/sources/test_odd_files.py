"""One odd file among many stops nothing: the others are indexed, and it is named with its reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import InputError
from palmette.sources.worker import WORKER
from support.odd_files import BARCODE, HALF, office_files, text_files
from support.peaks import measured

MODEL = SpaceModel.untrained(FakeEncoder(16))
MOST_MEGABYTES = 300


def test_odd_files_of_every_kind_in_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("markitdown")
    folder, pages = tmp_path / "notes", [f"page{number}.md" for number in range(200)]
    folder.mkdir()
    for page in pages:
        (folder / page).write_text(f"# Owls\n\nThe owl of {page} sings.")
    odd = {**dict(text_files()), **dict(office_files())}
    assert len(odd) > 60
    with Index.in_memory(MODEL) as index:
        index.sync(folder, progress=False)
        for name, (content, _) in odd.items():
            (folder / name).write_bytes(content)
        (folder / "page7.md").unlink()
        (folder / "new.md").write_text("A new page.")
        reports = []
        if sys.platform == "linux":
            spent = measured(lambda: reports.append(index.sync(folder, progress=False)))
            assert spent["error"] == ""
            assert spent["peak"] + most_of_worker() < MOST_MEGABYTES
        else:
            reports.append(index.sync(folder, progress=False))
        (report,) = reports
        assert report.removed == ["notes/page7.md"]
        assert (report.unchanged, "notes/new.md" in report.added) == (199, True)

        reasons: dict[str, list[str]] = {}
        for path, reason in report.skipped:
            reasons.setdefault(Path(path).name, []).append(reason)
        assert reasons.keys() == {name for name, (_, reason) in odd.items() if reason}
        for name, given in reasons.items():
            assert odd[name].reason in " ".join(given), name
            assert str(tmp_path) not in " ".join(given), "the path is named beside"
        found = {document.key.removeprefix("notes/"): document for document in index.documents()}
        assert {name.partition("#")[0] for name in found} >= {name for name, (_, reason) in odd.items() if not reason}
        assert found["half.ipynb"].text == "owl \ufffd hen\n"
        values = {name: found[f"{name}.md"].metadata["value"] for name in ("barcode", "infinite", "nan", "half")}
        assert values == {"barcode": str(BARCODE), "infinite": "inf", "nan": "nan", "half": "\ufffd"}
        assert index.search("owl", filter={"value": str(BARCODE)})[0].id == "notes/barcode.md"
        assert [found[f"{name}.md"].metadata["kept"] for name in ("deep", "binary", "set", "hexadecimal")] == [1] * 4
        assert {name for name in found if name.startswith("line.jsonl")} == {"line.jsonl#1", "line.jsonl#3"}
        assert found["far.xlsx"].text == "## Sheet\n| owl |  |\n| --- | --- |\n|  | owl |"
        assert index.sync(folder, progress=False).added == []
    with (
        pytest.warns(UserWarning, match="files in .* cannot be read"),
        Index.build(folder, MODEL, progress=False) as index,
    ):
        assert len(index.get(["new.md", "barcode.md"])) == 2


def most_of_worker() -> float:
    """Largest memory of the worker, in MB."""
    import resource

    lines = Path(f"/proc/{WORKER.process.pid}/status").read_text().splitlines() if WORKER.process else ["VmHWM: 0 kB"]
    now = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return max(now, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if "xdist" not in sys.modules else 0) / 1024


def test_a_document_that_cannot_be_cut_costs_itself(tmp_path: Path) -> None:
    def pieces(text: str) -> list[str]:
        if "odd" in text:
            raise KeyError("odd")
        return text.splitlines()

    def write(**texts: str) -> None:
        for name, text in texts.items():
            (tmp_path / f"{name}.txt").write_text(text)

    write(a="owl\nhen", b="ant\nbee", gone="x")
    with Index.in_memory(MODEL, passages=pieces) as index:
        index.sync(tmp_path, "s", progress=False)
        write(a="odd\nowl", c="odd\nnew", d="new\nnew")
        (tmp_path / "gone.txt").unlink()
        report = index.sync(tmp_path, "s", progress=False)
        assert (report.added, report.changed, report.removed) == (["s/d.txt"], [], ["s/gone.txt"])
        assert [id for id, _ in report.skipped] == ["s/a.txt", "s/c.txt"]
        assert "cannot be cut: function raises KeyError: 'odd'" in report.skipped[0][1]
        assert index.get(["s/a.txt"])[0].text == "owl\nhen", "what was known of it stays"
        with pytest.raises(InputError, match="document 'x': it cannot be cut"):
            index.add([Document("x", "odd\nfox")])


def test_documents_of_an_iterable_cost_themselves() -> None:
    fine, mine = Document("fine", "An owl."), Document("odd", "A hen.")
    odd = [
        Document("odd", "hen", {"v": BARCODE}),
        Document("odd", HALF),
        Document("odd", "hen", {"v": float("inf")}),
        Document("odd", "hen", fields={"v": {HALF: 1}}),
    ]
    for document in odd:
        with Index.in_memory(MODEL) as index:
            index.sync([mine, Document("gone", "x")], "db", progress=False)
            report = index.sync([document, fine], "db", progress=False)
            assert (report.added, report.removed, report.skipped[0][0]) == (["fine"], ["gone"], "odd")
            assert index.get(["odd"]) == [mine]
            for write in (index.add, index.upsert):
                with pytest.raises(InputError, match="document 'new'"):
                    write([fine, Document("new", document.text, document.metadata, document.fields)])
    with Index.in_memory(MODEL, tenant="who") as index:
        report = index.sync([Document("a", "owl", {"who": "me"}), Document("b", "hen")], "db", progress=False)
        assert (report.added, report.skipped[0][0]) == (["me/a"], "b")
        with pytest.raises(InputError, match="has no 'who'"):
            index.sync([Document("b", "hen")], "db", progress=False)
