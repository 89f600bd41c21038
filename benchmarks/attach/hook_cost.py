"""What the hooks in vLLM's engine core cost a step, in CPU time of the engine's own thread.

    python -m benchmarks.attach.hook_cost [--rows 64] [--steps 400] [--most-us 500]

vLLM's own scheduler plans and commits steps of so many decode rows over a model that is a counter,
with and without the hooks, turn by turn. The cost is the difference of the medians. It fails if
that is above `--most-us`, or if a fact was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.peers.layout import REPOSITORY, Layout, default_root
from tests_engines.environments import NEWEST, environment

_RESULT = REPOSITORY / "benchmarks" / "results" / "attach" / "hook_cost.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="What the hooks in vLLM's core cost a step.")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--most-us", type=float, default=500.0)
    parser.add_argument("--out", type=Path, default=_RESULT)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(_measure(args.rows, args.steps)))
        return 0
    found = environment(Layout(default_root()), NEWEST)
    command = [str(found.python), "-m", "benchmarks.attach.hook_cost", "--inside"]
    command += ["--rows", str(args.rows), "--steps", str(args.steps)]
    variables = {**os.environ, **found.variables, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        command, env=variables, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True
    )
    result = json.loads(done.stdout.splitlines()[-1])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    if result["cost_us"] > args.most_us or result["lost_facts"]:
        print(f"hooks cost more than {args.most_us} us a step, or lost facts", file=sys.stderr)
        return 1
    return 0


def _measure(rows: int, steps: int) -> dict[str, object]:
    """Runs in vLLM's environment."""
    from service.attach.inside import plugin
    from tests.attach.sidecar import Sidecar
    from tests_engines.on_vllm.world import World

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "attach.sock"
        sidecar = Sidecar(path)
        os.environ["PHASESCOPE_ATTACH"] = str(path)
        plugin.register()
        worlds = []
        for observed in (True, False):
            world = World(seqs=rows, budget=2048, blocks=rows * 40, observed=observed)
            for number in range(rows):
                prompt = range(1_000 * number + 10, 1_000 * number + 20)
                world.add(f"r{number}", prompt, max_tokens=480)
            worlds.append(world)
        with_hooks, without = _turns(worlds, min(steps, 450))
        worlds[0].scheduler.shutdown()
        said = sidecar.accept()
        said.read_to_end()
        sidecar.close()
    with_us, without_us = (statistics.median(one) / 1000 for one in (with_hooks, without))
    return {
        "vllm": os.environ["PHASESCOPE_TEST_VLLM"],
        "rows": rows,
        "steps": len(without),
        "with_us": round(with_us, 1),
        "without_us": round(without_us, 1),
        "cost_us": round(with_us - without_us, 1),
        "lost_facts": said.lost_facts,
    }


def _turns(worlds: list[object], steps: int) -> tuple[list[int], list[int]]:
    """CPU time in ns of each turn of each world; the first turns, with prompts, are left out."""
    spent: tuple[list[int], list[int]] = ([], [])
    for step in range(steps):
        for world, times in zip(worlds, spent, strict=True):
            begin = time.thread_time_ns()
            world.turn()  # type: ignore[attr-defined]
            if step >= 10:
                times.append(time.thread_time_ns() - begin)
    return spent


if __name__ == "__main__":
    sys.exit(main())
