"""Push and pull with the real client against a Hub on the loopback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from palmette.errors import CheckpointError, ConfigError, HubError, NotFoundError
from palmette.hub import LAYOUT, open_checkpoint, pull, push_checkpoint
from palmette.hub.remote import hub_errors
from support.checkpoints import save, weight_of
from support.local_hub import READ_TOKEN, TOKEN, LocalHub, Request
from support.stores import run_python

pytestmark = pytest.mark.usefixtures("commit")
REPO = "me/ckpt"
FILES = {"README.md", "config.json", "leaves.json", "manifest.json", "model.safetensors"}


def fetched(hub: LocalHub) -> list[str]:
    """The files that were sent."""
    return [item.path for item in hub.requests if item.method == "GET" and "/resolve/" in item.path]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of one's own for the Hub's client."""
    return tmp_path / "cache"


@pytest.fixture
def commit(hub: LocalHub, tmp_path: Path) -> str:
    """The commit of a pushed checkpoint of ones."""
    save(tmp_path / "ckpt", 1.0, leaves={"a": 1})
    return push_checkpoint(tmp_path / "ckpt", REPO).rsplit("/", 1)[1]


def test_push_then_pull_by_branch_tag_and_commit(hub: LocalHub, tmp_path: Path, cache: Path):
    first = open_checkpoint(REPO, cache_dir=cache)
    url = push_checkpoint(save(tmp_path / "2", 2.0).path, REPO, branch="deep", create_tag="v2", commit_message="Deeper")
    second = url.rsplit("/", 1)[1]
    assert url == f"{hub.url}/{REPO}/commit/{second}"
    assert (first.origin, weight_of(first), first.file("leaves.json")) == (REPO, 1.0, b'{"a": 1}')
    assert first.fingerprint == open_checkpoint(tmp_path / "ckpt").fingerprint
    with pytest.raises(HubError, match="exists already"):
        push_checkpoint(tmp_path / "ckpt", REPO, branch="other", create_tag="v2")
    for revision in ("deep", "v2", second):
        found = open_checkpoint(REPO, revision=revision, cache_dir=cache)
        assert (weight_of(found), found.revision) == (2.0, second)
    assert weight_of(open_checkpoint(REPO, cache_dir=cache)) == 1.0
    assert first.revision != second


def test_only_the_checkpoint_is_sent_and_the_card_names_the_repository(hub: LocalHub, tmp_path: Path):
    (tmp_path / "ckpt" / "secrets.txt").write_text("mine")
    push_checkpoint(tmp_path / "ckpt", REPO)
    files = hub.files(REPO)
    assert set(files) == {".gitattributes", *FILES}
    assert ModelCard(files["README.md"].decode()).data.library_name == "palmette"
    assert f'load_model("{REPO}")' in files["README.md"].decode()
    assert "OWNER/NAME" in (tmp_path / "ckpt" / "README.md").read_text()


def test_a_cached_commit_costs_no_request(hub: LocalHub, commit: str, cache: Path):
    open_checkpoint(REPO, cache_dir=cache)
    hub.requests.clear()
    assert weight_of(open_checkpoint(REPO, revision=commit, cache_dir=cache)) == 1.0
    assert hub.requests == []
    path = open_checkpoint(REPO, cache_dir=cache).path
    assert hub.requests[0] == Request("GET", f"/api/models/{REPO}/revision/main", 200)
    assert fetched(hub) == []
    (path / LAYOUT.weights).unlink()  # cached in part
    assert weight_of(open_checkpoint(REPO, revision=commit, cache_dir=cache)) == 1.0


def test_pull_into_a_folder(commit: str, tmp_path: Path, cache: Path):
    path = pull(REPO, tmp_path / "out", revision=commit, cache_dir=cache)
    assert path == tmp_path / "out"
    assert not any(item.is_symlink() for item in path.iterdir())
    assert open_checkpoint(path).fingerprint == open_checkpoint(REPO, cache_dir=cache).fingerprint
    assert "OWNER/NAME" not in open_checkpoint(path).card
    assert pull(REPO, cache_dir=cache) == open_checkpoint(REPO, cache_dir=cache).path
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="cannot save over"):
        pull(REPO, tmp_path / "full", cache_dir=cache)


