"""A server of OpenAI's chat protocol, documents to ask about, and an index whose refit is better."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.machine import endpoint
from support.model_server import ChatServer

ANIMALS = ("owl", "cat", "horse", "whale", "ant", "eagle", "frog", "tiger", "snail", "wolf")
TOPICS, VOTES = 30, 120
QUIET: dict[str, Any] = {"progress": False}


def animals(count: int = 10) -> list[Document]:
    """Documents that differ in one animal and one number each."""
    names = [f"{ANIMALS[n % 10]}{n // 10 or ''}" for n in range(count)]
    return [Document(name, f"The {name} lives in house number {n}00 and sings.") for n, name in enumerate(names)]


def animal_of(prompt: str) -> str:
    """Return the animal of the passage in a prompt."""
    return prompt.rsplit("The ", 1)[1].split()[0]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A server, which ``openai:…`` finds in the environment; nothing waits long."""
    chat = ChatServer(
        lambda body: ChatServer.chat(
            json.dumps({"questions": [f"Where does the {animal_of(ChatServer.prompt(body))} live?"]})
        )
    )
    monkeypatch.setenv("OPENAI_BASE_URL", chat.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.001)
    yield chat
    chat.close()


@pytest.fixture(scope="session")
def voted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose refit is better."""
    path = tmp_path_factory.mktemp("voted") / "index"
    documents = [Document(f"d{n}", f"beta{n % TOPICS} beta{n % TOPICS} filler{n}") for n in range(2 * TOPICS)]
    with Index.build(documents, SpaceModel.untrained(FakeEncoder(64)), path, **QUIET) as index:
        for number in range(VOTES):
            topic = number % TOPICS
            index.feedback(f"alpha{topic} alpha{topic} noise{number}", f"d{topic}", useful=True)
    return path
