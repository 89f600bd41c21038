"""Prefill and decode apart with `--kv-transport nixl`, of processes: same text, and it is said by
which way blocks went."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from service.fleet.transfer.movers.nixl_mover import NOT_INSTALLED, is_installed
from tests.fleet.test_e2e_disaggregated import MODEL, Apart, ask, text_of, value
from tests.support.servers.server import Server, eventually

OVER_NIXL = 'phasescope_kv_links_total{event="over_nixl"}'


@pytest.mark.skipif(not is_installed(), reason=NOT_INSTALLED)
def test_a_fleet_with_nixl_says_what_one_engine_says(tmp_path: Path) -> None:
    bodies = [{"prompt": f"{index}" + "y" * (40 * index), "seed": index} for index in range(5)]
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(Server(*MODEL))
        fleet = Apart(stack, tmp_path, "--kv-transport", "nixl")
        ask(fleet.gateway, "first")  # the engines connect
        for node in fleet.nodes:
            eventually(lambda n=node: value(n, OVER_NIXL) == 1, "a connection with NIXL")
        expected = [text_of(ask(alone, f"a{i}", **body)) for i, body in enumerate(bodies)]
        found = [text_of(ask(fleet.gateway, f"r{i}", **body)) for i, body in enumerate(bodies)]

        assert found == expected
        assert fleet.transfers("admitted") == len(bodies) + 1
        fleet.all_empty()
