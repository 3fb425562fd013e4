"""Filters of the page: folders, kinds and times of documents, each with the filter that finds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

from palmette.ranking.boost import read_date
from palmette.types import Document

FACET_VALUES = 8
"""Largest number of values of a facet."""
LONGEST_SUFFIX = 8
TIMES = (("last 7 days", 7), ("last 30 days", 30), ("last 12 months", 365))
"""Times of a document's date, each with its days."""
DATE = "date"
"""Name of the metadata that date a document."""
_NAMES = {
    ".md": "Markdown", ".markdown": "Markdown", ".rst": "reStructuredText", ".txt": "text", ".pdf": "PDF",
    ".docx": "Word", ".pptx": "PowerPoint", ".xlsx": "Excel", ".csv": "table", ".tsv": "table", ".html": "web page",
    ".htm": "web page", ".ipynb": "notebook", ".jsonl": "records", ".py": "Python",
}  # fmt: skip


class Facets:
    """Counts of folders, kinds and times of documents."""

    def __init__(self) -> None:
        self._folders, self._suffixes, self._dates = Counter[str](), Counter[str](), list[datetime]()
        self._sources, self._is_text, self._documents = set[str](), False, 0

    def count(self, document: Document) -> None:
        """Count a document."""
        source = document.metadata.get("source")
        self._documents += 1
        if isinstance(source, str) and source:
            path = PurePosixPath(source)
            if len(path.parts) > 1 and not path.is_absolute():
                self._folders[path.parts[0]] += 1
            if 1 < len(path.suffix) <= LONGEST_SUFFIX:
                self._suffixes[path.suffix.lower()] += 1
            self._sources.add(source)
        value = document.metadata.get(DATE)
        if (date := read_date(value)) is not None:
            self._dates.append(date)
            self._is_text = self._is_text or isinstance(value, str)

    def found(self) -> list[dict[str, Any]]:
        """Return the facets that divide the documents."""
        folders = [
            # what is below a folder: 0 is the character after the slash
            _value(f"{name}/", count, {"source": {"$gte": f"{name}/", "$lt": f"{name}0"}})
            for name, count in self._folders.most_common(FACET_VALUES)
            if count < self._documents
        ]
        kinds = Counter[str]()
        for suffix, count in self._suffixes.items():
            kinds[_name(suffix)] += count
        named = [_value(name, count, self._of_kind(name)) for name, count in kinds.most_common(FACET_VALUES)]
        found = [("folder", folders), ("kind", named if len(named) > 1 else []), ("time", self._times())]
        return [{"name": name, "values": values} for name, values in found if values]

    def _of_kind(self, name: str) -> dict[str, Any]:
        """Return the filter of a kind: sources with one of its endings, without those that have it elsewhere."""
        parts = list[Mapping[str, Any]]()
        for suffix in sorted(suffix for suffix in self._suffixes if _name(suffix) == name):
            others = sorted(
                source for source in self._sources if suffix in source.lower() and not source.lower().endswith(suffix)
            )
            parts.append({"source": {"$icontains": suffix} | ({"$nin": others} if others else {})})
        return {"$or": parts} if len(parts) > 1 else dict(parts[0])

    def _times(self) -> list[dict[str, Any]]:
        """Return the times that some documents, but not all, are from; dates that are numbers are left out."""
        now, times = datetime.now(UTC), list[dict[str, Any]]()
        for name, days in TIMES if self._is_text else ():
            since = now - timedelta(days=days)
            count = sum(date >= since for date in self._dates)
            if count and (not times or times[-1]["documents"] < count):
                times.append(_value(name, count, {DATE: {"$gte": since.date().isoformat()}}))
        return times


def of_fields(fields: Mapping[str, Sequence[Sequence[Any]]]) -> list[dict[str, Any]]:
    """Return facets of metadata with several frequent values; names of files are none."""
    return [
        {"name": name, "values": [_value(str(value), count, {name: value}) for value, count in values[:FACET_VALUES]]}
        for name, values in fields.items()
        if len(values) > 1 and name not in ("source", "title", DATE)
    ]


def _name(suffix: str) -> str:
    return _NAMES.get(suffix, suffix[1:])


def _value(value: str, documents: int, filter: Mapping[str, Any]) -> dict[str, Any]:
    return {"value": value, "documents": documents, "filter": dict(filter)}
