"""Prompts that ask a language model for questions about passages, and the questions of its replies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from palmette.types.text import is_unicode

QUESTION_KINDS = {
    "keywords": "search queries of two to six keywords that this passage is the best result for",
    "question": "natural questions that this passage answers",
    "paraphrase": "natural questions that this passage answers, in other words than its own: replace its nouns and "
    "verbs by synonyms or descriptions",
    "related": "natural questions that need both passages for their answer",
}
"""Instruction for each kind of questions."""
QUESTIONS_PROMPT = """Write {count} {kind}.
Each must make sense to somebody who does not see the text: name things, and never write "this passage".
Use the language of the text. Reply with JSON only: {{"questions": ["…"]}}

{text}"""
QUESTIONS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"questions": {"type": "array", "items": {"type": "string"}}},
    "required": ["questions"],
    "additionalProperties": False,
}
"""JSON schema of a reply."""
LONGEST_QUESTION = 300
"""Largest number of characters of a question; longer lines are remarks of the model."""
_ITEM = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.):]|Q\d*[.:])?\s*[\"“]?(.*?)[\"”]?,?\s*$")
_REFUSAL = re.compile(
    r"\b(?:I(?:'|’)m sorry|I apologi[sz]e|I can(?:'|’|no)t|I am (?:unable|not able)|As an AI)\b", re.I
)


def prompt_for(kind: str, texts: Sequence[str], count: int) -> str:
    """Return the prompt for questions of a kind about one passage, or about several together."""
    numbers = [f" {number}" for number in range(1, len(texts) + 1)] if len(texts) > 1 else [""]
    parts = [f"Passage{number}:\n{text}" for number, text in zip(numbers, texts, strict=True)]
    return QUESTIONS_PROMPT.format(count=count, kind=QUESTION_KINDS[kind], text="\n\n".join(parts))


def is_refusal(text: str) -> bool:
    """Return whether a reply begins with an apology and holds no JSON."""
    return "{" not in text and _REFUSAL.search(text[:200]) is not None


def parse_questions(text: str) -> list[str]:
    """Parse questions from a reply: JSON anywhere in it, or else its lines without numbers, marks and quotes."""
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            try:
                value = json.loads(text[start : end + 1])
            except (ValueError, RecursionError):
                continue
            listed = value.get("questions") if isinstance(value, dict) else value
            if isinstance(listed, list):
                questions = [" ".join(item.split()) for item in listed if isinstance(item, str)]
                return [
                    question for question in questions if 0 < len(question) <= LONGEST_QUESTION and is_unicode(question)
                ]
    if text.lstrip().startswith(("{", "[", "`")):  # incomplete JSON
        return []
    lines = [" ".join(match[1].split()) for line in text.splitlines() if (match := _ITEM.match(line))]
    lines = [line for line in lines if 2 < len(line) <= LONGEST_QUESTION and is_unicode(line)]
    return [line for line in lines if not line.endswith((":", "{", "[", "`"))]
