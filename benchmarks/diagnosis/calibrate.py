"""Calibration of confidence: fits and checks the constants of `diagnosis/verdicts/confidence.py`.

Simulated servers with one fault and with two are diagnosed. Each tick each finding is a sample: its
share of the harm, the length of the window, and whether that fault was there. Even seeds fit the
curve, odd ones check it: the expected calibration error is the mean difference of confidence and
accuracy over ten bins, weighted by their samples.

    .venv/bin/python -m benchmarks.diagnosis.calibrate [--seeds 12] [--first 3000] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.diagnosis.virtual.twins import HEALTHY, live_through
from benchmarks.machine import machine
from diagnosis.thresholds import FITTED
from diagnosis.verdicts.confidence import features_of
from lab.twins.compounds import COMPOUNDS, build_compound
from lab.twins.registry import TWINS, build_twin
from lab.twins.twin import Twin

RESULTS = Path(__file__).resolve().parents[1] / "results" / "diagnosis" / "calibration.json"
_BINS = 10
_ROUNDS = 30
_RIDGE = 1e-3


class Sample(NamedTuple):
    """One finding of one tick."""

    share: float
    seconds: float
    was_so: bool
    seed: int


def samples_of(one: Twin, truths: Sequence[str]) -> list[Sample]:
    """All findings from charged time."""
    found: list[Sample] = []
    for at_ns, said in live_through(one):
        during = one.onset_ns is not None and at_ns >= one.onset_ns
        if one.end_ns is not None and at_ns > one.end_ns:
            break
        for finding in said.findings:
            if finding.share:
                was_so = during and finding.symptom.value in truths
                found.append(Sample(finding.share, said.window_ns / 1e9, was_so, one.seed))
    return found


def of_class(task: tuple[str, int]) -> list[Sample]:
    name, seed = task
    mechanisms = TWINS[name]
    twin = build_twin(name, seed, mechanisms[seed % len(mechanisms)])
    return samples_of(twin, () if name.startswith(HEALTHY) else (name,))


def of_pair(task: tuple[tuple[str, str], int]) -> list[Sample]:
    names, seed = task
    return samples_of(build_compound(names, seed), names)


def fit(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Logistic regression by Newton's method, with a small ridge penalty."""
    x = np.array([features_of(one.share, one.seconds) for one in samples])
    y = np.array([one.was_so for one in samples], dtype=float)
    weights = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        told = 1 / (1 + np.exp(-x @ weights))
        slope = x.T @ (y - told) - _RIDGE * weights
        curve = (x * (told * (1 - told))[:, None]).T @ x + _RIDGE * np.eye(len(weights))
        weights = weights + np.linalg.solve(curve, slope)
    return tuple(round(float(one), 3) for one in weights)


def told(samples: Sequence[Sample], weights: Sequence[float]) -> np.ndarray:
    """(samples,) confidence by the curve."""
    x = np.array([features_of(one.share, one.seconds) for one in samples])
    found: np.ndarray = 1 / (1 + np.exp(-x @ np.array(weights)))
    return found


def calibration_error(said: np.ndarray, was_so: np.ndarray) -> float:
    """Expected calibration error over tenths."""
    places = np.minimum((said * _BINS).astype(int), _BINS - 1)
    total = 0.0
    for place in range(_BINS):
        mine = places == place
        if mine.any():
            total += mine.sum() * abs(float(said[mine].mean()) - float(was_so[mine].mean()))
    return total / max(1, len(said))


def report(samples: Sequence[Sample]) -> dict[str, object]:
    fitting = [one for one in samples if one.seed % 2 == 0]
    held = [one for one in samples if one.seed % 2]
    weights = fit(fitting)
    was_so = np.array([one.was_so for one in held], dtype=float)
    shares = np.array([one.share for one in held])
    return {
        "samples": len(fitting),
        "held_out_samples": len(held),
        "coefficients": weights,
        "in_use": FITTED,
        "error_of_the_share": round(calibration_error(shares, was_so), 4),
        "error_fitted": round(calibration_error(told(held, weights), was_so), 4),
        "error_in_use": round(calibration_error(told(held, FITTED), was_so), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first", type=int, default=3000, help="the first seed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    singles = [(name, seed) for seed in seeds for name in TWINS]
    pairs = [(names, seed) for seed in seeds for names in COMPOUNDS]
    samples: list[Sample] = []
    with Pool() as pool:
        for number, found in enumerate(pool.imap(of_class, singles), 1):
            samples += found
            if number % 24 == 0:
                print(f"  {number} of {len(singles)}", flush=True)
        for number, found in enumerate(pool.imap(of_pair, pairs), 1):
            samples += found
            if number % len(COMPOUNDS) == 0:
                print(f"  {number} of {len(pairs)} pairs", flush=True)
    found_all = {"machine": machine(), "seeds": [seeds.start, seeds.stop], **report(samples)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found_all, indent=1) + "\n")
    print(json.dumps(found_all, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
