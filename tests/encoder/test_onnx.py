"""ONNX encoders give what their source gives, read nothing else than their folder, and take its place in an index."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import Index, load_encoder
from palmette.encoder import Encoder
from palmette.encoder.onnx.export import CHECKED, export_onnx
from palmette.encoder.onnx.folder import RECORD
from palmette.errors import CheckpointError, ConfigError, EncodingError, ModelMismatchError
from support.forks import in_child
from support.local_hub import LocalHub
from support.tiny import documents
from support.tiny_encoder import edited, save_tiny_encoder, states_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TEXTS = ["the cat sat on the mat", "a dog", "", "how do i open a file under the roof", "bird . cat : mat ? dog ran"]
SHAPES: dict[str, dict[str, Any]] = {
    "bert": {},
    "first token": {"pooling": "cls"},
    "last token": {"pooling": "lasttoken"},
    "projection": {"dense": 8},
    "roberta": {"family": "roberta"},
    "mpnet": {"family": "mpnet"},
    "distilbert": {"family": "distilbert"},
    "prompts": {"prompts": {"query": "query : ", "passage": "passage : "}},
}


def load(name: object) -> Encoder:
    return load_encoder(str(name), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("source") / "tiny")


@pytest.fixture(scope="module")
def exported(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(source, tmp_path_factory.mktemp("onnx") / "tiny").path


@pytest.fixture(scope="module")
def small(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(source, tmp_path_factory.mktemp("onnx") / "int8", int8=True).path


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copied"))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_gives_the_vectors_of_its_source(shape: str, tmp_path: Path) -> None:
    source = load(save_tiny_encoder(tmp_path / "source", **SHAPES[shape]))
    report = export_onnx(source, tmp_path / "onnx")
    encoder = load(f"onnx:{tmp_path / 'onnx'}")
    assert report.largest_difference < 1e-5
    assert (encoder.dimension, encoder.hidden_size, encoder.max_length) == (
        source.dimension,
        source.hidden_size,
        source.max_length,
    )
    assert encoder.prompts == source.prompts
    assert encoder.stands_for == source.fingerprint != encoder.fingerprint
    for kind in ("query", "document"):
        texts = [text for text in TEXTS if text]
        np.testing.assert_allclose(encoder.encode(texts, kind=kind), source.encode(texts, kind=kind), atol=1e-5)
    theirs, own = (states_of(each, TEXTS, outputs=("pooled", "tokens")) for each in (source, encoder))
    np.testing.assert_array_equal(own.mask, theirs.mask.numpy())
    np.testing.assert_array_equal(own.offsets, theirs.offsets)
    np.testing.assert_allclose(own.tokens, theirs.tokens.numpy(), atol=1e-4)
    titles = ["bird", "", "the roof", "", "a file"]
    for above in ([], titles):
        vectors, sentences = encoder.encode_sentences(TEXTS, above=above)
        expected, found = source.encode_sentences(TEXTS, above=above)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
        np.testing.assert_array_equal(sentences.spans, found.spans)
        np.testing.assert_allclose(sentences.floats(), found.floats(), atol=0.02)
    assert encoder.count_tokens(TEXTS) == source.count_tokens(TEXTS)


def test_a_rare_pooling_is_computed_by_torch_alone(tmp_path: Path) -> None:
    for name, change in {"prompt": {"include_prompt": False}, "max": {"pooling_mode": "max"}}.items():
        folder = save_tiny_encoder(tmp_path / name, prompts={"query": "query : "})
        edited("1_Pooling/config.json", **change)(folder)
        assert type(load_encoder(folder, device="cpu")).__name__ == "SentenceEncoder"
        with pytest.raises(CheckpointError, match="before a pooling other than mean"):
            export_onnx(folder, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_an_export_takes_prompts_and_a_width(source: Path, exported: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"prompts": {"query": "query : ", "document": "passage : "}, "truncate": 8}
    theirs = load_encoder(source, device="cpu", dtype="float32", **options)
    own, plain = load_encoder(f"onnx:{exported}", **options), load(f"onnx:{exported}")
    assert own.stands_for == theirs.fingerprint
    assert own.fingerprint not in (plain.fingerprint, load_encoder(f"onnx:{exported}", truncate=8).fingerprint)
    for kind in ("query", "document"):
        np.testing.assert_allclose(own.encode(["a cat"], kind=kind), theirs.encode(["a cat"], kind=kind), atol=1e-5)
    (vectors, sentences), (expected, found) = (each.encode_sentences(TEXTS) for each in (own, theirs))
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_allclose(sentences.floats(), found.floats(), atol=0.02)
    assert load_encoder(own.to_config()) is own
    with Index.create(tmp_path / "index", encoder=theirs) as index:
        index.add(documents())
        expected_ids = index.rank(["a cat on the roof"], 5).ids
    with Index.open(tmp_path / "index", encoder=f"onnx:{exported}") as index:
        assert index.rank(["a cat on the roof"], 5).ids == expected_ids
    with pytest.raises(ValueError, match="between 1 and 16"):
        load_encoder(f"onnx:{exported}", truncate=17)


def test_a_repository_on_the_hub(source: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph and the files that it needs are fetched, nothing else; the cache gives them again."""
    files = {str(path.relative_to(exported)): path.read_bytes() for path in exported.rglob("*") if path.is_file()}
    graph = [name for name in files if name.startswith("onnx/")]
    more = {"model.safetensors": b"weights", "pytorch_model.bin": b"\x80", "onnx/model_O4.onnx": b"x"}
    options: dict[str, Any] = {"cache_dir": tmp_path / "hub"}
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        commit = hub.put("me/encoder", {**files, **more})
        encoder = load_encoder("onnx:me/encoder", **options)
        np.testing.assert_array_equal(encoder.encode(TEXTS), load(f"onnx:{exported}").encode(TEXTS))
        assert (encoder.name, encoder.revision) == ("onnx:me/encoder", commit)
        fetched = {request.path.rpartition("/")[2] for request in hub.requests}
        assert "model.onnx" in fetched
        assert not fetched & {"model.safetensors", "pytorch_model.bin", "model_O4.onnx"}
        hub.put("me/encoder", {**files, **{name.replace("onnx/", "onnx/other/"): files[name] for name in graph}})
        other = load_encoder("onnx:me/encoder/onnx/other/model.onnx", **options)
        np.testing.assert_array_equal(other.encode(TEXTS), encoder.encode(TEXTS))
        assert load_encoder(encoder.to_config(), **options) is encoder, "by its commit"
        hub.put("me/none", {"config.json": b"{}"})
        with pytest.raises(CheckpointError, match="has no onnx/model.onnx or model.onnx on the Hub"):
            load_encoder("onnx:me/none", **options)
        hub.requests.clear()
        assert load_encoder("onnx:me/encoder", revision=commit, local_files_only=True, **options) is encoder
        assert hub.requests == []


