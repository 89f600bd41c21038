"""What a metric is made of: its kind, name, unit, help and labels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from telemetry.requests.phases import Measure


class Kind(StrEnum):
    """Prometheus metric types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. Counters are named without `_total`, which exposition adds.

    `otel` is its name in OTLP where that does not follow from `name`.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    measure: Measure | None = None
    bounds_s: tuple[float, ...] = ()
    otel: str = ""

    @property
    def unit(self) -> str:
        """The unit that ends the name, as OpenMetrics wants it; "" for a name without one."""
        last = self.name.rpartition("_")[2]
        return last if last in UNITS else ""

    @property
    def counted(self) -> str:
        """The unit or thing that is counted: the last word of the name in UNITS; "" without one."""
        words = [word for word in self.name.split("_") if word in UNITS]
        return words[-1] if words else ""

    @property
    def exposed(self) -> str:
        """The name of its samples in Prometheus text; a histogram's get suffixes."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    @property
    def otel_name(self) -> str:
        if self.otel:
            return self.otel
        name = self.name.replace("phasescope_", "phasescope.", 1)
        return name.removesuffix("_seconds")


UNITS = frozenset(
    ("seconds", "bytes", "tokens", "blocks", "requests", "sequences", "steps", "spans", "facts",
     "values", "points", "grammars", "outputs", "restarts", "pauses", "exports", "ratio",
     "adapters", "joules", "watts", "celsius", "hertz", "percent")
)  # fmt: skip
"""Words that say what is counted or measured."""


def _decades() -> tuple[float, ...]:
    """1, 2, 5 in each decade from 100 us to 500 s, in s; the first is below any p99."""
    return tuple(float(f"{step}e{power}") for power in range(-4, 3) for step in (1, 2, 5))


LATENCY_BOUNDS_S = _decades()
