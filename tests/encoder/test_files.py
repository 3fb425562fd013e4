"""Folders of encoders: what is read is safetensors, as large as it says, and part of the fingerprint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from palmette.encoder import load_encoder
from palmette.encoder.base import Encoder
from palmette.encoder.local.files import fingerprint
from palmette.errors import CheckpointError
from support.effort import little_work
from support.tiny_encoder import edited, save_tiny_encoder

Change = Callable[[Path], object]
TEXT = ["The Cat é sat on a mat and ran"]


def load(folder: Path) -> Encoder:
    return load_encoder(folder, device="cpu", dtype="float32")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save_tiny_encoder(tmp_path / "tiny")


def other_tokenizer(folder: Path) -> None:
    """Let the tokenizer's settings choose another file of words."""
    words = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.4.json").write_text(words.replace('"cat"', '"cta"'))
    edited("tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.json", "tokenizer.json"])(folder)


def move_settings(folder: Path) -> None:
    (folder / "sentence_bert_config.json").unlink()
    edited("sentence_roberta_config.json", max_seq_length=4)(folder)


EFFECTIVE: dict[str, Change] = {
    "case": edited("tokenizer_config.json", do_lower_case=False),
    "class of the tokenizer": edited("tokenizer_config.json", tokenizer_class="RobertaTokenizerFast"),
    "first token": edited("tokenizer_config.json", cls_token="cat"),
    "special tokens": edited("special_tokens_map.json", cls_token="cat", unk_token="the"),
    "another tokenizer": other_tokenizer,
    "settings of another name": move_settings,
    "pooling": edited("1_Pooling/config.json", pooling_mode="cls"),
    "activation": edited("config.json", hidden_act="relu"),
    "prompts": edited("config_sentence_transformers.json", prompts={"document": "cat cat "}, default_prompt_name=None),
}


@pytest.mark.parametrize("name", EFFECTIVE)
def test_what_changes_vectors_changes_the_fingerprint(name: str, tiny: Path) -> None:
    before = load(tiny)
    vectors = before.encode(TEXT)
    EFFECTIVE[name](tiny)
    after = load(tiny)
    assert not np.allclose(after.encode(TEXT), vectors, atol=1e-4)
    assert after.fingerprint != before.fingerprint


def test_every_file_that_is_read_is_in_the_fingerprint(tmp_path: Path) -> None:
    """Every file of a folder that the library saves is read; a key more in each makes another fingerprint."""
    folder = save_tiny_encoder(tmp_path / "tiny", dense=8)
    before, files = fingerprint(folder, 64), [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 11
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        elif path.name == "modules.json":
            path.write_text(json.dumps(json.loads(content)[:-1]))
        elif path.name == "config_sentence_transformers.json":
            path.write_text(json.dumps({"truncate_dim": 4}))
        else:
            path.write_text(json.dumps({**json.loads(content), "more": 1}))
        assert fingerprint(folder, 64) != before, path
        path.write_bytes(content)
    assert fingerprint(folder, 64) == before


def test_a_module_is_read_from_safetensors_alone(tmp_path: Path) -> None:
    """Another file of that kind beside a pickle does not make the pickle one."""
    folder = save_tiny_encoder(tmp_path / "tiny", dense=8)
    module = next(folder.glob("*_Dense"))
    (module / "model.safetensors").rename(module / "other.safetensors")
    (module / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    with pytest.raises(CheckpointError, match=r"only pickled weights \(pytorch_model\.bin\).*model\.safetensors only"):
        load(folder)


def shards(weight_map: object) -> Change:
    def spread(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    return spread


def header(content: bytes) -> Change:
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


HUGE = json.dumps({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
HOSTILE: dict[str, Change] = {
    "no object": lambda folder: (folder / "config.json").write_text("[1]"),
    "nested": lambda folder: (folder / "config.json").write_text("[" * 100_000),
    "no modules": lambda folder: (folder / "modules.json").write_text("[1]"),
    "tokenizer": lambda folder: (folder / "tokenizer.json").write_text("[1]"),
    "tokenizer of nothing": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "ten million layers": edited("config.json", num_hidden_layers=10**7),
    "a trillion layers": edited("config.json", num_hidden_layers=10**12),
    "layers beyond the weights": edited("config.json", num_hidden_layers=3000),
    "wide": edited("config.json", hidden_size=2**30),
    "words": edited("config.json", vocab_size=2**40),
    "infinite": lambda folder: (folder / "config.json").write_text('{"model_type": "bert", "hidden_size": Infinity}'),
    "no heads": edited("config.json", num_attention_heads=0),
    "unknown": edited("config.json", model_type="none"),
    "code": edited("config.json", auto_map={"AutoModel": "code.Model"}),
    "adapter": edited("adapter_config.json", peft_type="LORA"),
    "shards elsewhere": shards({"a": "../other.safetensors"}),
    "shards of nothing": shards([]),
    "no safetensors": header(b"\0" * 9),
    "a long header": header((2**62).to_bytes(8, "little") + b"{}"),
    "a large tensor": header(len(HUGE).to_bytes(8, "little") + HUGE),
    "a wide projection": edited("2_Dense/config.json", in_features=10**9, out_features=10**9),
    "foreign module": lambda folder: (folder / "modules.json").write_text('[{"type": "os.system"}]'),
    "a path": lambda folder: (folder / "modules.json").write_text(
        '[{"type": "sentence_transformers.models.Pooling", "path": "../.."}]'
    ),
    "router": lambda folder: (folder / "modules.json").write_text(
        '[{"type": "sentence_transformers.models.Router", "path": ""}]'
    ),
}


def test_a_word_that_the_network_has_no_row_for(tiny: Path) -> None:
    before = fingerprint(tiny, 64)
    edited("added_tokens.json", **{"sat on": 7})(tiny)
    assert fingerprint(tiny, 64) != before
    encoder = load(tiny)
    assert encoder.encode(["a cat"]).shape == (1, 16)
    with pytest.raises(CheckpointError, match="has no row for"):
        encoder.encode(TEXT)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_are_refused_at_once(name: str, tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny", dense=8)
    load(folder)  # the library is imported
    shutil.copytree(folder, tmp_path / "hostile")
    HOSTILE[name](tmp_path / "hostile")
    with little_work(2), pytest.raises(CheckpointError):
        load(tmp_path / "hostile")


def test_shards_are_read(tiny: Path) -> None:
    before = load(tiny)
    from safetensors import safe_open

    with safe_open(str(tiny / "model.safetensors"), "pt") as file:
        names = list(file.keys())
    shards({name: "model-00001-of-00001.safetensors" for name in names})(tiny)
    after = load(tiny)
    np.testing.assert_array_equal(after.encode(TEXT), before.encode(TEXT))
    assert after.fingerprint != before.fingerprint
