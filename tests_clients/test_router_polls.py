"""What a router of others asks a server of ours by itself is answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.server import Server, eventually
from tests_clients.between import Asked, Between, noting
from tests_clients.routers import ROUTERS, Router, RouterKind, ask, routing, routing_apart

# a route that a router tries and does without: vllm-router asks whether prompts can be rendered
_DOES_WITHOUT = {"/v1/chat/completions/render"}
_POLLS = 3  # of the health, one a second


@pytest.fixture(scope="module", params=ROUTERS, ids=lambda kind: kind.name)
def polled(
    request: pytest.FixtureRequest, two_servers: tuple[Server, Server]
) -> Iterator[tuple[Router, Between]]:
    kind: RouterKind = request.param
    with noting(two_servers[0].url) as between, routing(kind, [between.url]) as router:
        eventually(lambda: len(health_of(between)) >= _POLLS, "polls", 30)
        yield router, between


def health_of(between: Between) -> list[Asked]:
    return [one for one in between.asked if one.path.startswith(("/health", "/ready"))]


def test_nothing_that_a_router_polls_is_missing_or_refused(
    polled: tuple[Router, Between],
) -> None:
    router, between = polled
    assert ask(router).status_code == 200
    unanswered = [
        one for one in between.asked if one.status != 200 and one.path not in _DOES_WITHOUT
    ]

    assert len({one.path for one in between.asked}) >= 2
    assert not unanswered, unanswered


def test_what_the_router_learns_is_of_the_served_model(polled: tuple[Router, Between]) -> None:
    """It found the model by itself: from `/server_info`, `/model_info` or `/v1/models`."""
    router, between = polled
    ask(router)
    shapes = ("/server_info", "/get_server_info", "/model_info", "/get_model_info", "/v1/models")
    asked = {one.path for one in between.asked} & set(shapes)

    if router.kind.name != "vllm-router":  # which asks for none of them
        assert asked
    listed = router.client.get("/v1/models")
    assert listed.status_code == 200
    assert "dummy:tiny" in listed.text


def test_a_router_that_asks_for_loads_reads_ours(
    polled: tuple[Router, Between], two_servers: tuple[Server, Server]
) -> None:
    router, between = polled
    if not between.statuses("/loads") | between.statuses("/v1/loads"):
        pytest.skip(f"{router.kind.name} asks no server for its load under this policy")
    (ours,) = two_servers[0].client.get("/v1/loads").json()["loads"]
    (theirs,) = router.client.get("/get_loads").json()["loads"]

    for name in ("max_total_num_tokens", "max_running_requests", "num_total_reqs"):
        assert theirs[name] == ours[name], name
    assert theirs["memory"]["token_capacity"] == ours["memory"]["token_capacity"]


@pytest.mark.parametrize("kind", ROUTERS[:2], ids=lambda kind: kind.name)
def test_a_router_that_wants_to_steer_the_transfer_of_kv_is_told_who_does(
    kind: RouterKind, two_servers: tuple[Server, Server]
) -> None:
    """Whoever asks for it learns why not."""
    one, two = two_servers
    with routing_apart(kind, one.url, two.url) as router:
        answer = ask(router)

    assert answer.status_code == 400, answer.text
    assert "the gateway chooses where a prompt is computed" in answer.text
