"""Training queries made from documents alone, so that nobody needs labels to start.

Every query is made of one document's words, and that document answers it. The kinds:

* ``title``     the title or Markdown heading; the first sentence where there is none or many share it
* ``lead``      the first sentence
* ``sentence``  any other sentence
* ``phrase``    a run of 4 to 12 words inside a sentence; of characters, in scripts without blanks
* ``keywords``  the 3 to 6 words with the highest tf-idf

The words may be cut out of the document (an inverse cloze), which a trained encoder needs. Over a frozen one that
changed no result (linear tree, SQuAD passages) and costs an encoding per cut document, so by default they stay in.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from tqdm import tqdm

from palmette.config import check_range
from palmette.errors import ConfigError
from palmette.types import Document

KINDS = ("title", "lead", "sentence", "phrase", "keywords")
DEFAULT_KINDS = ("title", "sentence", "phrase", "keywords")
SHARED_TITLE = 3
"""A title on more documents than this names none of them."""
MIN_REST = 5
"""Words that must remain for a document to be split."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"  # Kana and Han
)
"""Scripts that put no blanks between words, as a part of a regular expression's set."""
_STOP = "。！？｡।॥؟۔։።፧။។៕"  # these need no blank after them
_END = re.compile(
    r"(?<=[.!?])[\"'”’)\]]*\s+"
    rf"|(?<=[{_STOP}])(?![{_STOP}])[\"'”’)\]」』）》】]*\s*"
    r"|(?<=[\u0e00-\u0e45\u0e47-\u0eff])\s+(?=[\u0e00-\u0eff])"  # Thai and Lao: blanks alone
    r"|\n\s*\n|\n(?=[-*#•])"
)
_MARKS = "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u17b4-\u17d3\u3099\u309a"
_VOWELS = "\u064b-\u065f\u0670\u0900-\u0963\u0970-\u0dff"  # Arabic, India: marks are no letters to Python
_RUN = rf"[^\W_{UNSPACED}]+(?:[{_VOWELS}]+[^\W_{UNSPACED}]*)*"
_SPACED = rf"{_RUN}(?:['’\-]{_RUN})*"
_CHARACTER = rf"(?=[{UNSPACED}])[^\W_][{_MARKS}]*"
_WORD = re.compile(rf"{_SPACED}|{_CHARACTER}")
"""A word; of scripts without blanks, a character with its marks."""
_TERM = re.compile(_SPACED)
_PAIR = re.compile(rf"(?=((?:{_CHARACTER}){{2}}))")
_HEADING = re.compile(r"\A\s*#{1,6}[ \t]+(.+?)[ \t#]*(?:\n|\Z)")
_EDGES = f" \t\r\n.,;:!?\"'“”‘’()[]{{}}*_#-–—•{_STOP}，、；：「」『』（）《》【】،؛"


class SyntheticQuery(NamedTuple):
    """A query made of the words of the document in row ``document``.

    ``rest`` is the document without them; ``None`` where it stays whole.
    """

    kind: str
    query: str
    document: int
    rest: str | None


def sentences(text: str) -> list[tuple[int, int]]:
    """Spans of the sentences; pieces of fewer than four words (“St.”, “Fig. 2”) join what follows."""
    spans: list[tuple[int, int]] = []
    start = 0
    for found in [*_END.finditer(text), None]:
        end = found.end() if found else len(text)
        long = len(_WORD.findall(text, start, end)) >= 4
        if long or (found is None and not spans and text[start:end].strip()):
            spans.append((start, end))
            start = end
        elif found is None and text[start:end].strip():
            spans[-1] = (spans[-1][0], end)
    return spans


def title_of(document: Document) -> str:
    """Title that fields, metadata or a Markdown heading give, else nothing."""
    for source in (document.fields, document.metadata):
        title = source.get("title")
        if isinstance(title, str) and title.strip():
            return title.strip()
    found = _HEADING.match(document.text)
    return found.group(1).strip() if found else ""


