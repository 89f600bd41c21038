"""Late tokens, and what made them late.

A stall is a gap between two tokens of a sequence that is longer than its class allows. It is
split like any interval of the ledger, and the largest part is its cause. If that part is prompts
or masks of others, the request with the largest share of it is the culprit. The culprit is
decided once, when the late token comes, because its trace must be kept from then on. Decodes of
others have no culprit: a batch is slow because of its size, not because of one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from telemetry.ledger.charging import Charger, Pauses
from telemetry.ledger.harm import SequenceOwner
from telemetry.ledger.lifecycle import charge_engine
from telemetry.ledger.tape import Share, Tape, apportion
from telemetry.ledger.track import MAX_STALLS, Culprit, Track
from telemetry.requests.account import Entry, Part, Stall, entries_of
from telemetry.requests.phases import RequestTimeline, SequenceTimeline

_ENTRIES = 8
_UNOWNED_SHARES = tuple(
    share for share in Share if share not in (Share.PROMPTS, Share.DECODES, Share.MASK)
)


def culprit_of(
    tape: Tape, own: Mapping[int, Track], first: int, stop: int, paused_ns: int
) -> Culprit | None:
    """The culprit of the late token that step `stop - 1` gave after the one of step `first - 1`.
    None unless prompts of others, or masks of others, took more than any other part. In
    `paused_ns` of the gap the client itself did not read."""
    if not any(True for _ in tape.named(first, stop)):
        return None
    named: dict[Part, Counter[int]] = {Part.CO_PREFILL: Counter(), Part.CO_MASK: Counter()}
    steps: Counter[tuple[Part, int, int]] = Counter()
    own_ns: Counter[Part] = Counter()
    for index, found in tape.named(first, stop):
        masks_ns = apportion([1] * len(found.masked), tape.sum(Share.MASK, index, index + 1))
        for part, ids, spent_ns in (
            (Part.CO_PREFILL, found.prompt_ids, found.prompts_ns),
            (Part.CO_MASK, found.masked, masks_ns),
        ):
            for seq_id, ns in zip(ids, spent_ns, strict=True):
                if seq_id in own:
                    own_ns[part] += ns
                else:
                    named[part][seq_id] += ns
                    steps[part, seq_id, found.step_id] += ns
    part = max(named, key=lambda one: named[one].total())
    sums = tape.sums(first, stop)
    own_decodes_ns = sum(track.decodes_ns(first, stop) for track in own.values())
    shared_ns = (sums[share] for share in _UNOWNED_SHARES)
    decodes_ns = (own_decodes_ns, sums[Share.DECODES] - own_decodes_ns)
    if named[part].total() <= max(*shared_ns, *decodes_ns, *own_ns.values(), paused_ns):
        return None
    seq_id = min(named[part], key=lambda one: (-named[part][one], one))
    step_id = max(
        (step for owned_part, owner, step in steps if (owned_part, owner) == (part, seq_id)),
        key=lambda step: (steps[part, seq_id, step], -step),
    )
    return Culprit(part, seq_id, step_id)


def find_stalls(
    timeline: RequestTimeline,
    tracks: Mapping[int, Track],
    tape: Tape,
    pauses: Pauses,
    owners: Mapping[int, SequenceOwner],
    target_ns: int,
) -> tuple[tuple[Stall, ...], int]:
    """The longest MAX_STALLS gaps above `target_ns`, in order of time, and how many more there
    were. `tracks` and `owners` are keyed by seq_id."""
    gaps = [
        (begin_ns, end_ns, sequence)
        for sequence in timeline.sequences
        for begin_ns, end_ns in zip(sequence.token_ns, sequence.token_ns[1:], strict=False)
        if end_ns - begin_ns > target_ns
    ]
    gaps.sort(key=lambda gap: (gap[0] - gap[1], gap[0], gap[2].seq_id))
    kept = sorted(gaps[:MAX_STALLS], key=lambda gap: (gap[0], gap[2].seq_id))
    culprits = {seq_id: track.late.culprits() for seq_id, track in tracks.items()}
    stalls: list[Stall] = []
    for begin_ns, end_ns, sequence in kept:
        track = tracks[sequence.seq_id]
        charger = Charger(tape, pauses, track, tracks)
        charge_engine(charger, sequence, track, tape, begin_ns, end_ns)
        culprit = culprits[sequence.seq_id].get(end_ns)
        stalls.append(_stall(charger, sequence, culprit, owners, begin_ns, end_ns, target_ns))
    return tuple(stalls), len(gaps) - len(kept)


def _stall(
    charger: Charger,
    sequence: SequenceTimeline,
    culprit: Culprit | None,
    owners: Mapping[int, SequenceOwner],
    begin_ns: int,
    end_ns: int,
    target_ns: int,
) -> Stall:
    """A stall with its largest part, and the culprit if that part has one."""
    parts: Counter[Part] = Counter()
    for (_, _, part, _), spent_ns in charger.book.items():
        parts[part] += spent_ns
    part, part_ns = min(parts.items(), key=lambda item: (-item[1], item[0].value))
    payers: Counter[int | str | None] = Counter()
    reasons: Counter[str] = Counter()
    for (_, reason, charged, payer), spent_ns in charger.book.items():
        if charged is part:
            payers[payer] += spent_ns
            reasons[reason] += spent_ns
    payer = min(payers.items(), key=lambda item: (-item[1], str(item[0])))[0]
    if culprit is not None and culprit.part is not part:
        culprit = None
    owner = None if culprit is None else owners.get(culprit.seq_id)
    entries = entries_of(charger.book, lambda seq_id: _request_id(owners, seq_id))
    return Stall(
        seq_id=sequence.seq_id,
        begin_ns=begin_ns,
        end_ns=end_ns,
        target_ns=target_ns,
        part=part,
        part_ns=part_ns,
        reason=reasons.most_common(1)[0][0],
        cause=payer if isinstance(payer, str) else None,
        culprit_request_id=owner.request_id if owner else None,
        culprit_trace_id=owner.trace_id if owner else None,
        culprit_seq_id=culprit.seq_id if culprit else None,
        culprit_step_id=culprit.step_id if culprit else None,
        entries=_largest(entries),
    )


def _request_id(owners: Mapping[int, SequenceOwner], seq_id: int) -> str | None:
    owner = owners.get(seq_id)
    return None if owner is None else owner.request_id


def _largest(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: -entry.ns)[:_ENTRIES])
