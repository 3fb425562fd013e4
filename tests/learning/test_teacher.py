"""A teacher judges what an index finds: any reranker, once a question."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from learning.conftest import ChatServer, animals
from learning.test_refit import TOPICS, documents, quality, question
from palmette import FakeEncoder, Index, SpaceModel
from palmette.errors import ConfigError, InputError
from palmette.learning.refit import feedback_data
from palmette.learning.teacher import as_teacher, judge
from palmette.ranking.score import Calibration


def knows(query: str, texts: Sequence[str]) -> list[float]:
    """Score by the number of the topic, which no search can know: alpha7 asks for beta7."""
    topic = query.split()[0].removeprefix("alpha")
    return [float(text.split()[0] == f"beta{topic}") for text in texts]


@pytest.fixture
def index() -> Any:
    with Index.build(documents(), SpaceModel.untrained(FakeEncoder(64)), progress=False) as built:
        yield built


def test_a_space_learns_from_a_teacher(index: Index, tmp_path: Path) -> None:
    questions = [question(number % TOPICS, number) for number in range(400)]
    data = judge(index, questions, knows, tmp_path, depth=20, progress=False)
    judged = {data.queries[key]: next(iter(rated)) for key, rated in data.qrels["train"].items()}
    assert len(judged) > 100
    assert all(int(id[1:]) % TOPICS == int(query.split()[0][5:]) for query, id in judged.items())
    model = SpaceModel.fit(data, encoder=FakeEncoder(64), progress=False)
    with Index.build(documents(), model, progress=False) as learned:
        assert quality(learned) > quality(index)
    assert {one.words for one in model.calibrations.values()} == {Calibration().words}, "learned from a reranker"


@pytest.mark.parametrize(("good", "judged"), [(0, 0), (1, 1), (2, 1), (3, 1), (6, 0), (20, 0)])
def test_a_relevant_hit_exceeds_most_others(index: Index, tmp_path: Path, good: int, judged: int) -> None:
    data = judge(index, ["q"], lambda query, texts: [1.0] * good + [0.0] * (20 - good), tmp_path, progress=False)
    assert len(data.queries) == judged
    assert data.judged_by


def test_people_calibrate_and_rerankers_do_not(index: Index, tmp_path: Path) -> None:
    questions = [question(number % TOPICS, number) for number in range(200)]
    by_knows = judge(index, questions, knows, tmp_path, progress=False)
    by_people = replace(by_knows, judged_by=None)
    models = [SpaceModel.fit(data, encoder=FakeEncoder(64), progress=False) for data in (by_knows, by_people)]
    sources = [{one.source for one in model.calibrations.values()} for model in models]
    assert sources == [{Calibration().source}, {"held-out questions"}]
    assert feedback_data(index, by_knows).judged_by == by_knows.judged_by


def test_no_question_is_judged_twice(index: Index, tmp_path: Path) -> None:
    calls: list[str] = []

    def teacher(query: str, texts: Sequence[str]) -> list[float]:
        calls.append(query)
        return knows(query, texts)

    questions = [question(n, n) for n in range(10)]
    first = judge(index, questions, teacher, tmp_path, progress=False)
    again = judge(index, [*questions, questions[0], "one more"], teacher, tmp_path, progress=False)
    assert calls == [*questions, "one more"]
    assert again.qrels["train"].items() >= first.qrels["train"].items()


class CrossEncoder:
    """What a sentence-transformers CrossEncoder offers."""

    tokenizer = None

    def predict(self, pairs: Sequence[tuple[str, str]], show_progress_bar: bool | None = None) -> Any:
        return np.array([knows(query, [text])[0] for query, text in pairs], np.float32)


class LangChainCrossEncoder:
    """LangChain's interface of cross-encoders."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [knows(query, [text])[0] for query, text in pairs]


@pytest.mark.parametrize(("scores", "judged"), [([0.5] * 20, 0), ([0.0] * 20, 0), ([0.9, *[0.1] * 19], 1)])
def test_a_reranker_that_is_sure_of_nothing_judges_nothing(
    index: Index, tmp_path: Path, scores: list[float], judged: int
) -> None:
    assert len(judge(index, ["q"], lambda query, texts: scores, tmp_path, progress=False).queries) == judged


class Plain:
    """Teachers whose name may be that of others, too."""

    def __init__(self, best: int) -> None:
        self.best = best

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [float(number == self.best) for number in range(len(pairs))]

    def method(self, query: str, texts: Sequence[str]) -> list[float]:
        return self.score([(query, text) for text in texts])

    def teachers(self) -> dict[str, Any]:
        return {
            "object": self,
            "method": self.method,
            "lambda": lambda query, texts: self.method(query, texts),
            "partial": partial(Plain.method, self),
        }


@pytest.mark.parametrize("kind", ["object", "method", "lambda", "partial"])
def test_scores_of_a_name_that_tells_nothing_are_not_reused(index: Index, tmp_path: Path, kind: str) -> None:
    first, second = Plain(0).teachers()[kind], Plain(1).teachers()[kind]
    wanted = judge(index, ["q"], first, tmp_path, progress=False).qrels
    with pytest.raises(InputError, match=r"add name='.*' if this is the same") as error:
        judge(index, ["q"], second, tmp_path, progress=False)
    given = str(error.value).partition("add name='")[2].partition("'")[0]
    assert judge(index, ["q"], first, tmp_path, name=given, progress=False).qrels == wanted
    other = judge(index, ["q"], second, tmp_path, name="other", progress=False)
    assert other.qrels != wanted
    assert other.judged_by == "other"


