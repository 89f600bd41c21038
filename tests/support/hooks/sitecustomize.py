"""Shows what reference cycles a server leaves, and how many threads its linear algebra uses; loaded
from outside the product.

Python imports this in every process that has this folder on PYTHONPATH. Where
`PHASESCOPE_GARBAGE` names a folder, the main thread collects on `BEGIN`, and from then on the
collector keeps whatever cyclic garbage it finds. On `REPORT` it collects once more and writes how
many objects of each class, and functions of each module, were kept to `<pid>.json`, and the
threads of each library of linear algebra to `<pid>.threads`. With `PHASESCOPE_SAME_PRIORITY` no
process makes way for others: beside other tests a child of the lowest priority gets no core for
half a minute.
"""

from __future__ import annotations

import gc
import json
import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

_FOLDER = "PHASESCOPE_GARBAGE"
BEGIN = signal.SIGRTMIN + 7
REPORT = signal.SIGRTMIN + 8


def _name(found: Any) -> str:
    name = getattr(found, "__qualname__", None) or type(found).__qualname__
    return f"{getattr(found, '__module__', None)}.{name}"


def _write(name: str, text: str) -> None:
    """Whoever waits for the file never sees half of it."""
    path = Path(os.environ[_FOLDER]) / name
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").replace(path)


def _linear_algebra_threads() -> list[int]:
    from threadpoolctl import threadpool_info

    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]


def _begin(number: int, frame: FrameType | None) -> None:
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    _write(f"{os.getpid()}.begun", "")


def _report(number: int, frame: FrameType | None) -> None:
    gc.collect()
    gc.set_debug(0)
    counts = Counter(map(_name, gc.garbage))
    gc.garbage.clear()
    _write(f"{os.getpid()}.threads", json.dumps(_linear_algebra_threads()))
    _write(f"{os.getpid()}.json", json.dumps(counts))


if _FOLDER in os.environ:
    signal.signal(BEGIN, _begin)
    signal.signal(REPORT, _report)
if "PHASESCOPE_SAME_PRIORITY" in os.environ:
    os.setpriority = lambda *_: None
