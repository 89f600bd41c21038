"""Several API servers before one engine core: each tells its own requests."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from telemetry.facts.records import RequestEnded
from tests_engines.on_vllm.live_server import live_server

pytestmark = pytest.mark.live
REQUESTS = 12


def test_each_request_is_told_by_one_of_two_api_servers(tmp_path: Path) -> None:
    """The kernel chooses which one gets a connection. Both say who they are."""
    with live_server(tmp_path, api_servers=2) as server:
        body = {"model": "model", "prompt": "Once upon a time", "max_tokens": 2}
        for number in range(REQUESTS):
            headers = {"x-request-id": f"one-{number}", "connection": "close"}
            httpx.post(f"{server.base_url}/v1/completions", json=body, headers=headers, timeout=120)

    facts = [fact for front in server.fronts for fact in front.facts]
    ended = [one.request_id for one in facts if isinstance(one, RequestEnded)]
    assert [front.hello.index for front in server.fronts] == [0, 1]
    assert len({front.hello.pid for front in server.fronts}) == 2
    assert sorted(ended) == sorted(f"one-{number}" for number in range(REQUESTS))
