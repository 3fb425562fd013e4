"""Encoders behind a server of OpenAI's protocol, against a real server on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import FakeEncoder, Index, SpaceModel, load_encoder
from palmette.cli import main
from palmette.encoder import pooled, remote
from palmette.encoder.pooled import PROBE
from palmette.encoder.remote import RemoteEncoder, usage_of
from palmette.encoder.sentences.splitting import estimate_tokens
from palmette.errors import ConfigError, EncodingError, ModelMismatchError, RemoteError
from palmette.machine import endpoint
from support.model_server import WIDTH, EmbeddingServer, Served

TEXTS = [f"the {colour} {animal} sleeps" for colour in ("red", "blue", "green") for animal in ("owl", "fox", "hen")]


def test_an_index_ranks_as_with_the_same_encoder_here(server: EmbeddingServer, tmp_path: Path) -> None:
    plain = Index.build(TEXTS, SpaceModel.untrained(FakeEncoder(WIDTH)), sentences=False)
    with Index.build(TEXTS, path=tmp_path / "index", encoder="openai:small") as index:
        assert index.model.encoder.name == "openai:small"
        for query in ("where is the blue fox?", "hen"):
            assert [hit.id for hit in index.search(query, k=9)] == [hit.id for hit in plain.search(query, k=9)]
    assert set(server.paths) == {"/v1/embeddings"}
    with Index.open(tmp_path / "index") as index:  # from its own record
        assert index.search("where is the blue fox?", k=1)[0].document.text == "the blue fox sleeps"
        assert isinstance(index.model.encoder, RemoteEncoder)
    with pytest.raises(ModelMismatchError, match="was trained with encoder"):
        Index.open(tmp_path / "index", encoder="openai:large")


def test_every_text_is_paid_once_also_in_other_processes(server: EmbeddingServer, tmp_path: Path) -> None:
    with Index.build(TEXTS, path=tmp_path / "index", encoder="openai:small") as index:
        index.search("where is the fox?")
        index.search("where is the fox?")
        Index.build(TEXTS, encoder="openai:small").close()
        usage = usage_of(index.model.encoder)
    paid = server.texts
    assert set(paid.values()) == {1}
    assert usage is not None
    probes = sum(PROBE in body["input"] for body in server.bodies)
    assert (usage.texts, usage.tokens) == (len(paid) + probes, sum(len(text.split()) for text in paid) + probes)
    assert probes <= usage.requests, "the probe is no request of its own, except at first"
    script = f"import palmette; palmette.Index.open({str(tmp_path / 'index')!r}).search('where is the fox?')"
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {script}"], check=True)
    assert server.texts == paid


def test_requests_are_divided_by_texts_and_by_tokens(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "REQUEST_TOKENS", 200)
    encoder = RemoteEncoder("openai:small")
    short, long = [f"word{n}" for n in range(150)], [f"long{n} " + "word " * 90 for n in range(4)]
    vectors = encoder.encode([*short, *long])
    np.testing.assert_allclose(vectors, FakeEncoder(WIDTH).encode([*short, *long]), atol=1e-6)
    requests = [body["input"] for body in server.bodies[1:]]
    assert max(map(len, requests)) == remote.REQUEST_TEXTS
    assert all(sum(estimate_tokens(texts)) <= 200 for texts in requests)
    assert sum(map(len, requests)) == len(short) + len(long) + len(requests), "each with the probe"


def test_a_server_that_takes_few_or_short_texts(server: EmbeddingServer) -> None:
    def strict(body: dict[str, Any]) -> Served:
        if len(body["input"]) > 8 or any(len(text) > 2_000 for text in body["input"]):
            return 413, {}, {"error": {"message": "too large"}}
        return server.embeddings(body)

    server.reply = strict
    encoder = RemoteEncoder("openai:small")
    encoder.encode([f"word{n}" for n in range(40)])
    server.bodies.clear()
    encoder.encode([f"other{n}" for n in range(40)])
    assert len(server.bodies) == 10, "it has learned that 5 texts are taken, of which one is the probe"
    with pytest.warns(UserWarning, match="takes no text of"):
        vector = encoder.encode(["much " * 1_000])
    assert vector.shape == (1, WIDTH)


def test_what_arrived_is_kept_where_another_request_fails(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing request is paid again, and those that were never sent: four at a time, of eight texts each."""
    monkeypatch.setattr(remote, "REQUEST_TEXTS", 8)
    texts = [f"word{n:03}" for n in range(80)]

    def refuses(body: dict[str, Any]) -> Served:
        if texts[12] in body["input"]:
            return 403, {}, {"error": {"message": "not this one"}}
        return server.embeddings(body)

    encoder = RemoteEncoder("openai:small")
    server.reply = refuses
    with pytest.raises(RemoteError, match="not this one"):
        encoder.encode(texts)
    assert encoder.usage.texts >= 1 + 8, "the first request has been answered"
    kept = encoder.usage.texts - encoder.usage.requests  # one of each request is the probe
    server.reply = server.embeddings
    server.bodies.clear()
    vectors = encoder.encode(texts)
    np.testing.assert_allclose(vectors, FakeEncoder(WIDTH).encode(texts), atol=1e-6)
    assert sum(server.texts.values()) + kept == 80, "what the failed call has paid is not paid again"


