"""The MCP server: what an agent is offered, what it is told, and that nothing changes anything."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from dashboards.agents.reader import DebugReader, ErrorKind, ToolFailed
from dashboards.agents.tools import Tools
from telemetry.facts.clock import ManualClock
from tests.support.servers.server import Server
from tests.support.worlds.incidents import interference, journal_of_facts, lasting

if TYPE_CHECKING:
    from mcp import ClientSession

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/operate/agents.md"
KEY = "a-debug-key"


def with_agent(
    url: str, ask: Callable[[ClientSession], Awaitable[T]], env: dict[str, str] | None = None
) -> T:
    """What `ask` returns, in a session of the SDK's own client with `phasescope mcp URL`."""
    from mcp import ClientSession, StdioServerParameters  # seconds of import
    from mcp.client.stdio import stdio_client

    async def run() -> T:
        words = ["-m", "service.cli.main", "mcp", url]
        command = StdioServerParameters(command=sys.executable, args=words, env=env, cwd=ROOT)
        async with (
            stdio_client(command) as (reading, writing),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            return await ask(session)

    return asyncio.run(asyncio.wait_for(run(), 60))


def answer_of(result: Any) -> dict[str, Any]:
    """Structured, and the same as text."""
    assert json.loads(result.content[0].text) == result.structured_content
    found: dict[str, Any] = result.structured_content
    return found


def test_an_agent_lists_the_tools_and_asks_a_real_server(server: Server) -> None:
    done = server.completion(max_tokens=4)
    request_id = done.headers["x-request-id"]
    server.facts_of(request_id)

    async def ask(session: ClientSession) -> tuple[Any, dict[str, Any], Any]:
        listed = (await session.list_tools()).tools
        answers = {}
        for tool in listed:
            given = {"request_id": request_id} if tool.name == "explain_request" else {}
            result = await session.call_tool(tool.name, given)
            assert not result.is_error, (tool.name, result.content)
            answers[tool.name] = answer_of(result)
        unknown = await session.call_tool("explain_request", {"request_id": "never-seen"})
        return listed, answers, unknown

    listed, answers, unknown = with_agent(server.url, ask)

    assert all(tool.annotations.read_only_hint for tool in listed)
    assert all(tool.description and tool.input_schema["type"] == "object" for tool in listed)
    assert {f"`{tool.name}`" for tool in listed} == {
        line.split("|")[1].strip()
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `") and not _is_kind(line)
    }
    assert answers["health"]["ready"] is True
    assert answers["diagnosis"]["verdict"] in ("healthy", "fault", "indeterminate")
    assert answers["explain_request"]["ledger"]["residue_ns"] == 0
    slowest = {one["request_id"] for one in answers["slowest_requests"]["requests"]}
    assert request_id in slowest or len(slowest) == 10
    assert "max_num_seqs" in answers["limits"]["limits"]
    assert "grid" not in answers["snapshot"]
    assert unknown.is_error
    assert answer_of(unknown)["error"]["kind"] == "not_found"


def _is_kind(line: str) -> bool:
    return line.split("`")[1] in list(ErrorKind)


class Fake:
    """An HTTP server with a debug key, that counts what is asked by method."""

    def __init__(self, bodies: dict[str, bytes]) -> None:
        self.methods: set[str] = set()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.methods.add(self.command)
                body = bodies.get(self.path)
                is_known = self.headers["authorization"] == f"Bearer {KEY}"
                self.send_response((200 if body is not None else 404) if is_known else 401)
                self.end_headers()
                if is_known and body is not None:
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Fake:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    """It has the journal of a server twelve seconds into prefill interference."""
    journal = journal_of_facts(tmp_path_factory.mktemp("agents"), lasting(interference()))
    bodies = {"/debug/journal": journal.path.read_bytes(), "/debug/diagnosis": b"{}"}
    with Fake(bodies) as running:
        yield running


def tools_of(fake: Fake, key: str | None = KEY) -> Tools:
    return Tools(DebugReader(fake.url, key), ManualClock())


def test_incidents_and_slow_requests_come_from_the_journal(fake: Fake) -> None:
    tools = tools_of(fake)
    (incident,) = tools.call("incidents", {})["incidents"]
    by_gap = tools.call("slowest_requests", {"by": "longest_gap", "count": 3})["requests"]

    assert incident["findings"][0]["symptom"] == "prefill_interference"
    assert incident["ended"] is None
    assert set(incident["findings"][0]["culprits"]) <= interference().culprits
    gaps = [one["longest_gap_ms"] for one in by_gap]
    assert gaps == sorted(gaps, reverse=True)
    assert len(gaps) == 3
    tenant = by_gap[0]["tenant"]
    mine = tools.call("slowest_requests", {"tenant": tenant, "count": 100})["requests"]
    assert {one["tenant"] for one in mine} == {tenant}
    assert fake.methods == {"GET"}


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("set_limits", {}, ErrorKind.BAD_ARGUMENT),
        ("slowest_requests", {"count": 0}, ErrorKind.BAD_ARGUMENT),
        ("slowest_requests", {"by": "name"}, ErrorKind.BAD_ARGUMENT),
        ("slowest_requests", {"more": 1}, ErrorKind.BAD_ARGUMENT),
        ("explain_request", {}, ErrorKind.BAD_ARGUMENT),
        ("explain_request", {"request_id": "../limits"}, ErrorKind.NOT_FOUND),
        ("slo", {}, ErrorKind.NOT_FOUND),
    ],
)
def test_an_error_has_a_kind(
    fake: Fake, name: str, arguments: dict[str, Any], kind: ErrorKind
) -> None:
    with pytest.raises(ToolFailed) as raised:
        tools_of(fake).call(name, arguments)

    assert raised.value.kind is kind
    assert "\n" not in str(raised.value)


def test_without_the_key_the_server_refuses_and_the_key_is_not_told(fake: Fake) -> None:
    for key in (None, "wrong-key"):
        with pytest.raises(ToolFailed) as raised:
            tools_of(fake, key).call("diagnosis", {})
        assert raised.value.kind is ErrorKind.UNAUTHORIZED
        assert "wrong-key" not in str(raised.value)


def test_the_key_comes_from_the_environment(fake: Fake) -> None:
    async def ask(session: ClientSession) -> Any:
        return await session.call_tool("diagnosis", {})

    assert answer_of(with_agent(fake.url, ask, {"PHASESCOPE_DEBUG_KEY": KEY})) == {}


def test_a_server_that_is_not_there_is_unreachable() -> None:
    tools = Tools(DebugReader("http://127.0.0.1:9"), ManualClock())

    for name in ("health", "incidents"):
        with pytest.raises(ToolFailed) as raised:
            tools.call(name, {})
        assert raised.value.kind is ErrorKind.UNREACHABLE


def test_schemas_have_no_references() -> None:
    """Some agents do not follow them."""
    for tool in Tools(DebugReader("http://127.0.0.1:9"), ManualClock()).tools.values():
        assert "$ref" not in json.dumps(tool.schema)
        assert tool.schema["additionalProperties"] is False
