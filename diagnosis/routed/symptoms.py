"""The symptoms of a fleet, what a finding holds, and what each symptom needs to be seen."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from diagnosis.symptoms import Evidence

PREFIX = "prefix "
"""What a culprit begins with that is a prefix, and no engine."""


class FleetSymptom(StrEnum):
    """What no engine of a fleet can see by itself."""

    REPLICA_SLOW = "replica_slow"  # an engine's steps take longer than others' of equal size
    ROUTER_HERDING = "router_herding"  # requests go to one engine until it reports again
    HOT_PREFIX = "hot_prefix"  # one prefix brings more to its engine than that can serve
    AFFINITY_LOST = "affinity_lost"  # prefixes are computed again that the fleet had
    SIGNALS_STALE = "signals_stale"  # requests are routed by old reports
    CLOCK_UNBOUNDED = "clock_unbounded"  # a node's clock cannot be placed against this one
    PREFILL_BOUND = "prefill_bound"  # too few engines that compute prompts
    DECODE_BOUND = "decode_bound"  # too few engines that generate
    TRANSFER_SLOW = "transfer_slow"  # KV takes longer on its way than it did
    TRANSFER_STALL = "transfer_stall"  # KV is on its way and does not come
    STAGING_FULL = "staging_full"  # no blocks can be reserved for KV
    KV_STRANDED = "kv_stranded"  # blocks wait for a transfer that does not end
    SPLIT_NOT_WORTH_IT = "split_not_worth_it"  # one engine alone would have been quicker
    KV_CORRUPT = "kv_corrupt"  # KV arrives as something else than was sent


class FleetNeed(StrEnum):
    """Something that a gateway records or not; the value is how it is told."""

    ROUTED = "requests that were routed"
    TWO_ENGINES = "two engines with traffic"
    REPORTS = "load reports"
    CLOCKS = "exchanges of clocks with the nodes"
    COSTS = "the fitted cost of an engine's steps"
    HISTORY = "some seconds of traffic to compare with"
    PREFIXES = "prompts with a prefix that was asked for before"
    KV_TRANSFERS = "facts of KV that comes from another engine"
    KV_HISTORY = "some seconds of transfers to compare with"
    SPLITS = "what each way was predicted to take"


class FleetAbstention(msgspec.Struct, frozen=True):
    """A symptom that is not judged, since what it needs is not seen."""

    symptom: FleetSymptom
    needs: tuple[str, ...]

    @property
    def text(self) -> str:
        """In one line."""
        return f"{self.symptom.value} (needs {' and '.join(self.needs)})"


class FleetExclusion(msgspec.Struct, frozen=True):
    """A symptom that looks alike, and the measurement that rules it out."""

    symptom: FleetSymptom
    reason: str


class FleetFault(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of lost time in the fleet, as its gateway sees it.

    `harm_ms` is requests' time lost to it in the window, `share` its part of all lost time that was
    found. `culprits` are engines, or a prefix as `prefix HASH`, worst first; `victims` ids of
    requests. `intervention` is what would remove it. `runbook` is the page, relative to the project
    root. Confidence is not stated: it was not calibrated for fleets.
    """

    symptom: FleetSymptom
    claim: str
    harm_ms: float
    evidence: tuple[Evidence, ...]
    culprits: tuple[str, ...] = ()
    victims: tuple[str, ...] = ()
    excluded: tuple[FleetExclusion, ...] = ()
    intervention: str = ""
    share: float = 1.0
    onset_ns: int | None = None
    runbook: str = ""


class RoutedVerdict(msgspec.Struct, frozen=True):
    """What is said of the fleet: faults, the one that costs most first, over the `window_ns` that
    ended with the last tick, of `engines` that this gateway knows. `compared` says whether there is
    history to compare with."""

    faults: tuple[FleetFault, ...]
    engines: int
    window_ns: int
    compared: bool
    abstained: tuple[FleetAbstention, ...] = ()


def runbook_of(symptom: FleetSymptom) -> str:
    """The path of a symptom's runbook, as findings name it."""
    return f"runbooks/fleet/{symptom.value}.md"
