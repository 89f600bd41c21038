"""Parts of a run in the order of their importance, within a time that is not to be overrun.

A part is begun only when there is as much time left as it is thought to take, and what it finds is
saved before the next one begins: a run that is killed leaves what it has.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from telemetry.facts.clock import Clock

Path = tuple[str, ...]


class State(StrEnum):
    """What became of a part."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Part:
    """`path` is where its result goes, as in (engine, llama-8b, decode). It takes about
    `estimate_s`, and wants the results at `needs`."""

    path: Path
    estimate_s: float
    run: Callable[[], Any]
    needs: Path = ()

    @property
    def name(self) -> str:
        return "/".join(self.path)


@dataclass(frozen=True, slots=True)
class Taken:
    """`reason` says why a part was not done."""

    name: str
    state: State
    s: float
    reason: str | None = None


class Budget:
    """Results lie in `found`, and what became of each part in `found["parts"]`; `save` is called
    after each."""

    def __init__(
        self,
        clock: Clock,
        end_ns: int,
        found: dict[str, Any],
        save: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._clock, self._end_ns = clock, end_ns
        self.found = found
        self._parts: list[dict[str, Any]] = found.setdefault("parts", [])
        self._save, self._say = save, say

    @property
    def left_s(self) -> float:
        return (self._end_ns - self._clock.now_ns()) / 1e9

    def work(self, parts: Iterable[Part]) -> None:
        """One after the other, each asked for when its turn has come."""
        for part in parts:
            taken = self._take(part)
            self._parts.append(asdict(taken))
            self._say(f"{taken.name}: {taken.reason or f'{taken.state}, {taken.s:.1f} s'}")
            self._save()

    def _take(self, part: Part) -> Taken:
        obstacle = self._obstacle(part)
        if obstacle is not None:
            return Taken(part.name, State.SKIPPED, 0.0, obstacle)
        self._say(f"{part.name} ({self.left_s:.0f} s left)")
        begin_ns = self._clock.now_ns()
        try:
            result = part.run()
        except Exception as error:  # what one part cannot do is no reason to lose the others
            traceback.print_exc()
            return Taken(part.name, State.FAILED, self._since_s(begin_ns), first_line(error))
        put_at(self.found, part.path, result)
        return Taken(part.name, State.DONE, self._since_s(begin_ns))

    def _obstacle(self, part: Part) -> str | None:
        if part.needs and get_at(self.found, part.needs) is None:
            return f"needs {'/'.join(part.needs)}, which is not there"
        left_s = self.left_s
        if left_s < part.estimate_s:
            return f"takes about {part.estimate_s:.0f} s, and {max(0.0, left_s):.0f} s are left"
        return None

    def _since_s(self, begin_ns: int) -> float:
        return round((self._clock.now_ns() - begin_ns) / 1e9, 1)


def get_at(found: dict[str, Any], path: Path) -> Any:
    """What is at this path; None where nothing is."""
    inner: Any = found
    for key in path:
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner


def put_at(found: dict[str, Any], path: Path, result: Any) -> None:
    inner = found
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = result


def first_line(error: BaseException) -> str:
    """The first line of what went wrong; errors of devices go on for pages."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
