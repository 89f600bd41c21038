"""Accuracy of chains of causes on simulated servers: every mechanism, many seeds.

Each twin is diagnosed fact by fact. Its answer is the chain of the first finding that stood longest
in the second half of the fault; a finding without one answers with its own name. It is right when
it begins with the injected fault and has the links that this led to, in their order. A twin counts
only if these links came about.

    .venv/bin/python -m benchmarks.diagnosis.chains.twins [--seeds 20] [--first 1000]
        [--mechanisms A,B] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

from benchmarks.diagnosis.chains.scoring import is_right
from benchmarks.diagnosis.virtual.twins import live_through, standing
from benchmarks.machine import machine
from diagnosis.verdicts.classifier import Diagnosis
from lab.twins.chains import CHAINS, build_chain, has_come_about

RESULTS = Path(__file__).resolve().parents[2] / "results" / "diagnosis" / "twin_chains.json"


@dataclass(frozen=True, slots=True)
class JudgedChain:
    """One twin; `absent` are links of the truth that did not come about."""

    mechanism: str
    seed: int
    truth: tuple[str, ...]
    answer: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        return is_right(self.answer, self.truth)


def chain_of(said: Diagnosis) -> tuple[str, ...]:
    """Links of the first finding, which is its own only link where it has none."""
    if not said.findings:
        return ()
    top = said.findings[0]
    return tuple(link.symptom.value for link in top.chain) or (top.symptom.value,)


def judge_chain(task: tuple[str, int]) -> JudgedChain:
    name, seed = task
    one = build_chain(name, seed)
    assert one.onset_ns is not None, name
    assert one.end_ns is not None, name
    said = [(at_ns, chain_of(found)) for at_ns, found in live_through(one)]
    times = standing(said, (one.onset_ns + one.end_ns) // 2, one.end_ns)
    truth = CHAINS[name].links
    absent = tuple(link for link in truth[1:] if not has_come_about(link, one))
    answer = times.most_common(1)[0][0] if times else ()
    return JudgedChain(name, seed, truth, answer, absent)


def summary(judged: Sequence[JudgedChain]) -> dict[str, object]:
    counted = [one for one in judged if not one.absent]
    by_mechanism: dict[str, list[JudgedChain]] = defaultdict(list)
    for one in counted:
        by_mechanism[one.mechanism].append(one)
    wrong = Counter(
        f"{one.mechanism}: {' -> '.join(one.answer) or 'nothing'}"
        for one in counted
        if not one.is_right
    )
    return {
        "twins": len(judged),
        "counted": len(counted),
        "right": round(sum(one.is_right for one in counted) / max(1, len(counted)), 4),
        "first_link_right": round(
            sum(one.answer[:1] == one.truth[:1] for one in counted) / max(1, len(counted)), 4
        ),
        "by_mechanism": {
            name: [sum(one.is_right for one in ones), len(ones)]
            for name, ones in by_mechanism.items()
        },
        "wrong": dict(wrong.most_common()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--mechanisms", help="only these, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    names = args.mechanisms.split(",") if args.mechanisms else list(CHAINS)
    tasks = [(name, seed) for seed in range(args.first, args.first + args.seeds) for name in names]
    with Pool() as pool:
        judged = pool.map(judge_chain, tasks, chunksize=1)
    found = {"machine": machine(), **summary(judged)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if k != "machine"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
