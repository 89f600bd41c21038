"""What is known of one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from diagnosis.detection.counts import Stage
from diagnosis.thresholds import ABORT_NS
from telemetry.facts.reasons import WaitReason


class AffectedRequest(NamedTuple):
    """A request in the window; `elapsed_ns` is from its begin to its current (or last) stage."""

    request_id: str
    trace_id: str
    tenant: str
    elapsed_ns: int


@dataclass(slots=True, eq=False)
class RequestState:
    """One request, in flight or ended. `firsts_ns` are the commits of its sequences' first tokens,
    `tokens` their output tokens so far, `last_ns` the commit of the last token of any. At
    `skipped_ns` one of its running sequences had no row, for `skip_reason`. It waited `grammar_ns`
    for its grammar and `adapter_ns` for its adapter. A gap above `gap_target_ns` misses the target
    of its class. One that is `attached` `is_unseen` from its tokens on, until its engine core tells
    of a sequence: it is in no stage."""

    request_id: str
    trace_id: str
    tenant: str
    begun_ns: int
    stage: Stage
    entered_ns: int
    read_ns: int
    slo_class: str
    gap_target_ns: int
    choices: int = 1
    sequences: set[int] = field(default_factory=set)
    firsts_ns: dict[int, int | None] = field(default_factory=dict)  # by sequence
    tokens: dict[int, int] = field(default_factory=dict)  # by sequence
    submitted_ns: int | None = None
    last_ns: int | None = None
    disconnected_ns: int | None = None
    ended: bool = False
    admitted_ns: int | None = None
    grammar_ns: int = 0
    adapter_ns: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    received_tokens: int = 0
    skip_reason: WaitReason | None = None
    skipped_ns: int = 0
    attached: bool = False
    is_unseen: bool = False

    def has_left(self, at_ns: int) -> bool:
        """Whether the client had disconnected for longer than an abort takes."""
        return self.disconnected_ns is not None and at_ns > self.disconnected_ns + ABORT_NS

    @property
    def affected(self) -> AffectedRequest:
        """The request as one that a finding tells of."""
        elapsed_ns = self.entered_ns - self.begun_ns
        return AffectedRequest(self.request_id, self.trace_id, self.tenant, elapsed_ns)
