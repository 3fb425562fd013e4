"""A checkpoint on disk: round trip, every kind of damage, and what saving must never do."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from palmette.errors import CheckpointError, NotFoundError
from palmette.hub import LAYOUT, open_checkpoint, save_checkpoint
from support.checkpoints import CONFIG, card_of, save, weight_of
from support.syscalls import KILL, is_possible, watch


def test_round_trip(tmp_path: Path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"view": base[:, 1:3], "tied": base, "half": base.to(torch.bfloat16)}
    saved = save_checkpoint(tmp_path / "a" / "ckpt", CONFIG, tensors, "hello", files={"leaves.json": b"[1]"})
    opened = open_checkpoint(tmp_path / "a" / "ckpt")
    assert opened == saved
    assert opened.config == CONFIG
    assert opened.card == "hello"
    assert opened.file("leaves.json") == b"[1]"
    assert (opened.origin, opened.revision) == (None, None)
    loaded = opened.tensors()
    assert loaded.keys() == tensors.keys()
    for name in tensors:
        torch.testing.assert_close(loaded[name], tensors[name], rtol=0, atol=0)
    loaded["tied"][0, 0] = 9  # the user's to change
    with pytest.raises(NotFoundError, match=r"no file 'x.json'; it has: config.json, leaves.json"):
        opened.file("x.json")


def test_fingerprint_is_what_the_model_computes(tmp_path: Path):
    one = save(tmp_path / "1", leaves={"a": 1}).fingerprint
    path = {"name": "/home/me/encoder", "fingerprint": "e1"}
    assert save(tmp_path / "2", leaves={"a": 1}, training={"loss": 3}).fingerprint == one
    config = CONFIG | {"record": 1, "encoder": path}
    assert save(tmp_path / "3", leaves={"a": 1}, config=config).fingerprint == one
    others = [
        save(tmp_path / "4", 1.0000001, leaves={"a": 1}),
        save(tmp_path / "5", leaves={"a": 2}),
        save(tmp_path / "6", leaves={"a": 1}, config=CONFIG | {"config": {"depth": 4}}),
        save(tmp_path / "7", leaves={"a": 1}, config=CONFIG | {"encoder": {"fingerprint": "e2"}}),
    ]
    assert len({one, *(item.fingerprint for item in others)}) == 5


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "leaves.json"])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-10], r"has \d+ bytes, and \d+ are expected"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), r"was altered: sha256 \w{64} expected, \w{64} found"),
    ],
)
def test_damage_is_refused(tmp_path: Path, name, damage, says):
    save(tmp_path, leaves={"a": 12345678})
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(CheckpointError, match=f"{name} {says}.*again"):
        open_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing.*again"):
        open_checkpoint(tmp_path)


def test_the_card_is_its_owners_to_edit(tmp_path: Path):
    assert save(tmp_path).card == card_of()
    (tmp_path / LAYOUT.card).write_text("mine")
    assert open_checkpoint(tmp_path).card == "mine"
    (tmp_path / LAYOUT.card).unlink()
    assert open_checkpoint(tmp_path).card == ""


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / LAYOUT.manifest
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "has checkpoint format 2, and this palmette reads up to 1.*pip install --upgrade"),
        ({"version": "1"}, "damaged"),
        ({"format": "other"}, "is no palmette checkpoint"),
        ({"kind": "palmette index", "format": 2}, "is an index, not a checkpoint"),
        ({"files": {}}, "must list config.json, model.safetensors"),
        ({"files": {"../../evil.json": {"sha256": "0" * 64, "size": 1}}}, "only flat names"),
        ({"files": {"config.json": {"sha256": "0", "size": 1}}}, "damaged"),
    ],
)
def test_a_manifest_is_not_trusted(tmp_path: Path, changes, says):
    save(tmp_path)
    change_manifest(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(tmp_path)


def test_only_data_are_read_and_written(tmp_path: Path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match=r"no palmette checkpoint.*\(it holds: pytorch_model.bin\)"):
        open_checkpoint(tmp_path)
    files = save(tmp_path / "listed").files
    change_manifest(tmp_path / "listed", files={name: vars(files["config.json"]) for name in (*files, "model.bin")})
    with pytest.raises(CheckpointError, match=r"only flat names ending in .json, .md"):
        open_checkpoint(tmp_path / "listed")
    for name in ("weights.pkl", "run.py", "sub/x.json", ".hidden.json", "manifest.json", "config.json"):
        with pytest.raises(CheckpointError, match=name):
            save_checkpoint(tmp_path / "new", CONFIG, {}, "", files={name: b""})
    for value in (float("nan"), tmp_path):
        with pytest.raises(CheckpointError, match=r"config.json must hold JSON values only"):
            save(tmp_path / "new", config={"method": value})
    assert not (tmp_path / "new").exists()


def test_saving_again_replaces_only_what_is_ours(tmp_path: Path):
    save(tmp_path, 1.0, leaves={"a": 1})
    (tmp_path / "notes").mkdir()
    (tmp_path / "diary.txt").write_text("mine")
    old = open_checkpoint(tmp_path)
    assert weight_of(save(tmp_path, 2.0)) == weight_of(open_checkpoint(tmp_path)) == 2.0
    with pytest.raises(CheckpointError, match=r"model.safetensors has changed since .* was opened"):
        old.tensors()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.json", "model.safetensors", "README.md", "manifest.json", "notes", "diary.txt"}
    (tmp_path / LAYOUT.weights).unlink()
    with pytest.raises(CheckpointError, match="can no longer be read"):
        old.tensors()


def test_the_working_directory_stays_the_folder_that_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a mount point does, which no rename can replace either."""
    monkeypatch.chdir(tmp_path)
    for value in (1.0, 2.0):
        save(Path(), value)
        assert weight_of(open_checkpoint(tmp_path)) == value
        assert Path.cwd().samefile(tmp_path)
        assert len(list(tmp_path.iterdir())) == 4


