"""Prompts that a node's engine computes for others end, even if the fact of their end was lost."""

from __future__ import annotations

from service.composition.node.prompts import PromptsForOthers
from service.gateway.server_state import LiveRequest
from telemetry.facts.engine_records import SequencesListed
from telemetry.facts.fleet.kv_transfer_records import KvPromptTaken
from telemetry.facts.reasons import EndReason, FactSource, Outcome
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from tests.fleet.fleet_world import SPAN_ID, TRACE_ID, Telemetry


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
