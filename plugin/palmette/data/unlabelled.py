"""Former names."""  # moved: delete after the merge
# ruff: noqa: F401

from palmette.data.synthetic import UNSPACED, sentences, title_of
