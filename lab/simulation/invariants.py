"""What must hold after every simulated step, numbered; each is checked on its own evidence.

 1  conservation      every submitted sequence is live or has ended, never both or neither
 2  one end           one terminal fact and one emitted end, with one reason, nothing after it
 3  blocks            used + free + cached = total; references equal the live block tables
 4  contents          a row attends to its own text only, wherever that was computed
 5  budget            tokens of a step <= its budget <= the limit, or one for each sequence that
                      runs; no sequence is admitted beyond the limit
 6  context           prompt and outputs fit the context, outputs fit max_tokens
 7  time              stamps of a step are in order, and steps are committed in order
 8  fairness          in the order of arrival no request is passed by a later one of its class and
                      tenant; in both orders, under fair shares, the counters of waiting tenants,
                      which count a tenant's tokens by its weight, stay within the bound
 9  live rows         a plan names live sequences that are not blocked, each once
10  isolation         cached blocks are read only within the tenant and salt that wrote them
11  tokens            outputs are the sequence's true tokens, in order, without a gap
12  deadlines         nothing is planned for a sequence whose deadline has passed
13  queue bound       no submission is queued beyond the limits on requests and tenants
14  the end           when no work is left no sequence is live and no block is used
15  tenant limit      no tenant has more sequences running than it may; those that ran when the
                      limit was lowered go on
16  completeness      a sequence that ended by max_tokens got that many, one that ended by an end
                      token got it last, and the terminal fact counts the emitted tokens
17  step target       to 20: latency targets, in `lab.simulation.slo_invariants`
21  adapter placed    a step computes with placed adapters only, and none is freed below it; in
                      `lab.simulation.sim_adapters`
22  adapter apart     cached blocks are read only with the adapter that wrote them
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lab.simulation.evidence import InvariantViolated, Seen, require
from lab.simulation.sim_executor import LinearCost
from lab.simulation.slo_invariants import SloInvariants
from lab.simulation.workload import Arrival
from service.engine.admission import Limits
from service.engine.fairness import Policy, service_bound
from service.engine.plan import Emission, Plan
from service.engine.scheduler import Scheduler
from telemetry.facts.engine_records import (
    LimitsSet,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.engine_start import RuntimeLimits
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact


@dataclass(slots=True)
class Reach:
    """The widest limits since the engine started: what they allowed may still run, or wait."""

    max_seqs: int
    queue_requests: int
    tenant_queue: int | None
    least_weight: float
    caps_tenants: bool

    @classmethod
    def of(cls, limits: Limits) -> Reach:
        found = cls(0, 0, 0, 1.0, False)
        found.widen(limits)
        return found

    def widen(self, limits: Limits | RuntimeLimits) -> None:
        """Other limits are in force."""
        self.max_seqs = max(self.max_seqs, limits.max_seqs)
        self.queue_requests = max(self.queue_requests, limits.queue_limit_requests)
        self.least_weight = min(self.least_weight, *limits.tenant_weights.values(), 1.0)
        self.caps_tenants = self.caps_tenants or limits.tenant_max_seqs is not None
        if self.tenant_queue is not None:
            now = limits.tenant_queue_limit
            self.tenant_queue = None if now is None else max(self.tenant_queue, now)


class Invariants:
    """Watches one world. Raises InvariantViolated at the first step that is wrong."""

    def __init__(self, scheduler: Scheduler, cost: LinearCost | None = None) -> None:
        """`cost` is what every step of this world takes, None where steps are slow by chance."""
        self._scheduler = scheduler
        self._seen: dict[int, Seen] = {}
        self.slo = SloInvariants(scheduler, self._seen, cost)
        self._last_committed_ns = 0
        self._reach = Reach.of(scheduler.limits)
        self._ran: Counter[str] = Counter()

    @property
    def ended(self) -> int:
        return sum(seen.end_fact is not None for seen in self._seen.values())

    def restarted(self, scheduler: Scheduler) -> None:
        """A new engine: sequences that were live in the old one ended with its death."""
        self._scheduler = scheduler
        self.slo.restarted(scheduler)
        self._reach = Reach.of(scheduler.limits)
        self._ran.clear()
        for seen in self._seen.values():
            if seen.end_fact is None:
                seen.end_fact = seen.end_emitted = EndReason.ENGINE_DIED

    def submitted(self, seq_id: int, arrival: Arrival, now_ns: int, adapter: int = 0) -> None:
        self._seen[seq_id] = Seen(arrival, now_ns, adapter)

    def adapters_of(self, plan: Plan) -> frozenset[int]:
        """The adapters that a plan's sequences were submitted with."""
        return frozenset(self._seen[row.seq_id].adapter for row in plan.rows) - {0}

    def read(self, reader: int, writer: int) -> None:
        """`reader` attends to what `writer` computed."""
        ours, theirs = self._seen[reader].arrival, self._seen[writer].arrival
        same = (ours.tenant, ours.cache_salt) == (theirs.tenant, theirs.cache_salt)
        open_to_sharing = ours.cache_prefix and theirs.cache_prefix
        require(10, same and open_to_sharing, f"sequence {reader} read a block of {writer}")
        one = self._seen[reader].adapter == self._seen[writer].adapter
        require(22, one, f"sequence {reader} read a block of {writer}, of another adapter")

    def planned(self, plan: Plan, now_ns: int) -> None:
        live, limits = self._scheduler.table.live, self._scheduler.limits
        running = len(self._scheduler.table.running)
        ran = running + len(plan.preempted)
        budget, allowed = plan.budget_tokens, max(limits.step_tokens, ran)
        require(5, budget <= allowed, f"step {plan.step_id}: a budget of {budget}, not {allowed}")
        beyond = plan.started and running > limits.max_seqs
        require(5, not beyond, f"step {plan.step_id}: {running} run of {limits.max_seqs}")
        ids = [row.seq_id for row in plan.rows]
        require(9, len(set(ids)) == len(ids), f"step {plan.step_id} has a sequence twice: {ids}")
        for seq_id in ids:
            request = live.get(seq_id)
            require(9, request is not None, f"step {plan.step_id} plans for {seq_id}, not live")
            assert request is not None
            require(9, not request.blocked, f"step {plan.step_id} plans for {seq_id}, blocked")
            deadline_ns = request.submit.deadline_ns
            overdue = deadline_ns is not None and deadline_ns <= now_ns
            require(12, not overdue, f"step {plan.step_id} plans for {seq_id}, overdue")
        self.slo.planned(plan, now_ns)

    def emitted(self, emissions: list[Emission], true_token: object) -> None:
        assert callable(true_token)
        for emission in emissions:
            seen = self._seen[emission.seq_id]
            require(2, seen.end_emitted is None, f"an emission of {emission.seq_id} after its end")
            if emission.sample is not None:
                wanted = true_token(emission.seq_id, len(seen.tokens))
                given = emission.sample.token_id
                require(11, given == wanted, f"{emission.seq_id} got {given}, not {wanted}")
                seen.tokens.append(given)
                self._within_bounds(emission.seq_id, seen)
            seen.end_emitted = emission.end

    def after_step(self, facts: list[Fact]) -> None:
        """All facts of one turn of the loop, and the engine as it is now."""
        for fact in facts:
            if isinstance(fact, LimitsSet):  # several may be in force one after the other
                self._reach.widen(fact.limits)
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._step(fact)
                case SequenceEnded():
                    self.slo.ended(fact)
                    seen = self._seen[fact.seq_id]
                    require(2, seen.end_fact is None, f"{fact.seq_id} ended twice")
                    seen.end_fact = fact.reason
                    seen.tokens_in_fact = fact.output_tokens
                case LimitsSet():
                    self.slo.set_limits(fact)
                case SequenceQueued():
                    self.slo.queued(fact)
                    self._queued(fact)
                case SequenceAdmitted():
                    self._admitted(fact)
                case _:
                    pass
        self._books()
        self._requests()
        self._fairness()

    def at_end(self) -> None:
        scheduler = self._scheduler
        require(14, not scheduler.has_live, f"live at the end: {sorted(scheduler.table.live)}")
        require(14, scheduler.pool.used == 0, f"{scheduler.pool.used} blocks used at the end")
        for seq_id, seen in self._seen.items():
            require(2, seen.end_fact is not None, f"{seq_id} has no terminal fact")
            require(2, seen.end_emitted is seen.end_fact, f"{seq_id}: emitted {seen.end_emitted}")
            self._complete(seq_id, seen)

    def _within_bounds(self, seq_id: int, seen: Seen) -> None:
        allowed, room = seen.arrival.max_tokens, self._scheduler.limits.max_model_tokens
        count, known = len(seen.tokens), len(seen.arrival.prompt) + len(seen.tokens)
        require(6, count <= allowed, f"{seq_id}: {count} of {allowed} tokens")
        require(6, known <= room, f"{seq_id} outgrew the context")

    def _complete(self, seq_id: int, seen: Seen) -> None:
        arrival, tokens = seen.arrival, seen.tokens
        if seen.tokens_in_fact is not None:
            same = seen.tokens_in_fact == len(tokens)
            require(16, same, f"{seq_id}: {len(tokens)} emitted, {seen.tokens_in_fact} in the fact")
        if seen.end_fact is EndReason.MAX_TOKENS:
            require(16, len(tokens) == arrival.max_tokens, f"{seq_id}: {len(tokens)} tokens")
        if seen.end_fact is EndReason.EOS:
            enough = len(tokens) >= min(arrival.min_tokens, arrival.max_tokens)
            constrained = arrival.grammar_ns is not None
            require(16, enough or constrained, f"{seq_id} ended before its minimum")
            require(16, arrival.eos_at is not None, f"{seq_id} ended by a token it has not")

    def _step(self, step: StepRecorded) -> None:
        tokens = sum(row.tokens for row in step.rows)
        within = tokens <= step.budget_tokens
        require(5, within, f"step {step.step_id}: {tokens} of {step.budget_tokens} tokens")
        few = len(step.rows) <= self._reach.max_seqs
        require(5, few, f"step {step.step_id}: {len(step.rows)} rows")
        stamps = (
            step.begin_ns, step.planned_ns, step.launched_ns, step.collected_ns, step.committed_ns
        )  # fmt: skip
        require(7, list(stamps) == sorted(stamps), f"step {step.step_id}: {stamps}")
        require(7, step.committed_ns >= self._last_committed_ns, f"step {step.step_id} came late")
        self._last_committed_ns = step.committed_ns

    def _queued(self, fact: SequenceQueued) -> None:
        reach, queue = self._reach, self._scheduler.table.queue
        excess = len(queue) - reach.queue_requests - reach.max_seqs
        require(13, excess <= 0, f"{len(queue)} wait, {reach.queue_requests} may")
        if reach.tenant_queue is not None:
            bound = reach.tenant_queue + reach.max_seqs
            waiting = queue.waiting_of(fact.tenant)
            require(13, waiting <= bound, f"{waiting} of tenant {fact.tenant!r} wait")

    def _admitted(self, fact: SequenceAdmitted) -> None:
        """No earlier request of the same tenant and class is still in the queue."""
        request = self._scheduler.table.live.get(fact.seq_id)
        if request is None or request.preemptions or self._scheduler.limits.slo_order:
            return
        for other in self._scheduler.table.queue:
            own_queue = (other.submit.tenant, other.submit.priority)
            if other.preemptions or self._seen[other.seq_id].arrival.may_lose_its_place:
                continue
            if own_queue == (request.submit.tenant, request.submit.priority):
                passed = other.arrival < request.arrival
                require(8, not passed, f"{fact.seq_id} passed {other.seq_id}")

    def _books(self) -> None:
        try:
            self._scheduler.check()
        except AssertionError as error:
            raise InvariantViolated(3, str(error)) from error

    def _requests(self) -> None:
        live, limits = self._scheduler.table.live, self._scheduler.limits
        for seq_id, seen in self._seen.items():
            ended = seen.end_fact is not None
            require(1, ended != (seq_id in live), f"{seq_id}: ended {ended}, live {seq_id in live}")
        running = Counter(r.submit.tenant for r in self._scheduler.table.running)
        if limits.tenant_max_seqs is not None:
            for tenant, count in running.items():
                holds = count <= max(limits.tenant_max_seqs, self._ran[tenant])
                require(15, holds, f"{count} of tenant {tenant!r} run")
        self._ran = running

    def _fairness(self) -> None:
        limits, table, reach = self._scheduler.limits, self._scheduler.table, self._reach
        if limits.policy is not Policy.VTC or reach.caps_tenants:
            return
        if len({seen.arrival.priority for seen in self._seen.values()}) > 1:
            return  # a better class is served first, whatever its tenant has had
        service = [table.counters.service_of(tenant) for tenant in table.queue.tenants]
        if len(service) > 1:
            gap = max(service) - min(service)
            bound = service_bound(limits.max_model_tokens, reach.max_seqs, reach.least_weight)
            require(8, gap <= bound, f"service of waiting tenants is {gap} apart, bound {bound}")
