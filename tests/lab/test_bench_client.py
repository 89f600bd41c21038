"""The load generator against a server whose every delay the test has written."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from lab.load.errors import BenchError, KeyRefused, RequestRefused, WrongModel
from lab.load.report import notes
from lab.load.result import BenchResult, CacheState, ErrorKind, Latency
from lab.load.run import run_bench
from lab.load.spec import BenchSpec, ClassSpec, Fixed, Interval, Slo, Users
from lab.load.stream import Reply
from telemetry.facts.clock import MonotonicClock
from tests.support.servers.scripted_llm import (
    CLOSE,
    Pieces,
    ScriptedServer,
    event,
    stalling,
    status,
    text,
    usage,
    whole,
)

SMALL = Fixed(8, 3)


def open_loop(url: str, interval_s: float, requests: int, **more: Any) -> BenchSpec:
    slo = more.pop("slo", Slo())
    classes = (ClassSpec(lengths=SMALL, slo=slo),)
    arrivals = Interval(interval_s)
    return BenchSpec(url=url, classes=classes, arrivals=arrivals, requests=requests, **more)


def closed_loop(url: str, users: int, requests: int, **more: Any) -> BenchSpec:
    classes = (ClassSpec(lengths=SMALL),)
    return BenchSpec(url=url, classes=classes, arrivals=Users(users), requests=requests, **more)


def at_least(latency: Latency | None, ms: float) -> int:
    """How many values of the encoded histogram are `ms` or more."""
    assert latency is not None
    hdr = HdrHistogram.decode(latency.hdr)
    return sum(
        item.count_at_value_iterated_to
        for item in hdr.get_recorded_iterator()
        if item.value_iterated_to >= ms * 1000
    )


def test_a_stall_of_the_server_is_in_every_request_intended_during_it() -> None:
    """Coordinated omission: of a stall of 800 ms, requests every 20 ms see 800, 780, 760, ..."""
    servers: list[ScriptedServer] = []
    with ScriptedServer(stalling(servers, 0.8)) as server:
        servers.append(server)
        result = run_bench(open_loop(server.url, 0.02, 45))

    assert (result.total.ok, result.total.counted) == (45, 45)
    assert at_least(result.total.ttft, 790) >= 1
    assert at_least(result.total.ttft, 400) >= 20
    assert at_least(result.total.ttft, 100) >= 35


def test_a_closed_loop_sees_the_same_stall_once_for_each_user() -> None:
    """Why a closed loop is no measure of latency under load: the contrast to the open one."""
    servers: list[ScriptedServer] = []
    with ScriptedServer(stalling(servers, 0.8)) as server:
        servers.append(server)
        result = run_bench(closed_loop(server.url, 1, 45))

    assert result.total.ok == 45
    assert 1 <= at_least(result.total.ttft, 400) < 10


def test_arrivals_of_an_open_loop_never_wait_for_replies() -> None:
    """No request is answered before the last has arrived."""
    gate = asyncio.Event()

    def script(number: int, body: dict[str, Any]) -> Pieces:
        if number == 29:
            gate.set()
        return [gate, *whole()]

    with ScriptedServer(script) as server:
        result = run_bench(open_loop(server.url, 0.005, 30, timeout_s=30.0))

    assert result.total.ok == 30
    assert result.connections >= 30


class HeldClock(MonotonicClock):
    """Holds whoever asks for the time next, once it was told to."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.held_ms = 0.0

    def now_ns(self) -> int:
        if self.hold.is_set() and not self.held_ms:
            begin_ns = super().now_ns()
            time.sleep(0.5)  # the lateness to be seen; how long it was is measured here, too
            self.held_ms = (super().now_ns() - begin_ns) / 1e6
        return super().now_ns()


