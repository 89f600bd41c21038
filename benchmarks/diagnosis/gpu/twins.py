"""Accuracy of the diagnosis on simulated servers with GPUs: every mechanism, many seeds.

There is no GPU: samples of NVML, device times, skew of ranks and XID errors are simulated, as is
what a driver does not measure. A twin is right if the finding that stood longest in the second half
of the fault is its symptom, and told if the claim or the culprit names what a GPU or rank said.

    .venv/bin/python -m benchmarks.diagnosis.gpu.twins [--seeds 20] [--first 1000] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import Pool
from pathlib import Path

from benchmarks.diagnosis.virtual.twins import HEALTHY, judge, live_through, stood_longest
from benchmarks.machine import machine
from lab.twins.faults.gpu_faults import GPU_FAULTS
from lab.twins.registry import build_gpu_twin

RESULTS = Path(__file__).resolve().parents[2] / "results" / "diagnosis" / "gpu_twins.json"
_AFTER_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class JudgedGpu:
    """One twin: what stood longest, and whether the device's words were in it."""

    mechanism: str
    seed: int
    truth: str
    named: list[str]
    is_told: bool

    @property
    def is_right(self) -> bool:
        return self.named[:1] == [self.truth]


def judge_gpu(task: tuple[str, int]) -> JudgedGpu:
    name, seed = task
    known, one = GPU_FAULTS[name], build_gpu_twin(name, seed)
    if one.onset_ns is None:
        return JudgedGpu(name, seed, HEALTHY, judge(one, HEALTHY).named, True)
    said = live_through(one)
    end_ns = one.end_ns or said[-1][0] + _AFTER_NS
    names = [(at_ns, tuple(f.symptom.value for f in found.findings)) for at_ns, found in said]
    named = stood_longest(names, (one.onset_ns + end_ns) // 2, end_ns)
    is_told = any(
        known.said in finding.claim or known.said in finding.culprits
        for at_ns, found in said
        if at_ns >= one.onset_ns
        for finding in found.findings
        if finding.symptom.value == known.symptom
    )
    return JudgedGpu(name, seed, known.symptom, named or [HEALTHY], is_told)


def summary(judged: Sequence[JudgedGpu]) -> dict[str, object]:
    by_mechanism: dict[str, list[JudgedGpu]] = defaultdict(list)
    for one in judged:
        by_mechanism[one.mechanism].append(one)
    return {
        "twins": len(judged),
        "top_1": round(sum(one.is_right for one in judged) / len(judged), 4),
        "told": round(sum(one.is_told for one in judged) / len(judged), 4),
        "by_mechanism": {
            name: [sum(one.is_right for one in ones), len(ones)]
            for name, ones in by_mechanism.items()
        },
        "wrong": [asdict(one) for one in judged if not (one.is_right and one.is_told)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    with Pool() as pool:
        judged = pool.map(judge_gpu, [(n, seed) for seed in seeds for n in GPU_FAULTS], chunksize=1)
    found = {"machine": machine(), **summary(judged)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if k != "machine"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
