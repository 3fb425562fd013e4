"""Which methods are under contract."""

from palmette.methods import FUSION, names
from support.tiny import METHODS


def test_every_method_is_under_contract() -> None:
    assert sorted(METHODS) == sorted([*names(), *FUSION])
