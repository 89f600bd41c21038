"""Access control: origins, host names, keys, priorities; TLS and a unix socket."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboards.monitor.client import Unreachable
from dashboards.source import journal_of
from service.cli.main import main
from telemetry.facts.engine_records import EngineStarted
from tests.support.servers.raw_http import RawClient, code_of, request
from tests.support.servers.server import Server, eventually, free_port, spawn
from tests.support.servers.tls import self_signed

PAGE = "http://page.example"
KEYED = {"authorization": "Bearer secret"}
DEBUG = {"authorization": "Bearer inside"}
ASK = {"prompt": [20, 21], "max_tokens": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def local() -> Iterator[Server]:
    """As it is started by default: on 127.0.0.1, without keys."""
    with Server("--model", "dummy:tiny") as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With keys, and a page that may call it."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("urgent key-u -5\nplain key-p\n")
    flags = ("--tenant-keys", str(keys), "--api-key", "secret")
    pages = ("--cors-origins", "https://ui.example", "--allowed-hosts", "llm.example")
    env = {"PHASESCOPE_DEBUG_KEY": "inside"}
    with Server("--model", "dummy:tiny", *flags, *pages, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def generous() -> Iterator[Server]:
    """Without keys; any page may call its API, and any client ask for a better priority."""
    flags = ("--cors-origins", "*", "--best-priority", "-2")
    with Server("--model", "dummy:tiny", *flags) as running:
        yield running


def error_code(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["code"]


@pytest.mark.parametrize("path", ["/debug/cache/flush", "/debug/dump", "/v1/completions"])
def test_a_page_of_another_origin_can_post_nothing(local: Server, path: str) -> None:
    answer = local.client.post(path, json=ASK, headers={"origin": PAGE})

    assert error_code(answer, 403) == "origin_not_allowed"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/debug/snapshot", "/debug/journal", "/metrics"])
def test_a_page_of_another_origin_cannot_read_debug_routes(local: Server, path: str) -> None:
    answer = local.client.get(path, headers={"origin": "null"})

    assert error_code(answer, 403) == "origin_not_allowed"


def test_a_request_that_a_page_was_refused_has_a_trace(local: Server) -> None:
    headers = {"origin": PAGE, "x-request-id": "from-a-page"}
    answer = local.client.post("/v1/completions", json=ASK, headers=headers)

    assert error_code(answer, 403) == "origin_not_allowed"
    facts = local.facts_of("from-a-page")
    assert (facts["outcome"], facts["reason"]) == ("rejected", "invalid")


def test_the_servers_own_pages_and_clients_without_an_origin_are_allowed(
    local: Server,
) -> None:
    own = {"origin": local.url}
    assert local.client.post("/debug/cache/flush", headers=own).status_code == 200
    assert local.client.post("/debug/cache/flush").status_code == 200
    assert local.completion(**ASK).status_code == 200


def test_an_unknown_host_name_is_refused(local: Server) -> None:
    """DNS rebinding: for the browser the page and we are of one origin."""
    place = f"rebound.example:{local.port}"
    headers = {"host": place, "origin": f"http://{place}"}

    for method, path in (("POST", "/debug/cache/flush"), ("GET", "/debug/snapshot")):
        answer = local.client.request(method, path, headers=headers)
        assert error_code(answer, 403) == "host_not_allowed"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1", "[::1]:80", "a.localhost", "192.168.1.5:1"]
)
def test_names_of_this_machine_and_addresses_are_good_hosts(local: Server, host: str) -> None:
    assert local.client.get("/debug/snapshot", headers={"host": host}).status_code == 200


def test_two_hosts_are_refused(local: Server) -> None:
    with RawClient(local.port) as client:
        client.send(request("GET", "/ready", "host: localhost", host="127.0.0.1"))

        assert code_of(client.answer()) == "invalid_host"


def test_a_name_that_was_allowed_is_a_good_host(guarded: Server) -> None:
    for host in ("llm.example", "LLM.example:443", "localhost"):
        assert guarded.client.get("/health", headers={"host": host}).status_code == 200
    foreign = guarded.client.get("/health", headers={"host": "other.example"})
    assert error_code(foreign, 403) == "host_not_allowed"


@pytest.mark.parametrize("host", ["x/v1", "x/v1?", "x#", "x/y?z=", "[", "a:b:c", "x\\v1/"])
@pytest.mark.parametrize("path", ["/debug/snapshot", "/debug/startup", "/metrics"])
def test_no_host_header_opens_a_path_that_a_key_guards(
    guarded: Server, path: str, host: str
) -> None:
    """The routed path decides whether a key is needed."""
    with RawClient(guarded.port) as client:
        client.send(request("GET", path, host=host))
        status, _, body = client.answer()

    assert status in (400, 401, 403), body
    with RawClient(guarded.port) as client:
        client.send(request("GET", path, host="localhost/v1?"))
        status, _, body = client.answer()
    assert status in (400, 401, 403), body


@pytest.mark.parametrize("host", ["[", "x/y?", "a b", "%", "\xff"])
def test_no_host_header_makes_an_unknown_route_an_internal_error(local: Server, host: str) -> None:
    with RawClient(local.port) as client:
        client.send(request("GET", "/nowhere", host=host))
        status, _, _ = client.answer()

    assert 400 <= status < 500
    assert "Traceback" not in local.log()


def test_the_api_and_the_debug_routes_have_separate_keys(guarded: Server) -> None:
    """Two keys for two groups of routes; health and readiness are open."""
    refused = (
        guarded.completion(max_tokens=1),
        guarded.client.get("/metrics"),
        guarded.client.get("/debug/snapshot", headers=KEYED),
    )
    for answer in refused:
        assert answer.status_code == 401, answer.text
        assert answer.headers["x-request-id"]
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert answer.json()["error"]["message"]
    assert guarded.client.post("/v1/completions", json=ASK, headers=KEYED).status_code == 200
    assert guarded.client.get("/metrics", headers=DEBUG).status_code == 200
    assert guarded.client.get("/health").status_code == 200


def test_the_debug_key_guards_the_recorder(guarded: Server) -> None:
    assert guarded.client.post("/debug/dump").status_code == 401
    with pytest.raises(Unreachable, match="give --debug-key"), journal_of(guarded.url):
        pass
    with journal_of(guarded.url, "inside") as journal:
        assert any(isinstance(fact, EngineStarted) for fact in journal.facts())


def test_a_page_whose_origin_is_allowed_may_call_and_read(guarded: Server) -> None:
    page = {"origin": "https://ui.example"}
    asks = {**page, "access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization,content-type"
    preflight = guarded.client.options("/v1/completions", headers=asks)
    answer = guarded.client.post("/v1/completions", json=ASK, headers={**page, **KEYED})
    inside = guarded.client.get("/debug/snapshot", headers={**page, **DEBUG})
    refused = guarded.client.post("/v1/completions", json=ASK, headers=page)
    foreign = guarded.client.options("/v1/completions", headers={**asks, "origin": PAGE})

    assert preflight.status_code == 200
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert inside.status_code == 200
    assert refused.status_code == 401
    for told in (preflight, answer, inside, refused):
        assert told.headers["access-control-allow-origin"] == "https://ui.example"
    assert foreign.status_code == 400
    assert "access-control-allow-origin" not in foreign.headers


def test_allowing_any_origin_opens_the_api_and_not_the_debug_routes(generous: Server) -> None:
    page = {"origin": PAGE}
    answer = generous.client.post("/v1/completions", json=ASK, headers=page)
    inside = generous.client.post("/debug/cache/flush", headers=page)

    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.status_code == 200
    assert error_code(inside, 403) == "origin_not_allowed"


def test_a_better_priority_needs_a_key_that_allows_it(guarded: Server) -> None:
    """Any client may lower its own priority."""

    def ask(key: str, priority: int) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return guarded.client.post(
            "/v1/completions", json={**ASK, "priority": priority}, headers=headers
        )

    assert error_code(ask("secret", -1), 403) == "priority_not_allowed"
    assert error_code(ask("key-p", -1), 403) == "priority_not_allowed"
    assert error_code(ask("key-u", -6), 403) == "priority_not_allowed"
    for key, priority in (("secret", 0), ("secret", 7), ("key-p", 3), ("key-u", -5)):
        assert ask(key, priority).status_code == 200, (key, priority)
    refused = ask("key-p", -100)
    assert (
        guarded.client.get(
            f"/debug/requests/{refused.headers['x-request-id']}", headers=DEBUG
        ).json()["outcome"]
        == "rejected"
    )


def test_a_client_without_a_key_gets_the_best_priority_that_the_operator_gives(
    generous: Server,
) -> None:
    assert generous.completion(**ASK, priority=-2).status_code == 200
    answer = generous.completion(**ASK, priority=-3)

    assert error_code(answer, 403) == "priority_not_allowed"
    assert answer.json()["error"]["param"] == "priority"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Self-signed, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def ended_well(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_https_is_served_with_a_certificate(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    port, log = free_port(), tmp_path / "log"
    tls = ("--ssl-certfile", str(cert), "--ssl-keyfile", str(key))
    with log.open("wb") as errors:
        process = spawn("serve", "--model", "dummy:tiny", "--port", str(port), *tls, stderr=errors)
    try:
        verify = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=f"https://localhost:{port}", verify=verify) as client:

            def ready() -> bool:
                try:
                    return client.get("/ready").status_code == 200
                except httpx.TransportError:
                    return False

            eventually(ready, "readiness", 120)
            whole = client.post("/v1/completions", json=ASK)
            with client.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as stream:
                events = list(stream.iter_lines())
            with RawClient(port) as plain:
                plain.send(request("GET", "/health"))
                plain.rest()
            facts = client.get(f"/debug/requests/{whole.headers['x-request-id']}").json()
            large = client.post("/v1/completions", content=b" " * (9 << 20))
            metrics = client.get("/metrics").text
        ended_well(process)
    finally:
        process.kill()
        process.wait()

    assert whole.status_code == 200
    assert events[-2] == "data: [DONE]"
    assert facts["outcome"] == "finished"
    assert large.status_code == 413
    assert 'phasescope_connections_refused_total{reason="handshake"} 1' in metrics
    assert f"https://127.0.0.1:{port}" in log.read_text()
    assert "Traceback" not in log.read_text()


def is_taken(path: Path) -> bool:
    """Somebody listens on the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_a_unix_socket_is_served_and_removed_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))  # as a killed server leaves it
    process = spawn("serve", "--model", "dummy:tiny", "--uds", str(path), stderr=subprocess.PIPE)
    try:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://any.example") as client:
            eventually(lambda: is_taken(path), "the socket", 60)
            eventually(lambda: client.get("/ready").status_code == 200, "readiness", 120)
            answer = client.post("/v1/completions", json=ASK)
            second = spawn(
                "serve", "--model", "dummy:tiny", "--uds", str(path), stderr=subprocess.PIPE
            )
            _, why = second.communicate(timeout=60)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=30)[1].decode()
    finally:
        process.kill()
        process.communicate()

    assert answer.status_code == 200
    assert second.returncode == 2
    assert b"another server listens there" in why
    assert f"unix:{path}" in errors
    assert f"--unix-socket {path}" in errors
    assert not path.exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max-connections", "0"), "--max-connections"),
        (("--max-header-bytes", "10"), "--max-header-bytes"),
        (("--header-timeout", "0"), "--header-timeout"),
        (("--body-timeout", "-1"), "--body-timeout"),
        (("--keep-alive-timeout", "nan"), "--keep-alive-timeout"),
        (("--best-priority", "-101"), "--best-priority"),
        (("--cors-origins", "my.host"), "--cors-origins"),
        (("--allowed-hosts", "http://my.host"), "--allowed-hosts"),
        (("--ssl-keyfile", "key.pem"), "--ssl-certfile"),
        (("--ssl-certfile", "/does/not/exist"), "--ssl-certfile"),
        (("--uds", "/" + "x" * 200), "--uds"),
        (("--uds", os.devnull), "something else than a socket"),
    ],
)
def test_contradicting_settings_are_one_line_of_error(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["serve", "--model", "dummy:tiny", *flags])

    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize("line", ["a key -101", "a key 1.5", "a key low", "a key 1 2", "a"])
def test_a_line_of_the_keys_file_that_cannot_be_read_is_named(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# keys\n{line}\n")

    assert main(["serve", "--model", "dummy:tiny", "--tenant-keys", str(keys)]) == 2
    assert f"{keys}:2" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_server_may_open_as_many_files_as_the_system_allows(local: Server) -> None:
    """A soft limit of 1,024, which many systems have, is no bound on connections."""
    limits = Path(f"/proc/{local.process.pid}/limits").read_text()
    (line,) = (one for one in limits.splitlines() if one.startswith("Max open files"))
    soft, hard = line.split()[3:5]

    assert soft == hard
