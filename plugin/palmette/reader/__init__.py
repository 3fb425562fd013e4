"""The reader: answers in the passages' own words, without a language model.

    reader = Reader.fit("squad/train.json", encoder="sentence-transformers/all-MiniLM-L6-v2")
    answer = reader.answer("When did it begin?", index.search("When did it begin?", k=5))
    answer.text, answer.confidence, answer.supports[0].document, answer.explain()

``reader.py`` the class · ``answer.py`` what it says · ``data.py``, ``made.py`` from users' data, or documents
alone, to questions, passages and spans · ``lessons.py`` what training reads beside them · ``windows.py`` pairs of
token sequences · ``module.py`` the network · ``prior.py`` what speaks for a passage beside it · ``scores.py`` one
softmax over all spans of all passages and "no answer" · ``task.py`` its training · ``exam.py`` its validation ·
``reading.py`` from scores to answers · ``spans.py``, ``sentences.py`` the two units of answer
"""

from palmette.reader.answer import Answer, Support
from palmette.reader.config import ReaderConfig, ReaderTraining
from palmette.reader.data import Asked, ReadingData, load_reading
from palmette.reader.reader import Reader

__all__ = [
    "Answer",
    "Asked",
    "Reader",
    "ReaderConfig",
    "ReaderTraining",
    "ReadingData",
    "Support",
    "load_reading",
]
