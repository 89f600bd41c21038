"""From samples to figures: cost per token by part, the loop's lag, growth of memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contract.common import Figure, at_least, at_most, percentile
from benchmarks.samples import NotMeasured

LAG_LIMIT_MS = 10.0
GROWTH_LIMIT_KIB_PER_MIN = 500.0
RATE_SHARE = 0.97


@dataclass
class Sample:
    """What was read at one moment, in s of the load."""

    at_s: float
    tokens: int
    requests: int
    gateway_ns: Counter[str]
    engine_ns: Counter[str]
    folds_s: dict[str, float]
    gateway_mib: float
    engine_mib: float


@dataclass
class Watched:
    """All samples of one run; those before `warm_up_s` do not count."""

    streams: int
    rate: float
    warm_up_s: float
    samples: list[Sample] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def counted(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.at_s >= self.warm_up_s]


def result_of(watched: Watched, lag_path: Path) -> dict[str, Any]:
    """Everything that is written to the file but the machine. Raises NotMeasured when the clients
    got nothing."""
    counted = watched.counted
    if len(counted) < 2 or counted[-1].tokens <= counted[0].tokens:
        said = f": {watched.errors[0]}" if watched.errors else ""
        raise NotMeasured(f"{len(counted)} samples, and no tokens between them{said}")
    first, last = counted[0], counted[-1]
    tokens, seconds = last.tokens - first.tokens, last.at_s - first.at_s
    gateway = _us_per_token(first.gateway_ns, last.gateway_ns, tokens)
    folds = {
        name: round((last.folds_s[name] - first.folds_s.get(name, 0)) * 1e6 / tokens, 3)
        for name in last.folds_s
    }
    lag_ms, waited_ms = lags_ms(lag_path, watched.warm_up_s)
    own_ms = [lag - waited for lag, waited in zip(lag_ms, waited_ms, strict=True)]
    return {
        "streams": watched.streams,
        "tokens_per_s_asked": watched.streams * watched.rate,
        "tokens_per_s": round(tokens / seconds, 1),
        "requests_per_s": round((last.requests - first.requests) / seconds, 2),
        "seconds_counted": round(seconds, 1),
        "gateway_cpu_us_per_token": gateway,
        "gateway_fold_wall_us_per_token": folds,
        "engine_cpu_us_per_token": _us_per_token(first.engine_ns, last.engine_ns, tokens),
        "gateway_cores": _cores(first.gateway_ns, last.gateway_ns, seconds),
        "engine_cores": _cores(first.engine_ns, last.engine_ns, seconds),
        "loop_lag_ms": {
            "p50": percentile(lag_ms, 0.5),
            "p99": percentile(lag_ms, 0.99),
            "max": max(lag_ms, default=None),
            "beats": len(lag_ms),
            "p99_without_waiting_for_a_core": percentile(own_ms, 0.99),
            "p99_waiting_for_a_core": percentile(waited_ms, 0.99),
        },
        "gateway_growth_kib_per_min": slope_kib_per_min([(s.at_s, s.gateway_mib) for s in counted]),
        "engine_growth_kib_per_min": slope_kib_per_min([(s.at_s, s.engine_mib) for s in counted]),
        "rss_mib": [
            [round(s.at_s), round(s.gateway_mib, 1), round(s.engine_mib, 1)]
            for s in watched.samples
        ],
        "errors": watched.errors[:20],
    }


def figures(found: dict[str, Any]) -> list[Figure]:
    return [
        at_most("loop lag p99, ms", found["loop_lag_ms"]["p99"], LAG_LIMIT_MS),
        at_least(
            "tokens/s", found["tokens_per_s"], round(RATE_SHARE * found["tokens_per_s_asked"], 1)
        ),
        at_most(
            "growth of the gateway, KiB/min",
            found["gateway_growth_kib_per_min"],
            GROWTH_LIMIT_KIB_PER_MIN,
        ),
        at_most("errors", len(found["errors"]), 0),
    ]


def lags_ms(path: Path, warm_up_s: float) -> tuple[list[float], list[float]]:
    """How late each beat after the warm-up was, and how long of it the thread had no core."""
    beats = np.fromfile(path, np.uint32)
    beats = beats[: len(beats) // 3 * 3].reshape(-1, 3)
    late, waited = beats[beats[:, 0] >= warm_up_s, 1:].T / 1000
    return late.tolist(), waited.tolist()


def slope_kib_per_min(points: list[tuple[float, float]]) -> float | None:
    """Least squares through (s, MiB); None of fewer than three."""
    if len(points) < 3:
        return None
    seconds, mib = np.array(points).T
    return round(float(np.polyfit(seconds / 60, mib * 1024, 1)[0]), 1)


def _us_per_token(first: Counter[str], last: Counter[str], tokens: int) -> dict[str, float]:
    parts = {name: (ns - first[name]) / 1000 / tokens for name, ns in last.items()}
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    return {"all": round(sum(parts.values()), 2)} | {
        name: round(us, 3) for name, us in ranked if us >= 0.001
    }


def _cores(first: Counter[str], last: Counter[str], seconds: float) -> float:
    return round((last.total() - first.total()) / 1e9 / seconds, 3)
