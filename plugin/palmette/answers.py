"""Former names."""  # moved: delete after the merge
# ruff: noqa: F401

from palmette.metrics import answer_accuracy, answer_rank, exact_match, f1, holds_answer, normalise
