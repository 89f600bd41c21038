"""What the scripts' command lines share."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.contract.client import NotSupported
from benchmarks.contract.common import Options, Report

RESULTS = Path(__file__).resolve().parents[1] / "results" / "attach"


def parser_of(name: str, description: str, minutes: float | None = None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.attach.{name}", description=description.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a smoke: shorter, figures say less")
    if minutes is not None:
        parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument(
        "--eager",
        action="store_true",
        help="vLLM without compilation: it starts sooner, and its steps take longer",
    )
    return parser


def vllm_flags(args: argparse.Namespace) -> tuple[str, ...]:
    return ("--enforce-eager",) if args.eager else ()


def finish(args: argparse.Namespace, check: Callable[[], Coroutine[Any, Any, Report]]) -> int:
    """Run, write, print: 0 when all figures hold, 1 when one does not, 2 when it could not run."""
    try:
        report = asyncio.run(check())
    except NotSupported as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 2
    options = Options(args.quick, getattr(args, "minutes", 0.0), args.out)
    return 0 if report.finish(options) else 1
