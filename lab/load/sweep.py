"""A sweep: the same bench at several rates, to find the highest that meets the SLO.

The rate (or the number of users) doubles until some class meets its SLO for less than the
target share of its requests, then the interval is bisected. The knee is the highest value found
at which every class reached the target. In an open loop the share of requests that met their SLO
is goodput over offered load: 0.9 means that nine tenths of the offered requests were good.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from lab.load.result import SCHEMA_VERSION, BenchResult
from lab.load.run import OnProgress, run_bench
from lab.load.spec import Arrivals, BenchSpec, Interval, Poisson, Users, validate
from service.config.settings import ConfigError
from telemetry.facts.clock import Clock

_HALVINGS = 4

Attempt = Callable[[float], bool]


class Over(StrEnum):
    """The quantity that a sweep raises."""

    RATE = "rate"
    USERS = "users"


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`bench` without its common arrivals. Those are set to `first`, twice that, and so on up to
    `last`, and then to `bisections` values between the last good and the first bad one. A rate
    with fewer than `least_requests` in the bench's duration runs longer."""

    bench: BenchSpec
    over: Over = Over.RATE
    first: float = 1.0
    last: float = 256.0
    bisections: int = 4
    target: float = 0.9
    least_requests: int = 20


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One value and its result. `kept` is whether every class reached the target."""

    value: float
    kept: bool
    result: BenchResult


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """All cells by value. `knee` None: not even the lowest value was good. `bounded` False: the
    highest value was good too, so the knee is somewhere above it."""

    schema_version: int = SCHEMA_VERSION
    partial: bool
    over: Over
    target: float
    knee: float | None
    bounded: bool
    cells: tuple[Cell, ...]


class _Interrupted(Exception):
    """The run at one value was interrupted, so its result is not used."""


def run_sweep(
    spec: SweepSpec,
    on_cell: Callable[[Cell], None] | None = None,
    on_progress: OnProgress | None = None,
    clock: Clock | None = None,
) -> SweepResult:
    """Raises ConfigError and BenchError as `run_bench` does. An interrupt keeps results."""
    validate_sweep(spec)
    cells: list[Cell] = []

    def attempt(value: float) -> bool:
        result = run_bench(_bench_at(spec, value, len(cells)), on_progress, clock)
        if result.partial:
            raise _Interrupted
        cell = Cell(value=value, kept=kept(result, spec.target), result=result)
        cells.append(cell)
        if on_cell is not None:
            on_cell(cell)
        return cell.kept

    partial = False
    try:
        find_knee(spec, attempt)
    except _Interrupted:
        partial = True
    cells.sort(key=lambda cell: cell.value)
    bad = min((cell.value for cell in cells if not cell.kept), default=None)
    good = [cell.value for cell in cells if bad is None or cell.value < bad]
    return SweepResult(
        partial=partial,
        over=spec.over,
        target=spec.target,
        knee=max(good, default=None),
        bounded=bad is not None,
        cells=tuple(cells),
    )


def find_knee(spec: SweepSpec, attempt: Attempt) -> None:
    """Call `attempt` with values until the knee lies between two neighbours."""
    good, bad = _bracket(spec, attempt)
    if good is None or bad is None:
        return
    for _ in range(spec.bisections):
        middle = _rounded(spec, (good + bad) / 2)
        if not good < middle < bad:
            return
        if attempt(middle):
            good = middle
        else:
            bad = middle


def kept(result: BenchResult, target: float) -> bool:
    """Whether every class met its SLO for the target share of its requests; a class without counted
    requests is left out."""
    shares = [one.slo_attained for one in result.classes if one.slo_attained is not None]
    return bool(shares) and min(shares) >= target


def validate_sweep(spec: SweepSpec) -> None:
    """Raise ConfigError if the sweep cannot be run."""
    if not 0 < spec.target <= 1:
        raise ConfigError("--target must be above 0 and at most 1")
    if not 0 < spec.first <= spec.last:
        raise ConfigError("--from must be positive and not above --to")
    if spec.over is Over.USERS and spec.first < 1:
        raise ConfigError("--from must be at least 1 user")
    if spec.bisections < 0:
        raise ConfigError("--bisections must not be negative")
    if spec.least_requests < 1:
        raise ConfigError("--least-requests must be at least 1")
    if not any(any(msgspec.structs.astuple(one.slo)) for one in spec.bench.classes):
        raise ConfigError("a sweep needs an SLO: give --slo ttft_ms=..., or targets for each class")
    validate(_bench_at(spec, spec.first, 0))


def _bracket(spec: SweepSpec, attempt: Attempt) -> tuple[float | None, float | None]:
    """The last good and the first bad value of the doubling; if the first value is bad
    already, of halving it a few times."""
    value = _rounded(spec, spec.first)
    if attempt(value):
        good = value
        while good < spec.last:
            value = min(2 * good, spec.last)
            if not attempt(value):
                return good, value
            good = value
        return good, None
    bad = value
    for _ in range(_HALVINGS):
        value = _rounded(spec, bad / 2)
        if not 0 < value < bad:
            break
        if attempt(value):
            return value, bad
        bad = value
    return None, bad


def _rounded(spec: SweepSpec, value: float) -> float:
    return float(int(value)) if spec.over is Over.USERS else value


def _bench_at(spec: SweepSpec, value: float, number: int) -> BenchSpec:
    """The bench at one value. Each value has other prompts, of the same lengths."""
    common = spec.bench.arrivals
    arrivals: Arrivals
    if spec.over is Over.USERS:
        arrivals = Users(int(value))
    elif isinstance(common, Interval):
        arrivals = Interval(common.burst / value, common.burst)
    else:
        arrivals = Poisson(value, common.burst if isinstance(common, Poisson) else 1)
    salt = None if spec.bench.salt is None else spec.bench.salt + number
    duration_s = spec.bench.duration_s
    if duration_s is not None and spec.over is Over.RATE:
        duration_s = max(duration_s, spec.least_requests / value)
    return msgspec.structs.replace(spec.bench, arrivals=arrivals, salt=salt, duration_s=duration_s)
