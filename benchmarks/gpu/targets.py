"""What this project wants of a GPU, beside what a run has measured of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.gpu.abba import ON
from benchmarks.gpu.budget import Path, get_at
from benchmarks.gpu.sizes import SHAPES

_SHARES = (
    ("llama-8b", 1, 0.80),
    ("llama-8b", 64, 0.75),
    ("llama-8b", 256, 0.65),
    ("llama-1b", 1, 0.50),
)
_PREFILL_SHARE = 0.55
_TIMES_TRANSFORMERS = 1.3
_TELEMETRY_PERCENT = 1.0
_BUSY = 0.97
_TRAFFIC_OFF_BY = 0.15

Pick = Callable[[Any], float | None]


@dataclass(frozen=True, slots=True)
class Target:
    """`measured` None says that it was not measured, for the reason `why`: it is then neither met
    nor missed."""

    name: str
    measured: float | None
    limit: float
    at_most: bool
    why: str | None

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def as_dict(self) -> dict[str, Any]:
        sign = "<=" if self.at_most else ">="
        return {
            "name": self.name,
            "measured": self.measured,
            "limit": f"{sign} {self.limit:g}",
            "met": self.met,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class _Wanted:
    """`pick` finds the number in the result of the part at `path`."""

    name: str
    path: Path
    pick: Pick
    limit: float
    at_most: bool = False

    def beside(self, found: dict[str, Any]) -> Target:
        measured, why = None, None
        result = get_at(found, self.path)
        if found.get("stand_in"):
            why = "a CPU stood in"
        elif result is None:
            why = _reason(found, self.path)
        else:
            measured = self.pick(result)
            if measured is None:
                why = result.get("why") if isinstance(result, dict) else None
                why = why or "not among what was measured"
        return Target(self.name, measured, self.limit, self.at_most, why)


def targets(found: dict[str, Any]) -> list[Target]:
    return [wanted.beside(found) for wanted in _WANTED]


def _reason(found: dict[str, Any], path: Path) -> str:
    """Why a part has no result."""
    name = "/".join(path)
    reasons = [part["reason"] for part in found.get("parts", ()) if part["name"] == name]
    return reasons[-1] if reasons and reasons[-1] else "not measured"


# --- where the numbers are -----------------------------------------------------------------


def _decode(field: str, batch: int, rows: list[dict[str, Any]]) -> float | None:
    """A field of the row with the shortest context."""
    fitting = [row for row in rows if row["batch"] == batch]
    row = min(fitting, key=lambda one: int(one["context"]), default=None)
    return None if row is None else row[field]


def _prefill_share(rows: list[dict[str, Any]]) -> float | None:
    """The share of the row with the most tokens."""
    row = max(rows, key=lambda one: int(one["tokens"]), default=None)
    return None if row is None else row["share"]


def _times(result: dict[str, Any]) -> float | None:
    times: float | None = result["times"]
    return times


def _telemetry(measure: str, loads: list[dict[str, Any]]) -> float | None:
    """The cost in percent of the most expensive load."""
    costs = [float(load["cost_percent"][ON][measure]["percent"]) for load in loads]
    return max(costs, default=None)


def _busy_with_telemetry(loads: list[dict[str, Any]]) -> float | None:
    """The device's busy share at the largest batch, with telemetry."""
    load = max(loads, key=lambda one: int(one["batch"]), default=None)
    return None if load is None else load["device_busy"][ON]


def _off_by(result: dict[str, Any]) -> float | None:
    ratio = result["measured_over_modelled"]
    return None if ratio is None else abs(ratio - 1)


def _engine(shape: str, part: str) -> Path:
    return ("engine", shape, part)


_WANTED = (
    *(
        _Wanted(
            f"{shape}, decode of {batch}: share of the copy bandwidth",
            _engine(shape, "decode"), partial(_decode, "share", batch), limit,
        )
        for shape, batch, limit in _SHARES
    ),
    _Wanted(
        "llama-8b, prefill: share of the matrix peak",
        _engine("llama-8b", "prefill"), _prefill_share, _PREFILL_SHARE,
    ),
    *(
        _Wanted(
            f"{shape}: tokens/s over those of transformers",
            ("transformers", shape), _times, _TIMES_TRANSFORMERS,
        )
        for shape in SHAPES
    ),
    *(
        _Wanted(
            f"llama-1b: cost of telemetry, {label} (%)",
            _engine("llama-1b", "telemetry"), partial(_telemetry, measure), _TELEMETRY_PERCENT,
            at_most=True,
        )
        for label, measure in (("throughput", "throughput"), ("ITL p99", "step_p99"))
    ),
    _Wanted(
        "llama-8b, decode of 64: device busy",
        _engine("llama-8b", "decode"), partial(_decode, "busy", 64), _BUSY,
    ),
    _Wanted(
        "llama-1b, telemetry on: device busy",
        _engine("llama-1b", "telemetry"), _busy_with_telemetry, _BUSY,
    ),
    _Wanted(
        "llama-8b, decode of 64: memory traffic, counted beside modelled, off by",
        _engine("llama-8b", "counters"), _off_by, _TRAFFIC_OFF_BY, at_most=True,
    ),
)  # fmt: skip
