"""Whoever runs the load generator is told each request as it ends."""

from __future__ import annotations

from lab.load.aggregator import Ended
from lab.load.run import run_bench
from lab.load.spec import BenchSpec, ClassSpec, Fixed, Users
from lab.load.stream import Reply
from tests.support.servers.scripted_llm import ScriptedServer, status, whole


def test_each_request_is_told_as_it_ends_the_warm_up_and_failures_too() -> None:
    ended: list[Ended] = []
    classes = (ClassSpec(lengths=Fixed(8, 4), arrivals=Users(1)),)
    with ScriptedServer(lambda number, _: whole(4) if number else status(503, "full")) as server:
        spec = BenchSpec(url=server.url, classes=classes, requests=2, warmup_requests=1)
        result = run_bench(spec, on_ended=ended.append)

    assert [one.counted for one in ended] == [False, True, True]
    assert [one.reply.error_kind is None for one in ended] == [False, True, True]
    assert result.total.ok == 2


def test_a_reply_has_the_id_that_the_server_gave_its_request() -> None:
    """By which its trace is found."""
    reply = Reply(0, 0)
    reply.on_header(b"x-request-id", b"5f2a")

    assert reply.request_id == "5f2a"
    assert Reply(0, 0).request_id == ""