def test_a_new_folder_sweeps_what_killed_saves_left_beside_it(tmp_path: Path):
    mine, others = tmp_path / f".ckpt.{'0' * 32}.new", tmp_path / f".other.{'0' * 32}.new"
    for draft in (mine, others):
        draft.mkdir()
    save(tmp_path / "ckpt")
    assert sorted(path.name for path in tmp_path.iterdir()) == [others.name, "ckpt"]


def test_other_places_are_neither_opened_nor_saved_over(tmp_path: Path):
    (tmp_path / "thesis.json").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"no palmette checkpoint: .*\(it holds: thesis.json\)"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is a file; name the folder"):
        open_checkpoint(tmp_path / "thesis.json")
    with pytest.raises(CheckpointError, match=r"cannot save over .*holds: thesis.json.*Nothing was changed"):
        save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.json"]
    with pytest.raises(CheckpointError, match="it is a file"):
        save(tmp_path / "thesis.json")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint to .*Not a directory"):
        save(tmp_path / "thesis.json" / "ckpt")

    folder = tmp_path / "ckpt"
    save(folder)
    (folder / "leaves.json").write_text("mine")
    with pytest.raises(CheckpointError, match=r"its 'leaves.json' is not part of the existing checkpoint"):
        save(folder, leaves={"a": 1})
    assert (folder / "leaves.json").read_text() == "mine"
    change_manifest(folder, version=2)
    with pytest.raises(CheckpointError, match=r"cannot save over .*format 2"):
        save(folder)


@pytest.mark.skipif(not is_possible(), reason="needs Linux, and leave to supervise system calls")
@pytest.mark.parametrize("old", ["checkpoint", "empty", "absent"])
def test_a_kill_at_any_moment_leaves_the_old_checkpoint_or_the_new(tmp_path: Path, old: str):
    outcomes: list[float] = []
    status = signal.SIGKILL
    while status == signal.SIGKILL:
        point, folder = len(outcomes), tmp_path / str(len(outcomes)) / "ckpt"
        folder.parent.mkdir()
        if old == "checkpoint":
            save(folder, 1.0, leaves={"a": 1})
        elif old == "empty":
            folder.mkdir()
        status = watch(lambda: save(folder, 2.0), folder.parent, lambda call, _: KILL if call == point else 0)  # noqa: B023
        if old != "checkpoint" and not (folder.exists() and list(folder.iterdir())):
            assert folder.exists() == (old == "empty"), point
            outcomes.append(1.0)
            continue
        found = open_checkpoint(folder)
        outcomes.append(weight_of(found))
        assert ("leaves.json" in found.files) == (outcomes[-1] == 1.0), point
        assert weight_of(save(folder, 3.0)) == 3.0, "the next save goes on as usual"
        left = [path.name for path in folder.iterdir() if path.name.startswith(".palmette")]
        assert not left, point
    assert status == 0
    assert set(outcomes) == {1.0, 2.0}
    assert outcomes == sorted(outcomes), "once the new one is there, it stays"
    assert outcomes.count(1.0) > 5
    assert outcomes.count(2.0) > (5 if old == "checkpoint" else 1)


def test_no_room_leaves_the_old_checkpoint(tmp_path: Path):
    resource = pytest.importorskip("resource")
    save(tmp_path, 1.0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
        with pytest.raises(CheckpointError, match=r"cannot write the checkpoint.*File too large.*make room"):
            save(tmp_path, 2.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert weight_of(open_checkpoint(tmp_path)) == 1.0
    assert not list(tmp_path.glob(".palmette*"))