def test_an_int8_export_is_near_and_says_so(source: Path, small: Path, exported: Path) -> None:
    encoder, plain = load(f"onnx:{small}"), load(source)
    assert encoder.precision == "int8"
    cosines = (encoder.encode(CHECKED) * plain.encode(CHECKED)).sum(axis=1)
    assert 0.9 < cosines.min() < 0.9999999
    record = json.loads((small / RECORD).read_text())
    assert record["source"]["fingerprint"] == plain.fingerprint
    assert record["checked"]["texts"] == len(CHECKED)
    with Index.in_memory(encoder=f"onnx:{small}") as index:  # its own documents compare with its questions
        index.add(documents())
        assert index.search("a cat on the roof", k=1)


def test_an_index_is_opened_with_the_export_of_its_encoder(
    source: Path, exported: Path, small: Path, tmp_path: Path
) -> None:
    with Index.create(tmp_path / "index", encoder=load(source)) as index:
        index.add(documents())
        expected = [(hit.id, hit.score) for hit in index.search("a cat on the roof", k=5)]
    with Index.open(tmp_path / "index", encoder=f"onnx:{exported}") as index:
        hits = index.search("a cat on the roof", k=5)
        assert [hit.id for hit in hits] == [id for id, _ in expected]
        np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in expected], atol=1e-4)
        index.add(["a new bird under the roof"])
        copy = index.copy_to(tmp_path / "copy")
        assert copy.model.encoder.to_config() == load(source).to_config()  # what is saved names the original
        copy.close()
    with Index.open(tmp_path / "copy") as index:
        assert index.search("a new bird", k=1)[0].document.text == "a new bird under the roof"
    with Index.open(tmp_path / "index", encoder=f"onnx:{small}") as index:
        assert len(index.search("a cat on the roof", k=5)) == 5
        with pytest.raises(ConfigError, match=r"reads questions only.*open the index without encoder="):
            index.add(["another bird"])
    other = export_onnx(save_tiny_encoder(tmp_path / "other", pooling="cls"), tmp_path / "onnx").path
    with pytest.raises(ModelMismatchError, match="was trained with encoder"):
        Index.open(tmp_path / "index", encoder=f"onnx:{other}")


