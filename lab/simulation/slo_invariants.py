"""Invariants of the latency targets, each checked on its own evidence (see `invariants`).

17  step target       by the true cost of a step, one with decodes takes no longer than the tightest
                      inter-token target of its rows, or than `1 + LATE_SHARE` times its decodes
                      alone, and one tile of prompt more; and no prompt with more time makes a first
                      token late that the same step ends with, beyond that
18  slack             in the order of the SLO no request passes an earlier one of its class, tenant,
                      target and lateness, nor, within class and tenant, the first of another queue
                      that can be in time and has to start earlier; a late one passes none that can
                      be in time. In every second step one that has missed four targets is passed
                      only where a tighter target waits, and passes none in time for a tighter one
19  refusal           `ttft_unreachable` only where late requests are refused; never of an engine
                      without work, nor of a request that would be in time at the slowest pace
                      behind every prompt that may be computed before its own
20  no waste          a prompt waits for budget only while the step's tokens or its time are used
                      up, or that of a first token with a tighter target that the step ends with

17 and 20 hold where the engine knows the true cost of steps. Costs here are the world's own; of the
scheduler's 18 reads only at which pace it believes prompts to be computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from lab.simulation.evidence import Seen, require
from lab.simulation.sim_executor import LinearCost
from service.engine.inbox import SetStepCost
from service.engine.plan import Plan
from service.engine.planning.budget import LATE_SHARE, LEAST_SHARE, TILE_TOKENS
from service.engine.scheduler import Scheduler
from service.engine.sequences.request import Request
from telemetry.facts.engine_records import LimitsSet, SequenceEnded, SequenceQueued
from telemetry.facts.reasons import EndReason, WaitReason

_SLOWEST = 1 + 1 / LEAST_SHARE
"""Beside decodes a prompt takes at most so many times the time that it takes alone."""
_LAST_DEADLINE = 4  # targets after it was accepted


class SloInvariants:
    """Watches the targets of one world; `seen` are its sequences."""

    def __init__(
        self, scheduler: Scheduler, seen: Mapping[int, Seen], cost: LinearCost | None
    ) -> None:
        """`cost` is what every step takes, None where steps are slow by chance."""
        self._scheduler = scheduler
        self._seen = seen
        self._cost = cost
        self._is_known = False
        self._refuses = scheduler.limits.refuse_late
        self._live: set[int] = set()
        self._ever_late: set[int] = set()

    def restarted(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_known = False
        self._refuses = scheduler.limits.refuse_late
        self._live.clear()
        self._ever_late.clear()

    def told_cost(self, command: SetStepCost) -> None:
        """The engine gets a fitted cost before its next step."""
        self._is_known = self._cost is not None and command == self._cost.as_fitted()

    def set_limits(self, fact: LimitsSet) -> None:
        self._refuses = fact.limits.refuse_late

    def queued(self, fact: SequenceQueued) -> None:
        self._live.add(fact.seq_id)

    def ended(self, fact: SequenceEnded) -> None:
        if fact.reason is EndReason.TTFT_UNREACHABLE:
            self._refused(fact)
        self._live.discard(fact.seq_id)

    def planned(self, plan: Plan, now_ns: int) -> None:
        limits = self._scheduler.limits
        cost = self._cost if self._is_known else None
        if limits.chunked_prefill and not limits.draft_tokens:
            if cost is not None and (limits.auto_budget or limits.itl_target_ns is not None):
                self._within_target(plan, cost)
                self._keeps_first_tokens(plan, cost, now_ns)
            for skip in plan.skips:
                if skip.reason is WaitReason.BUDGET:
                    self._without_waste(plan, cost, skip.seq_id, now_ns)
        if limits.slo_order:
            self._by_slack(plan, now_ns)

    # 17 and 20

    @property
    def _tile_tokens(self) -> int:
        """A step may have so many prompt tokens more, or fewer, than its time allows."""
        return max(TILE_TOKENS, self._scheduler.limits.tile_rows // 2)

    def _target_of(self, plan: Plan) -> int | None:
        """The tightest inter-token target of the rows that decode."""
        arrivals = [self._seen[row.seq_id].arrival for row in plan.decodes]
        stated = [a.itl_target_ns for a in arrivals if a.itl_target_ns is not None]
        override = self._scheduler.limits.itl_target_ns
        if override is not None:
            return override if arrivals else None
        return min(stated, default=None)

    def _within_target(self, plan: Plan, cost: LinearCost) -> None:
        target_ns, alone_ns = self._target_of(plan), cost.step_ns(replace(plan, prefills=()))
        if target_ns is None:
            return
        said = plan.target_ns is not None and plan.target_ns <= target_ns
        require(17, said, f"step {plan.step_id}: bound by {plan.target_ns}, not {target_ns}")
        tile_ns = self._tile_tokens * cost.prefill_token_ns if plan.prefills else 0
        most_ns = max(target_ns, (1 + LATE_SHARE) * alone_ns) + tile_ns
        span_ns = cost.step_ns(plan)
        within = span_ns <= most_ns or not plan.prefills
        require(17, within, f"step {plan.step_id}: {span_ns} ns of {most_ns}")

    def _first_tokens(self, plan: Plan, now_ns: int) -> Iterator[tuple[int, int, int]]:
        """The first tokens that the step ends with: place of their prompt in the step, target, and
        what is left of it."""
        live = self._scheduler.table.live
        for place, chunk in enumerate(plan.prefills):
            seen = self._seen[chunk.seq_id]
            target_ns = seen.arrival.ttft_target_ns
            if chunk.samples and target_ns and not live[chunk.seq_id].preemptions:
                yield place, target_ns, seen.submitted_ns + target_ns - now_ns

    def _has_more_time(self, seq_id: int, target_ns: int) -> bool:
        own_ns = self._seen[seq_id].arrival.ttft_target_ns
        return own_ns is None or own_ns > target_ns

    def _keeps_first_tokens(self, plan: Plan, cost: LinearCost, now_ns: int) -> None:
        alone_ns = cost.step_ns(replace(plan, prefills=()))
        span_ns, tile_ns = cost.step_ns(plan), self._tile_tokens * cost.prefill_token_ns
        for place, target_ns, left_ns in self._first_tokens(plan, now_ns):
            chunks = enumerate(plan.prefills)
            kept = [
                one
                for index, one in chunks
                if index <= place or not self._has_more_time(one.seq_id, target_ns)
            ]
            was_late = cost.step_ns(replace(plan, prefills=tuple(kept))) > left_ns
            most_ns = max(left_ns, (1 + LATE_SHARE) * alone_ns) + tile_ns
            is_kept = len(kept) == len(plan.prefills) or was_late or span_ns <= most_ns
            require(17, is_kept, f"step {plan.step_id}: {span_ns} ns of {left_ns}")

    def _without_waste(self, plan: Plan, cost: LinearCost | None, seq_id: int, now_ns: int) -> None:
        """A prompt waits for budget."""
        left = self._scheduler.limits.step_tokens - plan.scheduled_tokens
        if plan.target_ns is None:
            require(20, left <= 0, f"step {plan.step_id}: a prompt waits, and {left} are left")
        elif cost is not None and left > 0:
            spread = cost.as_fitted().spread
            first_ns = (
                left_ns / spread
                for _, target_ns, left_ns in self._first_tokens(plan, now_ns)
                if self._has_more_time(seq_id, target_ns)
            )
            bound_ns = min(plan.target_ns, min(first_ns, default=inf))
            tile_ns = (self._tile_tokens + 1) * cost.prefill_token_ns
            spent = cost.step_ns(plan) + tile_ns >= bound_ns
            require(20, spent, f"step {plan.step_id}: a prompt waits, and there is time")

    # 18

    def _by_slack(self, plan: Plan, now_ns: int) -> None:
        """Compare each admission with the requests that it left in the queue."""
        token_ns = self._scheduler._planner.cost.prompt_token_ns
        moment = _Moment(now_ns, token_ns, self._scheduler.limits.ageing_ns)
        waiting = [r for r in self._scheduler.table.queue if not r.blocked]
        live = self._scheduler.table.live
        order = [live[start.seq_id] for start in plan.started if start.seq_id in live]
        late = {r.seq_id for r in [*waiting, *order] if moment.misses(r, 1)}
        self._ever_late |= late
        tightest = min(self._targets_of_prompts(plan), default=0)
        overdue_first = plan.step_id % 2 == 0
        for place, request in enumerate(order):
            if not self._keeps_its_place(request):
                continue
            others = [*waiting, *order[place + 1 :]]
            rivals = [
                o for o in others if _group(o) == _group(request) and self._keeps_its_place(o)
            ]
            self._passes_none(request, rivals, late)
            if any(moment.has_aged(one) for one in [request, *rivals]):
                continue  # who has aged goes first
            self._has_least_slack(request, rivals, late, moment, overdue_first)
            if overdue_first:
                self._passes_no_overdue(request, rivals, late, moment, tightest)

    def _targets_of_prompts(self, plan: Plan) -> set[int]:
        """First-token targets of the prompts that waited or were computed when the step was
        planned, 0 for none."""
        table = self._scheduler.table
        found = {_target(r) for r in [*table.queue, *(r for r in table.running if r.in_prefill)]}
        computed = [self._seen[chunk.seq_id].arrival for chunk in plan.prefills]
        return found | {arrival.ttft_target_ns or 0 for arrival in computed}

    def _keeps_its_place(self, request: Request) -> bool:
        arrival = self._seen[request.seq_id].arrival
        return not request.preemptions and not arrival.may_lose_its_place

    def _passes_none(self, request: Request, rivals: Iterable[Request], late: set[int]) -> None:
        for other in rivals:
            if _target(other) != _target(request) or other.arrival > request.arrival:
                continue
            both = {request.seq_id, other.seq_id}
            alike = both <= late or not both & self._ever_late
            require(18, not alike, f"{request.seq_id} passed {other.seq_id}")

    def _has_least_slack(
        self,
        request: Request,
        rivals: list[Request],
        late: set[int],
        moment: _Moment,
        overdue_first: bool,
    ) -> None:
        """The first that can be in time of each other queue has to start later."""
        own_ns = moment.start_by(request)
        is_first = overdue_first and moment.misses(request, _LAST_DEADLINE)
        heads: dict[int, Request] = {}
        for other in sorted(rivals, key=lambda one: one.arrival):
            same_queue = _target(other) == _target(request) and request.seq_id not in late
            if other.seq_id not in late and not same_queue:
                heads.setdefault(_target(other), other)
        for other in heads.values():
            before = moment.start_by(other) < own_ns
            if is_first:
                before = 0 < _target(other) < _target(request)
            held_up = other.seq_id not in self._ever_late and before
            require(18, not held_up, f"{request.seq_id} goes before {other.seq_id}, due earlier")

    def _passes_no_overdue(
        self,
        request: Request,
        rivals: list[Request],
        late: set[int],
        moment: _Moment,
        tightest: int,
    ) -> None:
        """The first late one of each queue, if it is overdue and nobody has a tighter target."""
        if moment.misses(request, _LAST_DEADLINE):
            return
        heads: dict[int, Request] = {}
        for other in sorted(rivals, key=lambda one: one.arrival):
            if other.seq_id in late:
                heads.setdefault(_target(other), other)
        for other in heads.values():
            first = moment.misses(other, _LAST_DEADLINE) and _target(other) <= tightest
            require(18, not first, f"{request.seq_id} passed {other.seq_id}, which is overdue")

    # 19

    def _refused(self, fact: SequenceEnded) -> None:
        require(19, self._refuses, f"{fact.seq_id} was refused, and late requests are not")
        require(19, bool(self._live), f"{fact.seq_id} was refused, and the engine has no work")
        if self._cost is None or not self._is_known:
            return
        own = self._seen[fact.seq_id]
        assert own.arrival.ttft_target_ns is not None
        by_ns = own.submitted_ns + own.arrival.ttft_target_ns
        work_ns = sum(
            self._most_work_ns(seen)
            for seen in [own, *(self._seen[seq_id] for seq_id in self._live)]
            if not self._comes_after(seen, own, by_ns, fact.at_ns)
        )
        late = fact.at_ns + work_ns > by_ns
        require(19, late, f"{fact.seq_id} was refused, and would have been in time")

    def _most_work_ns(self, seen: Seen) -> float:
        """The longest that its prompt may take, if it is computed whole, or again."""
        assert self._cost is not None
        tokens = len(seen.arrival.prompt) + len(seen.tokens)
        return _SLOWEST * self._cost.prefill_token_ns * tokens

    def _comes_after(self, seen: Seen, own: Seen, by_ns: int, now_ns: int) -> bool:
        """Whether a live sequence is certainly behind a new one, due at `by_ns`."""
        limits, other, new = self._scheduler.limits, seen.arrival, own.arrival
        if seen is own or seen.submitted_ns <= now_ns - limits.ageing_ns:
            return False
        if other.priority != new.priority:
            return other.priority > new.priority
        if not limits.slo_order or other.tenant != new.tenant or seen.tokens:
            return False
        wait_ns = limits.ageing_ns if other.ttft_target_ns is None else other.ttft_target_ns
        return seen.submitted_ns + wait_ns - self._most_work_ns(seen) > by_ns


@dataclass(frozen=True)
class _Moment:
    """When a step is planned, at which pace prompts are computed then, and who has aged."""

    now_ns: int
    token_ns: float
    ageing_ns: int

    def has_aged(self, request: Request) -> bool:
        return request.queued_ns <= self.now_ns - self.ageing_ns

    def work(self, request: Request) -> float:
        return self.token_ns * (len(request.submit.prompt) + len(request.outputs))

    def misses(self, request: Request, times: int) -> bool:
        """Whether its first token comes later than so many targets after it was accepted."""
        by_ns = request.submit.first_token_by_ns
        if by_ns is None:
            return False
        return self.now_ns + self.work(request) > by_ns + (times - 1) * _target(request)

    def start_by(self, request: Request) -> float:
        """When its prompt has to start: for its deadline, or, behind all that can meet theirs, for
        that at twice or four times its target; without a target, when it has aged."""
        by_ns, work_ns = request.submit.first_token_by_ns, self.work(request)
        if by_ns is None:
            return request.queued_ns + self.ageing_ns - work_ns
        if not self.misses(request, 1):
            return by_ns - work_ns
        return inf


def _group(request: Request) -> tuple[int, str]:
    return request.submit.priority, request.submit.tenant


def _target(request: Request) -> int:
    return request.submit.ttft_target_ns or 0
