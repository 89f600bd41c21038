"""A load generator's percentiles beside ours, over the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from telemetry.numbers.quantiles import quantile

SHARES = (0.5, 0.9, 0.95, 0.99)
AGREES_PCT = 3.0


@dataclass(frozen=True)
class Latency:
    """The latency of one request: to its first token, and a token after that on average; None for
    one token."""

    ttft_ns: float
    itl_ns: float | None


@dataclass(frozen=True)
class Row:
    """One percentile by both clocks."""

    measure: str
    share: float
    theirs_ns: float
    ours_ns: float

    @property
    def off_pct(self) -> float:
        """How much theirs is above ours, in percent of ours."""
        return 100 * (self.theirs_ns - self.ours_ns) / self.ours_ns

    @property
    def agrees(self) -> bool:
        return abs(self.off_pct) <= AGREES_PCT

    def as_json(self) -> dict[str, object]:
        return {
            "measure": self.measure,
            "percentile": 100 * self.share,
            "theirs_ms": round(self.theirs_ns / 1e6, 3),
            "ours_ms": round(self.ours_ns / 1e6, 3),
            "off_pct": round(self.off_pct, 2),
        }


def compare(theirs: Mapping[str, Latency], ours: Mapping[str, Latency]) -> list[Row]:
    """Percentiles of TTFT and ITL of the requests that the tool counted, by request id.

    ValueError if the server does not know one of them: percentiles of other requests say nothing.
    """
    missing = sorted(set(theirs) - set(ours))
    if missing or not theirs:
        raise ValueError(f"{len(missing)} of {len(theirs)} requests are not the server's")
    same = [(theirs[name], ours[name]) for name in theirs]
    pairs: dict[str, list[tuple[float | None, float | None]]] = {
        "ttft": [(a.ttft_ns, b.ttft_ns) for a, b in same],
        "itl": [(a.itl_ns, b.itl_ns) for a, b in same],
    }
    return [
        Row(measure, share, _at([a for a, _ in found], share), _at([b for _, b in found], share))
        for measure, found in pairs.items()
        for share in SHARES
    ]


def worst_request_pct(theirs: Mapping[str, Latency], ours: Mapping[str, Latency]) -> float:
    """The largest difference of one request's TTFT, in percent of ours."""
    return max(
        abs(one.ttft_ns - ours[name].ttft_ns) / ours[name].ttft_ns * 100
        for name, one in theirs.items()
    )


def _at(values: Sequence[float | None], share: float) -> float:
    known = [value for value in values if value is not None]
    found = quantile(known, share)
    assert found is not None, "no request has two tokens"
    return found