def test_equal_encoders_are_shared_and_threads_agree(exported: Path) -> None:
    encoder = load(f"onnx:{exported}")
    assert load(f"onnx:{exported}") is encoder
    assert load(f"onnx:{exported / 'onnx' / 'model.onnx'}").fingerprint == encoder.fingerprint
    assert load_encoder(encoder.to_config()).fingerprint == encoder.fingerprint
    short = load_encoder(f"onnx:{exported}", max_length=8, threads=1)
    assert (short.max_length, short.stands_for) == (8, None)
    assert short.fingerprint != encoder.fingerprint
    expected, wrong = encoder.encode(TEXTS), list[int]()

    def ask() -> None:
        for row, text in enumerate(TEXTS):
            if text and not np.allclose(encoder.encode_queries([text])[0], expected[row], atol=1e-6):
                wrong.append(row)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_computes_too(exported: Path) -> None:
    encoder = load(f"onnx:{exported}")
    expected = encoder.encode(TEXTS)
    in_child(lambda: np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6))


def test_a_bad_export_is_not_kept(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.encoder.onnx.export.LEAST_EXPORT_COSINE", {"float32": 1.1, "int8": 1.1})
    with pytest.raises(EncodingError, match="is needed; it is not kept"):
        export_onnx(source, tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


# -- folders of strangers ------------------------------------------------------------------------------------


def change_graph(change: Callable[[Any], object]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        path = folder / "onnx" / "model.onnx"
        graph = onnx.load(path, load_external_data=False)
        change(graph.graph)
        onnx.save(graph, path)

    return edit


def rename(values: Any, old: str, new: str) -> None:
    for node in values.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new
    for value in (*values.input, *values.output):
        if value.name == old:
            value.name = new


def other_word(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"cat"', '"cta"'))


EFFECTIVE: dict[str, Callable[[Path], object]] = {
    "graph": change_graph(lambda graph: setattr(graph, "doc_string", "another")),
    "words": other_word,
    "prompts": edited("config_sentence_transformers.json", prompts={"query": "query : "}),
    "pooling": edited("1_Pooling/config.json", pooling_mode="cls"),
    "width": edited("config_sentence_transformers.json", truncate_dim=4),
}


@pytest.mark.parametrize("change", EFFECTIVE)
def test_every_file_is_part_of_the_fingerprint(change: str, exported: Path, copied: Path) -> None:
    EFFECTIVE[change](copied)
    with pytest.raises(CheckpointError, match=r"have changed since it was exported.*export it again"):
        load(f"onnx:{copied}")
    (copied / RECORD).unlink()
    changed = load(f"onnx:{copied}")
    assert changed.fingerprint != load(f"onnx:{exported}").fingerprint
    assert changed.stands_for is None


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no graph": (lambda f: (f / "onnx" / "model.onnx").unlink(), "has no onnx/model.onnx or model.onnx. It has none"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "damaged tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "is no tokenizer"),
    "empty graph": (lambda f: (f / "onnx" / "model.onnx").write_bytes(b""), "cannot be loaded"),
    "cut graph": (lambda f: (f / "onnx" / "model.onnx").write_bytes(b"\x3a\xff\x01\x0a"), "cannot be loaded"),
    "other bytes": (lambda f: (f / "onnx" / "model.onnx").write_bytes(b"\x07" * 99), "cannot be loaded"),
    "input": (change_graph(lambda g: rename(g, "attention_mask", "pixels")), "cannot be computed ('pixels')"),
    "output": (change_graph(lambda g: rename(g, "last_hidden_state", "logits")), "reads last_hidden_state or"),
    "pooling": (edited("1_Pooling/config.json", pooling_mode="median"), "before a pooling other than mean"),
    "prompts": (edited("config_sentence_transformers.json", prompts={"query": 1}), "prompts are no texts"),
    "truncate": (edited("config_sentence_transformers.json", truncate_dim="x"), "no model can be made of this"),
    "code": (
        lambda f: (f / "modules.json").write_text('[{"type": "evil.Module", "path": ""}]'),
        "runs no code from a checkpoint",
    ),
    "order": (
        lambda f: (f / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling", "path": ""}]'),
        "is a Transformer, a Pooling",
    ),
    "record": (edited(RECORD, more=1), "is damaged"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_folder_that_does_not_fit_is_refused(harm: str, copied: Path) -> None:
    if harm != "record":
        (copied / RECORD).unlink()
    HARMS[harm][0](copied)
    with pytest.raises((CheckpointError, EncodingError), match=re.escape(HARMS[harm][1])):
        load(f"onnx:{copied}")


def test_a_tokenizer_of_another_model_is_named(copied: Path) -> None:
    (copied / RECORD).unlink()
    path = copied / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["elephant"] = 5000
    path.write_text(json.dumps(content))
    with pytest.raises(EncodingError, match="its tokenizer may belong to another model"):
        load(f"onnx:{copied}").encode(["an elephant"])


def test_projections_are_checked(tmp_path: Path) -> None:
    folder = export_onnx(save_tiny_encoder(tmp_path / "source", dense=8), tmp_path / "onnx").path
    (folder / RECORD).unlink()
    dense = folder / "2_Dense" / "config.json"
    good = dense.read_text()
    for value, words in (
        ("evil.Function", "has the function"),
        ("torch.nn.modules.activation.Softplus", "palmette knows"),
    ):
        edited("2_Dense/config.json", activation_function=value)(folder)
        with pytest.raises(CheckpointError, match=words):
            load(f"onnx:{folder}")
    dense.write_text(good)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="reads no other weights"):
        load(f"onnx:{folder}")


def keep_weights_outside(folder: Path, location: str) -> None:
    path = folder / "onnx" / "model.onnx"
    graph = onnx.load(path)
    for file in path.parent.iterdir():
        file.unlink()
    onnx.save(graph, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    if location != "model.onnx.data":
        graph = onnx.load(path, load_external_data=False)
        for tensor in graph.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        path.write_bytes(graph.SerializeToString())


def test_weights_may_lie_in_a_file_beside_the_graph(exported: Path, copied: Path, tmp_path: Path) -> None:
    (copied / RECORD).unlink()
    keep_weights_outside(copied, "model.onnx.data")
    encoder = load(f"onnx:{copied}")
    np.testing.assert_allclose(encoder.encode(TEXTS), load(f"onnx:{exported}").encode(TEXTS), atol=1e-6)
    weights = copied / "onnx" / "model.onnx.data"
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    assert load(f"onnx:{copied}").fingerprint != encoder.fingerprint
    secret = tmp_path / "secret.bin"
    weights.rename(secret)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load(f"onnx:{copied}")
    weights.symlink_to(secret)
    with pytest.raises(CheckpointError, match=r"cannot be loaded.*escapes"):
        load(f"onnx:{copied}")


@pytest.mark.parametrize("location", ["../../../secret.bin", "/etc/passwd", "../secret.bin"])
def test_weights_outside_the_folder_are_refused(location: str, copied: Path, tmp_path: Path) -> None:
    (copied / RECORD).unlink()
    keep_weights_outside(copied, location)
    (copied / "secret.bin").write_bytes(bytes(1 << 20))
    with pytest.raises(CheckpointError, match="cannot be loaded.*External data path"):
        load(f"onnx:{copied}")


def test_a_graph_may_have_another_name(copied: Path) -> None:
    (copied / RECORD).unlink()
    (copied / "onnx" / "model.onnx").rename(copied / "onnx" / "model_quint8.onnx")
    with pytest.raises(CheckpointError, match=r"It has onnx/model_quint8\.onnx: append one of them to the name"):
        load(f"onnx:{copied}")
    assert load(f"onnx:{copied}/onnx/model_quint8.onnx").dimension == 16
