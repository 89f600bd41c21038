"""Whatever the receiver does, nothing hangs and every span is counted once.

The receiver is a real one in this process. No test asserts how fast anything is: waits are
only bounded from below (a receiver that asks for a pause gets it), or by the receiver's own
hang of thirty seconds, which is not over when a shutdown has returned.
"""

from __future__ import annotations

import dataclasses
import logging

import pytest

from telemetry.facts.clock import ManualClock
from telemetry.facts.records import ExportFailed
from telemetry.traces.export_queue import QUEUE_STAMPS
from telemetry.traces.otlp import SpanExporterThread
from telemetry.traces.otlp_delivery import RetryPolicy
from tests.support.servers.otlp_receiver import Fault, OtlpReceiver, silent_port
from tests.support.servers.otlp_thread import (
    CHUNKS,
    HASTY,
    TREE,
    both,
    dropped,
    exporting,
    offer,
    stop,
)
from tests.support.servers.server import eventually, free_port
from tests.support.worlds.timelines import fresh

pytestmark = pytest.mark.long


def failures(thread: SpanExporterThread) -> list[ExportFailed]:
    return [fact for fact in thread.lane.drain() if isinstance(fact, ExportFailed)]


@both
def test_traces_arrive_complete(protocol: str) -> None:
    """Forty traces in several chunks, all valid, and no other span is counted."""
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        offer(thread, 40)
        assert thread.flush(20)
        view = thread.view()
        receiver.check_all()

        assert len(receiver.trees()) == 40
        assert view.spans_exported == receiver.spans_taken == 40 * TREE
        assert (dropped(view), view.traces_queued, view.lag_ns) == ({}, 0, 0)
        assert view.traces_kept["full"] == 40
        assert view.attempts == receiver.requests
        assert view.bytes_sent > 0
        assert view.last_export_ns is not None
        assert view.last_lag_ns is not None


@both
def test_without_a_receiver_every_span_is_counted_as_lost(protocol: str) -> None:
    """Given up after a while, and every span counted."""
    with exporting(f"http://127.0.0.1:{free_port()}", protocol, HASTY) as thread:
        offer(thread, 7)
        assert thread.flush(20)

        assert dropped(thread.view()) == {"export_failed": 7 * TREE}
        assert thread.view().spans_exported == 0
        assert thread.view().last_error
        failed = failures(thread)
        assert failed
        assert all(fact.error for fact in failed)


@both
def test_a_receiver_that_comes_back_gets_everything(protocol: str) -> None:
    """An outage that the queue outlasts costs no span."""
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        offer(thread, 2)
        assert thread.flush(20)
        receiver.down()
        offer(thread, 20)
        eventually(lambda: thread.view().attempts_failed > 2, "failed attempts")
        receiver.up()
        assert thread.flush(20)

        assert dropped(thread.view()) == {}
        assert thread.view().spans_exported == receiver.spans_taken == 22 * TREE
        receiver.check_all()


@both
def test_retry_after_of_the_receiver_is_respected(protocol: str) -> None:
    """503 with Retry-After, or UNAVAILABLE with RetryInfo: not earlier, and nothing is lost."""
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        receiver.fault = Fault.UNAVAILABLE
        offer(thread, 3)
        eventually(lambda: receiver.requests, "a first request")
        receiver.fault = None
        assert thread.flush(20)

        first_s, second_s = receiver.request_s[:2]
        assert second_s - first_s >= receiver.retry_after_s
        assert dropped(thread.view()) == {}
        assert thread.view().spans_exported == receiver.spans_taken == 3 * TREE


@both
def test_a_too_long_retry_after_is_shortened(protocol: str) -> None:
    """A receiver that asks for a week is tried again much earlier."""
    retry = RetryPolicy(longest_asked_s=0.05)
    with (
        OtlpReceiver(protocol) as receiver,
        exporting(receiver.endpoint, protocol, retry) as thread,
    ):
        receiver.retry_after_s, receiver.fault = 604_800.0, Fault.UNAVAILABLE
        offer(thread, 1)
        eventually(lambda: receiver.requests >= 3, "more requests")


