"""Schedulers that are broken on purpose, each against one invariant of the simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from service.engine.admission import Limits
from service.engine.inbox import SetStepCost, Submit
from service.engine.plan import Emission, Plan
from service.engine.planning.plan_builder import PlanBuilder
from service.engine.scheduler import Scheduler
from service.engine.sequences.queue import SortKey
from service.engine.sequences.request import Request
from telemetry.facts.engine_records import SequenceEnded
from telemetry.facts.reasons import EndReason


class Forgets(Scheduler):
    """INV-1: a cancelled request ends without a terminal fact."""

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        request = self.table.live.get(seq_id)
        if request is not None:
            self.table.end(request, reason, emit=False)
            self.log._facts.pop()


class EndsTwice(Scheduler):
    """INV-2: the terminal fact of a cancelled request is written twice."""

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        request = self.table.live.get(seq_id)
        super().cancel(seq_id, reason)
        if request is not None:
            self.log.record(
                partial(SequenceEnded, seq_id=seq_id, step_id=0, reason=reason,
                        output_tokens=0, preemptions=0)
            )  # fmt: skip


class LeaksBlocks(Scheduler):
    """INV-3: a cancelled request keeps a reference to its blocks."""

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        request = self.table.live.get(seq_id)
        if request is not None:
            self.pool.retain(request.blocks)
        super().cancel(seq_id, reason)


class RegistersTooEarly(Scheduler):
    """INV-4: blocks are offered for reuse before they have been computed."""

    def plan(self, now_ns: int) -> Plan:
        plan = super().plan(now_ns)
        for request in self.table.running:
            if request.cacheable:
                self.table.blocks.register_computed(request, request.known_tokens)
        return plan


class Overspends(Scheduler):
    """INV-5: steps are planned with more budget than there is."""

    def __init__(self, limits: Limits) -> None:
        from dataclasses import replace

        super().__init__(limits)
        self._planner.limits = replace(limits, budget_tokens=limits.budget_tokens * 2)


class NeverStops(Scheduler):
    """INV-6: max_tokens ends no sequence."""

    def submit(self, command: Submit, now_ns: int) -> None:
        import msgspec

        generous = msgspec.structs.replace(command, max_tokens=command.max_tokens + 2)
        super().submit(generous, now_ns)


class LastComeFirstServed(Scheduler):
    """INV-8: newcomers go to the head of the queue."""

    def submit(self, command: Submit, now_ns: int) -> None:
        super().submit(command, now_ns)
        request = self.table.live.get(command.seq_id)
        if request is not None and not request.blocked:
            self.table.queue.remove(request)
            self.table.queue.push(request, first=True)


class ForgetsBlocked(Scheduler):
    """INV-9: a slow reader's sequence is planned all the same."""

    def plan(self, now_ns: int) -> Plan:
        paused = [r for r in self.table.running if r.paused]
        for request in paused:
            request.paused = False
        plan = super().plan(now_ns)
        for request in paused:
            request.paused = True
        return plan


class SharesWithEverybody(Scheduler):
    """INV-10: the tenant and the salt are left out of the key."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        prefix = self.prefix
        root = prefix.root("")
        prefix.root = lambda *_: root  # type: ignore[method-assign]


class SwapsTokens(Scheduler):
    """INV-11: clients get another token than the one sampled."""

    def take_emissions(self) -> list[Emission]:
        import msgspec

        taken = super().take_emissions()
        for index, emission in enumerate(taken):
            if emission.sample is not None:
                wrong = msgspec.structs.replace(emission.sample, token_id=1001)
                taken[index] = msgspec.structs.replace(emission, sample=wrong)
        return taken


class IgnoresDeadlines(Scheduler):
    """INV-12: what is overdue runs on."""

    def plan(self, now_ns: int) -> Plan:
        return super().plan(0)


class Unbounded(Scheduler):
    """INV-13: no submission is refused."""

    def submit(self, command: Submit, now_ns: int) -> None:
        self.table.add(Request(command), now_ns)


class Uncapped(Scheduler):
    """INV-15: tenants have no limit."""

    def __init__(self, limits: Limits) -> None:
        from dataclasses import replace

        super().__init__(limits)
        self._planner.limits = replace(limits, tenant_max_seqs=None)


class StopsEarly(Scheduler):
    """INV-16: every sequence is a token short."""

    def submit(self, command: Submit, now_ns: int) -> None:
        import msgspec

        short = msgspec.structs.replace(command, max_tokens=max(1, command.max_tokens - 1))
        super().submit(short, now_ns)


class WaitsForever(Scheduler):
    """INV-14: what was refused a grammar waits for ever."""

    def grammar_ready(self, command: Any, now_ns: int) -> None:
        if command.error is None:
            super().grammar_ready(command, now_ns)


class BelievesPromptsCheap(Scheduler):
    """INV-17: the budget is worked out with a quarter of what prompts cost."""

    def set_step_cost(self, command: SetStepCost) -> None:
        import msgspec

        quarter = command.prefill_token_ns // 4
        super().set_step_cost(msgspec.structs.replace(command, prefill_token_ns=quarter))


class IgnoresTargets(Scheduler):
    """INV-17: nothing bounds the time of a step."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._planner._limit_prompts = lambda builder, now_ns: None  # type: ignore[method-assign]


