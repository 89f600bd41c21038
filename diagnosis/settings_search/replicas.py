"""The demand on one of several replicas: the same requests, fewer of them.

A router keeps a tenant on one replica, where its prefixes are cached. So whole tenants go to one
replica, if there are enough of them for equal shares; else every n-th request of each SLO class
does. Lengths stay as they are: half the demand is half the requests, not requests of half the
length.
"""

from __future__ import annotations

from collections import defaultdict

from diagnosis.settings_search.thresholds import BALANCED
from lab.replay.recorded import RecordedRun, RecordedSequence
from telemetry.facts.records import RequestAccepted


def elsewhere(run: RecordedRun, replicas: int) -> frozenset[int]:
    """The sequences that go to other replicas than the one with the most work."""
    if replicas <= 1:
        return frozenset()
    kept = _whole_tenants(run, replicas)
    if kept is None:
        kept = _every_nth(run, replicas)
    return frozenset(run.sequences) - kept


def _whole_tenants(run: RecordedRun, replicas: int) -> frozenset[int] | None:
    """The sequences of one replica if tenants are divided equally; None where they cannot be."""
    work: dict[str, int] = defaultdict(int)
    for one in run.sequences.values():
        work[one.entry.tenant] += tokens_of(one)
    groups: list[set[str]] = [set() for _ in range(replicas)]
    sums = [0] * replicas
    for tenant in sorted(work, key=lambda name: (-work[name], name)):
        least = sums.index(min(sums))
        groups[least].add(tenant)
        sums[least] += work[tenant]
    most = max(sums)
    if not min(sums) or most > BALANCED * sum(sums) / replicas:
        return None
    mine = groups[sums.index(most)]
    return frozenset(n for n, one in run.sequences.items() if one.entry.tenant in mine)


def _every_nth(run: RecordedRun, replicas: int) -> frozenset[int]:
    """All choices of a request stay together."""
    classes = {
        fact.request_id: fact.slo_class for fact in run.others if isinstance(fact, RequestAccepted)
    }
    owners = run.owners
    number: dict[str, int] = {}
    counts: dict[str, int] = defaultdict(int)
    kept: set[int] = set()
    for seq_id in sorted(run.sequences):
        request = owners.get(seq_id, f"sequence {seq_id}")
        if request not in number:
            slo_class = classes.get(request, "")
            number[request] = counts[slo_class]
            counts[slo_class] += 1
        if number[request] % replicas == 0:
            kept.add(seq_id)
    return frozenset(kept)


def tokens_of(sequence: RecordedSequence) -> int:
    """Prompt and outputs, as far as known."""
    end = sequence.end
    outputs = sequence.entry.max_tokens if end is None else end.output_tokens
    return sequence.entry.prompt_tokens + outputs
