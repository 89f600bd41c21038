"""What iterations cost, engine by engine: a journal may have runs of different models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lab.replay.iteration_cost import IterationCost, fit_iterations
from lab.replay.recorded import RecordedRun
from telemetry.facts.engine_start import ModelShape


class _Kind(NamedTuple):
    """What decides how long a step takes."""

    model: str
    backend: str
    dtype: str
    shape: ModelShape | None


def alike(run: RecordedRun, runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs whose engine is of the kind of `run`'s: model, backend, dtype and shape."""
    return [one for one in runs if _kind_of(one) == _kind_of(run)]


def costs_of(runs: Sequence[RecordedRun]) -> list[IterationCost]:
    """For each run the cost that is fitted to all runs like it. A run without sequences asks for
    none, and has that of another. Raises NotReplayable for too few steps."""
    served = {_kind_of(run): run for run in runs if run.sequences}
    fits = {kind: fit_iterations(alike(run, runs)) for kind, run in served.items()}
    another = next(iter(fits.values())) if fits else fit_iterations(runs)
    return [fits.get(_kind_of(run), another) for run in runs]


def _kind_of(run: RecordedRun) -> _Kind:
    started = run.started
    return _Kind(started.model, started.backend, started.dtype, started.shape)