def test_latency_counts_from_the_intended_moment_when_the_client_itself_was_late() -> None:
    """The client's loop is held when its fifth request is at the server; of the 41 others one is
    intended every 50 ms."""
    clock, apart_ms = HeldClock(), 50

    def script(number: int, body: dict[str, Any]) -> Pieces:
        if number == 4:
            clock.hold.set()
        return whole()

    with ScriptedServer(script) as server:
        result = run_bench(open_loop(server.url, apart_ms / 1000, 46), clock=clock)

    total, half_ms = result.total, clock.held_ms / 2
    assert total.ok == 46
    assert at_least(total.lateness, half_ms) >= min(41, half_ms // apart_ms) - 1
    assert at_least(total.ttft, half_ms) >= at_least(total.lateness, half_ms)
    assert total.ttft is not None
    assert total.lateness is not None
    assert total.ttft.max_ms >= total.lateness.max_ms
    assert any("the client itself was up to" in line for line in notes(result))


def test_gaps_are_between_chunks_and_usage_counts_the_tokens() -> None:
    """Five chunks, two of them in one write, eight tokens by the server's count."""

    def script(number: int, body: dict[str, Any]) -> Pieces:
        return [
            text("a"), 0.1, text("b"), 0.1, text("c") + text("d"), 0.1,
            text("e", "length"), usage(8, 8, 4) + b"data: [DONE]\n\n",
        ]  # fmt: skip

    with ScriptedServer(script) as server:
        result = run_bench(closed_loop(server.url, 1, 4))

    total = result.total
    assert total.itl is not None
    assert (total.chunks, total.chunk_tokens, total.itl.count) == (20, 32, 16)
    assert total.gaps_together == 4
    assert at_least(total.itl, 50) == 12  # one that came late makes the gap behind it shorter
    assert total.tpot is not None
    assert total.tpot.p50_ms >= 200 / 7
    assert total.cache is CacheState.WARM
    assert (total.cached_tokens, total.cached_share) == (16, 0.5)
    assert any("1.60 tokens a chunk" in line for line in notes(result))


def test_first_tokens_are_content_and_not_the_role_that_opens_a_chat() -> None:
    role = event(choices=[{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    content = event(choices=[{"delta": {"content": "hi"}, "finish_reason": None}])
    last = event(choices=[{"delta": {}, "finish_reason": "stop"}])

    with ScriptedServer(lambda number, body: [role, 0.1, content, last]) as server:
        result = run_bench(closed_loop(server.url, 1, 3))

    assert at_least(result.total.ttft, 99) == 3
    assert (result.total.chunks, result.total.usage_missing) == (3, 3)
    assert result.total.cache is CacheState.UNSAID


def test_a_token_that_carries_only_log_probabilities_is_output() -> None:
    reply = Reply(0, 0)
    reply.status = 200
    said = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{}]}
    reply.on_body(event(choices=[{"text": "", "logprobs": said, "finish_reason": "length"}]), 5)
    reply.on_body(event(choices=[{"text": "", "logprobs": None, "finish_reason": "length"}]), 9)
    reply.on_body(b"data: [DONE]\n\n", 9)
    reply.finish()

    assert (reply.chunk_ns, reply.error_kind) == ([5], None)


STREAM = text("über") + b": a comment\n\n" + text("") + text("z", "stop") + usage(8, 3, 0)
ENDINGS = st.sampled_from([b"\n", b"\r\n"])


@given(st.lists(st.integers(1, len(STREAM)), max_size=12), ENDINGS)
def test_a_stream_reads_the_same_however_the_network_cuts_it(cuts: list[int], end: bytes) -> None:
    data = STREAM.replace(b"\n", end) + b"data: [DONE]" + end + end
    reply = Reply(0, 0)
    reply.status = 200
    edges = [0, *sorted(cuts), len(data)]
    for now_ns, (begin, stop) in enumerate(itertools.pairwise(edges)):
        reply.on_body(data[begin:stop], now_ns)
    reply.finish()

    assert (len(reply.chunk_ns), reply.output_tokens, reply.done) == (3, 3, True)
    assert (reply.finish_reason, reply.error_kind) == ("stop", None)


def test_failures_are_counted_by_kind_and_status_and_keep_no_slo() -> None:
    """One of each kind, and two good ones."""
    scripts: list[Pieces] = [
        whole(),
        status(429, "too many", "retry-after: 1\r\n"),
        status(500, "broken"),
        [text("a"), CLOSE],
        [text("a"), event(error={"message": "engine died"})],
        [text("a")],
        [b"data: nonsense\n\n"],
        whole(),
    ]
    with ScriptedServer(lambda number, body: scripts[number]) as server:
        result = run_bench(open_loop(server.url, 0.01, 8, slo=Slo(ttft_ms=60_000)))

    found = {(one.kind, one.status): one.count for one in result.total.errors}
    assert found == {
        (ErrorKind.STATUS, 429): 1,
        (ErrorKind.STATUS, 500): 1,
        (ErrorKind.CLOSED, 200): 1,
        (ErrorKind.STREAM, 200): 1,
        (ErrorKind.CUT_SHORT, 200): 1,
        (ErrorKind.PROTOCOL, 200): 1,
    }
    assert (result.total.ok, result.total.slo_met, result.total.slo_attained) == (2, 2, 0.25)
    assert result.total.ttft is not None
    assert result.total.ttft.count == 2
    assert any("engine died" in line for line in notes(result))


def test_a_reply_that_never_ends_is_cut_when_the_time_for_it_is_over() -> None:
    with ScriptedServer(lambda number, body: [text("a"), 3600.0]) as server:
        timed = run_bench(closed_loop(server.url, 2, 2, timeout_s=0.2))
    with ScriptedServer(lambda number, body: [text("a"), 3600.0]) as server:
        cut = run_bench(open_loop(server.url, 0.01, 3, drain_s=0.2))

    assert [one.kind for one in timed.total.errors] == [ErrorKind.TIMEOUT]
    assert timed.all_failed
    assert [(one.kind, one.count) for one in cut.total.errors] == [(ErrorKind.UNFINISHED, 3)]


def test_users_keep_their_connections_where_the_server_allows_it() -> None:
    with ScriptedServer(lambda number, body: whole()) as server:
        kept = run_bench(closed_loop(server.url, 3, 30))
    with ScriptedServer(lambda number, body: whole(), keep_alive=False) as server:
        closing = run_bench(closed_loop(server.url, 3, 30))

    assert kept.connections <= 3
    assert (kept.total.ok, closing.total.ok) == (30, 30)
    assert closing.connections >= 30


def test_prompts_have_the_asked_length_and_share_no_beginning_in_any_run() -> None:
    bodies: list[dict[str, Any]] = []
    for _ in range(2):
        with ScriptedServer(lambda number, body: whole()) as server:
            run_bench(closed_loop(server.url, 2, 10))
            bodies += server.requests

    assert {len(body["prompt"]) for body in bodies} == {8}
    assert len({tuple(body["prompt"][:4]) for body in bodies}) == 20
    assert bodies[0]["ignore_eos"] is True
    assert bodies[0]["stream_options"] == {"include_usage": True}


def test_a_salt_repeats_a_run_word_for_word() -> None:
    runs: list[list[Any]] = []
    for _ in range(2):
        with ScriptedServer(lambda number, body: whole()) as server:
            run_bench(closed_loop(server.url, 1, 5, salt=7))
            runs.append(server.requests)

    assert runs[0] == runs[1]


def test_fields_can_be_switched_off_and_laid_over() -> None:
    spec = {"extra_body": {"temperature": None, "top_k": 1}, "ignore_eos": False}
    with ScriptedServer(lambda number, body: whole()) as server:
        run_bench(closed_loop(server.url, 1, 1, stream_usage=False, api_key="k", **spec))

    (body,) = server.requests
    assert set(body) == {"model", "prompt", "max_tokens", "stream", "top_k"}
    assert "authorization: Bearer k" in server.heads[-1]


def test_warm_up_requests_are_sent_but_not_counted() -> None:
    with ScriptedServer(lambda number, body: whole()) as server:
        by_number = run_bench(open_loop(server.url, 0.01, 10, warmup_requests=5))
        by_time = run_bench(
            BenchSpec(
                url=server.url,
                classes=(ClassSpec(lengths=SMALL),),
                arrivals=Interval(0.1),
                duration_s=0.5,
                warmup_s=0.45,
            )
        )

    assert (by_number.warmup_requests, by_number.total.counted) == (5, 10)
    assert (by_time.warmup_requests, by_time.total.counted) == (4, 5)
    assert by_time.total.offered_per_s == pytest.approx(10)
    assert by_time.window_s == pytest.approx(0.5)


def test_slo_is_judged_for_each_class_by_its_own_demands() -> None:
    """Both classes get the same slow stream; only one of them minds."""
    with ScriptedServer(lambda number, body: whole(3, gap_s=0.05)) as server:
        result = run_bench(
            BenchSpec(
                url=server.url,
                classes=(
                    ClassSpec(name="mild", arrivals=Users(1), requests=4, slo=Slo(e2e_ms=60_000)),
                    ClassSpec(name="strict", arrivals=Users(1), requests=4, slo=Slo(itl_ms=40)),
                ),
            )
        )

    mild, strict = result.classes
    assert (mild.slo_attained, strict.slo_attained) == (1.0, 0.0)
    assert strict.goodput.output_tokens_per_s == 0
    assert strict.throughput.output_tokens_per_s > 0
    assert result.total.slo_met == 4


def test_a_class_has_headers_of_its_own_and_the_result_does_not_tell_their_values() -> None:
    """Two tenants in one run; a header may hold a key."""
    classes = tuple(
        ClassSpec(name=name, arrivals=Users(1), requests=2, headers={"x-tenant": f"of-{name}"})
        for name in ("a", "b")
    )
    with ScriptedServer(lambda number, body: whole()) as server:
        result = run_bench(BenchSpec(url=server.url, classes=classes, headers={"x-all": "yes"}))

    sent = [head for head in server.heads if "x-tenant" in head]
    assert sorted("of-a" in head for head in sent) == [False, False, True, True]
    assert all("x-all: yes" in head for head in server.heads)
    assert "of-a" not in str(result.spec)


def test_a_user_pauses_after_each_reply_and_the_end_of_the_run_does_not_wait_for_it() -> None:
    """Replies come at once, so what is between two requests is the pause."""
    classes = (ClassSpec(lengths=SMALL, arrivals=Users(1, pause_s=0.15)),)
    with ScriptedServer(lambda number, body: whole()) as server:
        result = run_bench(BenchSpec(url=server.url, classes=classes, duration_s=0.4))

    gaps_s = [(b - a) / 1e9 for a, b in itertools.pairwise(server.arrived_ns)]
    assert 2 <= result.total.ok <= 3
    assert min(gaps_s) >= 0.15
    assert result.total.arrivals == "all"
    assert result.classes[0].arrivals == "1 user, 0.15 s after each reply"


@pytest.mark.parametrize(
    ("probe", "error", "word"),
    [
        (status(401, "who are you"), KeyRefused, "--api-key"),
        (status(404, "no such model"), WrongModel, "scripted"),
        (status(400, "unknown field ignore_eos"), RequestRefused, "--no-ignore-eos"),
        (status(500, "broken"), BenchError, "broken"),
    ],
)
def test_what_makes_a_bench_hopeless_is_said_before_it_begins(
    probe: Pieces, error: type[BenchError], word: str
) -> None:
    script = lambda number, body: whole()  # noqa: E731
    with (
        ScriptedServer(script, probe=lambda number, body: probe) as server,
        pytest.raises(error, match=word),
    ):
        run_bench(closed_loop(server.url, 1, 1))

    assert server.requests == []


def test_a_cache_that_reuses_nothing_of_a_repeated_prompt_is_off() -> None:
    def off(number: int, body: dict[str, Any]) -> Pieces:
        return [text("a", "length"), usage(288, 1, 0)]

    def on(number: int, body: dict[str, Any]) -> Pieces:
        return [text("a", "length"), usage(288, 1, 256 * number)]

    states: list[CacheState] = []
    for probe in (off, on):
        with ScriptedServer(lambda number, body: whole(), probe=probe) as server:
            result: BenchResult = run_bench(closed_loop(server.url, 1, 2))
            states.append(result.total.cache)

    assert states == [CacheState.OFF, CacheState.COLD]