def test_vectors_are_put_in_the_order_of_the_texts(server: EmbeddingServer) -> None:
    def turned(body: dict[str, Any]) -> Served:
        status, headers, content = server.embeddings(body)
        return status, headers, {**content, "data": content["data"][::-1]}

    server.reply = turned
    np.testing.assert_allclose(RemoteEncoder("openai:m").encode(TEXTS), FakeEncoder(WIDTH).encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        ((401, {}, {"error": {"message": "sk-secret is wrong"}}), RemoteError, "401.*… is wrong.*set OPENAI_API_KEY"),
        ((404, {}, {"error": "no such model"}), RemoteError, "404 for model 'small'.*no such model"),
        ((429, {}, {"error": {"message": "slow down"}}), RemoteError, "failed 6 times.*429.*slow down"),
        ((429, {}, {"error": {"code": "insufficient_quota", "message": "pay"}}), RemoteError, "answered 429.*pay"),
        ((503, {}, b"<html>"), RemoteError, "failed 6 times.*503"),
        ((200, {}, b'{"data": [{"embedding": [0.1'), RemoteError, "no JSON, or half of it"),
        ((200, {}, {"data": [{"embedding": []}]}), RemoteError, "no lists of numbers"),
        ((200, {}, {"data": [{"embedding": ["x"]}]}), RemoteError, "failed 6 times"),
        ((200, {}, {"data": [{"index": 7, "embedding": [1.0]}]}), RemoteError, "not those of the texts"),
        ((200, {}, {"data": [{"embedding": [1.0, 2.0]}]}), EncodingError, "vectors of 2 numbers, and 48 before"),
        ((200, {}, {"data": [{"embedding": [float("nan")] * WIDTH}]}), EncodingError, "NaN or infinity.*'a b'"),
        ((307, {"location": "http://example.org/v1"}, b""), RemoteError, "redirects to 'http://example.org/v1'"),
    ],
)
def test_errors_name_the_cause(
    server: EmbeddingServer, reply: Served, error: type[Exception], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    encoder = RemoteEncoder("openai:small")
    server.reply = lambda body: reply
    with pytest.raises(error, match=words) as caught:
        encoder.encode_queries(["a b"])
    assert "sk-secret" not in "".join([str(caught.value), repr(caught.value.__cause__), *capfd.readouterr()])


def test_a_server_that_hangs(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = RemoteEncoder("openai:small")
    monkeypatch.setattr(endpoint, "SILENCE", 0.2)
    monkeypatch.setattr(remote, "QUERY_PATIENCE", 0.5)

    def hang(body: dict[str, Any]) -> Served:
        time.sleep(1)
        return server.embeddings(body)

    server.reply = hang
    start = time.monotonic()
    with pytest.raises(RemoteError, match="failed . times.*Timeout"):
        encoder.encode_queries(["where?"])
    assert time.monotonic() - start < 5
    server.reply = lambda body: (429, {"retry-after": "40"}, {})
    with pytest.raises(RemoteError, match="failed 1 times"):
        encoder.encode_queries(["where?"])


def test_the_key_is_kept_nowhere(server: EmbeddingServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Index.build(TEXTS, path=tmp_path / "index", encoder="openai:small") as index:
        encoder = index.model.encoder
        assert server.headers[-1]["authorization"] == "Bearer sk-secret"
        shown = repr(encoder) + repr(encoder.to_config()) + repr(vars(encoder)) + repr(index.model) + caplog.text
        assert "sk-secret" not in shown
    for path in [*tmp_path.rglob("*")]:
        assert path.is_dir() or b"sk-secret" not in path.read_bytes(), path


def test_a_key_that_is_none(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " sk-secret\n")
    RemoteEncoder("openai:small")
    assert server.headers[-1]["authorization"] == "Bearer sk-secret"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-se\ncret")
    with pytest.raises(ConfigError, match="such as a line break") as caught:
        RemoteEncoder("openai:small")
    assert "sk-se" not in str(caught.value)
    monkeypatch.delenv("OPENAI_API_KEY")
    RemoteEncoder("openai:small")
    assert "authorization" not in server.headers[-1]


def test_addresses(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    encoder = load_encoder(f"openai:@cf/baai/small@{server.url}/")
    assert (server.bodies[-1]["model"], server.paths[-1]) == ("@cf/baai/small", "/v1/embeddings")
    assert load_encoder(f"openai:@cf/baai/small@{server.url}/") is encoder
    for name, words in (
        ("openai:", "names no model of a server"),
        ("openai:m@http://example.org/v1", "not encrypted.*PALMETTE_ALLOW_HTTP=1"),
        ("openai:m@https://", "no URL of a model server"),
        ("openai:m@https://ada:sk-secret@example.org/v1", "holds a key"),
        ("openai:m@https://example.org/v1?key=sk-secret", "holds a key"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            load_encoder(name)
        assert "sk-secret" not in str(caught.value)


def test_a_record_does_not_send_texts_or_keys_to_its_own_server(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    name = f"openai:small@{server.url}"
    Index.build(TEXTS, path=tmp_path / "index", encoder=name).close()
    remote.REMOTE_ENCODERS.clear()
    with Index.open(tmp_path / "index") as index:  # of this machine: without the key
        index.search("a new question")
    assert server.texts["a new question"] == 1
    assert "authorization" not in server.headers[-1]
    with Index.open(tmp_path / "index", encoder=name) as index:  # named here: with the key
        index.search("another question")
    assert server.headers[-1]["authorization"] == "Bearer sk-secret"
    record = {**index.model.encoder.to_config(), "name": "openai:small@https://example.org/v1"}
    with pytest.raises(ModelMismatchError, match="do not go to a server because a record names it"):
        load_encoder(record)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    with Index.open(tmp_path / "index") as index:  # named by the environment
        index.search("a third question")
    assert server.headers[-1]["authorization"] == "Bearer sk-secret"


def test_another_model_under_the_same_name_is_found_out(server: EmbeddingServer, tmp_path: Path) -> None:
    Index.build(TEXTS, path=tmp_path / "index", encoder="openai:small").close()
    remote.REMOTE_ENCODERS.clear()
    turned = np.roll(np.eye(WIDTH), 1, axis=0)

    def other(body: dict[str, Any]) -> Served:
        status, headers, content = server.embeddings(body)
        for row in content["data"]:
            row["embedding"] = (np.array(row["embedding"]) @ turned).tolist()
        return status, headers, content

    server.reply = other
    with (
        Index.open(tmp_path / "index") as index,
        pytest.raises(ModelMismatchError, match="another model under the name"),
    ):
        index.search("a new question")
    server.reply = server.embeddings
    remote.REMOTE_ENCODERS.clear()
    with Index.open(tmp_path / "index") as index:
        assert index.search("a new question")


def test_a_model_that_is_exchanged_meanwhile_spoils_nothing(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((WIDTH, WIDTH)))[0]

    def other(body: dict[str, Any]) -> Served:
        status, headers, content = server.embeddings(body)
        for row in content["data"]:
            row["embedding"] = (np.array(row["embedding"]) @ turned).tolist()
        return status, headers, content

    with Index.build(TEXTS, path=tmp_path / "index", encoder="openai:small") as index:
        server.reply = other
        with pytest.raises(ModelMismatchError, match="another model than before.*nothing was written.*build the index"):
            index.add(["a late bat", "an early wren"])
        assert len(index) == len(TEXTS)
        monkeypatch.setattr(pooled, "CHECKED_EVERY", 0.0)
        requests = len(server.bodies)
        with pytest.raises(ModelMismatchError, match="index and the model|indexed and the model"):
            index.search("where is the blue fox?")
        assert len(server.bodies) == requests + 1, "the probe rides along"
        with Index.build(TEXTS, encoder="openai:small") as anew:  # of the server's model of today
            assert anew.search("the blue hen", k=1)[0].document.text == "the blue hen sleeps"
        server.reply = server.embeddings
        index.add(["a late bat", "an early wren"])
        for text in [*TEXTS, "a late bat"]:
            assert index.search(text, k=1, lexical=0)[0].document.text == text


def test_the_commands(server: EmbeddingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    for number, text in enumerate(TEXTS):
        (notes / f"{number}.md").write_text(text)
    index, name = str(tmp_path / "index"), f"openai:small@{server.url}"
    options = json.dumps({"name": name, "truncate": 32})
    assert main(["index", str(notes), "--out", index, "--encoder", options, "--quiet"]) == 0
    assert f"{name}: 11 texts" in capsys.readouterr().out
    assert main(["search", index, "where is the blue fox?", "--encoder", name, "--json"]) == 0
    assert "blue fox" in json.loads(capsys.readouterr().out)[0]["text"]
    assert main(["overview", index, "--encoder", name, "--topics", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["topics"]
    assert main(["index", str(notes), "--out", index, "--encoder", "openai:large"]) == 1
    assert "was trained with encoder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["index", str(notes), "--out", index, "--encoder", "{"])
