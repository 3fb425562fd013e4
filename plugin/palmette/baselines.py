"""Former names."""  # moved: delete after the merge
# ruff: noqa: F401

from palmette.evaluation import BM25, EncoderBaseline
