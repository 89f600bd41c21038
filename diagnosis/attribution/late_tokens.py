"""The cause of one late token: what took the time of its request beyond the usual.

Only the time of the request concerned is charged, by what was in its gap or on the way to its first
token: a stalled step, a long prompt of another, a mask, its own prompt, a wait. A late token whose
time nothing of this explains waited in a queue as they come and go; it has no cause.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnosis.attribution.batches import Batch, Batches
from diagnosis.attribution.charges import Charges
from diagnosis.attribution.device_evidence import device_symptom
from diagnosis.attribution.late_waits import (
    GatewayTime,
    batch_of_one_tenant,
    lost_within,
    overlapping,
    wait_shares,
)
from diagnosis.attribution.slow_steps import off_cpu_symptom, slow_by_kind
from diagnosis.attribution.thresholds import ALIKE, MOST
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import Stage
from diagnosis.detection.late import Late, LateKind
from diagnosis.detection.reference import Reference
from diagnosis.detection.request_state import RequestState
from diagnosis.detection.step_cost import Cost
from diagnosis.detection.steps import Steps
from diagnosis.detection.tail_thresholds import (
    CHARGED_SHARE,
    COLD_HITS,
    COLD_RATIO,
    DECISIVE_SHARE,
    FAR_RATIO,
    LEAST_STALL_NS,
    PAUSED_SHARE,
    SLOW_RATIO,
    SLOW_SEEN_NS,
    STALL_RATIO,
)
from diagnosis.detection.window import window_of
from diagnosis.symptoms import Symptom
from telemetry.facts.reasons import HostProcess, PauseCause, WaitReason

S = Symptom

_OWN_WAITS = {
    WaitReason.CLIENT_PAUSE: S.SLOW_CLIENT,
    WaitReason.GRAMMAR: S.GRAMMAR_COST,
    WaitReason.ADAPTER: S.ADAPTER_CHURN,
    WaitReason.PREEMPTED: S.KV_THRASH,
    WaitReason.KV: S.KV_EXHAUSTION,
}


class ChargedLate(NamedTuple):
    """A late token with its cause; None: the variation of the queue. `culprit` is the tenant that
    another one waits for. It belongs to the blow of `blow_ns`: its end, or when the batch that it
    waits for came, which may make requests late for seconds."""

    late: Late
    symptom: Symptom | None
    blow_ns: int
    culprit: str | None = None


class LateCharger:
    """Charges the late tokens of one tick. Spans of steps that several share are charged once."""

    def __init__(self, aggregator: Aggregator, reference: Reference) -> None:
        self._aggregator = aggregator
        self._reference = reference
        self._gateway = GatewayTime(aggregator, reference)
        self._batches = Batches(aggregator.requests.late, reference)
        self._spans: dict[tuple[int, int], Charges] = {}

    def charge(self, late: Late) -> ChargedLate:
        if late.kind is LateKind.DELIVERY:
            parts = self._gateway.charged(late.begin_ns, late.end_ns)
            spent_ns = late.end_ns - late.begin_ns
            parts[S.SLOW_CLIENT] += spent_ns - sum(parts.values())
            return ChargedLate(late, _cause(parts, spent_ns, late.above_ns), late.end_ns)
        if late.kind is LateKind.GAP:
            usual_ns = self._reference.stage_ns[Stage.DECODE]
            parts, batch = self._of_gap(late), None
        else:
            usual_ns = self._reference.tails.first_ns
            parts, batch = self._of_first(late)
        symptom = _cause(parts, late.end_ns - late.begin_ns - usual_ns, late.above_ns)
        if batch is None or symptom not in (S.UNFAIRNESS, S.QUEUE_OVERLOAD):
            return ChargedLate(late, symptom, late.end_ns)
        return ChargedLate(late, symptom, batch.begun_ns, batch.tenant)

    def _of_gap(self, late: Late) -> Charges:
        request = late.request
        if request.skip_reason in _OWN_WAITS and late.begin_ns < request.skipped_ns <= late.end_ns:
            cause = _OWN_WAITS[request.skip_reason]
            return Charges({cause: float(late.end_ns - late.begin_ns)})
        return self._in_steps(late.begin_ns, late.end_ns)

    def _of_first(self, late: Late) -> tuple[Charges, Batch | None]:
        """Before its submission the gateway has it, then it waits, then its prompt is computed."""
        request, reference = late.request, self._reference
        submitted_ns = request.submitted_ns or late.end_ns
        parts = Charges(self._in_steps(submitted_ns, late.end_ns))
        ingest_ns = submitted_ns - late.begin_ns - reference.tails.ingest_ns
        if ingest_ns > 0:
            for symptom, share in self._gateway.shares(late.begin_ns, submitted_ns).items():
                parts[symptom] += share * ingest_ns
        self._own_prompt(parts, request, submitted_ns, late.end_ns)
        if request.grammar_ns:
            parts[S.GRAMMAR_COST] += request.grammar_ns
        if request.adapter_ns:
            parts[S.ADAPTER_CHURN] += request.adapter_ns
        own_ns = request.grammar_ns + request.adapter_ns
        queued_ns = max(0, (request.admitted_ns or late.end_ns) - submitted_ns - own_ns)
        stalled_ns = sum(self._in_steps(submitted_ns, submitted_ns + queued_ns).values())
        waited_ns = max(0.0, queued_ns - stalled_ns)
        for symptom, share in wait_shares(self._aggregator, submitted_ns, late.end_ns).items():
            parts[symptom] += share * waited_ns
        left_ns = late.end_ns - late.begin_ns - reference.tails.first_ns - sum(parts.values())
        batch = self._batch_before(late)
        if batch is not None and batch.tenant != request.tenant:
            cause = S.QUEUE_OVERLOAD if batch.tenant is None else S.UNFAIRNESS
            parts[cause] += max(waited_ns, left_ns)
        return parts, batch

    def _batch_before(self, late: Late) -> Batch | None:
        """What the request waits for: a tenant that sends many, or requests that came at once."""
        tenant = batch_of_one_tenant(self._aggregator, self._reference, late)
        if tenant is not None:
            return Batch(0, tenant, late.end_ns)
        return self._batches.before(late)

    def _own_prompt(
        self, parts: Charges, request: RequestState, begin_ns: int, end_ns: int
    ) -> None:
        """A prompt longer than usual, or one that used to be cached, as most were."""
        reference, cost = self._reference, self._reference.cost
        steps = self._aggregator.steps(begin_ns + 1, end_ns + 1)
        if cost is None or not len(steps):
            return
        longest = self._aggregator.long_prompt_tokens
        if longest and request.prompt_tokens > longest:
            others_ns = parts.pop(S.PREFILL_INTERFERENCE, 0.0)
            own_ns = float(steps.turn_ns[steps.long_tokens > 0].sum())
            parts[S.LONG_PROMPTS] += max(own_ns, others_ns)
            return
        usual = reference.prompt_tokens * reference.computed_share
        computed = request.prompt_tokens - request.hit_tokens - request.received_tokens
        usual_hit = reference.prompt_tokens * reference.hit_share
        is_cold = request.hit_tokens < COLD_HITS * usual_hit
        if computed > COLD_RATIO * usual and is_cold and reference.hit_requests_share > MOST:
            since_ns = request.admitted_ns or begin_ns
            own_ns = float(self._aggregator.steps(since_ns + 1, end_ns + 1).turn_ns.sum())
            parts[S.PREFIX_CACHE_COLD] += own_ns * (1 - usual / computed)

    def _in_steps(self, begin_ns: int, end_ns: int) -> Charges:
        """ns of (begin, end] by what made its steps longer than they are usually."""
        found = self._spans.get((begin_ns, end_ns))
        if found is None:
            found = self._spans[begin_ns, end_ns] = self._charge_steps(begin_ns, end_ns)
        return found

    def _charge_steps(self, begin_ns: int, end_ns: int) -> Charges:
        steps, cost = self._aggregator.steps(begin_ns + 1, end_ns + 1), self._reference.cost
        parts = Charges()
        if cost is None or not len(steps):
            return parts
        forward, host = cost.forward_ns(steps), cost.host_ns(steps)
        over, around = steps.forward_ns - forward, steps.host_ns - host
        long = steps.long_tokens > 0
        prompts_ns = cost.prompt_forward_ns(steps)
        long_ns = prompts_ns * steps.long_tokens / np.maximum(1, steps.prompt_tokens)
        parts[S.PREFILL_INTERFERENCE] += float(long_ns[long].sum() + steps.score_ns.sum())
        parts[S.GRAMMAR_COST] += float(steps.mask_ns.sum())
        parts[S.HEAVY_SAMPLING] += max(0.0, float((steps.sample_ns - cost.sample_ns(steps)).sum()))
        stood = np.where(around > LEAST_STALL_NS, around, 0.0)
        stalls = over > np.maximum(LEAST_STALL_NS, STALL_RATIO * np.maximum(forward, 0.0))
        stood = stood + np.where(stalls, over, 0.0)
        is_slow = over > SLOW_RATIO * np.maximum(forward, 1.0)
        slow = np.where(~stalls & is_slow & cost.in_range(steps, FAR_RATIO), over, 0.0)
        self._name_slow(parts, float(stood.sum()), float(slow.sum()), begin_ns, end_ns)
        return parts

    def _name_slow(
        self, parts: Charges, stood_ns: float, slow_ns: float, begin_ns: int, end_ns: int
    ) -> None:
        """A stall, or slow steps, by the pauses of the engine's process that the host recorded."""
        lost = self._lost_ns(begin_ns, end_ns)
        total_ns = stood_ns + slow_ns
        if not total_ns:
            return
        if lost[PauseCause.THROTTLED] >= PAUSED_SHARE * total_ns:
            parts[S.THROTTLED] += total_ns
        elif lost[PauseCause.OFF_CPU] >= PAUSED_SHARE * total_ns:
            parts[S.CPU_STARVATION] += total_ns
        elif lost[PauseCause.GC] >= PAUSED_SHARE * total_ns:
            parts[S.HOST_STALL] += total_ns
        else:
            parts[S.HOST_STALL] += stood_ns
            cost = self._reference.cost
            if slow_ns and cost is not None:
                seen = window_of(self._aggregator, end_ns - SLOW_SEEN_NS, end_ns + 1)
                by_device = device_symptom(seen, self._reference, cost)
                by_host = off_cpu_symptom(seen, self._reference, cost)
                parts[by_device or by_host or _slow_kind(seen.steps, cost)] += slow_ns

    def _lost_ns(self, begin_ns: int, end_ns: int) -> dict[PauseCause, float]:
        found = dict.fromkeys(PauseCause, 0.0)
        for pause in overlapping(self._aggregator, begin_ns, end_ns, HostProcess.ENGINE):
            found[pause.cause] += lost_within(pause, begin_ns, end_ns)
        return found


def _cause(parts: Charges, beyond_ns: float, above_ns: int) -> Symptom | None:
    """The cause with most of the time beyond the usual, or with a good part of it without which the
    token would not have been late."""
    symptom, spent_ns = max(parts.items(), key=lambda item: item[1], default=(None, 0.0))
    least_ns = min(CHARGED_SHARE * beyond_ns, max(above_ns, DECISIVE_SHARE * beyond_ns))
    return symptom if spent_ns >= max(1.0, least_ns) else None


def _slow_kind(steps: Steps, cost: Cost) -> Symptom:
    """A throttled processor slows all alike; contended memory hardly slows what computes."""
    decode, prompt = slow_by_kind(steps, cost)
    return S.THROTTLED if prompt - 1 > ALIKE * (decode - 1) else S.MEMORY_BANDWIDTH
