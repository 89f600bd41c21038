"""The routes that a console follows a real server with: requests by number, and the batch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.servers.server import Server, eventually


def get(server: Server, path: str, status: int = 200) -> dict[str, Any]:
    answer = server.client.get(path)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_ended_requests_are_followed_by_number(server: Server) -> None:
    since = get(server, "/debug/requests")["ended"]
    for number in range(3):
        named = {"x-request-id": f"followed-{since}-{number}"}
        body = {"prompt": "The capital of France is", "max_tokens": 2}
        assert server.client.post("/v1/completions", json=body, headers=named).is_success
    eventually(lambda: get(server, "/debug/requests")["ended"] == since + 3, "three more requests")

    first = get(server, f"/debug/requests?since={since}&limit=2")
    rest = get(server, f"/debug/requests?since={first['next']}")

    names = [one["request_id"] for one in first["requests"] + rest["requests"]]
    assert names == [f"followed-{since}-{number}" for number in range(3)]
    assert rest["next"] == since + 3
    (line, *_) = first["requests"]
    assert line["outcome"] == "finished"
    assert sum(line["phases_ns"].values()) == line["ended_ns"] - line["accepted_ns"]


def test_the_batch_has_as_many_rows_as_were_asked_for(server: Server) -> None:
    for _ in range(2):
        server.completion(max_tokens=2)
    eventually(lambda: get(server, "/debug/batch")["total"] >= 2, "two sequences in the grid")

    found = get(server, "/debug/batch?rows=1")

    assert len(found["rows"]) == 1
    assert found["total"] >= 2
    first, last = found["step_ids"]
    assert len(found["rows"][0]["cells"]) == last - first + 1


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/debug/requests?since=-1", "since"),
        ("/debug/requests?limit=0", "limit"),
        ("/debug/requests?limit=1001", "limit"),
        ("/debug/batch?rows=many", "rows"),
        ("/debug/batch?rows=257", "rows"),
    ],
)
def test_what_is_beyond_the_bounds_is_refused_by_name(server: Server, path: str, name: str) -> None:
    assert get(server, path, 400)["error"]["param"] == name
