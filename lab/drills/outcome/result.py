"""The result of an episode: what clients saw by phase, and the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

from lab.drills.client import Sent
from lab.drills.outcome.conditions import Conditions
from lab.drills.outcome.labels import Label
from lab.drills.outside import Nice
from lab.drills.pace import Pace
from lab.drills.spec import Capacity, Phase, Phases
from lab.drills.watch import Root, VerdictChange
from telemetry.numbers.quantiles import quantile

HARMED = 1.5
_HIGH = 0.95
_LEAST_GOOD = 3
LEAST_RISE = 1.1
"""A fault of which no harm rose so far had no effect. Two stretches of a healthy server differ by
up to 1.3 in a median, so that some faults without an effect pass; a higher limit would leave out
weak ones."""


class ClientSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What clients measured of the requests due in one phase. Times in ms; None: no value.

    `stall` is the longest gap of a request. `ends` counts statuses, with the errors.
    """

    requests: int
    good: int
    tokens: int
    ends: dict[str, int]
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None
    stall_p50: float | None = None
    stall_p95: float | None = None
    tpot_p50: float | None = None
    tpot_p95: float | None = None
    e2e_p50: float | None = None
    e2e_p95: float | None = None


class EpisodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One episode. `clients` are all requests of a phase, `others` those that are not a culprit's.

    `first_harmed_s` is when the first request was due that was harmed while the fault lasted (see
    `first_harmed_ns`); times are seconds from the start of the traffic. `root` is the answer of
    `/debug/root` at the end of the fault. `conditions` are the machine's, by phase, and `paces`
    how slow the engine's core was for a probe, by second (see `pace.paces`). `nices` are those of
    helper processes. `exit_line` is the last line of a server that ended. `discarded` says why the
    episode does not count; empty when it does. Where a server took over for the fault, `begin_ns`
    is of its traffic, and `usual_begin_ns` of that of the server before it.
    """

    name: str
    symptom: str
    mechanism: str
    intensity: float
    seed: int
    phases: Phases
    flags: tuple[str, ...]
    capacity: Capacity | None
    load: float
    begin_ns: int
    on_s: float | None
    off_s: float | None
    first_harmed_s: float | None
    clients: dict[str, ClientSummary]
    others: dict[str, ClientSummary]
    harms: tuple[str, ...]
    verdicts: list[VerdictChange]
    conditions: dict[str, Conditions]
    discarded: list[str]
    label: Label
    label_sha256: str
    root: Root | None = None
    exit_code: int | None = None
    exit_line: str | None = None
    has_baseline: bool = False
    paces: tuple[Pace | None, ...] = ()
    usual_begin_ns: int | None = None
    nices: tuple[Nice, ...] = ()

    def rise(self, measure: str) -> float | None:
        """Ratio of a measure in the fault to that in the reference: of all requests, or of those
        that are not a culprit's, whichever is higher."""
        return _highest_rise((self.clients, self.others), measure)


def effect_reasons(harms: Sequence[str], groups: Sequence[dict[str, ClientSummary]]) -> list[str]:
    """Why an episode does not count whose harm did not rise in any group of requests. Empty where
    no request is to be delayed, and where nothing can be compared."""
    found = {measure: _highest_rise(groups, measure) for measure in harms}
    rises = {measure: rise for measure, rise in found.items() if rise is not None}
    if not rises or max(rises.values()) >= LEAST_RISE:
        return []
    said = ", ".join(f"{measure} {rise:.2f}" for measure, rise in rises.items())
    return [f"no effect: {said} times the reference"]


def _highest_rise(groups: Sequence[dict[str, ClientSummary]], measure: str) -> float | None:
    rises = [_rise(group, measure) for group in groups]
    return max((rise for rise in rises if rise is not None), default=None)


def _rise(group: dict[str, ClientSummary], measure: str) -> float | None:
    before, after = group.get(Phase.REFERENCE.value), group.get(Phase.FAULT.value)
    if before is None or after is None or after.good < _LEAST_GOOD:
        return None
    old, new = getattr(before, measure), getattr(after, measure)
    return None if not old or new is None else float(new / old)


def summaries_by_phase(
    log: Iterable[Sent], phases: Phases, begin_ns: int
) -> dict[str, ClientSummary]:
    """A summary for each phase, of the requests that were due in it."""
    groups: dict[str, list[Sent]] = {}
    for one in log:
        phase = phases.of((one.due_ns - begin_ns) / 1e9)
        groups.setdefault(phase.value, []).append(one)
    return {phase.value: summarize(groups[phase.value]) for phase in Phase if phase.value in groups}