@both
def test_a_receiver_that_asks_for_no_pause_gets_ours(protocol: str) -> None:
    """A `Retry-After` of 0 is no invitation to a flood."""
    retry = RetryPolicy(first_s=0.2, longest_s=0.2, give_up_s=0.5)
    with (
        OtlpReceiver(protocol) as receiver,
        exporting(receiver.endpoint, protocol, retry) as thread,
    ):
        receiver.retry_after_s, receiver.fault = 0.0, Fault.UNAVAILABLE
        offer(thread, 1)
        assert thread.flush(20)

        assert receiver.requests <= 4  # 0.2 s less a fifth fits three times into 0.5 s


def test_many_failures_in_a_second_are_one_fact() -> None:
    """A receiver that refuses at once must not fill the journal; every failure is counted."""
    clock = ManualClock()
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint, clock=clock) as thread:
        receiver.fault = Fault.REFUSE
        for _ in range(5):
            offer(thread, 1)
            assert thread.flush(20)
        clock.advance(1_000_000_000)
        offer(thread, 1)
        assert thread.flush(20)

        assert [fact.attempts for fact in failures(thread)] == [1, 5]
        assert thread.view().attempts_failed == 6


@both
def test_spans_that_are_rejected_are_not_counted_as_exported(protocol: str) -> None:
    """The receiver takes a part and says how many it did not take."""
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        receiver.fault = Fault.PARTIAL
        offer(thread, 11)
        assert thread.flush(20)
        view = thread.view()

        assert dropped(view) == {"rejected_by_receiver": 11 * CHUNKS}
        assert view.spans_exported == receiver.spans_taken == 11 * (TREE - CHUNKS)
        assert "told to reject chunks" in (view.last_error or "")


@both
def test_a_permanent_error_is_not_retried(protocol: str) -> None:
    """400 or PERMISSION_DENIED."""
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        receiver.fault = Fault.REFUSE
        offer(thread, 1)
        assert thread.flush(20)

        assert receiver.requests == 1
        assert dropped(thread.view()) == {"rejected_by_receiver": TREE}


@both
def test_a_slow_receiver_gets_everything_late(protocol: str) -> None:
    """Lag is what grows meanwhile."""
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        receiver.fault, receiver.delay_s = Fault.SLOW, 0.1
        offer(thread, 9)
        assert thread.view().lag_ns > 0
        assert thread.view().traces_queued > 0
        assert thread.flush(20)

        assert dropped(thread.view()) == {}
        assert thread.view().spans_exported == receiver.spans_taken == 9 * TREE


@both
def test_an_export_without_an_answer_times_out(protocol: str) -> None:
    """Each attempt has a limit; what was not answered counts as lost."""
    with (
        OtlpReceiver(protocol) as receiver,
        exporting(receiver.endpoint, protocol, HASTY) as thread,
    ):
        receiver.fault = Fault.BLACK_HOLE
        offer(thread, 2)
        assert thread.flush(20)

        assert dropped(thread.view()) == {"export_failed": 2 * TREE}
        assert thread.view().spans_exported == 0


@both
def test_a_full_queue_drops_the_newest_and_counts_its_spans(protocol: str) -> None:
    """Offering returns at once while an export hangs."""
    with (
        OtlpReceiver(protocol) as receiver,
        exporting(receiver.endpoint, protocol, capacity=5) as thread,
    ):
        receiver.fault = Fault.BLACK_HOLE
        offer(thread, 1)
        assert receiver.hanging.wait(20)
        late = fresh(20)
        for timeline in late:
            thread.on_timeline(timeline)

        assert dropped(thread.view()) == {"queue_full": 15 * TREE}
        assert late[0].accepted.trace_id in thread.kept
        assert late[-1].accepted.trace_id not in thread.kept


