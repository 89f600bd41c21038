"""All mechanisms, by class and name."""

from __future__ import annotations

from collections.abc import Iterator

from lab.drills.mechanism import CHAINS, DEV, SOAK, TAILS, TEST, Mechanism
from lab.drills.mechanisms.adapters import ADAPTERS
from lab.drills.mechanisms.compounds import COMPOUNDS
from lab.drills.mechanisms.demand import DEMAND
from lab.drills.mechanisms.failures import FAILURES
from lab.drills.mechanisms.health import HEALTH
from lab.drills.mechanisms.limits import LIMITS
from lab.drills.mechanisms.machine import MACHINE
from lab.drills.mechanisms.promises import PROMISES
from lab.drills.mechanisms.readers import READERS
from lab.drills.mechanisms.tails import TAIL_MECHANISMS
from lab.drills.mechanisms.work import WORK
from service.config.settings import ConfigError

_USUAL = (*DEMAND, *LIMITS, *MACHINE, *WORK, *ADAPTERS, *READERS, *FAILURES, *PROMISES)
# those of a series of their own come last, so that the first of a class stays what it is
MECHANISMS: tuple[Mechanism, ...] = (*_USUAL, *TAIL_MECHANISMS, *COMPOUNDS, *HEALTH)


def symptoms() -> list[str]:
    """Every class of fault that has a drill, the healthy ones included, each once."""
    return list(dict.fromkeys(mechanism.symptom for mechanism in MECHANISMS))


def mechanisms_of(symptom: str) -> list[Mechanism]:
    """The mechanisms of one class, the one for development first. Raises ConfigError."""
    found = [mechanism for mechanism in MECHANISMS if mechanism.symptom == symptom]
    if not found:
        raise ConfigError(f"there is no drill {symptom!r}; choose one of {', '.join(symptoms())}")
    return found


def find(symptom: str, name: str | None = None) -> Mechanism:
    """One mechanism; without a name the first of the class. Raises ConfigError."""
    found = mechanisms_of(symptom)
    if name is None:
        return found[0]
    for mechanism in found:
        if mechanism.name == name:
            return mechanism
    names = ", ".join(mechanism.name for mechanism in found)
    raise ConfigError(f"{symptom} has no mechanism {name!r}; choose one of {names}")


def of_split(split: str) -> Iterator[Mechanism]:
    """One mechanism of each class: of that split, or the first where the class has none of it."""
    assert split in (DEV, TEST), split
    for symptom in symptoms():
        found = [one for one in mechanisms_of(symptom) if not one.series]
        yield next((one for one in found if one.split == split), found[0])


def of_series(series: str) -> list[Mechanism]:
    """All mechanisms of a series of their own."""
    assert series in (TAILS, CHAINS, SOAK), series
    return [one for one in MECHANISMS if one.series == series]


def lines() -> list[str]:
    """A table of all mechanisms, for people."""
    found = [f"{'class':<21} {'mechanism':<19} {'levels':<22} what is done"]
    for one in MECHANISMS:
        levels = f"{', '.join(f'{level:g}' for level in one.levels)} {one.unit}"
        found.append(f"{one.symptom:<21} {one.name:<19} {levels:<22} {one.about}")
    return found
