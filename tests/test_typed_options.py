"""What editors show for the options of ``fit`` is what the configs say."""

from palmette import Reader
from palmette.registry import model_class, names
from support.typed_options import CONFIGS, files


def test_typed_options_are_the_configs() -> None:
    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is not what its config says: make options"


def test_every_fit_has_them() -> None:
    owners = [*map(model_class, names()), Reader]
    held = {owner.__name__: (owner.config_class, owner.training_class) for owner in owners}
    assert held == CONFIGS
