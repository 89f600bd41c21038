"""A fleet on Ray Serve: two engines behind one gateway, and what happens to them."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import httpx
import pytest

from tests.support.servers.server import eventually, sse_events
from tests_fleet.cluster import Cluster, Fleet, is_gone, memory_bytes

LONG_TOKENS = 1900


@pytest.fixture(autouse=True)
def _two_engines(fleet: Fleet) -> None:
    """Each test begins with two."""
    fleet.wait_ready(2)


def test_a_chat_works_and_its_parts_add_up(fleet: Fleet, cluster: Cluster) -> None:
    for index in range(8):
        request_id = f"chat-{index}"
        answer = fleet.client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6},
            headers={"x-request-id": request_id},
        )
        assert answer.status_code == 200, answer.text

        def ended(wanted: str = request_id) -> dict[str, Any] | None:
            found = fleet.client.get(f"/debug/requests/{wanted}")
            body = found.json() if found.status_code == 200 else {"outcome": "running"}
            return body if body["outcome"] != "running" else None

        facts = eventually(ended, f"the end of {request_id}")
        entries = facts["ledger"]["entries"]
        assert sum(one["ns"] for one in entries) == facts["e2e_ns"]
        parts = {one["part"] for one in entries}
        assert any(part.startswith("wire") for part in parts), parts
        assert "not_observed" not in parts
    for what, them in (("Ray", cluster.processes()), ("the fleet", fleet.servers())):
        print(f"memory of {what}: {sum(memory_bytes(one.pid) for one in them) >> 20} MiB")


def test_nothing_of_a_request_goes_through_ray(fleet: Fleet) -> None:
    """The gateway and the nodes have no library of Ray in their memory."""
    mine = fleet.servers()
    assert len(mine) == 5, "a gateway, two nodes, an engine each"
    for one in mine:
        with open(f"/proc/{one.pid}/maps") as file:
            assert "site-packages/ray/" not in file.read()


def test_a_node_that_is_killed_is_replaced(fleet: Fleet) -> None:
    before = fleet.ready()
    victim = sorted(before)[0]
    fleet.kill(fleet.node_of(victim).pid)
    eventually(lambda: victim not in fleet.ready(), "the loss of the node")
    assert fleet.works("beside-a-dead-node")
    after = fleet.wait_ready(2)
    assert len(after - before) == 1
    assert fleet.works("after-a-dead-node")
    eventually(lambda: len(fleet.servers()) == 5, "nothing left of the dead node", 60)


def test_a_node_that_hangs_is_replaced(fleet: Fleet) -> None:
    before = fleet.ready()
    victim = sorted(before)[0]
    node = fleet.node_of(victim)
    os.kill(node.pid, signal.SIGSTOP)
    eventually(lambda: is_gone(node.pid), "the end of the node", 120)
    assert victim not in fleet.wait_ready(2)
    assert fleet.works("after-a-hung-node")
    eventually(lambda: len(fleet.servers()) == 5, "nothing left of the hung node", 60)


def test_a_replica_that_is_killed_takes_its_node_with_it(fleet: Fleet) -> None:
    before = fleet.ready()
    victim = sorted(before)[0]
    node = fleet.node_of(victim)
    below = [one.pid for one in fleet.servers() if one.parent == node.pid]
    assert below
    fleet.kill(node.parent)
    for pid in (node.pid, *below):
        eventually(lambda pid=pid: is_gone(pid), "no orphan")
    after = fleet.wait_ready(2)
    assert victim not in after
    assert fleet.works("after-a-dead-replica")


def test_a_gateway_that_is_killed_is_replaced_and_finds_the_engines(fleet: Fleet) -> None:
    (gateway,) = [one for one in fleet.servers() if str(fleet.port) in one.arguments]
    before = fleet.ready()
    fleet.kill(gateway.pid)
    eventually(lambda: is_gone(gateway.pid), "its end")
    assert fleet.wait_ready(2) == before
    assert fleet.works("after-a-dead-gateway")


def test_engines_join_and_drain_without_a_failed_request(fleet: Fleet) -> None:
    before = fleet.ready()
    statuses: list[int] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                statuses.append(fleet.ask(f"beside-{len(statuses)}").status_code)
            except httpx.TransportError:
                statuses.append(0)

    streams: list[list[object]] = []

    def read(index: int) -> None:
        streams.append(sse_events(fleet.stream(f"long-{index}", LONG_TOKENS)))

    threads = [threading.Thread(target=read, args=(index,)) for index in range(4)]
    threads.append(threading.Thread(target=ask))
    for thread in threads:
        thread.start()
    try:
        eventually(
            lambda: all(one["running"] for one in fleet.engines() if one["state"] == "ready"),
            "both have something",
        )
        fleet.deploy(engines=1)
        (left,) = fleet.wait_ready(1)
        eventually(lambda: len(fleet.servers()) == 3, "the end of the other one", 90)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert left in before, "the engine that stays was not started again"
    assert set(statuses) == {200}
    assert len(streams) == 4
    for events in streams:
        assert events[-1] == "[DONE]"
        assert not [one for one in events if isinstance(one, dict) and "error" in one]
    fleet.deploy(engines=2)
    assert left in fleet.wait_ready(2)


def test_other_flags_roll_through_the_engines_and_the_gateway_stays(fleet: Fleet) -> None:
    (gateway,) = [one for one in fleet.servers() if str(fleet.port) in one.arguments]
    before = fleet.ready()
    fleet.deploy(engines=2, more=', "--max-num-seqs", "7"')
    after = fleet.wait_ready(2)
    assert not before & after
    for name in after:
        assert "7" in fleet.node_of(name).arguments
    assert gateway.pid in {one.pid for one in fleet.servers()}
    eventually(lambda: len(fleet.servers()) == 5, "nothing left of those before", 90)


def test_a_stop_leaves_no_process(fleet: Fleet, cluster: Cluster) -> None:
    mine = [one.pid for one in fleet.servers()]
    done = cluster.phasescope("stop")
    assert done.returncode == 0, done.stderr
    assert "the fleet has stopped" in done.stdout
    assert all(map(is_gone, mine))
    assert not fleet.servers()
    assert cluster.phasescope("stop").returncode == 0, "a second one is no error"