def test_other_weights_in_a_folder_are_another_teacher(index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    qrels = []
    for best, weights in ((0, b"a"), (1, b"bb"), (2, b"a")):
        (folder / "model.safetensors").write_bytes(weights)
        teacher = Plain(best)
        teacher.model_name = str(folder)  # type: ignore[attr-defined]
        qrels.append(judge(index, ["q"], teacher, tmp_path / "judged", progress=False).qrels)
    assert qrels[0] == qrels[2] != qrels[1]


def test_two_models_of_a_class_have_their_own_scores(index: Index, tmp_path: Path) -> None:
    questions, calls = [question(1, 1)], []

    class Named(CrossEncoder):
        def __init__(self, name: str) -> None:
            self.config = SimpleNamespace(_name_or_path=name)

        def predict(self, pairs: Any, show_progress_bar: bool | None = None) -> Any:
            calls.append(self.config._name_or_path)
            return np.arange(len(pairs))

    for name in ("a", "b", "a"):
        judge(index, questions, Named(name), tmp_path, progress=False)
    assert calls == ["a", "b"]
    inner = SimpleNamespace(model=SimpleNamespace(model_name="c"), score=print)
    assert as_teacher(inner)[0] == "c"
    first, second = (lambda query, texts: [1.0] * 20), (lambda query, texts: [2.0] * 20)
    assert as_teacher(first)[0] != as_teacher(second)[0]


@pytest.mark.parametrize("teacher", [CrossEncoder(), LangChainCrossEncoder()])
def test_rerankers_of_all_kinds(index: Index, tmp_path: Path, teacher: Any) -> None:
    questions = [question(n, n) for n in range(TOPICS)]
    wanted = judge(index, questions, knows, tmp_path / "a", progress=False)
    judged = judge(index, questions, teacher, tmp_path / "b", progress=False)
    assert wanted.qrels["train"].items() <= judged.qrels["train"].items()


def test_a_language_model_judges(server: ChatServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Index.build(animals(3), SpaceModel.untrained(FakeEncoder(32)), progress=False) as index:
        server.reply = lambda body: server.chat('{"scores": [0, 9, 1]}')
        data = judge(index, ["where is the owl?"], "openai:small", tmp_path, progress=False)
        second = index.search("where is the owl?", k=3)[1].id
        assert list(data.qrels["train"].values()) == [{second: 1}]
        server.reply = lambda body: server.chat("I like them all")
        with pytest.raises(InputError, match="no scores for 1 of 1 questions; its last reply: 'I like them all'"):
            judge(index, ["where is the cat?"], "openai:small", tmp_path, progress=False)
        server.reply = lambda body: server.chat('{"scores": [0, 9, 1]}')
        questions = ["where is the cat?", "where is the owl?", "where is the dog?"]
        data = judge(index, questions, "openai:small", tmp_path, progress=False)
        assert len(data.queries) == 2, "one refusal is kept, and ends nothing"
        assert "no scores for 1 of 3 questions" in caplog.text


def test_a_refused_prompt_ends_nothing(index: Index, server: ChatServer, tmp_path: Path) -> None:
    scores = json.dumps({"scores": [9, *[0] * 19]})

    def reply(body: Any) -> Any:
        refused = "Query: alpha1 " in ChatServer.prompt(body)
        return (400, {}, {"error": {"message": "content filter"}}) if refused else server.chat(scores)

    server.reply = reply
    questions = [question(1, 1), question(2, 2)]
    assert len(judge(index, questions, "openai:small", tmp_path, progress=False).queries) == 1
    with pytest.raises(InputError, match="for 1 of 1 questions; its last reply: .*answered 400"):
        judge(index, questions[:1], "openai:small", tmp_path, progress=False)
    server.reply = lambda body: server.chat(scores)
    assert len(judge(index, questions, "openai:small", tmp_path, progress=False).queries) == 2, "asked for anew"


@pytest.mark.parametrize("scores", [[1.0], [10**400] * 20, None, ["a"] * 20, [float("nan")] * 20])
def test_unusable_scores_are_named(index: Index, tmp_path: Path, scores: Any) -> None:
    with pytest.raises(InputError, match="for 20 texts"):
        judge(index, [question(1, 1)], lambda query, texts: scores, tmp_path, progress=False)


def test_unusable_arguments(index: Index, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no questions"):
        judge(index, [], knows, tmp_path)
    with pytest.raises(ConfigError, match="a teacher is"):
        judge(index, ["a"], 3, tmp_path)
    for depth in (0, 1):
        with pytest.raises(InputError, match="depth must be"):
            judge(index, ["a"], knows, tmp_path, depth=depth)
    for questions in (None, "when are apples picked?", [["a"]], [5]):
        with pytest.raises(InputError, match="must be a (list of )?str"):
            judge(index, questions, knows, tmp_path)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        judge(index, ["a"], knows, tmp_path / "file")
