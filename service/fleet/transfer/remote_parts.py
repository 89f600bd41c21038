"""Where the time of the prefill side goes: computing, blocks on their way with nothing computed,
and the rest. Of a moment in which both happen computing has it: that transfer is hidden."""

from __future__ import annotations

from collections.abc import Iterable

from telemetry.facts.fleet.kv_transfer_records import RemoteParts
from telemetry.numbers.intervals import Interval, length_ns, overlap, union


def remote_parts(
    begin_ns: int, end_ns: int, computed: Iterable[Interval], pushed: Iterable[Interval]
) -> RemoteParts:
    """Cut [begin_ns, end_ns) of one transfer into its parts: they sum to its length."""
    window = [(begin_ns, end_ns)] if begin_ns < end_ns else []
    computing = overlap(union(computed), window)
    pushing = overlap(union(pushed), window)
    compute_ns, hidden_ns = length_ns(computing), length_ns(overlap(computing, pushing))
    exposed_ns = length_ns(pushing) - hidden_ns
    return RemoteParts(
        queue_ns=length_ns(window) - compute_ns - exposed_ns,
        compute_ns=compute_ns,
        exposed_ns=exposed_ns,
        hidden_ns=hidden_ns,
    )
