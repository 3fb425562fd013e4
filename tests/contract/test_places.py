"""Where an index lies: memory, folders, copies, and the model it belongs to."""

import pickle

import numpy as np
import pytest

from palmette import Document, FakeEncoder, Index, Model, SpaceModel, load_model
from palmette.errors import (
    CheckpointError,
    ConfigError,
    DuplicateIdError,
    InputError,
    ModelMismatchError,
    NotFoundError,
    PalmetteError,
)
from support.tiny import documents

QUERIES = ["where does the red owl live?", "white hen", "golden bee sings"]


def test_build_is_memory_or_folder_and_brings_up_to_date(space: Model, tmp_path) -> None:
    assert len(Index.build(documents(), space)) == 48
    with pytest.raises(DuplicateIdError):
        Index.build([Document(id="a", text="1"), Document(id="a", text="2")], space, tmp_path / "i")
    assert list(tmp_path.iterdir()) == [], "refused before there is a folder"
    Index.build(documents()[:40], space, tmp_path / "i").close()
    again = Index.build(documents(), space, tmp_path / "i")
    assert len(again) == 48
    assert (again.path, again.engine) == (tmp_path / "i", "exact")
    assert Index.build(["x"], space).path is None


def test_changing_the_working_directory_changes_nothing(space: Model, tmp_path, monkeypatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    first = Index.build(["alpha one"], space, "idx")
    monkeypatch.chdir(tmp_path / "b")
    Index.build(["beta one"], space, "idx").close()
    first.add(["alpha two"])
    first.compact()
    assert len(first) == 2
    with Index.open("idx", space) as second:
        second.verify()
        assert [d.text for d in second.documents()] == ["beta one"]
    with Index.open(tmp_path / "a" / "idx", space) as again:
        assert len(again) == 2


def test_a_pickled_index_is_its_folder(space: Model, tmp_path) -> None:
    index = Index.build(documents(), space, tmp_path / "i")
    copy = pickle.loads(pickle.dumps(index.filtered({"colour": "red"})))
    assert [h.id for h in copy.search("owl", k=48)] == [
        h.id for h in index.search("owl", k=48, filter={"colour": "red"})
    ]
    with pytest.raises(PalmetteError, match="copy_to"):
        pickle.dumps(Index.in_memory(space))


def test_an_index_reopens_as_it_was(model: Model, tmp_path) -> None:
    with Index.create(tmp_path / "i", model) as made:
        made.add(documents())
        made.delete(["red-cat"])
        expected = made.search(QUERIES, k=10)
    for given in (None, model):
        with Index.open(tmp_path / "i", given) as opened:
            assert opened.model.fingerprint == model.fingerprint
            assert opened.search(QUERIES, k=10) == expected
            assert opened.stats().documents == 47
            if given is None:
                opened.copy_to(tmp_path / "again").close()
    with Index.open(tmp_path / "again") as copy:
        assert copy.model.fingerprint == model.fingerprint, "a model that was loaded is saved as it was"


def test_an_index_refuses_another_model_and_folders_in_use(space: Model, tmp_path) -> None:
    Index.create(tmp_path / "i", space).close()
    other = SpaceModel.untrained(FakeEncoder(32))
    with pytest.raises(ModelMismatchError):
        Index.open(tmp_path / "i", other)
    with pytest.raises(InputError, match=r"Index\.open it"):
        Index.create(tmp_path / "i", space)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not an empty folder"):
        Index.create(tmp_path / "mine", space)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    with pytest.raises(NotFoundError):
        Index.open(tmp_path / "nowhere")
    other.save_pretrained(tmp_path / "i" / "model")
    with pytest.raises(ModelMismatchError, match="restore that folder"):
        Index.open(tmp_path / "i")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["i", "mine"]


def test_unusable_places_and_options_are_refused(space: Model, tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file is a file"):
        Index.create(tmp_path / "file" / "index", space)
    for engine in ("annoy", None):
        with pytest.raises(ConfigError, match="engine"):
            Index.create(tmp_path / "i", space, engine=engine)  # type: ignore[arg-type]
    assert not (tmp_path / "i").exists(), "a wrong engine leaves no folder behind"
    Index.create(tmp_path / "i", space).close()
    with pytest.raises(ConfigError, match=r"device.*a model is given"):
        Index.open(tmp_path / "i", space, device="cpu")
    Index.build([], space, tmp_path / "new").close()
    with pytest.raises(InputError, match="finite and"):
        Index.open(tmp_path / "i", space).explain(np.empty((0, 48), np.float32), "x")


def test_index_and_checkpoint_are_not_confused(space: Model, tmp_path) -> None:
    space.save_pretrained(tmp_path / "ckpt")
    Index.create(tmp_path / "i", space).close()
    with pytest.raises(InputError, match="is a checkpoint, not an index"):
        Index.open(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"is an index: use Index\.open"):
        load_model(tmp_path / "i")
    assert load_model(tmp_path / "i" / "model").fingerprint == space.fingerprint


def test_a_failed_copy_leaves_nothing(stored: Index, tmp_path, monkeypatch) -> None:
    def fail(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(stored.model), "save_pretrained", fail)
    with pytest.raises(PalmetteError, match="no room"):
        stored.copy_to(tmp_path / "copy")
    assert [p.name for p in tmp_path.iterdir() if p.name != "index"] == []
