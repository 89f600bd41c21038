"""Who is next: first come first served, or fair shares between tenants.

Fair shares follow the Virtual Token Counter (Sheng et al., OSDI 2024): each tenant has a
counter of the service it got, in weighted tokens; the waiting tenant with the smallest
counter is next; a tenant that comes back from idleness is lifted to the smallest counter
of those that are or could be served, so that idleness cannot be saved up. While two tenants
both wait, their counters stay within a bound of each other (`service_bound`).

A request once admitted keeps its rank, the start tag of start-time fair queueing (Goyal et
al., SIGCOMM 1996): the prompt of a tenant that is due is computed through, and not in turns
with a flood of others'. Between equals the tenant with less in the batch goes first.

Priority classes come before both. So that no class starves, a request that has waited
longer than the ageing time counts as one of the best class.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

PREFILL_WEIGHT = 1
DECODE_WEIGHT = 2
_TENANTS_KEPT = 4096


class Policy(StrEnum):
    """How the waiting are ordered within a priority class."""

    FCFS = "fcfs"
    VTC = "vtc"


class ServiceLedger:
    """The counters. `served` is called for all work, under any policy."""

    def __init__(self) -> None:
        self._service: dict[str, int] = {}
        self._last_left: str | None = None

    def service_of(self, tenant: str) -> int:
        return self._service.get(tenant, 0)

    def prefilled(self, tenant: str, tokens: int) -> None:
        """`tokens` prompt tokens will be computed for the tenant."""
        self._service[tenant] = self.service_of(tenant) + PREFILL_WEIGHT * tokens

    def decoded(self, tenant: str, tokens: int) -> None:
        self._service[tenant] = self.service_of(tenant) + DECODE_WEIGHT * tokens

    def arrived(self, tenant: str, floor: int | None) -> None:
        """A tenant with nothing in the queue queues something. `floor` is the service of
        whoever is served next, None when nobody is: the newcomer is placed just before."""
        if floor is None:
            floor = self.service_of(self._last_left) if self._last_left is not None else 0
        self._service[tenant] = max(self.service_of(tenant), floor - 1)

    def left(self, tenant: str, live: Iterable[str]) -> None:
        """The tenant has nothing in the queue any more. Old idle tenants are forgotten."""
        self._last_left = tenant
        if len(self._service) > _TENANTS_KEPT:
            keep = {tenant, *live}
            self._service = {name: n for name, n in self._service.items() if name in keep}


def service_bound(max_model_tokens: int, max_seqs: int) -> int:
    """How far the counters of two tenants that both wait may be apart.

    Admission charges a whole prompt at once, and sequences already running go on being
    charged for their outputs whatever the queue does.
    """
    prompt = PREFILL_WEIGHT * max_model_tokens
    running = DECODE_WEIGHT * max_seqs * max_model_tokens
    return 2 * max(prompt, running)
