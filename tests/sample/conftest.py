import pytest

from palmette.sample import python_catalogue, sample_data


@pytest.fixture(scope="session")
def full():
    return {entry.id: entry for entry in python_catalogue()}


@pytest.fixture(scope="session")
def data():
    return sample_data()
