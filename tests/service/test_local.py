"""The socket beside an index: who may use it, what commands get from it, and what they cost."""

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palmette import Index
from palmette.cli import main
from palmette.errors import FilterError
from palmette.service import local
from support.services import Running, running
from support.tiny import documents, tree


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("local") / "colours"
    Index.build(documents(), tree(), path).close()
    return path


@pytest.fixture
def service(folder: Path) -> Iterator[Running]:
    with running(folder) as one:
        yield one
    assert not Path(local.socket_path(str(folder))).exists()


COMMANDS = (
    ["search", "INDEX", "where does the red owl live?", "-k", "3", "--explain"],
    ["search", "INDEX", "owl", "hen", "--json", "--level", "3", "--lexical", "0.4", "--filter", '{"colour": "red"}'],
    ["search", "INDEX", "owl", "--threshold", "0.999"],
    ["answer", "INDEX", "where does the red owl live?", "who sings?", "--explain", "--threshold", "0"],
    ["answer", "INDEX", "where does the red owl live?", "--json", "--level", "2"],
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_print_the_same_by_the_service(
    command: list[str], folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(folder) if word == "INDEX" else word for word in command]
    assert main(words) == 0
    alone = capsys.readouterr().out
    with running(folder), monkeypatch.context() as patch:
        patch.setattr(Index, "open", None)  # nothing is opened in this process
        assert main(words) == 0
    assert capsys.readouterr().out == alone


def test_errors_are_the_services_sentences(service: Running, folder: Path, capsys: Any) -> None:
    assert main(["search", str(folder), "owl", "--filter", '{"color": 1}']) == 1
    assert "Did you mean 'colour'?" in capsys.readouterr().err
    with pytest.raises(FilterError, match="Did you mean 'colour'"):
        local.request(str(folder), "/v1/search", {"query": "owl", "filter": {"color": 1}})
    assert main(["search", str(folder), "owl", "--levle", "3"]) == 1
    assert "did you mean --level?" in capsys.readouterr().err


def requests_of(metrics: str) -> list[str]:
    return [line for line in metrics.splitlines() if line.startswith("palmette_requests_total")]


def test_what_a_service_does_not_take_is_done_here(service: Running, folder: Path, capsys: Any) -> None:
    before = service.service.metrics.text({})
    for words in (["-k", "2000"], ["--engine", "faiss"], ["--device", "cpu"]):
        assert main(["search", str(folder), "owl", *words]) == 0
    assert requests_of(service.service.metrics.text({})) == requests_of(before)
    assert local.request(str(folder), "/v1/nothing") is None


def test_the_owner_writes_and_sees_statistics(service: Running, folder: Path, capsys: Any) -> None:
    assert main(["stats", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "documents: 48\n" in told
    assert f"location: {folder}\n" in told
    assert "ready: True\n" in told
    added = local.request(str(folder), "/v1/add", {"documents": [{"id": "new", "text": "new"}]})
    assert added == {"ids": ["new"]}
    assert local.request(str(folder), "/v1/delete", {"ids": ["new"]}) == {"deleted": ["new"]}


def test_the_socket_is_its_owners(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = local.socket_path(str(folder))
    assert path == str(folder.with_name(".colours.sock"))
    with running(folder):
        about = os.lstat(path)
        assert stat.S_IMODE(about.st_mode) == 0o600
        assert about.st_uid == os.geteuid()
        client = local.connect_socket(path)
        assert client is not None
        client.close()
        Path(path).chmod(0o660)
        assert local.connect_socket(path) is None, "others could have opened it"
        Path(path).chmod(0o600)
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        assert local.connect_socket(path) is None, "another user's"
        monkeypatch.undo()
        link = tmp_path / "link.sock"
        link.symlink_to(path)
        assert local.connect_socket(str(link)) is None
        with running(folder) as second:  # serves, but leaves the socket to the first
            assert second.service.sockets == {}
            assert second.post("search", query="owl").status_code == 200
        assert local.request(str(folder), "/health") is not None
    (tmp_path / "file.sock").write_text("")
    assert local.connect_socket(str(tmp_path / "file.sock")) is None


def test_a_socket_that_was_left_is_replaced(folder: Path) -> None:
    path = local.socket_path(str(folder))
    local.listen(path).close()  # as after a kill
    assert Path(path).exists()
    assert local.connect_socket(path) is None
    with running(folder):
        assert local.request(str(folder), "/health")["status"] == "ok"


def test_a_path_too_long_for_a_socket_is_served_all_the_same(tmp_path: Path, capsys: Any, caplog: Any) -> None:
    folder = tmp_path / ("long" * 30) / "index"
    folder.parent.mkdir()
    Index.build(documents(), tree(), folder).close()
    with running(folder) as service:
        assert service.service.sockets == {}
        assert service.post("search", query="owl").status_code == 200
        assert main(["search", str(folder), "owl"]) == 0
    assert "commands cannot use this service" in caplog.text


def test_half_an_answer_is_none(tmp_path: Path) -> None:
    import threading

    server = local.listen(local.socket_path(str(tmp_path / "index")))
    server.listen()
    replies = [
        b"",
        b"HTTP/1.1 200 OK\r\npalmette-version: 0.1.0\r\ncontent-length: 9\r\n\r\n{}",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\npalmette-version: 0.0.9\r\n\r\n{}",
    ]

    def answer() -> None:
        for reply in replies:
            client, _ = server.accept()
            client.recv(1000)
            client.sendall(reply)
            client.close()

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in replies:
        assert local.request(str(tmp_path / "index"), "/health") is None
    thread.join()
    server.close()


def test_the_second_command_costs_next_to_nothing(service: Running, folder: Path) -> None:
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}; from palmette.cli import main; "
        f"main(['search', {str(folder)!r}, 'owl']); "
        "print(len(sys.modules), {'numpy', 'pydantic', 'torch', 'pathlib', 'asyncio', 'http'} & {*sys.modules})"
    )
    alone, _ = _run("import json, socket")
    seconds, done = _run(script)
    count, heavy = done.stdout.splitlines()[-1].split(" ", 1)
    assert "red-owl" in done.stdout
    assert heavy == "set()"
    assert int(count) < 120
    assert seconds < 3 * alone + 0.07, "processor time, beside an interpreter's that does nothing"


def _run(script: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a script in a process of its own, and say how many seconds of a processor it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done
