"""Run contract checks: `python -m benchmarks.contract prefix fairness ... | all [--quick]`.

Each check starts its own server on the default model and ends with one line for each
acceptance figure. The exit status is 1 when a figure does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.contract import (
    aborts,
    culprits,
    fairness,
    ledger,
    overload,
    prefix,
    slow_readers,
    soak,
)
from benchmarks.contract.client import NotSupported
from benchmarks.contract.common import Options, Report, say

CHECKS: dict[str, Callable[[Options], Coroutine[Any, Any, Report]]] = {
    "prefix": prefix.run,
    "fairness": fairness.run,
    "aborts": aborts.run,
    "slow_readers": slow_readers.run,
    "overload": overload.run,
    "soak": soak.run,
    "ledger": ledger.run,
    "culprits": culprits.run,
}
RESULTS = Path(__file__).parents[1] / "results" / "contract"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.contract", description=__doc__)
    parser.add_argument("checks", nargs="+", choices=[*CHECKS, "all"], metavar="CHECK")
    parser.add_argument("--quick", action="store_true", help="a smoke test of the check itself")
    parser.add_argument("--minutes", type=float, default=30, help="length of the soak")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    # what a smoke test measures must not replace what a real run measured
    smoke = Path(tempfile.gettempdir()) / "phasescope-contract"
    options = Options(args.quick, args.minutes, args.out or (smoke if args.quick else RESULTS))
    names = list(CHECKS) if "all" in args.checks else list(dict.fromkeys(args.checks))
    failed = [name for name in names if not check(name, options)]
    return 1 if failed else 0


def check(name: str, options: Options) -> bool:
    say(f"== {name}")
    try:
        report = asyncio.run(CHECKS[name](options))
    except NotSupported as missing:
        say(f"{name}: does not hold: {missing}")
        return False
    except Exception as error:  # the other checks are still worth running
        traceback.print_exc()
        say(f"{name}: does not hold: {type(error).__name__}: {error}")
        return False
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
