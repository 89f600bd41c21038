"""Workload classes: which requests a latency histogram puts together.

A class is SLO class x prompt-length bin x prefix cache cold or warm x tenant. Tenants and SLO
classes come from request headers, so the number of classes is bounded: further ones are counted
under `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

NONE = "none"
OTHER = "other"
COLD, WARM = "cold", "warm"
MAX_CELLS = 64
MAX_TENANTS = 16

_PROMPT_TOPS = (128, 512, 2048, 8192, 32_768)
PROMPT_BINS = ("1-128", "129-512", "513-2048", "2049-8192", "8193-32768", "32769-")


class WorkloadClass(NamedTuple):
    """The class of a request, as the request states it (unbounded), or as `ClassBook.bounded`
    returned it.

    A tuple, because it is hashed for each token.
    """

    slo_class: str
    prompt: str
    cache: str
    tenant: str


ENGINE_WIDE = WorkloadClass(NONE, NONE, NONE, NONE)
"""The class of values that belong to a step and not to a request."""


def workload_class(
    slo_class: str, tenant: str, prompt_tokens: int | None, cached_tokens: int | None
) -> WorkloadClass:
    """`prompt_tokens` is None before the prompt is tokenized, `cached_tokens` before admission.

    A request is warm when at least half of its prompt was in the prefix cache.
    """
    if prompt_tokens is None:
        return WorkloadClass(slo_class, NONE, NONE, tenant)
    prompt = PROMPT_BINS[bisect_left(_PROMPT_TOPS, prompt_tokens)]
    if cached_tokens is None:
        return WorkloadClass(slo_class, prompt, NONE, tenant)
    cache = WARM if cached_tokens * 2 >= prompt_tokens > 0 else COLD
    return WorkloadClass(slo_class, prompt, cache, tenant)


class ClassBook:
    """Bounds the number of classes: at most MAX_CELLS, and one `other` for each SLO class.

    SLO classes are those of the policy; an unknown one becomes the policy's default. The first
    MAX_TENANTS tenants keep their names. A class never goes away, so counters never fall.
    """

    def __init__(
        self,
        policy: SloPolicy = DEFAULT_POLICY,
        max_cells: int = MAX_CELLS,
        max_tenants: int = MAX_TENANTS,
    ) -> None:
        self.policy = policy
        self._max_cells = max_cells
        self._max_tenants = max_tenants
        self._tenants: set[str] = set()
        self._cells: set[WorkloadClass] = {ENGINE_WIDE}

    def bounded(self, stated: WorkloadClass) -> WorkloadClass:
        """The class under which `stated` is counted."""
        if stated == ENGINE_WIDE:
            return stated
        slo_class = self.policy.of(stated.slo_class).name
        cell = stated._replace(slo_class=slo_class, tenant=self._tenant(stated.tenant))
        if cell in self._cells:
            return cell
        if len(self._cells) < self._max_cells:
            self._cells.add(cell)
            return cell
        return WorkloadClass(slo_class, OTHER, OTHER, OTHER)

    def is_overflow(self, stated: WorkloadClass, counted: WorkloadClass) -> bool:
        """Whether `bounded` put `stated` under `other` for want of room. A client may call its
        tenant that too."""
        if counted.prompt == OTHER:
            return True
        is_own_name = stated.tenant == OTHER and OTHER in self._tenants
        return counted.tenant == OTHER and not is_own_name

    def _tenant(self, name: str) -> str:
        name = name or NONE
        if name not in self._tenants:
            if len(self._tenants) >= self._max_tenants:
                return OTHER
            self._tenants.add(name)
        return name
