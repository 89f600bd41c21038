"""A mechanism: one way to cause one symptom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.drills.harm import Harm
from lab.drills.injection import Injection
from lab.drills.outcome.conditions import LAG_LIMIT_MS, LONG_LAG_LIMIT_MS
from lab.drills.traffic import CHAT_MIX, Mix, PlannedRequest, Scene

DEV, TEST = "dev", "test"
TAILS, CHAINS, SOAK = "tails", "chains", "soak"


@dataclass(frozen=True, slots=True)
class Need:
    """Resources of the good server, for bad flags that give less."""

    blocks_total: int


def _no_injection(scene: Scene) -> Injection:
    return Injection()


def _no_flags(need: Need, level: float) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One way to cause `symptom`; `about` describes it in one sentence.

    `levels` of intensity are in `unit`s, weak to strong. `split` says what it is for: a second
    mechanism of a class is held out for the test. `harms` names measures of the clients that
    rise, empty where no request is delayed. `flags` are added to the server's base flags, `load`
    is the baseline utilisation of its capacity with `mix`.

    `clean` is the traffic of its healthy twin, where that differs from `traffic`. `files` writes
    what its servers need into a folder, for a model, and gives the flags that name it.

    A mechanism of a `series` of its own is in no other. Those of TAILS have a `tail`, the harm that
    their intensity is set by before an episode, between the gentle and the fierce of the `ends`.
    Those of CHAINS have the true `chain` of causes, first link first: `symptom`, then what that
    brings about.

    There are three kinds: `injection` acts on the running server while `traffic` flows;
    `bad_flags` are those of the server that takes over from a good one; `broken_model` makes a
    model file that a server fails to load. With `never_better` there is no good server before the
    one with `bad_flags`: the fault is there from the first request on.
    """

    symptom: str
    name: str
    split: str
    about: str
    unit: str
    levels: tuple[float, ...]
    harms: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    mix: Mix = CHAT_MIX
    load: float = 0.5
    traffic: Callable[[Scene], list[PlannedRequest]] = field(default=lambda scene: scene.baseline())
    clean: Callable[[Scene], list[PlannedRequest]] | None = None
    injection: Callable[[Scene], Injection] = _no_injection
    bad_flags: Callable[[Need, float], tuple[str, ...]] | None = None
    never_better: bool = False
    broken_model: Callable[[Path, Path, float], None] | None = None
    files: Callable[[Path, str | None], tuple[str, ...]] | None = None
    needs_collector: bool = False
    culprit_tenant: str | None = None
    series: str = ""
    tail: Harm | None = None
    ends: tuple[float, float] = (0.0, 0.0)
    chain: tuple[str, ...] = ()

    @property
    def is_fault(self) -> bool:
        return not self.symptom.startswith("healthy")

    @property
    def lag_limit_ms(self) -> float:
        """How late its clients may be at p99 for an episode to count. Where harm is measured in
        seconds, or by the 95th percentile, a hundredth hardly matters."""
        return LONG_LAG_LIMIT_MS if self.series in (TAILS, CHAINS, SOAK) else LAG_LIMIT_MS

    def adds(self, scene: Scene) -> bool:
        """Whether requests of culprits would not be there without the fault: all others are those
        of its healthy twin. If not, culprits are usual requests that the fault changes."""
        others = [request for request in self.traffic(scene) if not request.is_culprit]
        return others == self.without_fault().traffic(scene)

    def without_fault(self) -> Mechanism:
        """Its healthy twin: the same server under the same baseline requests, without the fault."""
        bad = None if self.bad_flags is None else _no_flags
        return replace(
            self,
            symptom=f"healthy_{self.symptom}",
            traffic=self.clean or self.traffic,
            injection=_no_injection,
            bad_flags=bad,
            culprit_tenant=None,
        )

    def level(self, wanted: float | None) -> float:
        """The given intensity, or the middle level."""
        return self.levels[len(self.levels) // 2] if wanted is None else wanted
