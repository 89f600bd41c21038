"""The order of service: first come first served, or fair shares between tenants.

Fair shares follow the Virtual Token Counter (Sheng et al., OSDI 2024): each tenant has a
counter of the service it got, in weighted tokens; the waiting tenant with the smallest
counter is next; a tenant that comes back from idleness is lifted to the smallest counter
of those that are or could be served, so that idleness cannot be saved up. While two tenants
both wait, their counters stay within a bound of each other (`service_bound`).

An admitted request keeps its sort key, the start tag of start-time fair queueing (Goyal et
al., SIGCOMM 1996): the prompt of a tenant whose turn it is is computed to its end, and does not
alternate with those of a flood. Between equal counters the tenant with fewer running sequences
goes first.

Priority classes come before both. So that no class starves, a request that has waited
longer than the ageing time counts as one of the best class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

PREFILL_WEIGHT = 1
DECODE_WEIGHT = 2
_TENANTS_KEPT = 4096


class Policy(StrEnum):
    """How waiting requests are ordered within a priority class."""

    FCFS = "fcfs"
    VTC = "vtc"


class TenantCounters:
    """Service by tenant, in weighted tokens: the virtual token counters. They count all work,
    under any policy. A tenant's tokens are divided by its weight in `weights`, 1 without one."""

    def __init__(self) -> None:
        self.weights: Mapping[str, float] = {}
        self._service: dict[str, float] = {}
        self._last_left: str | None = None

    def service_of(self, tenant: str) -> float:
        """Weighted tokens; 0 for an unknown tenant."""
        return self._service.get(tenant, 0)

    def add_prefill(self, tenant: str, tokens: int) -> None:
        """Charge `tokens` prompt tokens; called at admission, before they are computed."""
        self._charge(tenant, PREFILL_WEIGHT * tokens)

    def add_decode(self, tenant: str, tokens: int) -> None:
        """Charge `tokens` output tokens."""
        self._charge(tenant, DECODE_WEIGHT * tokens)

    def _charge(self, tenant: str, weighted_tokens: int) -> None:
        charged = self._by_weight(tenant, weighted_tokens)
        self._service[tenant] = self.service_of(tenant) + charged

    def prefill_charge(self, tenant: str, tokens: int) -> float:
        """What `add_prefill` would charge."""
        return self._by_weight(tenant, PREFILL_WEIGHT * tokens)

    def _by_weight(self, tenant: str, weighted_tokens: int) -> float:
        weight = self.weights.get(tenant)
        return weighted_tokens if weight is None else weighted_tokens / weight

    def tenant_queued(self, tenant: str, min_active_service: float | None) -> None:
        """A tenant with no queued request queues one. Its counter is lifted to just below
        `min_active_service`, the least of the tenants that it competes with; where there is none
        (None), to just below that of the tenant that left the queue last."""
        least = min_active_service
        if least is None:
            least = self.service_of(self._last_left) if self._last_left is not None else 0
        self._service[tenant] = max(self.service_of(tenant), least - 1)

    def tenant_left(self, tenant: str, live: Iterable[str]) -> None:
        """The tenant has no queued request any more. Beyond 4096 tenants, those that are not
        `live` are dropped."""
        self._last_left = tenant
        if len(self._service) > _TENANTS_KEPT:
            keep = {tenant, *live}
            self._service = {name: n for name, n in self._service.items() if name in keep}


def service_bound(max_model_tokens: int, max_seqs: int, least_weight: float = 1.0) -> float:
    """The most by which the counters of two waiting tenants may differ, in weighted tokens.

    Admission charges a whole prompt at once, and sequences already running go on being
    charged for their outputs whatever the queue does. All of it may be of the tenant with the
    `least_weight`, whose tokens count most.
    """
    prompt = PREFILL_WEIGHT * max_model_tokens
    running = DECODE_WEIGHT * max_seqs * max_model_tokens
    return 2 * max(prompt, running) / least_weight
