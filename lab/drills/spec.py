"""The specification of a drill: frozen, for the command line and for benchmarks.

Times in an episode are seconds from the start of its traffic; the four phases follow each other
without a gap. Stamps are nanoseconds of the clock that the server's facts use
(`telemetry.facts.clock`), so that label, clients' log and journal can be compared.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from service.config.settings import ConfigError

USERS = 8
"""Clients while capacity is measured, where nothing else is said."""


class Phase(StrEnum):
    """The phases of an episode; the fault is compared with the reference."""

    WARM_UP = "warm-up"
    REFERENCE = "reference"
    FAULT = "fault"
    RECOVERY = "recovery"


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """How long each phase lasts, in seconds."""

    warm_up_s: float = 20.0
    reference_s: float = 20.0
    fault_s: float = 25.0
    recovery_s: float = 15.0

    def validate(self) -> None:
        """Raise ConfigError for an impossible length."""
        lengths = (self.warm_up_s, self.reference_s, self.fault_s, self.recovery_s)
        if min(lengths) < 0 or not self.reference_s or not self.fault_s:
            raise ConfigError(
                "--reference and --fault must be positive, the other phases 0 or more"
            )

    @property
    def reference_at_s(self) -> float:
        return self.warm_up_s

    @property
    def fault_at_s(self) -> float:
        return self.warm_up_s + self.reference_s

    @property
    def recovery_at_s(self) -> float:
        return self.fault_at_s + self.fault_s

    @property
    def end_s(self) -> float:
        return self.recovery_at_s + self.recovery_s

    def of(self, at_s: float) -> Phase:
        """The phase at a time."""
        if at_s < self.reference_at_s:
            return Phase.WARM_UP
        if at_s < self.fault_at_s:
            return Phase.REFERENCE
        return Phase.FAULT if at_s < self.recovery_at_s else Phase.RECOVERY

    def span_s(self, phase: Phase) -> tuple[float, float]:
        """When a phase begins and ends."""
        edges = (0.0, self.reference_at_s, self.fault_at_s, self.recovery_at_s, self.end_s)
        place = list(Phase).index(phase)
        return edges[place], edges[place + 1]


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Measured throughput of a server with one mix of requests and so many clients, each with one
    request at a time."""

    requests_per_s: float
    tokens_per_s: float


class EpisodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One episode. `mechanism` None is the first one of the class, `intensity` None the middle
    of its levels, `model` None the default model; `capacity` None: measured, or taken from
    an earlier episode below `out`, with `capacity_users` clients. `clean` runs its healthy twin:
    the same baseline requests and no fault. `flags` are added to those of every server."""

    symptom: str
    mechanism: str | None = None
    intensity: float | None = None
    seed: int = 0
    model: str | None = None
    weights: str = "int8"
    phases: Phases = Phases()
    out: Path = Path("drills")
    capacity: Capacity | None = None
    capacity_s: float = 12.0
    capacity_users: int = USERS
    clean: bool = False
    flags: tuple[str, ...] = ()

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        self.phases.validate()
        if self.intensity is not None and self.intensity <= 0:
            raise ConfigError("--intensity must be positive")
        if self.seed < 0:
            raise ConfigError("--seed must not be negative")

    def base_flags(self) -> tuple[str, ...]:
        """Flags of every server of the episode: one thread, steps that stay short."""
        sizes = ("--threads", "1", "--max-num-seqs", "16", "--max-batched-tokens", "128")
        if self.model is not None and self.model.startswith("dummy:"):
            return ("--model", self.model, *sizes, *self.flags)
        model = () if self.model is None else ("--model", self.model)
        return (*model, *sizes, "--weights", self.weights, "--max-model-len", "2048", *self.flags)
