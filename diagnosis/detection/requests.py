"""Requests in flight: the stage of each, since when, and its sequences.

Stages are phases put together, with the borders that `telemetry.requests.phases` defines:

    INGEST    accept, parse, tokenize
    FIRST     queue, prefill
    DECODE    decode
    DELIVER   detokenize, deliver

A request of an attached engine is in no stage between its tokens and the first news of its
sequence: where that never comes, nothing is known of its time.

Of a request in flight the *time to first commit* is known: when the engine had its first token. Its
TTFT ends when that token is sent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from diagnosis.detection.counts import Counts, Stage, add_live
from diagnosis.detection.late import LateLog
from diagnosis.detection.request_state import AffectedRequest, RequestState
from diagnosis.detection.steady_rows import SteadyRows
from diagnosis.detection.tail_thresholds import LATE_ORDER_NS
from telemetry.facts.engine_records import (
    GrammarCompiled,
    Row,
    SequenceAdmitted,
    SequenceQueued,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, Outcome, WaitReason
from telemetry.facts.records import (
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestsListed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.requests.borders import decode_begins_ns, first_commit_ns
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

_KEPT = 4_000  # requests that have ended
_KEPT_OPEN = 16_000  # requests in flight
_KEPT_SEQUENCES = 8_000
_FIRST, _DECODE = Stage.FIRST, Stage.DECODE  # of an enum each look-up is a call


class Requests:
    """Follows each request through its stages, and adds its time to the ticks of `counts_at`. Late
    tokens go to `late`. `policy` has the TTFT targets of classes where a fact does not state it."""

    def __init__(self, counts_at: Callable[[int], Counts], policy: SloPolicy) -> None:
        self._at = counts_at
        self._policy = policy
        self.late = LateLog()
        self._open: dict[str, RequestState] = {}
        self._ended: deque[tuple[int, RequestState]] = deque(maxlen=_KEPT)
        self._owners: dict[int, RequestState] = {}
        self._steady = SteadyRows(self._add_tokens)

    def accepted(self, fact: RequestAccepted) -> None:
        request = RequestState(
            request_id=fact.request_id,
            trace_id=fact.trace_id,
            tenant=fact.tenant,
            begun_ns=fact.at_ns,
            stage=Stage.INGEST,
            entered_ns=fact.at_ns,
            read_ns=fact.at_ns if fact.read_ns is None else fact.read_ns,
            slo_class=fact.slo_class,
            gap_target_ns=DEFAULT_POLICY.of(fact.slo_class).itl_ns,
            attached=fact.attached,
        )
        self._open[fact.request_id] = request
        if len(self._open) > _KEPT_OPEN:
            del self._open[next(iter(self._open))]
        self._at(fact.at_ns).accepted += 1

    def parsed(self, fact: RequestParsed) -> None:
        request = self._open.get(fact.request_id)
        if request is not None:
            request.choices = fact.choices

    def tokenized(self, fact: RequestTokenized) -> None:
        request = self._open.get(fact.request_id)
        if request is None:
            return
        self._at(fact.at_ns).ingest_work_ns += max(0, fact.at_ns - request.read_ns)
        if request.attached and not request.firsts_ns:
            self._leave(request, fact.at_ns)
            request.is_unseen = True
        else:
            self._enter(request, Stage.FIRST, fact.at_ns)

    def submitted(self, fact: SequenceSubmitted) -> None:
        request = self._open.get(fact.request_id)
        if request is None:
            return
        is_first = not request.firsts_ns
        self._settle(request)
        self._steady.leave(fact.seq_id)
        if is_first:
            request.submitted_ns = fact.at_ns
        request.sequences.add(fact.seq_id)
        request.firsts_ns[fact.seq_id] = None
        request.tokens[fact.seq_id] = 0
        self._owners[fact.seq_id] = request
        if len(self._owners) > _KEPT_SEQUENCES:
            oldest = next(iter(self._owners))
            self._steady.leave(oldest)
            del self._owners[oldest]
        if request.is_unseen:  # it has waited for its first token since it was tokenized
            request.stage, request.is_unseen = Stage.FIRST, False
        elif request.stage is Stage.INGEST:
            self._enter(request, Stage.FIRST, fact.at_ns)
        if is_first:
            counts = self._at(fact.at_ns)
            counts.requests += 1
            counts.choices_requested.append(request.choices)
            counts.tenant_requests[request.tenant] += 1

    def queued(self, fact: SequenceQueued) -> None:
        """The engine knows the length of a prompt, and the target of its class."""
        request = self._owners.get(fact.seq_id)
        if request is not None:
            target_ns = fact.ttft_target_ns or self._policy.of(request.slo_class).ttft_ns
            self._at(fact.at_ns).first_targets_ns[target_ns] += 1
            request.prompt_tokens = fact.prompt_tokens
            self._settle(request)
            request.gap_target_ns = fact.itl_target_ns or request.gap_target_ns

    def admitted(self, fact: SequenceAdmitted) -> None:
        request = self._owners.get(fact.seq_id)
        if request is not None and request.admitted_ns is None:
            request.admitted_ns, request.hit_tokens = fact.at_ns, fact.hit_tokens
            request.received_tokens = fact.received_tokens
            if request.submitted_ns is not None:
                self._at(fact.at_ns).admissions.append(
                    (request.begun_ns, request.submitted_ns, fact.at_ns)
                )

    def compiled(self, fact: GrammarCompiled) -> None:
        """Until now the sequence waited for its grammar."""
        request = self._owners.get(fact.seq_id)
        if request is not None and request.submitted_ns is not None:
            request.grammar_ns = max(request.grammar_ns, fact.at_ns - request.submitted_ns)

    def waited_for_adapter(self, seq_id: int, waited_ns: int) -> None:
        """A sequence of the request had to wait for its adapter."""
        request = self._owners.get(seq_id)
        if request is not None:
            request.adapter_ns += waited_ns

    def skipped(self, seq_id: int, reason: WaitReason, at_ns: int) -> None:
        """A running sequence had no row in a step."""
        request = self._owners.get(seq_id)
        if request is not None:
            request.skip_reason, request.skipped_ns = reason, at_ns

    def ended(self, fact: RequestEnded) -> None:
        counts = self._at(fact.at_ns)
        counts.ended[fact.reason] += 1
        if fact.output_valid is not None:
            counts.judged += 1
            counts.invalid += not fact.output_valid
        request = self._open.pop(fact.request_id, None)
        if request is None:
            return
        delivery_begun_ns = request.entered_ns
        self._settle(request)
        self._leave(request, fact.at_ns)
        request.ended = True
        self._ended.append((fact.at_ns, request))
        is_refused = request.stage is Stage.INGEST and not request.is_unseen
        if is_refused:  # for its length, perhaps
            counts.ingest_work_ns += max(0, fact.at_ns - request.read_ns)
        if request.stage is Stage.DELIVER:
            counts.delivered += 1
            self.late.delivery(request, delivery_begun_ns, fact.at_ns)
        if fact.reason.outcome is Outcome.CANCELLED:
            request.disconnected_ns = fact.at_ns if fact.detected_ns is None else fact.detected_ns

    def step(self, step: StepRecorded, counts: Counts) -> list[Row]:
        """The tokens of a step; `counts` are those of the tick of its commit. Returns the rows of
        clients that had left. Most rows are of a running answer: these are counted together."""
        steady, at_ns, states = self._steady, step.committed_ns, self._owners
        others = steady.step(step)
        later_tokens = float(len(steady))
        zombies: list[Row] = []
        for row in others:
            request = states.get(row.seq_id)
            if request is None:
                continue
            if request.disconnected_ns is not None and request.has_left(step.begin_ns):
                zombies.append(row)
            tokens = row.sampled
            if not tokens or request.ended:
                continue
            request.tokens[row.seq_id] += tokens
            last_ns, request.last_ns = request.last_ns, at_ns
            if last_ns is not None and at_ns - last_ns > request.gap_target_ns:
                self.late.gap(request, last_ns, at_ns)
            if request.stage is _FIRST:
                tokens -= self._first_token(request, row.seq_id, at_ns)
            if request.stage is _DECODE:
                later_tokens += tokens / request.choices
                if len(request.firsts_ns) == 1 == request.choices:
                    steady.join(row.seq_id, request.gap_target_ns)
        counts.later_tokens += later_tokens
        return zombies

    def _first_token(self, request: RequestState, seq_id: int, at_ns: int) -> bool:
        """Whether this is the sequence's first token. Decode begins when all sequences of the
        request have one."""
        if request.firsts_ns.get(seq_id) is not None:
            return False
        counts = self._at(at_ns)
        if first_commit_ns(request.firsts_ns.values()) is None:
            late = math.log(max(1, at_ns - request.begun_ns))
            counts.first_commit_logs.append((request.tenant, late))
            self.late.first(request, at_ns)
        request.firsts_ns[seq_id] = at_ns
        begins_ns = decode_begins_ns(request.firsts_ns.values())
        if begins_ns is not None:
            self._enter(request, Stage.DECODE, begins_ns)
            counts.first_tokens += 1
        return True

    def sequence_ended(self, seq_id: int, reason: EndReason, at_ns: int) -> None:
        """After the last token of a finished request comes delivery."""
        request = self._owners.get(seq_id)
        if request is None:
            return
        self._settle(request)
        request.sequences.discard(seq_id)
        is_whole = request.stage is Stage.DECODE and reason.outcome is Outcome.FINISHED
        if is_whole and not request.sequences and not request.ended:
            self._enter(
                request, Stage.DELIVER, at_ns if request.last_ns is None else request.last_ns
            )

    def listed(self, fact: RequestsListed) -> None:
        """End requests that are not listed: their end fact was lost. When they ended is unknown, so
        the time in their last stage is not counted."""
        listed_ids = frozenset(fact.request_ids)
        for request_id, request in list(self._open.items()):
            if request.read_ns < fact.at_ns and request_id not in listed_ids:
                self._settle(request)
                del self._open[request_id]
                request.ended = True
                self._ended.append((fact.at_ns, request))

    def sequences_listed(self, fact: SequencesListed) -> None:
        """End sequences that are not listed: their end fact was lost. The time in the stage that
        they were in is not counted."""
        for seq_id in fact.over(
            [s for s, request in self._owners.items() if s in request.sequences]
        ):
            request = self._owners[seq_id]
            self._settle(request)
            request.sequences.discard(seq_id)
            if not request.sequences and not request.ended:
                request.stage, request.entered_ns = Stage.DELIVER, fact.at_ns

    @property
    def live(self) -> int:
        """Requests in flight."""
        return len(self._open)

    def is_decoding(self, seq_id: int) -> bool:
        """Whether the sequence has its first token."""
        request = self._owners.get(seq_id)
        return request is not None and request.firsts_ns.get(seq_id) is not None

    def has_prompt_above(self, tokens: int, seq_id: int) -> bool:
        """Whether the prompt of the sequence is longer; False where `tokens` is 0."""
        request = self._owners.get(seq_id) if tokens else None
        return request is not None and request.prompt_tokens > tokens

    def state(self, seq_id: int) -> RequestState | None:
        """The request of a sequence, None where that is not known."""
        return self._owners.get(seq_id)

    def owner(self, seq_id: int) -> str:
        """The request id of a sequence, or `seq-N` where that is not known."""
        request = self._owners.get(seq_id)
        return f"seq-{seq_id}" if request is None else request.request_id

    def active(self, begin_ns: int, end_ns: int) -> list[AffectedRequest]:
        """Requests in flight at some time of [begin, end), the longest in flight first."""
        found = [one.affected for one in self._open.values() if one.begun_ns < end_ns]
        for at_ns, one in reversed(self._ended):
            if at_ns < begin_ns - LATE_ORDER_NS:
                break
            if one.begun_ns < end_ns and one.entered_ns >= begin_ns:
                found.append(one.affected)
        return sorted(found, key=lambda one: -one.elapsed_ns)

    def open_counts(self, begin_ns: int, end_ns: int) -> Counts:
        """The time within [begin, end) of requests in flight, in the stage that they are in."""
        total, live_ns = Counts(), [0] * len(Stage)
        first_ns = total.first_ns
        for request in self._open.values():
            spent_ns = end_ns - max(request.entered_ns, begin_ns)
            if spent_ns > 0 and not request.is_unseen:
                live_ns[request.stage] += spent_ns
                if request.stage is _FIRST:
                    first_ns[request.tenant] += spent_ns
        total.live_ns.update({stage: ns for stage in Stage if (ns := live_ns[stage])})
        return total

    def open_lengths(self) -> list[int]:
        """The output tokens so far of sequences in flight."""
        self._steady.settle()
        return [
            request.tokens[seq_id]
            for request in self._open.values()
            for seq_id in request.sequences
        ]

    def _settle(self, request: RequestState) -> None:
        """Add the tokens that it had so far; its next rows are looked at one by one."""
        for seq_id in request.firsts_ns:
            self._steady.leave(seq_id)

    def _add_tokens(self, seq_id: int, tokens: int, _worst_ns: int, at_ns: int) -> None:
        request = self._owners[seq_id]
        request.tokens[seq_id] += tokens
        request.last_ns = at_ns

    def _enter(self, request: RequestState, stage: Stage, at_ns: int) -> None:
        self._leave(request, at_ns)
        request.stage = stage

    def _leave(self, request: RequestState, at_ns: int) -> None:
        """Add the time in the stage that ends."""
        if not request.is_unseen:
            add_live(self._at, request.stage, request.tenant, request.entered_ns, at_ns)
        request.entered_ns = max(at_ns, request.entered_ns)
