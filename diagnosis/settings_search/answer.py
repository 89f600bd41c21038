"""The answer of a search: every SLO class as recorded, as replayed, and under the best settings."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from telemetry.facts.limits import LimitValue

SHEDDING = frozenset({"refuse_late", "queue_limit", "queue_limit_tokens", "tenant_queue_limit"})
"""Settings that refuse requests: they help others, and do not serve those that they refuse."""


class Form(StrEnum):
    """Why a promise is missed, by what would keep it."""

    IMPOSSIBLE = "impossible"  # most of the misses could not be met on an idle engine either
    ONE_CLASS = "one_class"  # exactly one of several classes misses, all others meet theirs
    MISCONFIGURED = "misconfigured"  # other settings meet it on the same machine
    AT_ITS_LIMIT = "at_its_limit"  # only more replicas meet it
    OUTSIDE = "outside"  # neither, or only what no replay has: the gateway, the network, clients


class Remedy(StrEnum):
    """The cheapest change that meets every objective, or recovers most of what is missing."""

    RUNTIME = "runtime"  # limits that can change while the server runs
    SETTINGS = "settings"  # settings that need a restart
    CAPACITY = "capacity"  # more replicas


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One changed setting, by the name that `/debug/limits` has for it, or else by that of a flag
    of `serve`. `was` is its value at the end of the window; `runtime` says whether
    `PUT /debug/limits` can change it."""

    name: str
    value: LimitValue
    was: LimitValue
    runtime: bool

    def __str__(self) -> str:
        return f"{self.name} {_shown(self.was)} -> {_shown(self.value)}"


class ClassForecast(msgspec.Struct, frozen=True, kw_only=True):
    """One SLO class over the window.

    `requests` are those that count for the objective: good ones and misses. `ttft_p95_ms` and
    `itl_p99_ms` are None without a first token, or without a gap between two.
    `late_first_tokens` are requests whose first token came, or has not come, after the target;
    `slow_tokens` are gaps longer than the target.
    """

    requests: int
    good_share: float
    ttft_p95_ms: float | None
    itl_p99_ms: float | None
    output_tokens_per_s: float
    late_first_tokens: int
    slow_tokens: int
    objective: float = 0.99

    @property
    def is_met(self) -> bool:
        """Whether the objective is met; with nothing to count it is."""
        return not self.requests or self.good_share >= self.objective

    @property
    def missed(self) -> int:
        """Requests that missed their SLO."""
        return round(self.requests * (1 - self.good_share))


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """All classes under `settings` (empty: as it is), with the demand divided by `replicas`."""

    settings: tuple[Setting, ...]
    replicas: int = 1
    classes: dict[str, ClassForecast]

    @property
    def is_met(self) -> bool:
        """Whether every class meets its objective."""
        return all(one.is_met for one in self.classes.values())

    @property
    def missed(self) -> int:
        return sum(one.missed for one in self.classes.values())

    @property
    def is_runtime(self) -> bool:
        """Whether the running server can be set so."""
        return self.replicas == 1 and all(setting.runtime for setting in self.settings)


class SettingsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the search found for a window of `window_s` seconds.

    `recorded` is what was measured, `present` the replay without a change: how far they are apart
    is how far a forecast may be off. `noise` is, by class, how much `good_share` differs for no
    reason. `best_runtime` and `best` are gains for one class without a loss beyond noise for any,
    by limits that can change at once, and by all settings; None without a gain. `capacity` has the
    fewest replicas that meet every objective. `impossible` says, by class, why requests cannot meet
    their target even alone, `impossible_missed` how many of its misses those are. `unknown` says,
    by setting, why it cannot be forecast from this record. `tried` replays took `cpu_s`.

    Where the replay begins with a `backlog` of requests that wait, `rested` is the present without
    them, and so are all other trials: under other settings they might not have piled up.
    """

    window_s: float
    present: Trial
    recorded: dict[str, ClassForecast]
    noise: dict[str, float]
    best_runtime: Trial | None
    best: Trial | None
    capacity: Trial | None
    impossible: dict[str, str]
    tried: int
    cpu_s: float
    impossible_missed: dict[str, int] = {}
    unknown: dict[str, str] = {}
    backlog: int = 0
    rested: Trial | None = None

    @property
    def compared(self) -> Trial:
        """What the other trials are compared with: the present, without the backlog."""
        return self.present if self.rested is None else self.rested

    @property
    def missing(self) -> tuple[str, ...]:
        """The classes that do not meet their objective as it is."""
        return tuple(name for name, one in self.compared.classes.items() if not one.is_met)

    @property
    def remedy(self) -> Remedy | None:
        """What would help; None where nothing is missing, or nothing that was tried helps."""
        if self.compared.is_met:
            return None
        if self._recovers(self.best_runtime):
            return Remedy.RUNTIME
        if self._recovers(self.best):
            return Remedy.SETTINGS
        return None if self.capacity is None else Remedy.CAPACITY

    @property
    def form(self) -> Form | None:
        """In which form the objectives are missed: the first that holds, in the order of `Form`.
        None where every objective is met."""
        if self.compared.is_met:
            is_met = self.present.is_met and all(one.is_met for one in self.recorded.values())
            return None if is_met else Form.OUTSIDE
        if 2 * sum(self.impossible_missed.values()) > self.compared.missed:
            return Form.IMPOSSIBLE
        counted = [one for one in self.compared.classes.values() if one.requests]
        if len(self.missing) == 1 and len(counted) > 1:
            return Form.ONE_CLASS
        match self.remedy:
            case Remedy.RUNTIME | Remedy.SETTINGS:
                return Form.MISCONFIGURED
            case Remedy.CAPACITY:
                return Form.AT_ITS_LIMIT
            case None:
                return Form.OUTSIDE

    def _recovers(self, trial: Trial | None) -> bool:
        """Whether all is met, or more than half of what is missing to the objectives is there, and
        not because others are refused."""
        if trial is None:
            return False
        sheds = any(setting.name in SHEDDING for setting in trial.settings)
        return trial.is_met or (not sheds and 2 * _beyond(trial) < _beyond(self.compared))


def _beyond(trial: Trial) -> float:
    """The share of the requests missed beyond the objective, summed over classes."""
    return sum(
        max(0.0, one.objective - one.good_share) for one in trial.classes.values() if one.requests
    )


def _shown(value: LimitValue) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case dict():
            return (
                ",".join(f"{name}={weight:g}" for name, weight in sorted(value.items())) or "none"
            )
        case _:
            return str(value)
