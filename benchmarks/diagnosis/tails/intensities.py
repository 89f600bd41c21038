"""The intensity of a fault of the tail on this machine, searched for before its episode.

What was found is kept in a file beside the episodes and serves the next rounds, as long as the
machine is the same, the search is younger than some hours, and the last episode with it hit its
clients as it should have; else it is searched for again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.machine import machine
from lab.drills.calibration.probe import Calibration, calibrate
from lab.drills.calibration.steps import BANDS, is_calm
from lab.drills.client import Sent
from lab.drills.harm import Harm, Level, Reached, reached
from lab.drills.mechanism import Mechanism
from lab.drills.outcome.result import EpisodeResult, reference_requests
from lab.drills.spec import EpisodeSpec

_FILE = "calibrated.json"
GOOD_FOR_S = 6 * 3600.0

Search = Callable[[Mechanism, Path], list[Calibration]]


class TailRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an episode of the series keeps of its intensity: the search before it, and what its own
    clients saw of the fault."""

    level: Level
    calibration: Calibration
    reached: Reached

    @property
    def is_of_its_level(self) -> bool:
        """Whether the clients were hit as hard as the level says, and were not before."""
        measure = self.reached.measure
        is_in_band = BANDS[measure, self.level].wide.has(self.reached.value)
        return is_in_band and is_calm(measure, self.reached.reference)


class _Entry(msgspec.Struct, frozen=True):
    at_s: float
    cpu: object
    found: list[Calibration]


class Intensities:
    """The searches of one series, in `folder`; `search` measures, on a real server."""

    def __init__(
        self, folder: Path, search: Search, now_s: Callable[[], float] = time.time
    ) -> None:
        self._path = folder / _FILE
        self._folder = folder
        self._search = search
        self._now_s = now_s
        self._cpu = machine()["cpu"]

    def of(self, mechanism: Mechanism, level: Level) -> Calibration:
        """From an earlier search, or a new one. Raises ConfigError, DidNotStart."""
        known = self._read()
        key = f"{mechanism.symptom}-{mechanism.name}"
        entry = known.get(key)
        if entry is None or not self._is_good(entry):
            entry = _Entry(self._now_s(), self._cpu, self._search(mechanism, self._folder))
            self._write({**known, key: entry})
        return next(one for one in entry.found if one.level == level)

    def forget(self, mechanism: Mechanism) -> None:
        """Search anew before the next episode of this mechanism."""
        known = self._read()
        known.pop(f"{mechanism.symptom}-{mechanism.name}", None)
        self._write(known)

    def _is_good(self, entry: _Entry) -> bool:
        return entry.cpu == self._cpu and self._now_s() - entry.at_s < GOOD_FOR_S

    def _read(self) -> dict[str, _Entry]:
        if not self._path.exists():
            return {}
        return msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Entry])

    def _write(self, known: dict[str, _Entry]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1))
        part.replace(self._path)


def search_on_server(say: Callable[[str], None], model: str | None = None) -> Search:
    """Both levels of a mechanism, on one server where that is possible."""

    def search(mechanism: Mechanism, folder: Path) -> list[Calibration]:
        spec = EpisodeSpec(
            symptom=mechanism.symptom, mechanism=mechanism.name, out=folder, model=model
        )
        say(f"searching for the intensities of {mechanism.symptom}-{mechanism.name}")
        return calibrate(spec, list(Level), say)

    return search


def reached_in(episode: EpisodeResult, harm: Harm, log: Sequence[Sent]) -> Reached:
    """What the clients of an episode saw of its fault, against its reference."""
    on_ns, off_ns = episode.label.on_ns, episode.label.off_ns
    assert on_ns is not None
    assert off_ns is not None
    reference = reference_requests(log, on_ns, episode.phases.reference_s)
    fault = [one for one in log if on_ns <= one.due_ns < off_ns]
    end_ns = max((one.end_ns or one.due_ns for one in log), default=off_ns)
    return reached(harm, reference, fault, max(end_ns, off_ns))