@both
def test_a_shutdown_while_the_receiver_hangs_counts_what_it_gives_up(protocol: str) -> None:
    """In flight, queued, all of it; and a late answer changes nothing."""
    with OtlpReceiver(protocol) as receiver:
        receiver.fault = Fault.BLACK_HOLE
        with exporting(receiver.endpoint, protocol, RetryPolicy(attempt_s=30)) as thread:
            offer(thread, 1)
            assert receiver.hanging.wait(20)
            offer(thread, 30)
            stop(thread)
            after = thread.view()
            receiver.fault = None  # whoever hangs is let go now
            thread._thread.join(25)

            assert dropped(after) == {"shutdown": 31 * TREE}
            assert thread.view().spans_dropped == after.spans_dropped
            assert (after.spans_exported, after.traces_queued) == (0, 0)


def test_an_answer_that_comes_after_the_shutdown_changes_no_count() -> None:
    """The spans were given up, and are not exported as well."""
    with OtlpReceiver("http") as receiver:
        receiver.fault, receiver.delay_s = Fault.SLOW, 5.0
        with exporting(receiver.endpoint, retry=RetryPolicy(attempt_s=30)) as thread:
            offer(thread, 1)
            eventually(lambda: receiver.requests, "a request")
            stop(thread)
            assert dropped(thread.view()) == {"shutdown": TREE}
            thread._thread.join(25)

            assert receiver.spans_taken == TREE
            assert (thread.view().spans_exported, dropped(thread.view())) == (0, {"shutdown": TREE})


@both
def test_a_shutdown_while_a_connection_is_never_answered(protocol: str) -> None:
    """Not even by the protocol's first word."""
    with silent_port() as endpoint, exporting(endpoint, protocol) as thread:
        offer(thread, 4)
        stop(thread)

        assert dropped(thread.view()) == {"shutdown": 4 * TREE}


@both
def test_a_shutdown_in_the_middle_of_a_long_pause(protocol: str) -> None:
    """Nobody waits for a Retry-After of a week, nor for an attempt that fails again."""
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        receiver.retry_after_s, receiver.fault = 20.0, Fault.UNAVAILABLE
        offer(thread, 50)
        eventually(lambda: thread.view().attempts_failed, "a failed attempt")
        stop(thread)

        assert dropped(thread.view()) == {"shutdown": 50 * TREE}


@both
def test_a_shutdown_sends_what_is_queued_to_a_receiver_that_takes_it(protocol: str) -> None:
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        offer(thread, 30)
        stop(thread)

        assert thread.view().spans_exported == receiver.spans_taken == 30 * TREE
        assert dropped(thread.view()) == {}


def test_an_outage_and_its_end_are_each_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line when it goes, one when it is back."""
    with (
        OtlpReceiver("http") as receiver,
        caplog.at_level(logging.WARNING, "phasescope.otlp"),
        exporting(receiver.endpoint) as thread,
    ):
        receiver.fault = Fault.REFUSE
        for _ in range(3):
            offer(thread, 1)
            assert thread.flush(20)
        receiver.fault = None
        offer(thread, 1)
        assert thread.flush(20)

    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "do not reach" in line]) == 1
    assert len([line for line in lines if "again" in line]) == 1


def test_a_queue_of_long_answers_is_bounded_by_their_tokens() -> None:
    """Two thousand answers of a hundred thousand tokens would be most of the memory."""
    share = QUEUE_STAMPS // 3
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint, "http") as thread:
        receiver.fault = Fault.BLACK_HOLE
        offer(thread, 1)
        assert receiver.hanging.wait(20)
        for timeline in fresh(5):
            (sequence, *others) = timeline.sequences
            tokens = tuple(range(sequence.token_ns[0], sequence.token_ns[0] + share - 100))
            long = dataclasses.replace(sequence, token_ns=tokens)
            thread.on_timeline(dataclasses.replace(timeline, sequences=(long, *others)))

        assert thread.view().traces_queued == 1 + 3
        assert set(dropped(thread.view())) == {"queue_full"}
