"""The reader: answers in the passages' own words, without a language model.

reader = Reader.fit("squad/train.json", encoder="sentence-transformers/all-MiniLM-L6-v2")
answer = reader.answer("When did it begin?", index.search("When did it begin?", k=5))
answer.text, answer.confidence, answer.supports[0].document, answer.explain()
"""

from palmette.reader.answer import Answer, Support
from palmette.reader.config import ReaderConfig
from palmette.reader.data import Example, ReadingData, load_reading
from palmette.reader.reader import Reader

__all__ = ["Answer", "Example", "Reader", "ReaderConfig", "ReadingData", "Support", "load_reading"]
