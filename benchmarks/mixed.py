"""Has the first hit the right file, place and mark, over a folder as people have them?

    python benchmarks/mixed.py
    python benchmarks/mixed.py --misses --kinds workbook slides

Writes the files of an invented maker of weather stations (tables, records, workbooks, slides, PDF, notebooks, code,
prose; a fixed seed; old versions and siblings beside most), indexes them with the defaults and asks 100 questions.
*place*: the citation of the first hit covers the evidence; *exact*: the citation of what it marks is the one page,
slide, row, …, or so few lines. *mark*: in tables the marked row, else the stretch of at most 60 words, holds the
evidence. A hit in a wrong file is wrong in all.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from common import ENCODER
from mixed_texts import TEXTS
from palmette import Hit, Index, SpaceModel, load_encoder
from palmette.types import cite

SETS = ("mixed", "mixed_other")
DRAW = random.Random(58)
TOWNS = "Kendal Oban Leeds Kiel Bergen Tromso Galway Ghent Lille Porto Graz Turku".split()
NAMES = (
    "Ada Brandt,Ben Okafor,Carla Mendes,Dev Patel,Elin Strand,Femi Adeyemi,Greta Lind,Hugo Weiss,Ines Duarte,"
    "Jonas Falk,Kiri Tane,Liam Byrne,Mara Novak,Nils Aho,Olga Petrova,Priya Nair,Quentin Roux,Rosa Bianchi,Sami Haddad,"
    "Tess Moran"
).split(",")
PARTS = (
    "tipping bucket rain gauge,cup anemometer,ultrasonic wind sensor,solar panel 20 W,solar panel 50 W,lead battery,"
    "lithium battery,mast 3 m,mast 6 m,guy wire set,radiation shield,humidity probe,barometer,soil moisture probe,"
    "snow depth sensor,leaf wetness sensor,data logger,cellular modem,satellite modem,cable gland,mounting bracket,"
    "desiccant pack,bird spikes,calibration kit"
).split(",")


class Unit(NamedTuple):
    """What a citation can name: a page, slide, row, … of a file, with its text."""

    kind: str
    name: str
    number: int
    text: str


Files = dict[str, tuple[Unit, ...]]


def pdf(pages: Sequence[str]) -> bytes:
    """A PDF with a line of Helvetica for each line of the pages."""
    count = len(pages)
    kids = b" ".join(b"%d 0 R" % (4 + 2 * at) for at in range(count))
    things = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, count)]
    things.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for at, page in enumerate(pages):
        shown = b"".join(b"(%s) Tj T* " % line.encode().replace(b"(", b"\\(").replace(b")", b"\\)")
                         for line in page.splitlines())  # fmt: skip
        words = b"BT /F1 11 Tf 14 TL 60 780 Td %s ET" % shown
        frame = b"/MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >>"
        things.append(b"<< /Type /Page /Parent 2 0 R %s /Contents %d 0 R >>" % (frame, 5 + 2 * at))
        things.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(words), words))
    content, places = b"%PDF-1.4\n", list[int]()
    for number, thing in enumerate(things, 1):
        places.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, thing)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(things) + 1, table)
    return content + head + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        len(things) + 1, len(content),
    )  # fmt: skip


def tables() -> Iterator[tuple[str, list[list[Any]]]]:
    """Names of tables, and their rows; the first is the heading. Names with ``#`` are sheets of a workbook."""
    for year, factor in (("2023", 0.9), ("2024", 1.0), ("2025", 1.1)):
        rows = [[f"TP-{1100 + 7 * n}", part, f"{DRAW.randrange(9, 400) * factor:.2f}", f"{DRAW.randrange(1, 9)} weeks"]
                for n, part in enumerate(PARTS)]  # fmt: skip
        yield f"sales/prices-{year}.md", [["part", "description", "EUR", "delivery"], *rows]
    codes = "low battery,no signal,sensor short,clock lost,memory full,door open,heater failed,rain gauge blocked"
    remedies = (
        "charge it or swap the pack,turn the aerial,replace the cable,set the time by satellite,read the logger out,"
        "close the hatch,change the fuse,rinse the funnel"
    ).split(",")
    for model, letter in (("ts200", "E"), ("ts300", "F")):
        mixed = DRAW.sample(remedies, 8) if model == "ts200" else remedies
        yield (
            f"service/error-codes-{model}.md",
            [
                ["code", "meaning", "what to do"],
                *([f"{letter}{n + 10}", code, mixed[n]] for n, code in enumerate(codes.split(","))),
            ],
        )
    yield "sales/suppliers.csv", [
        ["company", "delivers", "town", "days_to_pay", "rating"],
        *([f"{name.split()[1]} {kind}", DRAW.choice(PARTS), DRAW.choice(TOWNS), DRAW.choice((14, 30, 45, 60)), n % 5]
          for n, (name, kind) in enumerate(zip(NAMES, "GmbH Ltd SA BV AS".split() * 4, strict=True))),
    ]  # fmt: skip
    yield "people/staff.csv", [
        ["name", "role", "office", "phone", "started"],
        *([name, DRAW.choice(("engineer", "buyer", "fitter", "accountant", "trainer")), DRAW.choice(TOWNS[:5]),
           DRAW.randrange(200, 999), DRAW.randrange(2009, 2025)] for name in NAMES),
    ]  # fmt: skip
    yield "field/stations.csv", [
        ["station", "model", "altitude_m", "keeper", "serviced"],
        *([f"{town} {spot}", DRAW.choice(("TS200", "TS300")), DRAW.randrange(2, 1400), DRAW.choice(NAMES),
           f"{DRAW.randrange(2022, 2026)}-{DRAW.randrange(1, 13):02}"]
          for town in TOWNS for spot in ("harbour", "hill")),
    ]  # fmt: skip
    for office in ("Kendal", "Kiel"):
        yield f"stock/stock.xlsx#{office}", [
            ["part", "on shelf", "bin", "reorder below"],
            *([part, DRAW.randrange(0, 300), f"{DRAW.choice('ABCDEF')}{DRAW.randrange(10, 60)}", DRAW.randrange(5, 40)]
              for part in PARTS),
        ]  # fmt: skip
    costs = "rent,wages,travel,freight,insurance,software,training,advertising,energy,repairs,legal fees,audit"
    for year in (2024, 2025):
        yield f"finance/budget.xlsx#{year}", [
            ["item", "planned EUR", "spent EUR", "owner"],
            *([cost, DRAW.randrange(4, 300) * 1000, DRAW.randrange(4, 300) * 1000, DRAW.choice(NAMES)]
              for cost in costs.split(",")),
        ]  # fmt: skip


