"""Orders to `faults/sitecustomize.py`: which parts of the adapter raise in vLLM's processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

FAULTS = Path(__file__).parent / "faults"
VARIABLE = "PHASESCOPE_ATTACH_FAULTS"
_INSIDE = "service.attach.inside"
_CORE, _FRONT = f"{_INSIDE}.vllm_core.observer:Observer", f"{_INSIDE}.front_end.front:Front"
_REQUEST = f"{_INSIDE}.front_end.request:FrontRequest"
_CHOICE = f"{_INSIDE}.front_end.request:Choice"

CORE_HOOKS = tuple(
    f"{_CORE}.{name}"
    for name in (
        "received", "added", "planned", "collected", "committed", "finishing", "finished",
        "preempting", "ended", "compiled",
    )
)  # fmt: skip
FRONT_HOOKS = (
    *(f"{_FRONT}.{name}" for name in ("accept", "parsed", "tokenized", "submitted", "choice",
                                      "end")),
    f"{_REQUEST}.sent", f"{_REQUEST}.disconnected", f"{_CHOICE}.received", f"{_CHOICE}.finished",
)  # fmt: skip
HOOKS = (*CORE_HOOKS, *FRONT_HOOKS)


class Faults:
    """A folder of orders. `waiting_bytes` bounds what the adapter keeps for a sidecar that does not
    take it, `errors` those after which it turns a hook off; 0 leaves the product's own bounds."""

    def __init__(
        self, folder: Path, targets: Sequence[str], *, waiting_bytes: int = 0, errors: int = 0
    ) -> None:
        self._folder = folder
        orders = {"targets": list(targets), "bytes": waiting_bytes, "errors": errors}
        (folder / "targets.json").write_text(json.dumps(orders))

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self._folder)}

    def arm(self, target: str, times: int) -> None:
        """Its next calls raise; -1: all of them, 0: none."""
        (self._folder / target).write_text(str(times))

    def left(self, target: str) -> int:
        """How many calls have yet to raise."""
        return int((self._folder / target).read_text() or "0")
