"""What is checked of the account of a request of an attached engine.

The truth beside it is made anew from the facts of the journal: engine-core time is from when the
core's process received the sequence to the commit of the last token that its client got, or to the
sequence's end in the core where it did not finish.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from telemetry.facts.engine_records import SequenceEnded, SequenceQueued, StepRecorded
from telemetry.facts.reasons import Outcome
from telemetry.facts.records import Fact, RequestEnded, SequenceSubmitted

ENGINE_STATES = ("wait", "run", "skip", "preempted")
NOT_OBSERVED = "not_observed"


@dataclass
class _Sequence:
    """What the core said of one sequence, and when the front end handed it over."""

    submitted_ns: int | None = None
    received_ns: int | None = None
    ended_ns: int | None = None
    tokens_ns: list[int] = field(default_factory=list)


def core_times(facts: Iterable[Fact]) -> dict[str, int]:
    """Engine-core time in ns of each ended request that had one sequence, by request id. Facts of
    two processes may be in any order."""
    sequences: dict[int, _Sequence] = defaultdict(_Sequence)
    of_request: dict[str, list[int]] = defaultdict(list)
    ended: dict[str, RequestEnded] = {}
    for fact in facts:
        match fact:
            case SequenceSubmitted():
                sequences[fact.seq_id].submitted_ns = fact.at_ns
                of_request[fact.request_id].append(fact.seq_id)
            case SequenceQueued():
                sequences[fact.seq_id].received_ns = fact.received_ns
            case StepRecorded():
                for row in fact.rows:
                    if not row.wasted:
                        sequences[row.seq_id].tokens_ns += [fact.committed_ns] * row.sampled
            case SequenceEnded():
                sequences[fact.seq_id].ended_ns = fact.at_ns
            case RequestEnded():
                ended[fact.request_id] = fact
            case _:
                pass
    return {
        request_id: _core_ns(sequences[of_request[request_id][0]], end)
        for request_id, end in ended.items()
        if len(of_request.get(request_id, ())) == 1
    }


def _core_ns(sequence: _Sequence, end: RequestEnded) -> int:
    """From received to the last token, or to the end, within the request's own time."""
    tail_ns = end.at_ns if sequence.ended_ns is None else sequence.ended_ns
    if end.reason.outcome is Outcome.FINISHED and sequence.tokens_ns:
        tokens_ns, seen_ns = sequence.tokens_ns, end.received_ns
        seen = len(tokens_ns) if seen_ns is None else bisect_right(tokens_ns, seen_ns)
        tail_ns = tokens_ns[max(0, seen - 1)]
    submitted_ns = min(sequence.submitted_ns or end.at_ns, end.at_ns)
    tail_ns = max(submitted_ns, min(tail_ns, end.at_ns))
    begin_ns = submitted_ns
    if sequence.received_ns is not None:
        begin_ns = max(begin_ns, min(sequence.received_ns, tail_ns))
    return tail_ns - begin_ns


@dataclass(frozen=True)
class Row:
    """One request's account, summed up. `core_ns` is by the entries."""

    request_id: str
    kind: str
    outcome: str
    e2e_ns: int
    residue_ns: int
    least_ns: int
    core_ns: int
    parts: Counter[str]
    not_observed: Counter[str]
    preempted: int
    cached_tokens: int

    @property
    def not_observed_share(self) -> float:
        return self.not_observed.total() / max(1, self.e2e_ns)


def row_of(kind: str, facts: dict[str, Any]) -> Row:
    """From `/debug/requests/{id}`."""
    parts: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    entries = facts["ledger"]["entries"]
    for entry in entries:
        parts[entry["part"]] += entry["ns"]
        if entry["part"] == NOT_OBSERVED:
            unseen[entry.get("reason", "")] += entry["ns"]
    return Row(
        request_id=facts["request_id"],
        kind=kind,
        outcome=facts["outcome"],
        e2e_ns=facts["e2e_ns"],
        residue_ns=parts.total() - (facts["ended_ns"] - facts["accepted_ns"]),
        least_ns=min((entry["ns"] for entry in entries), default=0),
        core_ns=sum(
            entry["ns"]
            for entry in entries
            if entry["state"] in ENGINE_STATES and entry["part"] != NOT_OBSERVED
        ),
        parts=parts,
        not_observed=unseen,
        preempted=sum(len(one["preempted"]) for one in facts["sequences"]),
        cached_tokens=facts["cached_tokens"],
    )
