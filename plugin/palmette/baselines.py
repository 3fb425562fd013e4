"""Former names."""  # moved: delete after the merge

from palmette.evaluation import BM25, EncoderBaseline

__all__ = ["BM25", "EncoderBaseline"]
