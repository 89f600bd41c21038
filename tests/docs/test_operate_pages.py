"""What the pages for operators say of versions, ports, keys and memory is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from starlette.types import Scope

from service.attach import wire
from service.config.console_settings import CONSOLE_PORT
from service.config.fleet_settings import NodeConfig
from service.config.settings import GatewayConfig
from service.config.tree import attach_settings, node_settings
from service.device.cache.kv_cache import KvFormat, page_bytes
from service.device.spec import DUMMY_SHAPES
from service.fleet.transfer import tcp_frames
from service.fleet.wire import messages
from service.gateway.http.security import refusal
from service.gateway.routes.route_table import DESCRIPTIONS
from telemetry.facts.records import SCHEMA_VERSION
from telemetry.journal.journal_format import FORMAT
from tests.diagnosis.test_runbooks import sections

OPERATE = Path(__file__).parents[2] / "docs/operate"
KEYS = ("", "api", "debug")
BOTH = GatewayConfig(api_key="api", debug_key="debug")


def section(page: str, heading: str) -> str:
    return sections(OPERATE / page)[heading]


def opening(path: str) -> set[str]:
    """The keys with which a path is answered, where both are set; "" is none."""
    found = set()
    for key in KEYS:
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {key}".encode())]
        scope: Scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
        if refusal(BOTH, scope) is None:
            found.add(key)
    return found


def test_the_page_of_upgrades_has_the_versions_of_this_release() -> None:
    """In the order of its table."""
    told = section("upgrade.md", "What refuses what")
    now = re.findall(r"^\| .+? \| .+? \| (\d+) \|", told, re.MULTILINE)

    assert [int(number) for number in now] == [
        FORMAT, SCHEMA_VERSION, messages.PROTOCOL, tcp_frames.PROTOCOL, wire.PROTOCOL,
    ]  # fmt: skip


def test_the_page_of_capacity_has_the_bytes_of_the_cache() -> None:
    told = section("capacity.md", "Memory of the KV cache")
    rows = re.findall(
        r"^\| `([\w.-]+)` \| (\d+), (\d+), (\d+) \| ([\d,]+) \| ([\d,]+) \|$", told, re.MULTILINE
    )
    assert rows

    for name, layers, kv_heads, head_dim, plain, int8 in rows:
        spec = DUMMY_SHAPES[name]
        assert (spec.layers, spec.kv_heads, spec.head_dim) == (
            int(layers), int(kv_heads), int(head_dim),
        )  # fmt: skip
        assert int(plain.replace(",", "")) == page_bytes(spec, 1, torch.bfloat16)
        assert int(int8.replace(",", "")) == page_bytes(spec, 1, torch.bfloat16, KvFormat.INT8)


def test_the_page_of_security_says_which_key_opens_what() -> None:
    """Each path of a row, and no other route is open to everybody."""
    told = section("security.md", "Which key opens what")
    rows = re.findall(r"^\| (`/.+?) \| .+ \|$", told, re.MULTILINE)
    opened, of_clients, of_operators, adapters = (re.findall(r"`(/[^`]+)`", row) for row in rows)

    assert {one.path for one in DESCRIPTIONS if "" in opening(one.path)} == set(opened)
    assert all(opening(path) == set(KEYS) for path in opened)
    assert all(opening(path.replace("*", "x")) == {"api"} for path in of_clients)
    assert all(opening(path.replace("*", "x")) == {"debug"} for path in (*of_operators, *adapters))


def test_the_page_of_security_names_every_debug_route_that_changes_something() -> None:
    told = section("security.md", "Which key opens what")

    changing = {
        f"{one.method} {one.path}"
        for one in DESCRIPTIONS
        if one.method != "GET" and one.path.startswith("/debug/")
    }
    assert set(re.findall(r"`((?:PUT|POST|DELETE) /debug/[^`]+)`", told)) == changing


def test_the_page_of_security_has_the_default_addresses() -> None:
    told = section("security.md", "What listens where")
    host = BOTH.host
    ports = [BOTH.port, node_settings()["port"].default, attach_settings()["port"].default]

    for address in (*(f"{host}:{port}" for port in [*ports, CONSOLE_PORT]), NodeConfig().listen):
        assert f"| {address} |" in told, address