class FillsStepsOfFirstTokens(Scheduler):
    """INV-17: a looser prompt joins a step that ends with a first token, which it makes late."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        real = self._planner._limit_prompts

        def limit(builder: PlanBuilder, now_ns: int) -> None:
            real(builder, now_ns)
            builder._keep_in_time = lambda request, time: None  # type: ignore[method-assign]

        self._planner._limit_prompts = limit  # type: ignore[method-assign]


class ForgetsSlack(Scheduler):
    """INV-18: the requests of one tenant are served in the order of arrival."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        queue = self.table.queue
        real = queue.sort_key
        queue.sort_key = lambda now_ns, batch, *slack: real(now_ns, batch)  # type: ignore[method-assign]


class LetsLateHoldUp(Scheduler):
    """INV-18: a late request stays before those that came after it."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.table.queue.set_late_aside = lambda is_late: []  # type: ignore[method-assign]


class KeepsOverdueWaiting(Scheduler):
    """INV-18: a request that has missed all its deadlines waits behind everybody."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        _change_slack(self, lambda key, now_ns: math.inf if 0 <= key < now_ns else key)


class ServesAllOverdueFirst(Scheduler):
    """INV-18: requests that have missed all their deadlines have every step."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        real = self._planner._sort_key

        def sort_key(now_ns: int, overdue_first: bool | None = None) -> Callable[..., SortKey]:
            return real(now_ns, True)

        self._planner._sort_key = sort_key  # type: ignore[method-assign]


class LetsLatePass(Scheduler):
    """INV-18: a late request may pass one that can be in time."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        _change_slack(self, lambda key, now_ns: now_ns if key > 1 << 61 else key)


def _change_slack(scheduler: Scheduler, change: Callable[[float, int], float]) -> None:
    """Order prompts by another key than theirs."""
    queue = scheduler.table.queue
    real = queue.sort_key

    def sort_key(
        now_ns: int,
        batch: Mapping[str, int],
        start_by_ns: Callable[[Request], float] | None = None,
    ) -> Callable[[Request], SortKey]:
        if start_by_ns is None:
            return real(now_ns, batch)
        return real(now_ns, batch, lambda one: change(start_by_ns(one), now_ns))

    queue.sort_key = sort_key  # type: ignore[method-assign]


class RefusesUnasked(Scheduler):
    """INV-19: late requests are refused though they should not be."""

    def submit(self, command: Submit, now_ns: int) -> None:
        from dataclasses import replace

        limits = self.limits
        self.limits = replace(limits, refuse_late=True)
        super().submit(command, now_ns)
        self.limits = limits


class RefusesAtOnce(Scheduler):
    """INV-19: every request that finds another is called late."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._planner.late_by_ns = lambda request, now_ns: 1.0  # type: ignore[method-assign]


class Miserly(Scheduler):
    """INV-20: half of the budget is left over."""

    def __init__(self, limits: Limits) -> None:
        from dataclasses import replace

        super().__init__(limits)
        half = max(limits.max_seqs, limits.budget_tokens // 2)
        self._planner.limits = replace(limits, budget_tokens=half)


class BelievesPromptsDear(Scheduler):
    """INV-20: half of the time is left over."""

    def set_step_cost(self, command: SetStepCost) -> None:
        import msgspec

        dear = command.prefill_token_ns * 4
        super().set_step_cost(msgspec.structs.replace(command, prefill_token_ns=dear))


class IgnoresAdapters(Scheduler):
    """INV-21: a sequence does not wait until its adapter is placed."""

    def submit(self, command: Submit, now_ns: int) -> None:
        super().submit(command, now_ns)
        request = self.table.live.get(command.seq_id)
        if request is not None and request.awaits_adapter:
            request.awaits_adapter = False
            self.table.queue.unblock_in_place(request)


class EvictsWhatRuns(Scheduler):
    """INV-21: an adapter is freed although the batch, or a launched step, uses it."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.adapters._in_use = lambda arrival: set()  # type: ignore[method-assign]


class SharesBetweenAdapters(Scheduler):
    """INV-22: the adapter is no part of the root of a chain of blocks."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        root = self.prefix.root
        self.prefix.root = lambda name, adapter=0: root(name)  # type: ignore[method-assign]
