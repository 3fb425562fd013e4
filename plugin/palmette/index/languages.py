"""Choice by the language of a new index's texts: its stemmer, and whether its encoder fits."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from palmette.data.listing import sample_source
from palmette.lexical.analyser import LANGUAGE, languages
from palmette.lexical.language import AUTO, language_of, stemmer_for
from palmette.methods.base import Model
from palmette.store.protocols import Backend
from palmette.types import Document

ENGLISH_ENCODERS = re.compile(
    r"^(?!.*multilingual)(.*[/:_-])?(all-(minilm|mpnet|distilroberta|roberta)|multi-qa|msmarco|paraphrase-(minilm|mpnet|albert|distilroberta)"
    r"|e5-(small|base|large)|bge-\w+-en|gte-(small|base|large)$|gtr-t5|sentence-t5|snowflake-arctic-embed-(xs|s|m|l)$"
    r"|nomic-embed-text-v1|mxbai-embed|jina-embeddings-v2-\w+-en)",
    re.IGNORECASE,
)
"""Names of well-known encoders that were trained on English."""
MULTILINGUAL = '{"name": "intfloat/multilingual-e5-small", "prompts": {"query": "query: ", "document": "passage: "}}'
"""An encoder of about a hundred languages that is as small as the default one."""


def language_of_sources(paths: Iterable[str | Path], **patterns: Any) -> str | None:
    """Return the stemmer for an index of folders and files, of which some files are read."""
    return stemmer_for(AUTO, [text for path in paths for text in sample_source(path, **patterns)])


def warn_of_language(model: Model, backend: Backend, documents: Sequence[Document]) -> None:
    """Warn about the first texts of an index if their language is not its stemmer's, or unknown to its encoder."""
    told = language_of([document.content for document in documents])
    if told in (None, LANGUAGE):
        return
    texts = f"most texts are in {told.capitalize()}"
    if backend.language == LANGUAGE and told in languages():
        warnings.warn(
            f"{texts}, but the words of this index are stemmed as English ones: make it with language={told!r}, "
            f"or `palmette index … --language {told}`",
            stacklevel=4,
        )
    if ENGLISH_ENCODERS.search(name := model.encoder.name):
        warnings.warn(
            f"{texts}, but the encoder {name} knows English: it will compare meanings badly. Make the index with "
            f"another encoder, `palmette index … --encoder '{MULTILINGUAL}'`, or encoder={MULTILINGUAL}",
            stacklevel=4,
        )