def test_without_a_hub(hub: LocalHub, cache: Path, monkeypatch: pytest.MonkeyPatch):
    open_checkpoint(REPO, cache_dir=cache)
    hub.requests.clear()
    assert weight_of(open_checkpoint(REPO, cache_dir=cache, local_files_only=True)) == 1.0
    assert hub.requests == []
    with pytest.raises(NotFoundError, match=r"'me/other' is not in the cache: .*local_files_only"):
        open_checkpoint("me/other", cache_dir=cache, local_files_only=True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert weight_of(open_checkpoint(REPO, cache_dir=cache)) == 1.0  # a dead Hub, and a cache to go on with
    with pytest.raises(HubError, match=r"'me/other' is not in the cache: Connect.*refused. Check the network"):
        open_checkpoint("me/other", cache_dir=cache)


def test_offline_by_environment(hub: LocalHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """HF_HUB_OFFLINE is read when the client is imported, so this one runs in a process of its own."""
    open_checkpoint(REPO, cache_dir=cache)
    hub.requests.clear()
    script = """if True:
        import sys
        from palmette.errors import HubError, NotFoundError
        from palmette.hub import open_checkpoint, push_checkpoint
        ckpt, cache = sys.argv[1:]
        assert open_checkpoint(ckpt).config["method"] == "tree"
        assert "huggingface_hub" not in sys.modules
        assert open_checkpoint("me/ckpt", cache_dir=cache).config["method"] == "tree"
        for call in (lambda: open_checkpoint("me/other", cache_dir=cache),
                     lambda: open_checkpoint("me/ckpt", revision="0" * 40, cache_dir=cache),
                     lambda: push_checkpoint(ckpt, "me/ckpt")):
            try:
                call()
            except (HubError, NotFoundError) as error:
                print(type(error).__name__, error)
        assert "torch" not in sys.modules
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = run_python(script, tmp_path / "ckpt", cache)
    assert done.returncode == 0, done.stderr
    one, two, three = done.stdout.splitlines()
    assert re.match("NotFoundError 'me/other' is not in the cache: .*HF_HUB_OFFLINE", one)
    assert two.startswith("NotFoundError 'me/ckpt' at revision '0000")
    assert re.match("HubError 'me/ckpt': OfflineModeIsEnabled: .*HF_HUB_OFFLINE", three)
    assert hub.requests == []


def test_what_is_not_there(hub: LocalHub, cache: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(NotFoundError, match=r"'me/nothing': Repo.*Not Found for url: http.*Check the name.*HF_TOKEN"):
        open_checkpoint("me/nothing", cache_dir=cache)
    for revision in ("v9", "0" * 40):
        with pytest.raises(NotFoundError, match=f"'me/ckpt' at revision '{revision}'.*: Revision.*Check the name"):
            open_checkpoint(REPO, revision=revision, cache_dir=cache)
    before = len(hub.requests)
    with pytest.raises(ConfigError, match=r"revision='v1' was given, but .* is a folder"):
        open_checkpoint(cache.parent, revision="v1")
    for path in ("./ckpt", "/no/such", "a/b/c", "ckpt/", Path("me/ckpt"), "~/nothing"):
        with pytest.raises(NotFoundError, match=r"no folder .*'owner/name'"):
            open_checkpoint(path, cache_dir=cache)
    with pytest.raises(NotFoundError, match="'two words': HFValidationError: .*Check the name .*a folder's"):
        open_checkpoint("two words", cache_dir=cache)
    assert len(hub.requests) == before


def test_tokens(hub: LocalHub, tmp_path: Path, cache: Path):
    with pytest.raises(HubError, match=r"401.*Invalid credentials.*hf auth login"):
        open_checkpoint(REPO, token="hf_wrong", cache_dir=cache)
    for repo, token, told in (
        (REPO, "hf_wrong", "401.*HF_TOKEN"),
        (REPO, READ_TOKEN, "403.*write token.*HF_TOKEN"),
        ("me/new", READ_TOKEN, "403.*HF_TOKEN"),
    ):
        with pytest.raises(HubError, match=told):
            push_checkpoint(tmp_path / "ckpt", repo, token=token)
    push_checkpoint(tmp_path / "ckpt", "secret", private=True)
    assert hub.repos["me/secret"].private
    with pytest.raises(NotFoundError, match=r"'me/secret': Repo.*private or gated repository.* pass token"):
        open_checkpoint("me/secret", token=False, cache_dir=cache)
    assert weight_of(open_checkpoint("me/secret", token=TOKEN, cache_dir=cache)) == 1.0


def test_gated_and_out_of_order(hub: LocalHub, cache: Path, tmp_path: Path):
    hub.repos[REPO].gated = True
    with pytest.raises(HubError, match=rf"'me/ckpt'.* gated repo for url {hub.url}/me/ckpt.*HF_TOKEN"):
        open_checkpoint(REPO, cache_dir=cache)
    hub.fail(500)
    with pytest.raises(HubError, match=r"'me/ckpt'.*500.*out of order"):
        open_checkpoint(REPO, cache_dir=cache / "empty")
    with pytest.raises(HubError, match="500.*out of order"):
        push_checkpoint(tmp_path / "ckpt", REPO)
    with pytest.raises(HubError, match=r"'me/ckpt': .*Name or service not known.*Check"), hub_errors(REPO):
        raise RuntimeError("Error while uploading") from OSError("Name or service not known")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "was altered: sha256"),
        (lambda data: data[: len(data) // 2], r"has \d+ bytes"),
    ],
)
def test_a_tampered_repository_is_refused(hub: LocalHub, commit: str, cache: Path, name, damage, says):
    hub.files(REPO)[name] = damage(hub.files(REPO)[name])
    with pytest.raises(CheckpointError, match=f"me/ckpt@{commit}: {name} {says}.*in the repository"):
        open_checkpoint(REPO, cache_dir=cache)
    with pytest.raises(CheckpointError, match=f"{name} {says}"):
        open_checkpoint(REPO, cache_dir=cache, local_files_only=True)


def test_a_tampered_cache_is_refused_and_fetched_where_it_was_deleted(hub: LocalHub, commit: str, cache: Path):
    weights = open_checkpoint(REPO, cache_dir=cache).path / LAYOUT.weights
    data = weights.read_bytes()
    weights.resolve().write_bytes(data[:-1] + b"\xff")
    with pytest.raises(CheckpointError, match=rf"model.safetensors was altered.*Delete {weights.resolve()}"):
        open_checkpoint(REPO, cache_dir=cache, local_files_only=True)
    hub.requests.clear()
    weights.resolve().unlink()
    assert weight_of(open_checkpoint(REPO, revision=commit, cache_dir=cache)) == 1.0
    assert fetched(hub) == [f"/{REPO}/resolve/{commit}/{LAYOUT.weights}"]


def test_a_foreign_repository_costs_no_download(hub: LocalHub, cache: Path):
    hub.put("me/pickle", {"config.json": b"{}", "pytorch_model.bin": b"\x80\x04.", "modeling.py": b"boom"})
    hub.put("me/bert", {"config.json": b"{}", "model.safetensors": b"x" * 1000})
    told = {"me/pickle": "@.* is no palmette checkpoint", "me/bert": "@.* is no palmette checkpoint"}
    for repo, why in told.items():
        with pytest.raises(CheckpointError, match=repo + why):
            open_checkpoint(repo, cache_dir=cache)
    assert fetched(hub) == []


def test_only_listed_files_are_fetched_and_of_a_newer_format_none(hub: LocalHub, cache: Path):
    hub.files(REPO).update({"evil.py": b"boom", "pytorch_model.bin": b"\x80\x04."})
    names = {item.name for item in open_checkpoint(REPO, cache_dir=cache).path.iterdir()}
    assert names == FILES
    hub.files(REPO)[LAYOUT.manifest] = json.dumps({"format": LAYOUT.format, "version": 7}).encode()
    with pytest.raises(CheckpointError, match=r"me/ckpt@.* has checkpoint format 7.*pip install"):
        open_checkpoint(REPO, cache_dir=cache / "new")


def test_only_whole_checkpoints_are_pushed(hub: LocalHub, tmp_path: Path):
    hub.requests.clear()
    (tmp_path / "ckpt" / "config.json").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "diary.txt").write_text("mine")
    for name, error, told in (
        ("nothing", NotFoundError, r"no folder .* to push"),
        ("ckpt", CheckpointError, "config.json has 2 bytes"),
        ("other", CheckpointError, "no palmette checkpoint"),
    ):
        with pytest.raises(error, match=told):
            push_checkpoint(tmp_path / name, REPO)
    assert hub.requests == []
