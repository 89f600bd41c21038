"""What the fold of the engine's facts keeps of a live sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from telemetry.clocks.boundaries import RemoteSpan
from telemetry.facts.engine_records import SequenceAdmitted
from telemetry.facts.fleet.sequence_records import RemoteAdmitted
from telemetry.facts.reasons import EndReason, WaitReason
from telemetry.requests.classes import WorkloadClass
from telemetry.requests.kv_accounts import KvAccount
from telemetry.requests.phases import ChunkSpan, PreemptedSpan, SequenceTimeline, WaitSpan


@dataclass(slots=True)
class Sequence:
    """A live sequence.

    `blocked_since` (reason, ns) is set while its own grammar, adapter or client blocks it, and
    `waiting_since_ns` while it is queued and not blocked. `is_paused`: its client does not read,
    which counts where nothing else blocks it. `is_lost`: it has ended and its terminal
    fact was lost. `has_gap`: facts were lost since its last token.
    """

    seq_id: int
    request_id: str | None = None
    choice: int = 0
    tenant: str = ""
    submitted_ns: int | None = None
    received_ns: int | None = None
    queued_ns: int | None = None
    scheduled_ns: int | None = None
    last_step_ns: int | None = None
    ended_ns: int | None = None
    end_reason: EndReason | None = None
    admitted: SequenceAdmitted | None = None
    compile_ns: int | None = None
    in_queue: bool = False
    waiting_since_ns: int | None = None
    blocked_since: tuple[WaitReason, int] | None = None
    awaits_adapter: bool = False
    is_paused: bool = False
    preempted_at: tuple[int, int] | None = None
    workload: WorkloadClass | None = None
    is_lost: bool = False
    has_gap: bool = False
    sent_ns: int | None = None
    engine: str | None = None
    remote: RemoteSpan | None = None
    kv: KvAccount | None = None
    token_ns: list[int] = field(default_factory=list)
    chunks: list[ChunkSpan] = field(default_factory=list)
    preempted: list[PreemptedSpan] = field(default_factory=list)
    waits: list[WaitSpan] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self.is_lost or self.ended_ns is not None

    def admitted_ns(self, fact: RemoteAdmitted) -> int:
        """When it came into the batch of an engine elsewhere: as long after it was sent as it
        waited there, or with the news of it where the node does not say how long."""
        if fact.waited_ns is None or self.sent_ns is None:
            return fact.at_ns
        return min(fact.at_ns, self.sent_ns + fact.waited_ns)

    def freeze(self) -> SequenceTimeline:
        admitted = self.admitted
        return SequenceTimeline(
            seq_id=self.seq_id,
            choice=self.choice,
            queued_ns=self.queued_ns,
            scheduled_ns=self.scheduled_ns,
            token_ns=tuple(self.token_ns),
            ended_ns=self.ended_ns,
            end_reason=self.end_reason,
            chunks=tuple(self.chunks),
            preempted=tuple(self.preempted),
            waits=tuple(self.waits),
            last_step_ns=self.last_step_ns,
            hit_tokens=admitted.hit_tokens if admitted else 0,
            ghost_tokens=admitted.ghost_tokens if admitted else 0,
            compile_ns=self.compile_ns,
            submitted_ns=self.submitted_ns,
            received_ns=self.received_ns,
            sent_ns=self.sent_ns,
            engine=self.engine,
            remote=self.remote,
            kv=self.kv,
        )
