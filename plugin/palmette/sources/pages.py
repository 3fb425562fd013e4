"""The text of a page of HTML, as Markdown."""

from __future__ import annotations

import re
from typing import Any

from palmette.errors import InputError

_MOST_TAGS = 100_000
"""Signs that begin a tag in a page; a parsed tag takes 1.3 kilobytes."""
_SCRIPTS = "script style template svg".split()
_ASIDE = [*_SCRIPTS, *"noscript nav footer aside iframe form button select dialog a.headerlink".split()]


def html_to_markdown(source: str, *, whole: bool = False) -> tuple[str, str | None]:
    """Return the text of a page as Markdown, and its title.

    Menus, footers, forms and scripts are left out, and all but the main part where the page says which one it is;
    scripts only where the ``whole`` page is text, as in books.
    """
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    end = source.rfind(">") + 1  # signs after it begin no tag, and the parser reads on to the end from each
    source = source[:end] + source[end:].replace("<", "&lt;")
    if (tags := source.count("<")) > _MOST_TAGS:
        raise InputError(f"the page has {tags:,} tags, and may have {_MOST_TAGS:,}: split it, or save it as text")
    page: Any = BeautifulSoup(source, "html.parser")
    title = " ".join(page.title.get_text().split()) if page.title else ""
    for part in page.select(", ".join([*(_SCRIPTS if whole else _ASIDE), "head"])):
        part.decompose()
    articles = page.find_all("article")
    main = page.find("main") or page.find(attrs={"role": "main"}) or (articles[0] if len(articles) == 1 else page)
    main = page if whole else main
    converter = MarkdownConverter(
        heading_style="ATX",
        bullets="-",
        strip=["a", "b", "strong", "em", "i", "img"],
        table_infer_header=True,
        escape_asterisks=False,
        escape_underscores=False,
        code_language_callback=_language,
    )
    text = converter.convert_soup(main)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip("\n") + "\n", title or None


def _language(element: Any) -> str:
    """Return the language that a page names for a block of code."""
    around = [element, element.find("code"), element.parent, element.parent and element.parent.parent]
    classes = " ".join(name for element in around if element for name in element.get("class") or ())
    match = re.search(r"(?:lang(?:uage)?|highlight|brush)[-:](?:source-)?(?!default)([\w+#-]+)", classes)
    return match[1] if match else ""
