"""What is to be different in a recorded fleet, as `name=value`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.simulation.settings import SETTINGS, Setting, changed_fields
from service.config.settings import ConfigError
from service.engine.admission import Limits
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import RoutingPolicy

MOST_ENGINES = 1_000
MOST_AGE_MS = 3_600_000
_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChange:
    """Nothing by default. `engines` are how many serve; of them `prefill` compute prompts for
    `decode` others, which then are all. Reports come `signal_age_ns` later than they did.
    `link_bytes_per_ns` is how fast KV goes from one engine to another. `limits` are those of every
    engine, as `serve` has them."""

    engines: int | None = None
    prefill: int | None = None
    decode: int | None = None
    policy: RoutingPolicy | None = None
    load_bound: float | None = None
    harm_weight: float | None = None
    signal_age_ns: int = 0
    link_bytes_per_ns: float = 1.0
    limits: tuple[str, ...] = ()

    @property
    def is_apart(self) -> bool:
        return self.prefill is not None

    def routing(self, settings: RoutingSettings) -> RoutingSettings:
        changed = {
            name: getattr(self, name)
            for name in ("policy", "load_bound", "harm_weight")
            if getattr(self, name) is not None
        }
        return replace(settings, **changed)

    def of_limits(self, limits: Limits) -> Limits:
        """Raises ConfigError."""
        try:
            return replace(limits, **changed_fields(self.limits))
        except AssertionError as error:
            raise ConfigError(f"--set {' '.join(self.limits)}: {error}") from error


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MOST_ENGINES:
        raise ValueError(text)
    return value


def _within(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return read


def _age_ns(text: str) -> int:
    return round(_within(0, MOST_AGE_MS)(text) * _MS)


_NAMES = (
    Setting("engines", "engines", _count, f"how many engines, up to {MOST_ENGINES}"),
    Setting("prefill", "prefill", _count, "engines that compute prompts for the others"),
    Setting("decode", "decode", _count, "engines that generate from such prompts"),
    Setting("policy", "policy", RoutingPolicy, ", ".join(RoutingPolicy)),
    Setting("load_bound", "load_bound", _within(1, 1e6), "of prefix_affinity, 1 to 1000000"),
    Setting("harm_weight", "harm_weight", _within(0, 1e6), "of least_finish, 0 to 1000000"),
    Setting("signal_age_ms", "signal_age_ns", _age_ns, f"up to {MOST_AGE_MS} more for reports"),
    Setting("link_gb_per_s", "link_bytes_per_ns", _within(1e-6, 1e6),
            "GB/s of KV from engine to engine, 0.000001 to 1000000"),
)  # fmt: skip
_BY_NAME = {one.name: one for one in _NAMES}


def change_of(words: Sequence[str]) -> FleetChange:
    """The change that `name=value` words say: those above, and the limits of engines. Raises
    ConfigError."""
    values: dict[str, Any] = {}
    limits: list[str] = []
    for word in words:
        name, equals, text = word.partition("=")
        known = _BY_NAME.get(name.strip().replace("-", "_"))
        if known is None:
            limits.append(word)
            continue
        try:
            values[known.limit] = known.read(text.strip()) if equals else known.read("")
        except ValueError:
            raise ConfigError(f"--set {word}: wanted {known.meaning}") from None
    if any(_name_of(word) not in {one.name for one in SETTINGS} for word in limits):
        names = ", ".join([*_BY_NAME, *(one.name for one in SETTINGS)])
        raise ConfigError(
            f"--set {' '.join(limits)}: give NAME=VALUE, where NAME is one of {names}"
        )
    changed_fields(limits)
    found = FleetChange(**values, limits=tuple(limits))
    if (found.prefill is None) != (found.decode is None):
        raise ConfigError("--set prefill=N and --set decode=N go together")
    if found.is_apart and found.engines is not None:
        raise ConfigError("--set engines=N: with prefill=N and decode=N these are all engines")
    return found


def _name_of(word: str) -> str:
    return word.partition("=")[0].strip().replace("-", "_")
