"""Former names."""  # moved: delete after the merge

from palmette.metrics import answer_accuracy, answer_rank, exact_match, f1, holds_answer, normalise

__all__ = ["answer_accuracy", "answer_rank", "exact_match", "f1", "holds_answer", "normalise"]
