"""Late tokens, and what made them late.

A gap between two tokens of a sequence that is longer than its class allows is a stall. It is
split like any interval of the ledger; the part that took most is its cause, and when that is
others' prompts or masks, the request that took most of it is the culprit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from telemetry.charging import Charger, Pauses, Track
from telemetry.harm import Taker
from telemetry.ledger import Entry, Part, Stall, entries_of
from telemetry.life import charge_engine
from telemetry.phases import RequestTimeline, SequenceTimeline
from telemetry.tape import At, Tape

MAX_STALLS = 64
_ENTRIES = 8
_NAMED = frozenset({Part.CO_PREFILL, Part.CO_MASK, Part.CO_DECODE})


def find_stalls(
    timeline: RequestTimeline,
    tracks: Mapping[int, Track],
    tape: Tape,
    pauses: Pauses,
    takers: Mapping[int, Taker],
    target_ns: int,
) -> tuple[tuple[Stall, ...], int]:
    """The longest MAX_STALLS gaps above `target_ns`, in order of time; how many more there were."""
    late = [
        (begin_ns, end_ns, sequence)
        for sequence in timeline.sequences
        for begin_ns, end_ns in zip(sequence.token_ns, sequence.token_ns[1:], strict=False)
        if end_ns - begin_ns > target_ns
    ]
    late.sort(key=lambda gap: (gap[0] - gap[1], gap[0], gap[2].seq_id))
    kept = sorted(late[:MAX_STALLS], key=lambda gap: (gap[0], gap[2].seq_id))
    siblings = frozenset(tracks)
    stalls: list[Stall] = []
    for begin_ns, end_ns, sequence in kept:
        track = tracks[sequence.seq_id]
        charger = Charger(tape, pauses, track, siblings)
        charge_engine(charger, sequence, track, tape, begin_ns, end_ns)
        stalls.append(_stall(charger, sequence, tape, takers, begin_ns, end_ns, target_ns))
    return tuple(stalls), len(late) - len(kept)


def _stall(
    charger: Charger,
    sequence: SequenceTimeline,
    tape: Tape,
    takers: Mapping[int, Taker],
    begin_ns: int,
    end_ns: int,
    target_ns: int,
) -> Stall:
    """Name the part that took most, and for a part with payers the largest of those."""
    parts: Counter[Part] = Counter()
    for (_, _, part, _), spent_ns in charger.book.items():
        parts[part] += spent_ns
    part, part_ns = min(parts.items(), key=lambda item: (-item[1], item[0].value))
    payers: Counter[int | str | None] = Counter()
    reasons: Counter[str] = Counter()
    for (_, reason, held, payer), spent_ns in charger.book.items():
        if held is part:
            payers[payer] += spent_ns
            reasons[reason] += spent_ns
    payer = min(payers.items(), key=lambda item: (-item[1], str(item[0])))[0]
    culprit = payer if part in _NAMED and isinstance(payer, int) else None
    taker = None if culprit is None else takers.get(culprit)
    step_id = None if culprit is None else _largest_step(tape, culprit, begin_ns, end_ns)
    entries = entries_of(charger.book, lambda seq_id: _name(takers, seq_id))
    return Stall(
        seq_id=sequence.seq_id,
        begin_ns=begin_ns,
        end_ns=end_ns,
        target_ns=target_ns,
        part=part,
        part_ns=part_ns,
        reason=reasons.most_common(1)[0][0],
        cause=payer if isinstance(payer, str) else None,
        culprit_request_id=taker.request_id if taker else None,
        culprit_trace_id=taker.trace_id if taker else None,
        culprit_seq_id=culprit,
        culprit_step_id=step_id,
        entries=_largest(entries),
    )


def main_taker(tape: Tape, track: Track, begin_ns: int, end_ns: int) -> int | None:
    """Whose prompt took more of [begin, end) than everything else together; None if nobody's."""
    first, stop = tape.overlapping(begin_ns, end_ns)
    if not any(tape.rows(index).prefill.any() for index in range(first, stop)):
        return None
    taken: Counter[int] = Counter()
    for seq_id, prefill, spent_ns in tape.by_sequence(first, stop):
        if prefill and seq_id != track.seq_id:
            taken[seq_id] += spent_ns
    if not taken or 2 * taken.total() < end_ns - begin_ns:
        return None
    return taken.most_common(1)[0][0]


def _name(takers: Mapping[int, Taker], seq_id: int) -> str | None:
    taker = takers.get(seq_id)
    return None if taker is None else taker.request_id


def _largest(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: -entry.ns)[:_ENTRIES])


def _largest_step(tape: Tape, seq_id: int, begin_ns: int, end_ns: int) -> int | None:
    """The step within [begin, end) whose row of `seq_id` took most."""
    best: tuple[int, int] | None = None
    for index in range(*tape.overlapping(begin_ns, end_ns)):
        rows = tape.rows(index)
        spent_ns = int(rows.spent_ns[rows.seq_ids == seq_id].sum())
        if spent_ns and tape.stamp(index, At.END) <= end_ns and (not best or spent_ns > best[0]):
            best = (spent_ns, rows.step_id)
    return best[1] if best else None
