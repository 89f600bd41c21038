"""What every engine of a fleet can do, from the starts of those that are there."""

from __future__ import annotations

from msgspec.structs import replace

from telemetry.facts.engine_records import EngineStarted


class Starts:
    """Looks at all of them only when one has started or left."""

    def __init__(self) -> None:
        self._by_name: dict[str, EngineStarted] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def take(self, name: str, started: EngineStarted | None) -> EngineStarted | None:
        """An engine has so started; None: it is gone. What all of them can do; None: they can what
        they could before, or there are none."""
        if self._by_name.get(name) == started:
            return None
        if started is None:
            del self._by_name[name]
        else:
            self._by_name[name] = started
        return least_of(list(self._by_name.values())) if self._by_name else None


def least_of(started: list[EngineStarted]) -> EngineStarted:
    """What every engine can do; none is a process of this machine."""
    return replace(
        started[0],
        pid=0,
        stages=(),
        max_model_tokens=min(one.max_model_tokens for one in started),
        no_prompt_outputs=next((o.no_prompt_outputs for o in started if o.no_prompt_outputs), ""),
    )
