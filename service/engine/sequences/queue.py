"""The waiting queue: a queue for each priority class and tenant, and the order between them.

    blocked       its grammar is not compiled, its adapter is not placed, its KV comes from another
                  engine, or its client reads too slowly: others pass it
    queued        in the queue of its class and tenant, in order of arrival

In the order of the SLO there is a queue for each first-token target too, and one for requests that
cannot meet theirs any more: the least slack goes first (`service.engine.planning.slack`).

The head is the request that is admitted next. No later request of its queue passes it while it does
not fit, because passing lets small requests starve a large one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping

from service.engine.fairness import Policy, TenantCounters
from service.engine.sequences.request import Request, Status

SortKey = tuple[int, float, int, float, int]
"""Class, service, running of the tenant, when it has to start, arrival."""

_QueueKey = tuple[int, str, int, bool]
"""Class, tenant, first-token target (0 unless it decides the order), whether that is missed."""


class WaitingQueue:
    """Owns the order of waiting requests, their number and the number of their tokens."""

    def __init__(
        self,
        policy: Policy,
        counters: TenantCounters,
        ageing_ns: int,
        min_active_service: Callable[[Request], float | None],
        slo_order: bool = False,
    ) -> None:
        """`min_active_service` gives the least service of a tenant that a request competes with,
        None when there is none."""
        self._min_active_service = min_active_service
        self.tokens = 0
        self._policy = policy
        self._counters = counters
        self._ageing_ns = ageing_ns
        self._slo_order = slo_order
        self._queues: dict[_QueueKey, OrderedDict[int, Request]] = {}
        self._ttft_targets: Counter[int] = Counter()
        self._blocked: dict[int, Request] = {}
        self._by_tenant: dict[str, int] = {}
        self._count = 0  # of all tenants: read once a step
        self.held_for: Request | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        for queue in self._queues.values():
            yield from queue.values()
        yield from self._blocked.values()

    @property
    def has_candidates(self) -> bool:
        """Whether a request waits that is not blocked."""
        return bool(self._queues)

    @property
    def tenants(self) -> set[str]:
        """Tenants with a waiting request that is not blocked."""
        return {tenant for _, tenant, _, _ in self._queues}

    @property
    def ttft_targets(self) -> list[int | None]:
        """The different first-token targets of waiting requests."""
        return [target_ns or None for target_ns in self._ttft_targets]

    def waiting_of(self, tenant: str) -> int:
        """Waiting requests of the tenant, blocked ones too."""
        return self._by_tenant.get(tenant, 0)

    def push(self, request: Request, first: bool = False) -> None:
        """Add a request; `first` puts a preempted one before the others of its class and tenant."""
        tenant = request.submit.tenant
        if request.blocked:
            self._blocked[request.seq_id] = request
        else:
            self._enqueue(request, first)
        self._by_tenant[tenant] = self.waiting_of(tenant) + 1
        self._count += 1
        self._ttft_targets[request.submit.ttft_target_ns or 0] += 1
        self.tokens += request.known_tokens

    def add_tokens(self, tokens: int) -> None:
        """A preempted request got `tokens` tokens from a step that was in flight."""
        self.tokens += tokens

    def block(self, request: Request) -> None:
        """A waiting request became `blocked`."""
        if request.seq_id not in self._blocked:
            self._unqueue(request)
            self._blocked[request.seq_id] = request

    def unblock(self, request: Request, first: bool, now_ns: int) -> None:
        """A request is `blocked` no more; it ages from `now_ns` on."""
        if self._blocked.pop(request.seq_id, None) is not None:
            request.queued_ns = now_ns
            self._enqueue(request, first)

    def unblock_in_place(self, request: Request) -> None:
        """A request is `blocked` no more; it goes where it would be had it never been blocked."""
        if self._blocked.pop(request.seq_id, None) is None:
            return
        self._enqueue(request, False)
        queue = self._queues[self._key_of(request)]
        place = _place(request)
        for later in [one for one in queue.values() if _place(one) > place]:
            queue.move_to_end(later.seq_id)

    def held_back(self, now_ns: int) -> Request | None:
        """The request that has waited too long for memory for its adapter: none that arrived later
        is admitted before it."""
        held = self.held_for
        overdue = held is not None and held.queued_ns <= now_ns - self._ageing_ns
        return held if overdue else None

    def remove(self, request: Request) -> None:
        """Take a request out: it starts, or ends."""
        tenant = request.submit.tenant
        if self._blocked.pop(request.seq_id, None) is None:
            self._unqueue(request)
        left = self.waiting_of(tenant) - 1
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]
        self._count -= 1
        target_ns = request.submit.ttft_target_ns or 0
        self._ttft_targets[target_ns] -= 1
        if not self._ttft_targets[target_ns]:
            del self._ttft_targets[target_ns]
        self.tokens -= request.known_tokens

    def min_service(self, priority: int, eligible: Callable[[str], bool]) -> float | None:
        """The least service of an `eligible` tenant with a queued request of class `priority` or
        better; None when there is none."""
        rivals = {tenant for p, tenant, _, _ in self._queues if p <= priority and eligible(tenant)}
        return min((self._counters.service_of(tenant) for tenant in rivals), default=None)

    @property
    def firsts(self) -> list[Request]:
        """The first request of each queue."""
        return [next(iter(queue.values())) for queue in self._queues.values()]

    def heads(self, key: Callable[[Request], SortKey]) -> list[Request]:
        """The first request of each class and tenant, sorted by `key`."""
        return sorted(self.firsts, key=key)

    def set_slo_order(self, slo_order: bool) -> None:
        """Order by slack or by arrival from now on; what waits is sorted in again."""
        if slo_order == self._slo_order:
            return
        waiting = sorted(
            (request for queue in self._queues.values() for request in queue.values()),
            key=_place,
        )
        self._slo_order = slo_order
        self._queues = {}
        for request in waiting:
            queue = self._queues.setdefault(self._key_of(request), OrderedDict())
            queue[request.seq_id] = request

    def set_late_aside(self, is_late: Callable[[Request], bool]) -> list[Request]:
        """Move the heads that cannot meet their first-token target to a queue of their own, where
        they hold up none that can; returns them."""
        moved: list[Request] = []
        for key in [key for key in self._queues if key[2] and not key[3]]:
            queue = self._queues[key]
            while queue and is_late(head := next(iter(queue.values()))):
                del queue[head.seq_id]
                head.late = True
                self._queues.setdefault(self._key_of(head), OrderedDict())[head.seq_id] = head
                moved.append(head)
            if not queue:
                del self._queues[key]
        return moved

    def bring_back(self, moved: list[Request]) -> None:
        """Undo `set_late_aside`."""
        for request in reversed(moved):
            key = self._key_of(request)
            del self._queues[key][request.seq_id]
            if not self._queues[key]:
                del self._queues[key]
            request.late = False
            queue = self._queues.setdefault(self._key_of(request), OrderedDict())
            queue[request.seq_id] = request
            queue.move_to_end(request.seq_id, last=False)

    def sort_key(
        self,
        now_ns: int,
        batch: Mapping[str, int],
        start_by_ns: Callable[[Request], float] | None = None,
    ) -> Callable[[Request], SortKey]:
        """The order of service: class, then what the policy compares, then slack, then arrival.

        `batch` counts the running sequences of each tenant. Slack counts where `start_by_ns` says
        when a request has to start. Then a prompt that is being computed has the service of its
        tenant now, like those that wait: slack decides between them, and what its tenant admitted
        while it was alone holds up no other one. Else it keeps that of its admission.
        """
        aged_ns = now_ns - self._ageing_ns
        fair = self._policy is Policy.VTC
        best = min((key[0] for key in self._queues), default=0)

        def key(request: Request) -> SortKey:
            tenant, aged = request.submit.tenant, False
            if request.status is Status.RUNNING:
                priority, service = request.admitted_class, request.admitted_service
                if start_by_ns is not None and request.in_prefill:
                    service = self._counters.service_of(tenant)
            else:
                aged = request.queued_ns <= aged_ns
                priority = min(best, request.submit.priority) if aged else request.submit.priority
                service = self._counters.service_of(tenant)
            slack = 0.0 if aged or start_by_ns is None else start_by_ns(request)
            if not fair:
                return (priority, 0, 0, slack, request.arrival)
            return (priority, service, batch.get(tenant, 0), slack, request.arrival)

        return key

    def _enqueue(self, request: Request, first: bool) -> None:
        tenant = request.submit.tenant
        if tenant not in self.tenants:
            self._counters.tenant_queued(tenant, self._min_active_service(request))
        queue = self._queues.setdefault(self._key_of(request), OrderedDict())
        queue[request.seq_id] = request
        if first:
            queue.move_to_end(request.seq_id, last=False)

    def _unqueue(self, request: Request) -> None:
        tenant = request.submit.tenant
        key = self._key_of(request)
        queue = self._queues[key]
        del queue[request.seq_id]
        if not queue:
            del self._queues[key]
            if tenant not in self.tenants:
                self._counters.tenant_left(tenant, self._by_tenant)

    def _key_of(self, request: Request) -> _QueueKey:
        submit = request.submit
        target_ns = (submit.ttft_target_ns or 0) if self._slo_order else 0
        return (submit.priority, submit.tenant, target_ns, self._slo_order and request.late)


def _place(request: Request) -> tuple[bool, int]:
    """The order within a queue: those that were preempted, then by arrival."""
    return (not request.preemptions, request.arrival)