def records() -> Iterator[tuple[str, list[str]]]:
    """Names of files of records, and the text of each record."""
    for name, text in TEXTS.items():
        if name.endswith(".jsonl"):
            told = text.strip().splitlines()
            more = [f"{DRAW.choice(NAMES)} wrote from {DRAW.choice(TOWNS)} about the {DRAW.choice(PARTS)}: "
                    + DRAW.choice(("it arrived late, and nobody called.", "it works, thank you.",
                                   "the invoice shows the wrong amount.", "please send the manual again."))
                    for _ in range(20)]  # fmt: skip
            yield name, DRAW.sample([*told, *more], len(told) + len(more))


def minutes() -> Iterator[tuple[str, str]]:
    """Minutes of meetings that have nothing to answer, in the words of what has."""
    for week in range(1, 17):
        lines = [f"# Minutes of week {week}\n"]
        for name in DRAW.sample(NAMES, 6):
            about, town = DRAW.choice(PARTS), DRAW.choice(TOWNS)
            lines.append(f"## {about.capitalize()}\n\n" + " ".join(DRAW.sample((
                f"{name} reported on the {about} at {town}.", "The price was discussed again.",
                "Nothing was decided.", f"The fitter in {town} asks for a second pair of hands.",
                "The battery was mentioned, and the warranty.", "Travel costs are higher than planned.",
                f"We wait for an offer from {DRAW.choice(NAMES).split()[1]}.", "The next review is in two weeks.",
                f"Two customers near {town} asked about calibration.", "The office was cold on Monday."), 6)) + "\n",
            )  # fmt: skip
        yield f"minutes/week-{week:02}.md", "\n".join(lines)


def write(folder: Path) -> Files:  # noqa: C901
    """Write all files; returns their units."""
    import openpyxl
    import pptx

    DRAW.seed(58)
    files: Files = {}

    def save(name: str, content: str | bytes, *units: Unit) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        lines = content.splitlines() if isinstance(content, str) else ()
        files[name] = units or tuple(Unit("lines", "", number, line) for number, line in enumerate(lines, 1))

    books: dict[str, Any] = {}
    for name, rows in tables():
        if name.endswith(".md"):
            head, *bars = [f"| {' | '.join(map(str, row))} |" for row in rows]
            rule = "|---" * len(rows[0]) + "|"
            title = name.split("/")[1][:-3].replace("-", " ").capitalize()
            save(name, "\n".join([f"# {title}\n", TEXTS["above tables"], head, rule, *bars]))
        elif name.endswith(".csv"):
            units = [Unit("row", "", number, "\n".join(map(str, row))) for number, row in enumerate(rows, 1)]
            save(name, "\n".join(",".join(map(str, row)) for row in rows), *units)
        else:
            name, _, sheet = name.partition("#")
            book = books.setdefault(name, openpyxl.Workbook())
            page = book.active if name not in files else book.create_sheet()
            page.title = sheet
            for row in rows:
                page.append(row)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            book.save(folder / name)
            units = [Unit("row", sheet, n, f"| {' | '.join(map(str, row))} |") for n, row in enumerate(rows, 1)]
            files[name] = (*files.get(name, ()), *units)
    for name, texts in records():
        save(name, "\n".join(json.dumps({"text": text}) for text in texts),
             *(Unit("record", "", n, text) for n, text in enumerate(texts, 1)))  # fmt: skip
    for name, text in minutes():
        save(name, text)
    for name, text in TEXTS.items():
        parts = [part.strip("\n") for part in text.strip("\n").split("\n====\n")]
        if name.endswith(".pdf"):
            save(name, pdf(parts), *(Unit("page", "", n, part) for n, part in enumerate(parts, 1)))
        elif name.endswith(".ipynb"):
            cells = [{"cell_type": "markdown" if part[0] == "#" or part[0].isupper() else "code", "source": part}
                     for part in parts]  # fmt: skip
            save(name, json.dumps({"cells": cells}), *(Unit("cell", "", n, part) for n, part in enumerate(parts, 1)))
        elif name.endswith(".pptx"):
            slides = pptx.Presentation()
            for part in parts:
                slide = slides.slides.add_slide(slides.slide_layouts[1])
                slide.shapes.title.text, _, slide.placeholders[1].text = part.partition("\n")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            slides.save(folder / name)
            files[name] = tuple(Unit("slide", "", n, part) for n, part in enumerate(parts, 1))
        elif name.endswith((".md", ".rst", ".py", ".txt")):
            save(name, text.lstrip("\n"))
    return files


