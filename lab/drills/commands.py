"""Commands of `phasescope` that an episode runs, as an operator would."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from pathlib import Path

_WITHIN_S = 60.0


async def save_baseline(url: str, path: Path) -> bool:
    """Save the baseline of a server into a file; False where that is not possible."""
    if not await asyncio.to_thread(_supports, "diagnose", "--save-baseline"):
        return False
    done = await asyncio.to_thread(_phasescope, "diagnose", url, "--save-baseline", str(path))
    return done.returncode == 0 and path.exists()


async def baseline_flags(path: Path) -> tuple[str, ...]:
    """Flags that give a server this baseline; empty where it is missing or not supported."""
    known = await asyncio.to_thread(_supports, "serve", "--baseline")
    return ("--baseline", str(path)) if known and path.exists() else ()


async def diagnosis_of(journal: Path) -> bytes | None:
    """The diagnosis of a journal after its server has ended, as JSON; None without one."""
    if not journal.exists():
        return None
    done = await asyncio.to_thread(_phasescope, "diagnose", str(journal), "--json")
    return done.stdout.encode() if done.returncode == 0 else None


@functools.cache
def _supports(command: str, flag: str) -> bool:
    return flag in _phasescope(command, "--help").stdout


def _phasescope(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
