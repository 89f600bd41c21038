"""Draws the figures of docs/results from the committed results.

    .venv/bin/python -m benchmarks.plots [NAME ...] [--out FOLDER]

It wants `pip install -e '.[bench]'`. The same results, matplotlib and names give the same files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.plots import evidence, serving, settings, telemetry
from benchmarks.plots.style import RESULTS, Plot, write

OUT = Path(__file__).resolve().parents[2] / "docs" / "results" / "img"
PLOTS: tuple[Plot, ...] = (
    *serving.PLOTS,
    *settings.PLOTS,
    *telemetry.PLOTS,
    *evidence.PLOTS,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *(plot.name for plot in PLOTS)])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for plot in PLOTS:
        if args.names and plot.name not in args.names:
            continue
        missing = [name for name in plot.sources if not (RESULTS / name).exists()]
        if missing:
            print(f"{plot.name}: not measured yet, {', '.join(missing)} is not there")
            continue
        path = write(plot, args.out)
        print(f"{path}: {path.stat().st_size / 1000:.1f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