def _body(document: Document, title: str) -> str:
    text = document.text.strip()
    if found := _HEADING.match(text):
        return text[found.end() :].strip() if found.group(1).strip() == title else text
    after = text[len(title) :]
    return after.strip() if title and text.startswith(title) and not after[:1].isalnum() else text


def _keyword_lists(texts: Sequence[str], size: int = 6) -> list[list[str]]:
    """Highest tf-idf terms of each text: words of three letters or more; pairs of characters in unspaced scripts."""
    counts, lists = [], list[list[str]]()
    for text in texts:
        count = Counter(word for word in map(str.lower, _TERM.findall(text)) if len(word) >= 3)
        if not text.isascii():
            count.update(_PAIR.findall(text))
        counts.append(count)
    seen = Counter(chain.from_iterable(counts))
    for count in counts:
        weights = [(-n * math.log(len(texts) / seen[word]), word) for word, n in count.items()]
        lists.append([word for weight, word in sorted(weights)[:size] if weight < 0])
    return lists


def _query(
    kind: str, title: str, body: str, spans: Sequence[tuple[int, int]], keywords: Sequence[str], draw: random.Random
) -> tuple[str, str] | None:
    """Query of a kind, and the body without it; ``None`` if the document has none."""
    if kind == "keywords":
        return (" ".join(keywords[: draw.randint(3, 6)]), "") if len(keywords) >= 3 else None
    if kind == "title" and title:
        return title, body
    if kind == "phrase":
        if not spans:
            return None
        words = list(_WORD.finditer(body, *draw.choice(spans)))
        if len(words) < 6:
            return None
        size = draw.randint(4, min(12, len(words) - 2))
        first = draw.randrange(len(words) - size + 1)
        start, end = words[first].start(), words[first + size - 1].end()
    elif len(spans) < 2:
        return None
    else:
        start, end = draw.choice(spans[1:]) if kind == "sentence" else spans[0]
    before, after = body[:start].rstrip(), body[end:].lstrip()
    joint = "" if after[:1] in tuple(".,;:!?") else " "
    return body[start:end].strip(_EDGES), f"{before}{joint}{after}".strip()


def make_queries(
    documents: Sequence[Document], *, kinds: Iterable[str] = DEFAULT_KINDS, cut: float = 0.0, seed: int = 0
) -> list[SyntheticQuery]:
    """One query of each kind from each document that allows it; a kind named twice gives two.

    A share ``cut`` of them is cut out of the document; keywords never are. There is no query where nothing would
    remain of the document without it. A document's draws depend on the seed and its id alone, so more documents leave
    the queries of others as they were (but for keywords, which depend on all).
    """
    kinds = tuple(kinds)
    check_range("synthetic queries", "cut", cut, 0, 1)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ConfigError(f"there is no kind {unknown[0]!r} of synthetic queries; kinds: {', '.join(KINDS)}")
    titles = list(map(title_of, documents))
    shared, bodies = Counter(titles), list(map(_body, documents, titles))
    keywords = _keyword_lists(bodies) if "keywords" in kinds else [[]] * len(bodies)
    queries: list[SyntheticQuery] = []
    bar = tqdm(documents, desc="making queries", unit="document", delay=2, leave=False, disable=None)
    for row, document in enumerate(bar):
        title = titles[row] if shared[titles[row]] <= SHARED_TITLE else ""
        spans, draw = sentences(bodies[row]), random.Random(f"{seed}:{document.key}")
        taken: set[str] = set()
        for kind in kinds:
            query, rest = _query(kind, title, bodies[row], spans, keywords[row], draw) or ("", "")
            whole = kind == "keywords" or draw.random() >= cut
            if query and query not in taken and (kind == "keywords" or len(_WORD.findall(rest)) >= MIN_REST):
                taken.add(query)
                queries.append(SyntheticQuery(kind, query, row, None if whole else rest))
    return queries
