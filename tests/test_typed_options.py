"""What editors show for the options of ``fit`` is what the configs say."""

import pytest

from palmette import Reader
from palmette.registry import model_class, names
from support.typed_options import CONFIGS, path_of, written


@pytest.mark.parametrize("taker", CONFIGS)
def test_typed_options_are_the_configs(taker: str) -> None:
    assert path_of(CONFIGS[taker]).read_text(encoding="utf-8") == written(taker, CONFIGS[taker]), (
        "make options"
    )


def test_every_fit_has_them() -> None:
    held = [
        (f"{owner.__name__}.fit", (owner.config_class, owner.training_class))
        for owner in (*map(model_class, names()), Reader)
    ]
    assert held == [(taker, CONFIGS[taker]) for taker, _ in held]
    assert len(held) == len(CONFIGS) - 1, "and what every training takes"
