"""Former place of ``lexical/bm25.py``."""

from palmette.lexical.bm25 import WordCollection as Given  # moved: delete after the merge


def shares_among(analyser, query, texts):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, D103
    return Given(analyser, texts).shares(query)
