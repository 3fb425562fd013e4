"""An encoder learns from pairs, and becomes a folder like any other's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from palmette import Document, FakeEncoder, Index, RetrievalData, SpaceModel, load_encoder
from palmette.cli import main
from palmette.data.metrics import score_run
from palmette.encoder import EncodingCache
from palmette.encoder.local.backbone import Backbone
from palmette.errors import CheckpointError, ConfigError, InputError, TrainingError
from palmette.learning.encoder import COSINE_SCALE, MARGIN, EncoderTask, TrainedEncoder, _Vectors, hard_negatives
from palmette.training.pairs import TrainingPairs
from support.tiny_encoder import save_tiny_encoder

WORDS = ("cat", "dog", "bird", "mat", "roof", "file")
COUNT = 30


def pairs() -> RetrievalData:
    """Questions about a number among other words, which the encoder cannot tell from it."""
    documents = [Document(f"d{n}", f"{n} sat on the {WORDS[n % len(WORDS)]}") for n in range(COUNT)]
    asked = {f"q{n}-{word}": f"open {n} {word}" for n in range(COUNT) for word in WORDS}
    train = {query: {f"d{query[1:].partition('-')[0]}": 1} for query in asked}
    return RetrievalData("numbers", documents, asked, {"train": train}).with_dev(0.2)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return save_tiny_encoder(tmp_path / "start")


def fit(start: Path, tmp_path: Path, data: Any = None, **options: Any) -> TrainedEncoder:
    options = {"epochs": 30, "learning_rate": 3e-3, "batch_size": 32, "cache": tmp_path / "cache", **options}
    options = {"encoder": start, "device": "cpu", "progress": False, **options}
    return TrainedEncoder.fit(pairs() if data is None else data, **options)


def test_it_finds_what_the_encoder_did_not(start: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in start.iterdir() if path.is_file()}
    data, trained = pairs(), fit(start, tmp_path)
    folder = trained.save_pretrained(tmp_path / "tuned")
    assert {path.name: path.read_bytes() for path in start.iterdir() if path.is_file()} == before
    encoder = load_encoder(folder, dtype="float32", device="cpu")
    assert encoder.fingerprint == trained.fingerprint
    found, dev = [], data.qrels["dev"]
    for one in (load_encoder(start, dtype="float32", device="cpu"), encoder):
        with Index.build(data.corpus, SpaceModel.untrained(one), passages=None, progress=False) as index:
            ranked = index.rank([data.queries[query] for query in dev], 10, lexical=0, sentences=False)
            found.append(score_run(dict(zip(dev, ranked.ids, strict=True)), dev, ks=(10,))["ndcg@10"])
    assert found[1] > found[0] + 0.05
    assert found[1] == pytest.approx(trained.record.metrics["ndcg@10"], abs=0.03)
    copy = Backbone.of(encoder).eval()
    with torch.no_grad():
        vectors = copy.embed(data.texts[:3]).numpy()
    np.testing.assert_allclose(vectors, encoder.encode(data.texts[:3]), atol=1e-5)


@pytest.mark.parametrize("shape", [{"family": "mpnet", "pooling": "cls"}, {"family": "distilbert", "dense": 8}])
def test_every_part_is_saved(tmp_path: Path, shape: dict[str, Any]) -> None:
    prompts = {"query": "query : "}
    trained = fit(save_tiny_encoder(tmp_path / "m", prompts=prompts, **shape), tmp_path, steps=3, evaluate_every=3)
    encoder = load_encoder(trained.save_pretrained(tmp_path / "tuned"), dtype="float32", device="cpu")
    assert encoder.prompts["query"] == "query : "
    assert encoder.max_length == load_encoder(tmp_path / "m", device="cpu").max_length
    module = trained._module.backbone.eval()
    with torch.no_grad():
        vectors = F.normalize(module.embed(["the cat"], "query"), dim=1).numpy()
    np.testing.assert_allclose(vectors, encoder.encode_queries(["the cat"]), atol=1e-5)


def test_given_prompts_are_saved_and_columns_are_not_cut(start: Path, tmp_path: Path) -> None:
    prompts = {"query": "open ", "document": "the "}
    given = load_encoder(start, device="cpu", prompts=prompts)
    trained = fit(start, tmp_path, encoder=given, steps=1)
    assert load_encoder(trained.save_pretrained(tmp_path / "tuned"), device="cpu").prompts == prompts
    with pytest.raises(ConfigError, match="leave truncate=4 out"):
        fit(start, tmp_path, encoder=load_encoder(start, device="cpu", truncate=4))


def test_what_does_not_help_is_not_kept(start: Path, tmp_path: Path) -> None:
    trained = fit(start, tmp_path, learning_rate=10.0, epochs=1)
    assert trained.record.best_step == 0
    folder = trained.save_pretrained(tmp_path / "tuned")
    texts = ["the cat sat", "dog"]
    vectors = [load_encoder(place, dtype="float32", device="cpu").encode(texts) for place in (start, folder)]
    np.testing.assert_array_equal(vectors[0], vectors[1])


def test_the_loss_is_a_softmax_over_answers_and_hard_negatives(start: Path, tmp_path: Path) -> None:
    encoder = load_encoder(start, dtype="float32", device="cpu")
    encoded = TrainingPairs.encode(pairs(), encoder, EncodingCache(tmp_path / "cache"))
    rows = np.array([0, 40, 80])
    hard = np.full((len(encoded), 1), -1)
    hard[rows, 0] = [5, 5, -1]
    task = EncoderTask(_Vectors(Backbone.of(encoder)).eval(), encoded, hard)
    loss = task.loss(task.module, rows, torch.Generator().manual_seed(0), 0.0)
    queries = F.normalize(encoded.queries[torch.from_numpy(encoded.query_rows[rows])], dim=1)
    own = encoded.document_rows[rows]
    assert 5 not in own
    assert len({*own}) == 3
    documents = F.normalize(encoded.documents[[*own, 5]], dim=1)
    expected = F.cross_entropy(COSINE_SCALE * queries @ documents.T, torch.arange(3))
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)


def test_hard_negatives_are_near_and_no_answers(start: Path, tmp_path: Path) -> None:
    encoder = load_encoder(start, dtype="float32", device="cpu")
    data = pairs()
    two = {
        query: {**judged, f"d{COUNT - 1 - number % 9}": 1}
        for number, (query, judged) in enumerate(data.qrels["train"].items())
    }
    data = replace(data, qrels={**data.qrels, "train": two})
    encoded = TrainingPairs.encode(data, encoder, EncodingCache(tmp_path / "cache"))
    hard = hard_negatives(encoded)
    assert len(hard) == len(encoded)
    queries, documents = F.normalize(encoded.queries, dim=1).numpy(), F.normalize(encoded.documents, dim=1).numpy()
    some = 0
    for row, (query, own) in enumerate(zip(encoded.query_rows, encoded.document_rows, strict=True)):
        cosines = documents @ queries[query]
        answers = {data.rows[id] for id in two[list(data.queries)[query]]}
        wanted = {n for n in range(COUNT) if n not in answers and cosines[n] < MARGIN * cosines[own]}
        assert {*hard[row].tolist()} == (wanted or {-1})
        some += bool(wanted)
    assert some > len(encoded) / 10


def test_misuse(start: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no training pairs"):
        fit(start, tmp_path, ["a cat", "a dog"])
    with pytest.raises(ConfigError, match="this method trains sentence-transformers encoders"):
        TrainedEncoder.fit(pairs(), encoder=FakeEncoder(16), progress=False)
    with pytest.raises(ConfigError, match="epochs"):
        fit(start, tmp_path, epochs=0)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    trained = fit(start, tmp_path, steps=1)
    with pytest.raises(CheckpointError, match="cannot save over"):
        trained.save_pretrained(full)
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for place, words in (
        (tmp_path / "dangling", "cannot save over"),
        (full / "mine.txt" / "below", "cannot be made"),
        (None, "a path must be"),
        ("a\0b", "cannot be a path"),
    ):
        with pytest.raises((CheckpointError, InputError), match=words):
            trained.save_pretrained(place)  # type: ignore[arg-type]


def test_what_cannot_learn_is_refused_before_a_text_is_encoded(tmp_path: Path) -> None:
    class Paid(FakeEncoder):
        def forward(self, *_: Any, **__: Any) -> Any:
            pytest.fail("a text was encoded")

    with pytest.raises(ConfigError, match="no such model"):
        fit(tmp_path, tmp_path, encoder=Paid(8))
    with pytest.raises(ConfigError, match=r"TrainedEncoder\.fit has no option 'epoch'"):
        fit(tmp_path, tmp_path, epoch=2)


def test_in_the_shell(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, lines = pairs(), []
    texts = {document.key: document.content for document in data.corpus}
    for query, judged in data.qrels["train"].items():
        lines.append(json.dumps({"query": data.queries[query], "positive": texts[next(iter(judged))]}))
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    words = ["train", "encoder", str(tmp_path / "pairs.jsonl"), "--encoder", str(start), "--quiet", "--device", "cpu"]
    assert main([*words, "--out", "x" * 300]) == 1
    assert "cannot be a path" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "tuned"), "--epochs", "1", "--max-length", "32"]) == 0
    shown, quiet = capsys.readouterr()
    assert not quiet
    assert "encoder trained on" in shown
    assert main([*words, "--out", str(tmp_path / "tuned")]) == 1
    assert "choose a new one" in capsys.readouterr().err
    assert "train space" in shown
    assert f"--encoder {tmp_path / 'tuned'}" in shown
    assert load_encoder(tmp_path / "tuned", device="cpu").dimension == 16
    assert main([*words, "--out", str(tmp_path / "tuned")]) == 1, "it is there"
    assert "cannot save over" in capsys.readouterr().err
