"""Writes every board: `python -m dashboards.grafana`.

With `--traces tempo --out DIR` the boards look traces up in Tempo.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dashboards.grafana.files import BESIDE, write
from dashboards.grafana.spec import TraceStore


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the Grafana boards.")
    parser.add_argument(
        "--traces",
        choices=[store.value for store in TraceStore],
        default=TraceStore.JAEGER.value,
        help="where traces are looked up (default: jaeger)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=BESIDE,
        metavar="DIR",
        help="folder (default: dashboards/grafana)",
    )
    args = parser.parse_args()
    write(args.out, TraceStore(args.traces))


if __name__ == "__main__":
    main()
