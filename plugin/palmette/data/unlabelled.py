"""Training queries made from documents alone, so that nobody needs labels to start.

Every query is made of one document's words, and that document answers it. The kinds:

* ``title``     the title or Markdown heading; the first sentence where there is none or many share it
* ``lead``      the first sentence
* ``sentence``  any other sentence
* ``phrase``    a run of 4 to 12 words inside a sentence; of characters, in scripts without blanks
* ``keywords``  the 3 to 6 words that tell the document from the others (tf-idf)

The words may be cut out of the document (an inverse cloze), so that finding the same words again is no help.
An encoder that is trained needs that; over a frozen one it changed no result (linear tree, SQuAD passages),
and each cut document has to be encoded for itself. So by default they stay in.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from palmette.config import check_range
from palmette.errors import ConfigError
from palmette.types import Document

__all__ = ["DEFAULT_KINDS", "KINDS", "UNSPACED", "SelfMade", "make_queries", "sentences", "title_of"]

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
_MARKS = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u17b4-\u17d3\u3099\u309a"
)
_VOWELS = (
    "\u064b-\u065f\u0670\u0900-\u0963\u0970-\u0dff"  # of Arabic and India: marks are no letters to Python
)
_RUN = rf"[^\W_{UNSPACED}]+(?:[{_VOWELS}]+[^\W_{UNSPACED}]*)*"
_SPACED = rf"{_RUN}(?:['’\-]{_RUN})*"
_CHARACTER = rf"(?=[{UNSPACED}])[^\W_][{_MARKS}]*"
_WORD = re.compile(rf"{_SPACED}|{_CHARACTER}")
"""A word; of scripts without blanks, a character with its marks."""
_TERM = re.compile(_SPACED)
_PAIR = re.compile(rf"(?=((?:{_CHARACTER}){{2}}))")
_HEADING = re.compile(r"\A\s*#{1,6}[ \t]+(.+?)[ \t#]*(?:\n|\Z)")
_STOPS = tuple(".,;:!?")
_EDGES = f" \t\r\n.,;:!?\"'“”‘’()[]{{}}*_#-–—•{_STOP}，、；：「」『』（）《》【】،؛"


@dataclass(frozen=True)
class SelfMade:
    """A query made of a document's words.

    Attributes:
        kind: How it was made.
        query: Its words.
        document: The row of its document.
        rest: The document without it, or ``None`` when the document stayed whole.
    """

    kind: str
    query: str
    document: int
    rest: str | None


@dataclass(frozen=True)
class _Text:
    """A document as the makers see it: a telling title or none, the body, its sentences, its keywords."""

    title: str
    body: str
    spans: Sequence[tuple[int, int]]
    keywords: Sequence[str]

    def cut(self, start: int, end: int) -> tuple[str, str]:
        """What stands between, and the rest."""
        before, after = self.body[:start].rstrip(), self.body[end:].lstrip()
        joint = "" if after[:1] in _STOPS else " "
        return self.body[start:end].strip(_EDGES), f"{before}{joint}{after}".strip()


def _words(text: str) -> int:
    return sum(1 for _ in _WORD.finditer(text))


def sentences(text: str) -> list[tuple[int, int]]:
    """Spans of the sentences; pieces of fewer than four words (“St.”, “Fig. 2”) join what follows."""
    spans: list[tuple[int, int]] = []
    start = 0
    for found in [*_END.finditer(text), None]:
        end = found.end() if found else len(text)
        if _words(text[start:end]) >= 4 or (found is None and text[start:end].strip()):
            if found is None and spans and _words(text[start:end]) < 4:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
            start = end
    return spans


def title_of(document: Document) -> str:
    """The title that fields, metadata or a Markdown heading give, else nothing."""
    for source in (document.fields, document.metadata):
        title = source.get("title")
        if isinstance(title, str) and title.strip():
            return title.strip()
    found = _HEADING.match(document.text)
    return found.group(1).strip() if found else ""


def _body(document: Document, title: str) -> str:
    """The text after its title."""
    text = document.text.strip()
    if found := _HEADING.match(text):
        return text[found.end() :].strip() if found.group(1).strip() == title else text
    after = text[len(title) :]
    return after.strip() if title and text.startswith(title) and not after[:1].isalnum() else text


def _title(text: _Text, draw: random.Random) -> tuple[str, str] | None:
    return (text.title, text.body) if text.title else _lead(text, draw)


def _lead(text: _Text, draw: random.Random) -> tuple[str, str] | None:
    return text.cut(*text.spans[0]) if len(text.spans) > 1 else None


def _sentence(text: _Text, draw: random.Random) -> tuple[str, str] | None:
    return text.cut(*draw.choice(text.spans[1:])) if len(text.spans) > 1 else None


def _phrase(text: _Text, draw: random.Random) -> tuple[str, str] | None:
    if not text.spans:
        return None
    start, end = draw.choice(text.spans)
    words = list(_WORD.finditer(text.body, start, end))
    if len(words) < 6:
        return None
    size = draw.randint(4, min(12, len(words) - 2))
    first = draw.randrange(len(words) - size + 1)
    return text.cut(words[first].start(), words[first + size - 1].end())


def _keywords(text: _Text, draw: random.Random) -> tuple[str, str] | None:
    if len(text.keywords) < 3:
        return None
    return " ".join(text.keywords[: draw.randint(3, 6)]), ""


KINDS: Mapping[str, Callable[[_Text, random.Random], tuple[str, str] | None]] = {
    "title": _title,
    "lead": _lead,
    "sentence": _sentence,
    "phrase": _phrase,
    "keywords": _keywords,
}
DEFAULT_KINDS = ("title", "sentence", "phrase", "keywords")


def _terms(text: str) -> Iterator[str]:
    """What may be a keyword: words of three letters or more; pairs of characters, in scripts without blanks."""
    yield from (word for word in (found.group().lower() for found in _TERM.finditer(text)) if len(word) > 2)
    if not text.isascii():
        yield from (found.group(1) for found in _PAIR.finditer(text))


def _keyword_lists(texts: Sequence[str], size: int = 6) -> list[list[str]]:
    """The highest tf-idf words of each text, best first."""
    counts = [Counter(_terms(text)) for text in texts]
    seen = Counter(word for count in counts for word in count)
    weights = [{word: n * math.log(len(texts) / seen[word]) for word, n in count.items()} for count in counts]
    return [
        sorted((w for w in weight if weight[w] > 0), key=lambda w: (-weight[w], w))[:size]
        for weight in weights
    ]


def make_queries(
    documents: Sequence[Document], *, kinds: Iterable[str] = DEFAULT_KINDS, cut: float = 0.0, seed: int = 0
) -> list[SelfMade]:
    """One query of each kind from each document that allows it; a kind named twice gives two.

    A share ``cut`` of them is cut out of the document; keywords never are. Where nothing would remain of a
    document without the query, there is no query.

    A document's draws depend on the seed and its id alone, so more documents leave the queries of others as
    they were (but for keywords, which depend on all).
    """
    kinds = tuple(kinds)
    check_range("self-made queries", "cut", cut, 0, 1)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ConfigError(f"there is no kind {unknown[0]!r} of self-made queries; kinds: {', '.join(KINDS)}")
    titles = [title_of(document) for document in documents]
    shared = Counter(titles)
    bodies = [_body(document, title) for document, title in zip(documents, titles, strict=True)]
    keywords = _keyword_lists(bodies) if "keywords" in kinds else [[]] * len(bodies)
    made: list[SelfMade] = []
    bar = tqdm(documents, desc="making queries", unit="document", delay=2, leave=False, disable=None)
    for row, document in enumerate(bar):
        title = titles[row] if shared[titles[row]] <= SHARED_TITLE else ""
        text = _Text(title, bodies[row], sentences(bodies[row]), keywords[row])
        draw = random.Random(f"{seed}:{document.key}")
        taken: set[str] = set()
        for kind in kinds:
            query, rest = KINDS[kind](text, draw) or ("", "")
            whole = kind == "keywords" or draw.random() >= cut
            if query and query not in taken and (kind == "keywords" or _words(rest) >= MIN_REST):
                taken.add(query)
                made.append(SelfMade(kind, query, row, None if whole else rest))
    return made
