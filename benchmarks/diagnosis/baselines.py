"""Four baseline classifiers that name a cause from the gauges that operators have.

- `largest_phase`: the phase of requests that grew most names the cause, as in a trace view.
- `thresholds`: alert and doctor rules as they are published, written anew: ratios of TTFT and
  ITL, a cache that is nearly full, preemptions, a queue.
- `n_sigma`: the gauge that is most standard deviations off names the cause (as NSigma and BARO
  rank metrics).
- `trees`: gradient-boosted trees over the gauges, trained on the episodes of the dev split.

Each sees the seconds of a reference and of what may be a fault. `compare` gives it the onset, which
the diagnosis has to detect; `streamed` does not. Rules and rankings have fewer classes than there
are: an episode of another class counts as wrong for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from benchmarks.diagnosis.gauges import GAUGES, Gauges

HEALTHY = "healthy"
SECOND = 1_000_000_000
Row = tuple[float, ...]
Namer = Callable[[Sequence[Row], Sequence[Row]], str]

_PHASE_CAUSES = {
    "ingest_ms": "ingest_backlog",
    "queue_ms": "queue_overload",
    "prefill_ms": "long_prompts",
    "decode_ms": "oversized_batch",
    "deliver_ms": "slow_client",
}
_GAUGE_CAUSES = {
    **_PHASE_CAUSES,
    "running": "queue_overload",
    "waiting": "queue_overload",
    "kv_used": "kv_exhaustion",
    "preemptions": "kv_thrash",
    "requests": "queue_overload",
    "prompt_tokens": "prefill_interference",
    "output_tokens": "queue_overload",
    "failed": "out_of_memory",
    "step_ms": "memory_bandwidth",
    "ttft_p50": "long_prompts",
    "ttft_p95": "queue_overload",
    "itl_p50": "memory_bandwidth",
    "itl_p99": "prefill_interference",
    "e2e_p50": "queue_overload",
    "engine_run": "memory_bandwidth",
    "engine_wait": "cpu_starvation",
    "gateway_run": "ingest_backlog",
    "loop_lag_ms": "host_stall",
    "steal": "cpu_starvation",
}


def rows_between(gauges: Gauges, zero_ns: int, from_s: float, until_s: float) -> list[Row]:
    """The rows of the whole seconds within [from, until) after `zero_ns`."""
    first = -(-(zero_ns + int(from_s * SECOND) - gauges.begin_ns) // SECOND)
    last = (zero_ns + int(until_s * SECOND) - gauges.begin_ns) // SECOND
    return list(gauges.rows[max(0, first) : max(0, last)])


def column(rows: Sequence[Row], name: str) -> list[float]:
    place = GAUGES.index(name)
    return [row[place] for row in rows]


def mean_of(rows: Sequence[Row], name: str) -> float:
    return fmean(column(rows, name)) if rows else 0.0


def largest_phase(reference: Sequence[Row], fault: Sequence[Row]) -> str:
    """The phase that grew most, if requests took a quarter longer."""
    before = {name: mean_of(reference, name) for name in _PHASE_CAUSES}
    now = {name: mean_of(fault, name) for name in _PHASE_CAUSES}
    if sum(now.values()) < 1.25 * sum(before.values()):
        return HEALTHY
    worst = max(now, key=lambda name: now[name] - before[name])
    return _PHASE_CAUSES[worst]


def thresholds(reference: Sequence[Row], fault: Sequence[Row]) -> str:
    """The first of the published rules that fires."""

    def ratio(name: str) -> float:
        return mean_of(fault, name) / max(1e-9, mean_of(reference, name))

    ttft, itl = ratio("ttft_p50"), ratio("itl_p50")
    kv, waiting = mean_of(fault, "kv_used"), mean_of(fault, "waiting")
    ttft_ms, e2e_ms = mean_of(fault, "ttft_p95"), mean_of(fault, "e2e_p50")
    if sum(column(fault, "preemptions")) > 0:
        return "kv_thrash"
    if kv > 0.9 and waiting > 0:
        return "kv_exhaustion"
    if ttft >= 2.2 and itl < 1.4:
        return "queue_overload"
    if itl >= 1.6 and mean_of(fault, "engine_run") < 0.75:
        return "memory_bandwidth"
    if ttft_ms >= 1000 and ttft_ms >= 0.35 * e2e_ms:
        return "queue_overload"
    if mean_of(fault, "itl_p99") >= 150:
        return "prefill_interference"
    return "queue_overload" if waiting > 0.5 else HEALTHY


def n_sigma(reference: Sequence[Row], fault: Sequence[Row]) -> str:
    """The gauge furthest from its reference mean in standard deviations, at least three."""
    scores = {name: _sigmas(column(reference, name), column(fault, name)) for name in _GAUGE_CAUSES}
    worst = max(scores, key=lambda name: scores[name])
    return _GAUGE_CAUSES[worst] if scores[worst] >= 3 else HEALTHY


def _sigmas(before: Sequence[float], now: Sequence[float]) -> float:
    if not before or not now:
        return 0.0
    usual = fmean(before)
    spread = max(pstdev(before), 0.05 * abs(usual), 1e-6)
    return abs(float(np.median(now)) - usual) / spread


def features_of(reference: Sequence[Row], fault: Sequence[Row]) -> list[float]:
    """For each gauge its mean in the reference, its mean now, its worst, the ratio of means."""
    found: list[float] = []
    for name in GAUGES:
        before, now = mean_of(reference, name), mean_of(fault, name)
        worst = max(column(fault, name), default=0.0)
        found += [before, now, worst, now / max(1e-3, before)]
    return found


def trees(examples: Sequence[tuple[list[float], str]]) -> Namer:
    """Trained on (features, class) of the dev split. Needs scikit-learn; raises SystemExit that
    says how to install it."""
    try:
        from sklearn.ensemble import GradientBoostingClassifier
    except ImportError:
        raise SystemExit("the trees need scikit-learn: pip install -e '.[bench]'") from None
    model: Any = GradientBoostingClassifier(random_state=0, n_estimators=150, max_depth=3)
    model.fit([features for features, _ in examples], [truth for _, truth in examples])

    def name(reference: Sequence[Row], fault: Sequence[Row]) -> str:
        return str(model.predict([features_of(reference, fault)])[0])

    return name


BASELINES: dict[str, Namer] = {
    "largest_phase": largest_phase,
    "thresholds": thresholds,
    "n_sigma": n_sigma,
}
