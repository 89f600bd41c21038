"""Prompts that a node's engine computes for others end, even if the fact of their end was lost, or
the engine has ended."""

from __future__ import annotations

from service.composition.node.prompts import PromptsForOthers, prompts_of
from service.gateway.server_state import LiveRequest
from service.process.frames import Frame
from telemetry.facts.engine_records import SequenceEnded, SequencesListed
from telemetry.facts.fleet.kv_transfer_records import KvHeld, KvPromptTaken, KvReleased
from telemetry.facts.reasons import EndReason, FactSource, Outcome
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact, FactsLost, RequestEnded
from tests.fleet.fleet_world import SPAN_ID, TRACE_ID, NodeWorld, Telemetry, run, until


class Here:
    """A node's prompts for others, with its telemetry."""

    def __init__(self) -> None:
        self.handlers: dict[str, LiveRequest] = {}
        self._engine, self._lane = Lane(source=FactSource.ENGINE), Lane(source=FactSource.GATEWAY)
        self.telemetry = Telemetry(self._engine, self._lane)
        self._prompts = PromptsForOthers(self._lane, self.handlers, "m", lambda seq_id, why: None)

    def take(self, fact: Fact) -> None:
        """The engine has recorded it."""
        self._prompts.take([fact])
        self._engine.append(fact)
        self.telemetry.pump.run_once()


def taken(seq_id: int) -> KvPromptTaken:
    return KvPromptTaken(seq_id, 100 + seq_id, 1, "other", 8, f"r{seq_id}", TRACE_ID, SPAN_ID)


def test_a_prompt_whose_end_was_lost_is_over_when_the_engine_lists_what_is_live() -> None:
    here = Here()
    for seq_id in (1, 2, 3):
        here.take(taken(seq_id))
    here.take(SequencesListed(at_ns=900, seq_ids=(2,), last_seq_id=2))

    assert list(here.handlers) == ["r2.kv.prefill", "r3.kv.prefill"]
    timeline = here.telemetry.timelines["r1.kv.prefill"]
    assert (timeline.outcome, timeline.ended.reason) == (Outcome.LOST, EndReason.END_LOST)
    here.take(SequencesListed(at_ns=950, seq_ids=(), last_seq_id=3))
    assert not here.handlers


class Sending:
    """A node whose engine has computed the prompt of sequence 1; its last chunk is on its way."""

    def __init__(self) -> None:
        self.handlers: dict[str, LiveRequest] = {}
        self.lane = Lane(source=FactSource.GATEWAY)
        self._prompts = PromptsForOthers(self.lane, self.handlers, "m", lambda seq_id, why: None)
        self.take(taken(1), KvHeld(1, 200, 7, 1, 3))
        self.take(SequenceEnded(1, 200, 7, EndReason.MAX_TOKENS, 1, 0))

    def take(self, *facts: Fact) -> None:
        self._prompts.take(facts)


def test_a_prompt_is_live_until_its_last_chunk_has_come_to_the_other_engine() -> None:
    """A node that is told to stop waits for it; the request has ended with its first token."""
    node = Sending()
    ends = [fact for fact in node.lane.drain() if isinstance(fact, RequestEnded)]
    assert [(end.at_ns, end.reason) for end in ends] == [(200, EndReason.MAX_TOKENS)]
    node.take(KvReleased(290, 8, 2, 3))  # of another transfer
    assert list(node.handlers) == ["r1.kv.prefill"]
    node.take(KvReleased(300, 8, 1, 3))

    assert not node.handlers
    assert not node.lane.drain()


def test_a_prompt_whose_blocks_are_not_kept_is_over_with_its_sequence() -> None:
    node = Sending()
    node.take(KvReleased(300, 8, 1, 3), taken(2))
    node.take(SequenceEnded(2, 400, 9, EndReason.DISCONNECT, 0, 0))

    assert not node.handlers


def test_nobody_waits_for_a_release_that_may_be_lost() -> None:
    node = Sending()
    node.take(FactsLost(250, FactSource.ENGINE, 1))

    assert not node.handlers


def test_a_drain_that_has_waited_long_enough_does_not_wait_for_blocks() -> None:
    node = Sending()
    node.handlers["r1.kv.prefill"].interrupt(EndReason.SHUTDOWN)

    assert not node.handlers


def test_prompts_end_with_their_engine_whether_or_not_another_one_starts() -> None:
    """The one that is computed has an end; a drain waits for neither it nor blocks on their way."""

    async def case() -> None:
        async with NodeWorld() as node:
            prompts = prompts_of(node.client, node.lane, node.handlers, "m", node.clock)
            node.client.on_frame = prompts.take
            end = SequenceEnded(1, 200, 7, EndReason.MAX_TOKENS, 1, 0)
            await node.engine.say(
                Frame([], [taken(1), KvHeld(1, 200, 7, 101, 3), end, taken(2)], 0)
            )
            await until(lambda: len(node.handlers) == 2, "they are there")
            await node.engine.die()

            assert not node.handlers
            ends = [fact for fact in node.lane.drain() if isinstance(fact, RequestEnded)]
            assert [(end.request_id, end.reason) for end in ends] == [
                ("r1.kv.prefill", EndReason.MAX_TOKENS),
                ("r2.kv.prefill", EndReason.ENGINE_DIED),
            ]

    run(case)
