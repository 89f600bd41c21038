"""The limits of the engine that may change while it runs: the one owner in the gateway.

A change is sent as SetLimits, and counts once the engine's LimitsSet fact has come back. What
differs from the start is sent again to an engine that replaces another, as far as its own start
allows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from service.engine.inbox import SetLimits
from service.engine.limits_record import LimitError, limits_of, with_runtime
from telemetry.facts.clock import read_wall_anchor
from telemetry.facts.engine_records import EngineStarted, LimitsSet
from telemetry.facts.engine_start import RuntimeLimits
from telemetry.facts.limits import (
    AUTO,
    LimitInForce,
    LimitsChanged,
    LimitsView,
    LimitValue,
    SetBy,
    changed_names,
    limits_at_start,
    named,
)

log = logging.getLogger("phasescope.limits")

CONFIRM_S = 5.0
RESTART = "restart"
RESTART_WHY = "limits in force before the engine restarted"
_CHANGES_KEPT = 32
_NS_PER_MS = 1e6
_SAME_NAME = ("tenant_max_seqs", "tenant_queue_limit", "queue_limit_tokens", "prefix_cache")
_OTHER_NAME = {
    "max_num_seqs": "max_seqs",
    "queue_limit": "queue_limit_requests",
    "speculative_tokens": "draft_tokens",
    "refuse_late": "refuse_late",
    "tenant_weights": "tenant_weights",
}
# in this order a value that is possible is never refused because of one that comes later
_ORDER = ("max_num_seqs", "max_batched_tokens", "max_auto_tokens")


class EngineGone(Exception):
    """The engine ended before it had put a change in force."""


@dataclass(slots=True)
class _Sent:
    """A command whose fact has not come back."""

    command: SetLimits
    confirmed: asyncio.Future[None]


class RuntimeLimitsOwner:
    """Belongs to the event loop. `send` writes a command to the engine that runs, which has
    `confirm_s` seconds to put it in force."""

    def __init__(self, send: Callable[[SetLimits], None], confirm_s: float = CONFIRM_S) -> None:
        self._send, self._confirm_s = send, confirm_s
        self._started: EngineStarted | None = None
        self._in_force: RuntimeLimits | None = None
        self._sent: deque[_Sent] = deque()
        self._changes: deque[LimitsSet] = deque(maxlen=_CHANGES_KEPT)
        self._kept: dict[str, LimitValue] = {}
        self._set_by: dict[str, LimitsSet] = {}

    # What the client of the engine reports

    def engine_started(self, started: EngineStarted) -> None:
        """A new engine is ready: it gets what was in force in the one before."""
        self._started, self._in_force = started, limits_at_start(started)
        if not self._kept:
            return
        wanted, dropped = self._in_force, list[str]()
        for name in sorted(self._kept, key=_rank):
            try:
                wanted = self._merged(wanted, {name: self._kept[name]})
            except LimitError as error:
                dropped.append(f"not any more: {error}")
        for line in dropped:
            log.warning("the engine that restarted has other limits; %s", line)
        changed = changed_names(self._in_force, wanted)
        self._put(wanted, changed, RESTART, "; ".join([RESTART_WHY, *dropped]))

    def limits_set(self, fact: LimitsSet) -> None:
        """The engine has put limits in force."""
        if self._started is None or self._in_force is None:
            return
        self._in_force = fact.limits
        self._changes.append(fact)
        is_now = named(fact.limits)
        self._kept = {
            name: is_now[name]
            for name in changed_names(limits_at_start(self._started), fact.limits)
        }
        anew = () if fact.by == RESTART else fact.changed  # a restart keeps who had set them
        self._set_by = {
            name: fact if name in anew else self._set_by.get(name, fact) for name in self._kept
        }
        self._confirm(fact)

    def _confirm(self, fact: LimitsSet) -> None:
        """What was sent before was in force, too: commands are applied in order, but a fact may be
        lost."""
        said = (fact.limits, fact.by, fact.why)
        for place, sent in enumerate(self._sent):
            command = sent.command
            if (command.limits, command.by, command.why) == said:
                for _ in range(place + 1):
                    confirmed = self._sent.popleft().confirmed
                    if not confirmed.done():
                        confirmed.set_result(None)
                return

    def engine_ended(self) -> None:
        """Changes that the engine has not confirmed are lost with it."""
        for sent in self._sent:
            if not sent.confirmed.done():
                sent.confirmed.set_exception(EngineGone())
        self._sent.clear()
        self._in_force = None

    # What the routes ask

    async def change(self, values: Mapping[str, LimitValue], by: str, why: str) -> None:
        """Put values in force by name, and wait until they are.

        Raises LimitError, EngineGone, and TimeoutError if the engine has not answered in time: it
        may yet put them in force.
        """
        before = self._sent[-1].command.limits if self._sent else self._in_force
        if before is None:
            raise EngineGone
        wanted = self._merged(before, values)
        changed = changed_names(before, wanted)
        if not changed:
            return
        sent = self._put(wanted, changed, by, why)
        async with asyncio.timeout(self._confirm_s):
            await asyncio.shield(sent.confirmed)

    def view(self, now_ns: int) -> LimitsView | None:
        """The limits in force and who set them; None while there is no engine."""
        if self._started is None or self._in_force is None:
            return None
        anchor = read_wall_anchor(1)

        def set_by(fact: LimitsSet) -> SetBy:
            return SetBy(
                by=fact.by,
                why=fact.why,
                at_unix_s=round(anchor.to_unix_ns(fact.at_ns) / 1e9, 3),
                ago_s=round(max(0, now_ns - fact.at_ns) / 1e9, 3),
            )

        start = limits_at_start(self._started)
        begun, is_now = named(start), named(self._in_force)
        changed = changed_names(start, self._in_force)
        return LimitsView(
            limits={
                name: LimitInForce(
                    value=value,
                    at_start=begun[name],
                    changed=set_by(self._set_by[name]) if name in changed else None,
                )
                for name, value in is_now.items()
            },
            changes=[
                LimitsChanged(
                    limits={name: named(fact.limits)[name] for name in fact.changed},
                    set=set_by(fact),
                )
                for fact in self._changes
            ],
        )

    def _put(self, wanted: RuntimeLimits, changed: tuple[str, ...], by: str, why: str) -> _Sent:
        sent = _Sent(
            SetLimits(limits=wanted, changed=changed, by=by, why=why),
            asyncio.get_running_loop().create_future(),
        )
        sent.confirmed.add_done_callback(lambda done: done.exception())  # perhaps nobody waits
        self._sent.append(sent)
        self._send(sent.command)
        return sent

    def _merged(self, before: RuntimeLimits, values: Mapping[str, LimitValue]) -> RuntimeLimits:
        """Raises LimitError."""
        assert self._started is not None
        wanted = before
        for name in sorted(values, key=_rank):
            wanted = replace(wanted, **_fields(name, values[name], wanted, self._started))
        with_runtime(limits_of(self._started), wanted)
        return wanted


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _fields(
    name: str, value: LimitValue, before: RuntimeLimits, started: EngineStarted
) -> dict[str, object]:
    """The fields of RuntimeLimits that a value of a limit sets. Raises LimitError."""
    if name == "max_batched_tokens":
        if value == AUTO:
            return {"auto_budget": True, "budget_tokens": started.budget_tokens}
        return {"auto_budget": False, "budget_tokens": value}
    if name == "max_auto_tokens":
        if not before.auto_budget:
            raise LimitError(name, f"only with max_batched_tokens {AUTO}")
        return {"budget_tokens": value}
    if name == "itl_target_ms":
        assert value is None or isinstance(value, int | float)
        return {"itl_target_ns": None if value is None else round(value * _NS_PER_MS)}
    if name == "order":
        return {"slo_order": value == "slo"}
    if name in _SAME_NAME:
        return {name: value}
    return {_OTHER_NAME[name]: value}
