"""The served page: any query from here, nothing from elsewhere."""

import http.client
import json
import shutil
import threading
from collections.abc import Iterator

import pytest

from palmette import Index
from palmette.errors import InputError
from palmette.methods.tree import TreeInspection
from palmette.methods.tree.inspection.serving import TreeServer
from support.chromium import BINARY, browser
from support.tiny import documents, tree


@pytest.fixture(scope="module")
def server() -> Iterator[TreeServer]:
    inspection = TreeInspection.of(Index.build(documents(), tree()))
    with TreeServer(inspection) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server: TreeServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_it_routes_any_query(server: TreeServer) -> None:
    status, body = ask(server, "/route?q=where%20is%20the%20r%C3%A9d%20owl%3F")
    route = json.loads(body)
    assert status == 200
    assert route["query"] == "where is the réd owl?"
    assert len(route["path"]) == 5
    assert route["found"][0][0] in {d.id for d in documents()}
    status, body = ask(server, "/")
    assert status == 200
    assert '"live":true' in body


def test_refusals_are_answers(server: TreeServer) -> None:
    status, body = ask(server, "/route?q=%20")
    assert status == 400
    assert "empty" in json.loads(body)["error"]
    assert "2,000" in json.loads(ask(server, f"/route?q={'x' * 2001}")[1])["error"]
    assert ask(server, "/route")[0] == 400
    assert ask(server, "/../etc/passwd")[0] == 404
    assert ask(server, "/", method="POST")[0] == 501


def test_other_sites_get_nothing(server: TreeServer) -> None:
    assert ask(server, "/", Host="evil.example")[0] == 403
    assert ask(server, "/", Host=f"evil.example:{server.server_port}")[0] == 403
    assert ask(server, "/route?q=owl", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(server, "/route?q=owl", Sec_Fetch_Site="same-origin")[0] == 200
    assert ask(server, "/", Host=f"localhost:{server.server_port}")[0] == 200
    assert server.server_address[0] == "127.0.0.1"


def test_a_taken_port_is_a_clear_error(server: TreeServer) -> None:
    with pytest.raises(InputError, match=str(server.server_port)):
        TreeServer(server.inspection, server.server_port)
    with pytest.raises(InputError, match="99999"):
        TreeServer(server.inspection, 99999)


@pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine")
def test_typing_a_query_lights_it_live(server: TreeServer, tmp_path) -> None:
    with browser(tmp_path / "chromium") as running:
        tab = running.page()
        tab.goto(server.url)
        tab.click("#query")
        tab.type("where does the golden bee live?")
        tab.press("Enter")
        status = tab.wait_for("document.getElementById('status').textContent.includes('lead to')")
        assert status is True
        assert tab.evaluate("document.querySelectorAll('.lit').length") > 5
        assert tab.evaluate("document.querySelectorAll('#panel details li').length") == 5
        assert tab.errors == []
    shutil.rmtree(tmp_path / "chromium", ignore_errors=True)