def summarize(log: Sequence[Sent]) -> ClientSummary:
    """The summary of one group of requests."""
    gaps_ms = [gap / 1e3 for one in log for gap in one.gaps_us]
    measures = {
        "ttft": [one.ttft_ns / 1e6 for one in log if one.ttft_ns is not None],
        "stall": [max(one.gaps_us) / 1e3 for one in log if one.gaps_us],
        "tpot": [one.tpot_ns / 1e6 for one in log if one.tpot_ns is not None],
        "e2e": [one.e2e_ns / 1e6 for one in log if one.e2e_ns is not None],
    }
    times: dict[str, float | None] = {
        "itl_p50": _rounded(gaps_ms, 0.5),
        "itl_p99": _rounded(gaps_ms, 0.99),
    }
    for name, values in measures.items():
        times |= {f"{name}_p50": _rounded(values, 0.5), f"{name}_p95": _rounded(values, 0.95)}
    return ClientSummary(
        requests=len(log),
        good=sum(one.is_good for one in log),
        tokens=sum(one.tokens for one in log),
        ends=dict(Counter(_end(one) for one in log)),
        **times,
    )


class HarmThresholds(msgspec.Struct, frozen=True):
    """Latencies above which a request counts as harmed, whatever its lengths are."""

    ttft_ns: float
    tpot_ns: float
    gap_ns: float

    def are_exceeded_by(self, one: Sent, since_ns: int) -> bool:
        """Whether a latency of the request that ended after `since_ns` is above its limit."""
        if one.first_ns is None or (one.last_ns or one.first_ns) <= since_ns:
            return False
        late_first = one.first_ns > since_ns and one.first_ns - one.due_ns > self.ttft_ns
        return late_first or (one.tpot_ns or 0) > self.tpot_ns or self._has_gap(one, since_ns)

    def _has_gap(self, one: Sent, since_ns: int) -> bool:
        ends_us = accumulate(one.gaps_us)
        return any(
            1000 * gap_us > self.gap_ns and (one.first_ns or 0) + 1000 * end_us > since_ns
            for gap_us, end_us in zip(one.gaps_us, ends_us, strict=True)
        )


def thresholds_of(reference: Iterable[Sent]) -> HarmThresholds | None:
    """`HARMED` times the 95th percentile of the reference's requests; None where too few were
    served."""
    served = [one for one in reference if one.is_good]
    ttfts = [one.ttft_ns for one in served if one.ttft_ns is not None]
    tpots = [one.tpot_ns for one in served if one.tpot_ns is not None]
    gaps = [1000 * max(one.gaps_us) for one in served if one.gaps_us]
    high = [_rounded(values, _HIGH) for values in (ttfts, tpots, gaps)]
    if any(one is None for one in high):
        return None
    ttft_ns, tpot_ns, gap_ns = (HARMED * (one or 0.0) for one in high)
    return HarmThresholds(ttft_ns, tpot_ns, gap_ns)


def reference_requests(log: Iterable[Sent], until_ns: int, seconds: float) -> list[Sent]:
    """Requests of the reference: those due in the last `seconds` before the last one due before
    `until_ns`."""
    before = [one for one in log if one.due_ns < until_ns]
    last_ns = max((one.due_ns for one in before), default=0)
    return [one for one in before if one.due_ns > last_ns - int(seconds * 1e9)]


def harmed_requests(
    log: Iterable[Sent], limits: HarmThresholds, on_ns: int, off_ns: int
) -> list[Sent]:
    """The requests that a fault from `on_ns` to `off_ns` harmed: due before its end, late after its
    onset."""
    return [one for one in log if one.due_ns < off_ns and limits.are_exceeded_by(one, on_ns)]


def first_harmed_ns(
    log: Iterable[Sent], limits: HarmThresholds, span_ns: tuple[int, int], *, adds: bool
) -> int | None:
    """When the first request was due that was harmed in the span of a fault, or its onset if that
    is later; None where none was. Requests that the fault `adds`, a culprit's, count only where no
    other is harmed. Usual ones that it makes longer are harmed like any other."""
    on_ns, off_ns = span_ns
    harmed = harmed_requests(log, limits, on_ns, off_ns)
    others = [one for one in harmed if not (adds and one.is_culprit)]
    due = [one.due_ns for one in others or harmed]
    return max(on_ns, min(due)) if due else None


def _end(one: Sent) -> str:
    if one.left:
        return "left"
    return str(one.status) if one.error is None else f"{one.status} {one.error[:40]}"


def _rounded(values: Sequence[float], share: float) -> float | None:
    """A quantile to a microsecond; None of nothing."""
    found = quantile(values, share)
    return None if found is None else round(found, 3)
