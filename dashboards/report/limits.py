"""The engine of a journal: what it was, and which limits were in force when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from telemetry.facts.engine_flags import limit_of
from telemetry.facts.engine_records import EngineStarted, LimitsSet
from telemetry.facts.host_records import GpuFound
from telemetry.facts.limits import LimitValue, changed_names, limits_at_start, named
from telemetry.facts.records import Fact

_STARTS_KEPT = 64
_CHANGES_KEPT = 1024


class EngineFold:
    """A fold over engine starts and changes of limits."""

    def __init__(self) -> None:
        self._starts: list[EngineStarted] = []
        self._changes: list[LimitsSet] = []
        self._gpus: dict[str, GpuFound] = {}

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case EngineStarted():
                    self._starts = [*self._starts[-_STARTS_KEPT:], fact]
                case LimitsSet():
                    self._changes = [*self._changes[-_CHANGES_KEPT:], fact]
                case GpuFound():
                    self._gpus[fact.gpu] = fact
                case _:
                    pass

    def limits_at(self, at_ns: int) -> Iterator[tuple[str, LimitValue, LimitValue, bool]]:
        """Name, value, value at the start, and whether it had been changed, at a time."""
        started = self._started_at(at_ns)
        if started is None:
            return
        now = begun = limits_at_start(started)
        for change in self._changes:
            if started.at_ns <= change.at_ns <= at_ns:
                now = change.limits
        was, is_now = named(begun), named(now)
        changed = changed_names(begun, now)
        for name, value in is_now.items():
            yield name, value, was[name], name in changed

    def flag_of(self, name: str, at_ns: int) -> str:
        """What an attached engine calls a limit, with its value; empty of our own."""
        started = self._started_at(at_ns)
        limit = None if started is None else limit_of(started, name)
        return "" if limit is None else limit.text

    def about(self) -> dict[str, str]:
        """What the last engine was, in words, by name."""
        if not self._starts:
            return {}
        one = self._starts[-1]
        kv_tokens = one.blocks_total * one.block_tokens
        found = {
            "model": one.model,
            "back end": f"{one.backend} ({one.dtype})",
            "context": f"{one.max_model_tokens} tokens",
            "KV cache": f"{one.blocks_total} blocks of {one.block_tokens} tokens ({kv_tokens})",
            "chunked prefill": "on" if one.chunked_prefill else "off",
            "order": one.policy,
            "pipeline": f"{one.pipeline_depth} steps",
            "engine process": f"{one.pid}, number {len(self._starts)} in this record",
        }
        if one.is_attached:
            found["engine"] = f"{one.engine} {one.engine_version}".strip()
            found |= {f"{one.engine}: {name}": value for name, value in one.settings.items()}
        for gpu in self._gpus.values():
            found[f"GPU {gpu.gpu}"] = f"{gpu.name}, driver {gpu.driver or 'not known'}"
        return found

    def _started_at(self, at_ns: int) -> EngineStarted | None:
        found = [one for one in self._starts if one.at_ns <= at_ns] or self._starts
        return found[-1] if found else None
