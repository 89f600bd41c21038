"""A fault: functions that edit a server setting or a run before it is simulated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random

from lab.twins.simulated_run import SimulatedRun, Span
from lab.twins.traffic import Setting
from telemetry.facts.records import Fact


def _no_preparation(setting: Setting, draw: Random) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to cause one class of fault.

    `prepare` edits a healthy server's setting so that the fault can matter; `inject` is the fault
    itself, in a span of the run. A fault of the configuration has `misconfigure` instead: it
    turns a good setting into a bad one, given the facts of a run with the good one, and lasts
    from the start. `always` edits the setting of a server that was never better: there is no good
    run to compare with. `victims` gives the affected requests where only the facts show them.
    """

    prepare: Callable[[Setting, Random], None] = _no_preparation
    inject: Callable[[SimulatedRun, Span, Random], None] | None = None
    misconfigure: Callable[[Setting, Sequence[Fact], Random], None] | None = None
    always: Callable[[Setting, Random], None] | None = None
    victims: Callable[[Sequence[Fact], Collection[str]], frozenset[str]] | None = None


Mechanisms = dict[str, Fault]
"""Mechanisms of one class by name, the most common one first."""
