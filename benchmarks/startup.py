"""From `phasescope serve` to the first token, stage by stage, on a warm cache.

Starts the server so many times, asks it for one token as soon as it says that it is ready,
and reads what the start was made of from `/debug/startup`. With `--vs PATH` another checkout
is started in turns with this one; a checkout without that route shows its totals only. One
start of each comes first and is not counted: it warms the page cache and Python's own.

    .venv/bin/python -m benchmarks.startup [--times 7] [--vs ../other] [--model dummy:tiny]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from lab.load.processes import ended, free_port

HERE = Path(__file__).resolve().parent.parent
PROMPT = "The capital of France is"
TOTALS = ("ready", "first token", "first token after ready")
START_TIMEOUT_S, STOP_WITHIN_S = 300, 60.0


@dataclass
class Start:
    """One start; all times in seconds from the creation of the process."""

    checkout: str
    number: int
    ready_s: float
    first_token_s: float
    stages_s: dict[str, float] = field(default_factory=dict)
    beside_s: dict[str, float] = field(default_factory=dict)

    def rows(self) -> dict[str, float]:
        """Everything that the table shows, in its order."""
        after_s = self.first_token_s - self.ready_s
        totals = zip(TOTALS, (self.ready_s, self.first_token_s, after_s), strict=True)
        stages = {f"stage: {name}": value for name, value in self.stages_s.items()}
        beside = {f"beside: {name}": value for name, value in self.beside_s.items()}
        return {**dict(totals), **stages, **beside}


def start_once(checkout: Path, name: str, number: int, flags: list[str]) -> Start:
    """Start, wait for the word `ready in`, ask for one token, stop."""
    port = free_port()
    begin_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port), *flags],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        ready_s = _wait_ready(process) - begin_s
        _post(port, {"prompt": PROMPT, "max_tokens": 1, "temperature": 0})
        first_token_s = time.monotonic() - begin_s
        start = Start(name, number, ready_s, first_token_s)
        _read_stages(port, start)
    finally:
        reading = threading.Thread(target=process.stderr.read)  # a full pipe would hold its end up
        reading.start()
        ended(process, STOP_WITHIN_S)
        reading.join()
        process.stderr.close()
    return start


def _wait_ready(process: subprocess.Popen[str]) -> float:
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        if "ready in" in line:
            return time.monotonic()
        lines.append(line)
    raise SystemExit("the server ended before it was ready:\n" + "".join(lines))


def _post(port: int, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as answer:
        answer.read()


def _read_stages(port: int, start: Start) -> None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/debug/startup", timeout=30) as answer:
            report = json.load(answer)
    except OSError:
        return  # a checkout from before the route
    start.stages_s = {stage["name"]: stage["ns"] / 1e9 for stage in report["stages"]}
    start.beside_s = {stage["name"]: stage["ns"] / 1e9 for stage in report["beside"]}


def table(starts: list[Start], names: list[str]) -> str:
    """Medians in seconds with their range; ratios are of medians, the other over this."""
    head = ["", *names, *(["ratio"] if len(names) > 1 else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    keys = dict.fromkeys(key for start in starts for key in start.rows())
    for key in keys:
        cells: list[str] = []
        medians: list[float] = []
        for name in names:
            rows = [start.rows() for start in starts if start.checkout == name]
            values = [row[key] for row in rows if key in row]
            if not values:
                cells.append("")
                continue
            medians.append(statistics.median(values))
            cells.append(f"{medians[-1]:.2f} ({min(values):.2f} to {max(values):.2f})")
        if len(names) > 1:
            cells.append(f"{medians[1] / medians[0]:.2f}" if len(medians) == 2 else "")
        lines.append("| " + " | ".join([key, *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--vs", type=Path, help="another checkout, started in turns with this one")
    parser.add_argument("--model", help="as in `phasescope serve`; the default model without it")
    parser.add_argument("--out", type=Path, default=HERE / "benchmarks/results/startup.json")
    args = parser.parse_args()
    flags = [] if args.model is None else ["--model", args.model]
    checkouts = {"this": HERE}
    if args.vs is not None:
        checkouts["other"] = args.vs.resolve()
    starts: list[Start] = []
    for number in range(args.times + 1):
        for name, checkout in checkouts.items():
            start = start_once(checkout, name, number, flags)
            what = f"start {number} of {args.times}" if number else "warm-up"
            print(f"{what}, {name}: first token after {start.first_token_s:.2f} s", flush=True)
            if number:
                starts.append(start)
    about = {"machine": machine(), "model": args.model or "default"}
    args.out.parent.mkdir(exist_ok=True)
    rows = [asdict(start) for start in starts]
    args.out.write_text(json.dumps({**about, "starts": rows}, indent=1) + "\n")
    print(table(starts, list(checkouts)))


if __name__ == "__main__":
    main()
