"""A mechanism: one way to bring about one class of trouble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from service.drill.injection import Injection
from service.drill.traffic import CHAT_MIX, Ask, Mix, Scene

DEV, TEST = "dev", "test"


@dataclass(frozen=True, slots=True)
class Need:
    """What the good server used of its cache, for servers that are to have too little."""

    blocks_p75: int
    blocks_total: int


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One way to bring about `symptom`, told in one sentence by `about`.

    `levels` of intensity are in `unit`s, weak to strong. `split` says what it is for: a second
    mechanism of a class is held out for the test. `harms` names measures of the clients that
    rise, empty where nobody is made late. `flags` are the server's beside the usual ones, `load`
    the usual utilisation of what that server can do with `mix`.

    One of three things is done: `injection` acts on the running server while `traffic` flows;
    `bad_flags` are those of the server that takes over from a good one; `broken_model` makes the
    model file that a server is to fail on.
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
    traffic: Callable[[Scene], list[Ask]] = field(default=lambda scene: scene.usual())
    injection: Callable[[Scene], Injection] = field(default=lambda scene: Injection())
    bad_flags: Callable[[Need, float], tuple[str, ...]] | None = None
    broken_model: Callable[[Path, Path, float], None] | None = None
    needs_collector: bool = False
    culprit_tenant: str | None = None

    @property
    def is_fault(self) -> bool:
        return not self.symptom.startswith("healthy")

    def level(self, wanted: float | None) -> float:
        """The intensity asked for, or the middle one."""
        return self.levels[len(self.levels) // 2] if wanted is None else wanted
