"""A field that is the whole document, an encoder that stays as it is, and a teacher where nobody judged."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from palmette import Document, Index, load_data, load_encoder
from palmette.encoder import Backbone
from palmette.methods.fields import FieldsConfig
from palmette.methods.fields.layout import ancestors_of
from palmette.methods.fields.losses import agreement, contrast, losses, taught
from palmette.methods.fields.memory import Memory, Read
from palmette.methods.fields.model import FieldsModel
from palmette.methods.fields.queries import common_phrases, with_field_queries
from palmette.methods.fields.reading import Reader, as_items
from palmette.methods.fields.task import FieldsTask
from palmette.methods.fields.teacher import Teacher
from palmette.methods.fields.tokens import field_tokens
from palmette.training.optimizer import AdamW
from support.shop import FIELDS, questions, shop, train, unheld
from support.tiny import learner
from support.tiny_encoder import save_tiny_encoder


def frozen(data=None, **options) -> FieldsTask:
    config = FieldsConfig(**{"fields": as_items(FIELDS), "trained_layers": 0, **options})
    loaded = load_data(questions() if data is None else data)
    return FieldsModel.task(config, loaded, learner(), None, seed=0, progress=False)[1]


def test_the_whole_document_is_what_the_encoder_makes_of_it() -> None:
    made = train(whole=True, steps=0, stored="float32")
    assert made.config.order == ["brand", "title", "text", "all"]
    document = shop()[7]
    whole = made.encode_documents([document])["fields"][0, -1]
    text = " ".join(filter(None, made.reader.read(document)[:-1]))
    with torch.inference_mode():
        expected = Backbone.of(learner()).eval().embed([text])[0].numpy()
    assert whole @ expected / np.linalg.norm(expected) == pytest.approx(1, abs=1e-5)
    assert made.describe()["sees"]["all"] == ["all"]
    assert all("all" not in seen for name, seen in made.describe()["sees"].items() if name != "all")


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_the_whole_and_the_first_field_have_the_document_s_prompt(tmp_path: Path, family: str) -> None:
    folder = save_tiny_encoder(
        tmp_path / "m", family=family, prompts={"document": "cat dog: ", "query": "owl: "}
    )
    encoder = load_encoder(folder, device="cpu")
    made = FieldsModel.fit(
        unheld(questions()), encoder=encoder, fields=FIELDS, steps=0, stored="float32", progress=False
    )
    document = shop()[7]
    whole = made.encode_documents([document])["fields"][0, -1]
    text = " ".join(filter(None, made.reader.read(document)[:-1]))
    np.testing.assert_allclose(whole, encoder.encode([text])[0], atol=1e-5)
    asked = made.encode_queries(["golden owl"], made.options({}))["aggregate"][0]
    np.testing.assert_allclose(asked, encoder.encode_queries(["golden owl"])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "prompted"),
    [
        ({}, [True, False, False]),
        ({"attention": "full"}, [True, False, False]),
        ({"attention": "diagonal"}, [True, True, True]),
        ({"sees": ("text=title",)}, [True, True, False]),
    ],
    ids=str,
)
def test_a_prompt_stands_where_nothing_is_seen_before(tmp_path: Path, options: dict, prompted: list) -> None:
    encoder = load_encoder(save_tiny_encoder(tmp_path / "m", prompts={"document": "cat dog: "}), device="cpu")
    config = FieldsConfig(fields=as_items(FIELDS), **options)
    backbone, reader = Backbone.of(encoder), Reader.of(config.fields)

    def read(document: Document) -> list[list[int]]:
        tokens = field_tokens(backbone, reader, [document], (9, 9, 9), config.ancestors)
        return [field[0] for field in tokens]

    start = backbone.tokenise(["cat dog: "])[0]
    document = shop()[7]
    assert [tokens[: len(start)] == start for tokens in read(document)] == prompted
    without = replace(document, metadata={})
    found = [tokens[: len(start)] == start for tokens in read(without)]
    assert not found[0]
    assert found[1], "the first that is there"


def test_the_whole_counts_most_before_anything_is_learned() -> None:
    made = frozen(
        data=with_field_queries(load_data(shop()), Reader.of(as_items(FIELDS)), 0),
        fields=(
            *as_items(FIELDS),
            "all=metadata.brand+title+text",
        ),
    )
    weights = made.module.documents(made.fields_of(np.arange(5))).weights
    assert (weights[:, -1] > 0.8).all()


def test_hits_say_that_the_whole_matched() -> None:
    index = Index.build(shop(), train(whole=True, steps=0))
    hit = index.search("golden owl", k=1, lexical=0, by="best", fields=["all"])[0]
    told = hit.explain()
    assert told.detail["field"] == "all"
    assert [part.name for part in told.parts] == ["all"]
    assert sum(part.value for part in told.parts) == pytest.approx(hit.score, abs=1e-4)


def test_nobody_sees_the_whole_and_it_sees_nobody() -> None:
    table = ancestors_of(["a", "b", "all"], "triangular", None, alone=True)
    assert table.int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_full_attention_and_one_field_need_no_whole() -> None:
    assert train(whole=True, steps=0, attention="full").config.order == list(FIELDS)
    assert train(whole=True, steps=0, fields={"text": "text"}).config.order == ["text"]


def test_a_frozen_encoder_reads_each_text_once_and_does_not_change() -> None:
    made = frozen()
    passes = []
    read = made.module.backbone.forward
    made.module.backbone.forward = lambda *given, **named: (
        passes.append(len(given[0])),
        read(*given, **named),
    )[1]
    before = {name: value.clone() for name, value in made.module.backbone.state_dict().items()}
    optimizer = AdamW([p for p in made.module.parameters() if p.requires_grad], lr=1e-2)
    found = []
    for _ in range(5):
        loss = made.loss(made.module.train(), np.arange(16), torch.Generator().manual_seed(0), 0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    first = sum(passes)
    made.loss(made.module, np.arange(16), torch.Generator().manual_seed(0), 0.0)
    assert sum(passes) == first, "nothing is read twice"
    assert found[-1] < found[0], "and yet something is learned"
    for name, value in made.module.backbone.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_memory_gives_what_was_read() -> None:
    memory, asked = Memory(), []

    def read(some) -> Read:
        asked.append(len(some))
        sums = torch.tensor([[float(sum(text))] for text in some])
        return Read(sums[:, None], sums, torch.ones(len(some), 1, dtype=torch.bool))

    texts = [[1, 2, 3], [4], [5, 6]]
    first = memory.recall("query", texts, read, torch.device("cpu"))
    again = memory.recall("query", [texts[2], texts[0]], read, torch.device("cpu"))
    assert first.first[:, 0].tolist() == [6, 4, 11]
    assert again.pooled[:, 0, 0].tolist() == [11, 6]
    assert asked == [3]
    memory.recall(
        "document",
        [[[1, 2, 3]], [[1], [2, 3]]],
        lambda some: read([[*chain(*t)] for t in some]),
        torch.device("cpu"),
    )
    assert asked == [3, 2], "a document is no query, and its fields have borders"


def test_a_frozen_model_is_searched_as_it_was_trained() -> None:
    made = train(trained_layers=0, whole=True, steps=20, learning_rate=1e-3)
    assert made.module.memory is None
    assert float(made.module.turns.abs().max()) > 0
    ids = Index.build(shop(), made).rank([question for question, _ in questions()], k=10, lexical=0).ids
    right = np.mean([p.id in found for found, (_, p) in zip(ids, questions(), strict=True)])
    assert right > 0.5


def teacher(queries: list[str], texts: list[str]) -> Teacher:
    draw = np.random.default_rng(0)
    vectors, asked = draw.standard_normal((len(texts), 8)), draw.standard_normal((len(queries), 8))
    return Teacher(np.arange(len(texts)) * 2, vectors * 0.01, texts, asked * 0.01, queries)


def test_a_teacher_likes_shared_words() -> None:
    made = teacher(["golden owl", "unheard of"], ["golden owl", "the owl", "a fox", "golden fox"])
    scores = made.scores(np.array([0, 1]))
    assert scores[0].argsort()[::-1][0] == 0
    assert scores[0, 1] > scores[0, 2]
    np.testing.assert_allclose(scores[1], made.queries[1] @ made.vectors.T, atol=1e-6)


def test_a_lesson_is_drawn_from_the_best() -> None:
    made = teacher(["w7"], [f"w{number} and" for number in range(400)])
    rows, scores = made.lesson(np.array([0]), np.random.default_rng(0))
    assert (rows % 2 == 0).all()
    assert len(np.unique(rows)) == len(rows) == scores.shape[1]
    np.testing.assert_array_equal(scores[0], made.scores(np.array([0]))[0, rows // 2])
    best = np.argsort(-made.scores(np.array([0]))[0])[:30] * 2
    assert len(np.intersect1d(rows, best)) >= 4


def test_a_teacher_that_is_sure_is_a_judgement() -> None:
    draw = torch.Generator().manual_seed(0)
    q, fields = torch.randn(3, 4, generator=draw), torch.randn(5, 2, 4, generator=draw)
    target = torch.tensor([4, 0, 2])
    wanted, known = torch.nn.functional.one_hot(target, 5).float(), torch.zeros(3, 5, dtype=torch.bool)
    torch.testing.assert_close(
        taught(q, fields, fields.sum(1), wanted, 0.5), losses(q, fields, fields.sum(1), target, known, 0.5)
    )
    logits = torch.randn(3, 5, generator=draw)
    torch.testing.assert_close(agreement(logits, wanted), contrast(logits, target, known))
    assert agreement(logits, logits.softmax(-1)).sum() < agreement(logits, wanted.flip(0)).sum()


def test_without_judgements_the_teacher_is_asked() -> None:
    made = frozen(data=with_field_queries(load_data(shop()), Reader.of(as_items(FIELDS)), 0))
    assert made.teacher is not None
    assert made.size() == len(np.unique(made.query_rows))
    assert frozen().teacher is None
    assert frozen(targets="words").teacher is not None
    plain = frozen(
        data=with_field_queries(load_data(shop()), Reader.of(as_items(FIELDS)), 0), targets="answers"
    )
    assert plain.teacher is None
    for task in (made, plain):
        assert task.loss(task.module, np.arange(8), torch.Generator().manual_seed(0), 0.0).requires_grad


def test_common_phrases_are_shared_by_several_titles_and_not_by_most() -> None:
    titles = (
        [["Gaming", "Mouse", "X1"]] * 5
        + [["Gaming", "mouse"]] * 2
        + [["Desk", "Lamp"]] * 3
        + [["a", "7"]] * 30
    )
    found = common_phrases(titles)
    assert set(found) == {"gaming", "mouse", "x1", "gaming mouse", "mouse x1"} - {"x1"}
    assert found["gaming mouse"] == list(range(7))