def plain(text: str) -> str:
    return " ".join(text.split())


def holds(text: str, evidence: str) -> bool:
    """Whether a text has all parts of the evidence."""
    text = plain(text)
    return all(plain(part) in text for part in evidence.split("|"))


def units_of(evidence: str, units: Sequence[Unit]) -> Sequence[Unit]:
    """The unit that holds the evidence; of lines, as many as it is on."""
    for size in range(1, 4 if units[0].kind == "lines" else 2):
        runs = (units[at : at + size] for at in range(len(units) - size + 1))
        if found := [run for run in runs if holds("\n".join(unit.text for unit in run), evidence)]:
            assert len(found) == 1, f"{len(found)} places have {evidence!r}"
            return found[0]
    raise AssertionError(f"no place has {evidence!r}")


def judged(hit: Hit, file: str, evidence: str, units: Sequence[Unit], row: bool) -> list[bool]:
    """Whether file, place, exact place and mark are right."""
    if hit.document.metadata.get("source") != file:
        return [False] * 4
    marks, needed = hit.highlights, units_of(evidence, units)
    first, last, kind = needed[0].number, needed[-1].number, needed[0].kind
    right = []
    for place, slack in ((hit.citation, None), (cite(hit.document, hit.passage, marks.sentence), 8)):
        covers = place.kind == kind and place.name == needed[0].name and place.first <= first <= last <= place.last
        allowed = last - first + (slack if slack and kind == "lines" else 0)
        right.append(covers and (slack is None or place.last - place.first <= allowed))
    span = marks.sentence if row else marks.around or marks.sentence
    return [True, *right, span is not None and holds(hit.document.content[slice(*span)], evidence)]


def told(hit: Hit) -> str:
    """Citation and marks of a hit."""
    marks, content = hit.highlights, hit.document.content
    spans = {"marked": marks.sentence, "around": marks.around}
    return "".join([f"{hit.citation}", *(f"\n  {name} {content[slice(*at)]!r}" for name, at in spans.items() if at)])


def main() -> None:
    texts = [Path(__file__).with_name("questions").joinpath(f"{name}.jsonl").read_text("utf-8") for name in SETS]
    sets = [[json.loads(line) for line in text.splitlines()] for text in texts]
    kinds = list(dict.fromkeys(one["kind"] for one in sets[0]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--questions", choices=SETS, default=SETS[0], help="mixed_other: rows and pages that no change was chosen by"
    )
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--misses", action="store_true", help="print what was found where something is wrong")
    args = parser.parse_args()
    questions = sets[SETS.index(args.questions)]
    with TemporaryDirectory() as place:
        files, model = write(Path(place, "files")), SpaceModel.untrained(load_encoder(ENCODER))
        with Index.create(Path(place, "index"), model) as index:
            index.sync(Path(place, "files"), progress=False)
            print("| kind | questions | file | place | exact | mark |\n|---|" + "---:|" * 5)
            rows = []
            for kind in args.kinds:
                counts = [0] * 5
                for one in questions:
                    if one["kind"] != kind:
                        continue
                    file, evidence = one["file"], one["evidence"]
                    (hit,) = index.search(one["question"], 1)
                    right = judged(hit, file, evidence, files[file], kind in ("table", "workbook"))
                    counts = [a + b for a, b in zip(counts, [1, *right], strict=True)]
                    if args.misses and not all(right):
                        print(f"\n{one['question']}\n  wanted {file}: {evidence!r}\n  {right} {told(hit)}")
                print(f"| {kind} | {' | '.join(map(str, counts))} |", flush=True)
                rows.append(counts)
            print(f"| all | {' | '.join(map(str, map(sum, zip(*rows, strict=True))))} |")


if __name__ == "__main__":
    main()
