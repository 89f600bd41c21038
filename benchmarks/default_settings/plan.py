"""What is measured on which server: the trials of a round, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from benchmarks.default_settings import figures, loads
from benchmarks.default_settings.figures import Figures
from benchmarks.default_settings.loads import Run
from lab.load.result import BenchResult

DEFAULT, OLD = "phasescope", "phasescope-old"
ONE_CLASS = "phasescope, one class"
LOADS = ("mix", "goodput", "closed", "tenants", "voice")
CAPACITY, VOICE_CAPACITY = "capacity", "voice capacity"


class Client(Protocol):
    """Puts runs on the server whose turn it is."""

    def run(self, run: Run, errors_count: bool = False) -> BenchResult: ...


Known = Callable[[str, str], float]
"""A figure of the default that was measured before: load and figure. Raises Unknown."""


class Unknown(Exception):
    """What a cell builds on was not measured; the message says what."""


@dataclass(frozen=True)
class Choice:
    """What the command line chose."""

    loads: tuple[str, ...]
    scale: float
    injected_every_s: float
    mix_servers: tuple[str, ...]
    goodput_servers: tuple[str, ...]
    lengths: tuple[str, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """One load of a round, and the labels of the cells that it gives. `once`: in one round."""

    load: str
    labels: tuple[str, ...]
    estimated_s: float
    measure: Callable[[Client, str, Known], Figures]
    once: bool = False


def server_of(label: str) -> str:
    """ONE_CLASS is the default, told of no classes."""
    return DEFAULT if label == ONE_CLASS else label


def servers_of(trials: list[Trial]) -> list[str]:
    return list(dict.fromkeys(server_of(label) for trial in trials for label in trial.labels))


def trials_of(choice: Choice) -> list[Trial]:
    """Capacity before the loads that are shares of it."""
    makers: dict[str, Callable[[Choice], Iterator[Trial]]] = {
        "mix": _mix, "goodput": _goodput, "closed": _closed, "tenants": _tenants, "voice": _voice,
    }  # fmt: skip
    return [trial for name in choice.loads for trial in makers[name](choice)]


def goodput_load(lengths: str, share: float) -> str:
    return f"goodput {lengths} {share:g}"


def _mix(choice: Choice) -> Iterator[Trial]:
    alone, mixed = loads.alone(), loads.mix(choice.scale, choice.injected_every_s)
    yield Trial(
        "alone", (DEFAULT,), alone.estimated_s,
        lambda client, label, known: figures.alone(client.run(alone)),
    )  # fmt: skip
    yield Trial(
        "mix", choice.mix_servers, mixed.estimated_s,
        lambda client, label, known: figures.mix(client.run(mixed)),
    )  # fmt: skip


def _goodput(choice: Choice) -> Iterator[Trial]:
    for name in choice.lengths:
        yield _capacity(name, choice.scale)
        for share in choice.shares:
            yield _share_of_capacity(name, share, choice)


def _capacity(name: str, scale: float) -> Trial:
    lengths = loads.LENGTHS[name]
    run = loads.saturation(lengths, scale)

    def measure(client: Client, label: str, known: Known) -> Figures:
        return figures.capacity(client.run(run, errors_count=True), lengths)

    return Trial(f"{CAPACITY} {name}", (DEFAULT,), run.estimated_s, measure)


def _share_of_capacity(name: str, share: float, choice: Choice) -> Trial:
    lengths = loads.LENGTHS[name]

    def measure(client: Client, label: str, known: Known) -> Figures:
        rate_per_s = share * known(f"{CAPACITY} {name}", "requests_per_s")
        run = loads.open_loop(lengths, rate_per_s, choice.scale)
        return figures.goodput(client.run(run, errors_count=True))

    estimated_s = loads.open_loop(lengths, 1.0, choice.scale).estimated_s
    return Trial(goodput_load(name, share), choice.goodput_servers, estimated_s, measure)


def _closed(choice: Choice) -> Iterator[Trial]:
    for name in loads.CLOSED:
        run = loads.closed(name, choice.scale)

        def measure(client: Client, label: str, known: Known, run: Run = run) -> Figures:
            return figures.closed(client.run(run))

        yield Trial(name, (DEFAULT, OLD), run.estimated_s, measure)


def _tenants(choice: Choice) -> Iterator[Trial]:
    quiet, flooded = (loads.tenants(flooded, choice.scale) for flooded in (False, True))

    def measure(client: Client, label: str, known: Known) -> Figures:
        return figures.tenants(client.run(quiet), client.run(flooded))

    estimated_s = quiet.estimated_s + flooded.estimated_s
    yield Trial("tenants", (DEFAULT, OLD), estimated_s, measure)


def _voice(choice: Choice) -> Iterator[Trial]:
    short, long = loads.voice_alone(choice.scale), loads.batch_alone()

    def capacity(client: Client, label: str, known: Known) -> Figures:
        return figures.voice_capacity(client.run(short), client.run(long))

    def measure(client: Client, label: str, known: Known) -> Figures:
        per_s, batch_s = (known(VOICE_CAPACITY, name) for name in ("requests_per_s", "batch_s"))
        run = loads.voice(per_s, batch_s, label != ONE_CLASS, choice.scale)
        return figures.voice(client.run(run), batch_s)

    estimated_s = short.estimated_s + long.estimated_s
    yield Trial(VOICE_CAPACITY, (DEFAULT,), estimated_s, capacity, once=True)
    estimated_s = loads.voice(5.0, 10.0, True, choice.scale).estimated_s
    yield Trial("voice", (DEFAULT, ONE_CLASS), estimated_s, measure)
