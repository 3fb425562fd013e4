"""Data that lies on every machine: the standard library of the running Python, and questions about it."""

from palmette.sample.catalogue import python_catalogue
from palmette.sample.dataset import sample_data
from palmette.sample.questions import Question, load_questions

__all__ = ["Question", "load_questions", "python_catalogue", "sample_data"]
