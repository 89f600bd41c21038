"""The waiting: one queue a priority class and tenant, and the choice of the head.

    held          its grammar is not ready, or its reader is too slow: in nobody's way
    waiting       in the queue of its class and tenant, in order of arrival

The head is the request that is admitted next; until it fits nobody else of its rank may
pass it, because passing lets small requests starve a large one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

from service.engine.fairness import Policy, ServiceLedger
from service.engine.request import Request, Status

Rank = tuple[int, int, int, int]


class WaitingQueue:
    """Owns the order of the waiting; counts them and their tokens."""

    def __init__(
        self,
        policy: Policy,
        ledger: ServiceLedger,
        ageing_ns: int,
        floor: Callable[[Request], int | None],
    ) -> None:
        """`floor` tells the service of whoever is served next, as seen by a request."""
        self._floor = floor
        self.tokens = 0
        self._policy = policy
        self._ledger = ledger
        self._ageing_ns = ageing_ns
        self._queues: dict[tuple[int, str], OrderedDict[int, Request]] = {}
        self._held: dict[int, Request] = {}
        self._by_tenant: dict[str, int] = {}
        self._count = 0  # of all tenants: asked once a step

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        for queue in self._queues.values():
            yield from queue.values()
        yield from self._held.values()

    @property
    def has_candidates(self) -> bool:
        """Whether anybody waits for the scheduler."""
        return bool(self._queues)

    @property
    def tenants(self) -> set[str]:
        """Tenants with a request that waits for the scheduler."""
        return {tenant for _, tenant in self._queues}

    def of_tenant(self, tenant: str) -> int:
        """Requests of the tenant that wait, for whatever."""
        return self._by_tenant.get(tenant, 0)

    def push(self, request: Request, first: bool = False) -> None:
        """`first` puts a preempted request before the others of its tenant."""
        tenant = request.submit.tenant
        if request.held:
            self._held[request.seq_id] = request
        else:
            self._enqueue(request, first)
        self._by_tenant[tenant] = self.of_tenant(tenant) + 1
        self._count += 1
        self.tokens += request.known_tokens

    def grew(self, tokens: int) -> None:
        """A waiting request's token came out of a step that was in flight."""
        self.tokens += tokens

    def hold(self, request: Request) -> None:
        """A waiting request became `held`."""
        if request.seq_id not in self._held:
            self._unqueue(request)
            self._held[request.seq_id] = request

    def release(self, request: Request, first: bool, now_ns: int) -> None:
        """A held request is `held` no more; only from now on does it age."""
        if self._held.pop(request.seq_id, None) is not None:
            request.queued_ns = now_ns
            self._enqueue(request, first)

    def remove(self, request: Request) -> None:
        tenant = request.submit.tenant
        if self._held.pop(request.seq_id, None) is None:
            self._unqueue(request)
        left = self.of_tenant(tenant) - 1
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]
        self._count -= 1
        self.tokens -= request.known_tokens

    def floor(self, priority: int, eligible: Callable[[str], bool]) -> int | None:
        """The least service among waiting tenants that a request of `priority` competes with."""
        rivals = {tenant for p, tenant in self._queues if p <= priority and eligible(tenant)}
        return min((self._ledger.service_of(tenant) for tenant in rivals), default=None)

    def heads(self, rank: Callable[[Request], Rank]) -> list[Request]:
        """The first of each class and tenant, in the order in which they are served."""
        return sorted((next(iter(queue.values())) for queue in self._queues.values()), key=rank)

    def rank(self, now_ns: int, batch: Mapping[str, int]) -> Callable[[Request], Rank]:
        """The order of service: class, then the policy's measure, then arrival.

        `batch` counts the running sequences of each tenant.
        """
        aged_ns = now_ns - self._ageing_ns
        fair = self._policy is Policy.VTC
        best = min((priority for priority, _ in self._queues), default=0)

        def key(request: Request) -> Rank:
            tenant = request.submit.tenant
            if request.status is Status.RUNNING:
                priority, service = request.admitted_class, request.admitted_service
            else:
                aged = request.queued_ns <= aged_ns
                priority = min(best, request.submit.priority) if aged else request.submit.priority
                service = self._ledger.service_of(tenant)
            if not fair:
                return (priority, 0, 0, request.arrival)
            return (priority, service, batch.get(tenant, 0), request.arrival)

        return key

    def _enqueue(self, request: Request, first: bool) -> None:
        tenant = request.submit.tenant
        if tenant not in self.tenants:
            self._ledger.arrived(tenant, self._floor(request))
        queue = self._queues.setdefault((request.submit.priority, tenant), OrderedDict())
        queue[request.seq_id] = request
        if first:
            queue.move_to_end(request.seq_id, last=False)

    def _unqueue(self, request: Request) -> None:
        tenant = request.submit.tenant
        key = (request.submit.priority, tenant)
        queue = self._queues[key]
        del queue[request.seq_id]
        if not queue:
            del self._queues[key]
            if tenant not in self.tenants:
                self._ledger.left(tenant, self._by_tenant)
