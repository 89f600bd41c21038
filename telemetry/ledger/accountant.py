"""Keeps the tape, follows the sequences along it, and draws up each ended request's account.

Takes the same facts as the phase fold and is asked by it when a request has ended, so that
both have seen exactly the same: an account does not depend on how facts come in batches.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from telemetry.facts.engine_records import (
    EngineStarted,
    Row,
    SequenceAdmitted,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.host_records import HostPaused
from telemetry.facts.records import Fact, RequestAccepted, RequestsListed, SequenceSubmitted
from telemetry.host.pauses import pause_of
from telemetry.ledger.charging import Charger, Pauses
from telemetry.ledger.harm import Harm, Taker
from telemetry.ledger.life import charge_ingest, charge_life, critical_of
from telemetry.ledger.stalls import culprit_of, find_stalls
from telemetry.ledger.tape import Tape, apportion
from telemetry.ledger.track import Track
from telemetry.requests.account import Account, Ledger, Part, entries_of
from telemetry.requests.phases import RequestTimeline

DEFAULT_ITL_TARGET_NS = 100_000_000
_TAKERS_KEPT = 65_536
_TRIM_EVERY_STEPS = 1024
_TRIM_MARGIN_NS = 10_000_000_000  # a request may be told late, its life began before


class Accountant:
    """`itl_target_ns` gives the longest gap between tokens that a class allows."""

    def __init__(self, itl_target_ns: Callable[[str], int]) -> None:
        self.tape = Tape()
        self.harm = Harm()
        self._itl_target_ns = itl_target_ns
        self._pauses = Pauses()
        self._tracks: dict[int, Track] = {}
        self._constrained: set[int] = set()
        self._accepted: dict[str, RequestAccepted] = {}
        self._takers: OrderedDict[int, Taker] = OrderedDict()
        self._over: deque[tuple[int, int]] = deque(maxlen=_TAKERS_KEPT)  # when, and who
        self._siblings: dict[str, dict[int, Track]] = {}

    def take(self, fact: Fact) -> None:
        match fact:
            case StepRecorded():
                self._step(fact)
            case RequestAccepted():
                self._accepted[fact.request_id] = fact
            case SequenceSubmitted():
                self._submitted(fact)
            case SequenceQueued():
                if fact.constrained:
                    self._constrained.add(fact.seq_id)
            case SequenceAdmitted():
                track = self._tracks.get(fact.seq_id)
                if track is not None and track.hit_tokens is None:
                    track.hit_tokens, track.ghost_tokens = fact.hit_tokens, fact.ghost_tokens
            case SequencePaused() | SequenceResumed():
                self._reader(fact)
            case SequencesListed() | RequestsListed():
                self.forget_except(fact)
            case EngineStarted():
                self.tape.restart(fact.at_ns)
            case HostPaused():
                self._pauses.of(fact.process).append(pause_of(fact))
            case _:
                pass

    @property
    def live(self) -> int:
        """Requests and sequences of which something is kept until they end."""
        return len(self._accepted) + len(self._tracks.keys() | self._constrained)

    @property
    def named(self) -> int:
        """Sequences of which it is known whose they are, those that are over included."""
        return len(self._takers)

    def forget_except(self, listed: SequencesListed | RequestsListed) -> None:
        """Let go of whoever is over by the list: its end was lost. The phase fold has given out
        what it had of them."""
        if isinstance(listed, RequestsListed):
            live = frozenset(listed.request_ids)
            for request_id, accepted in list(self._accepted.items()):
                if request_id not in live and accepted.was_read_before(listed.at_ns):
                    del self._accepted[request_id]
                    self._siblings.pop(request_id, None)
            return
        for seq_id in listed.over(self._tracks.keys() | self._constrained):
            if self._request_of(seq_id) not in self._accepted:  # else its account is still to come
                self._forget(seq_id, listed.at_ns)

    def account(self, timeline: RequestTimeline) -> Account:
        """Draw up an ended request's account and forget the request."""
        self._accepted.pop(timeline.accepted.request_id, None)
        self._siblings.pop(timeline.accepted.request_id, None)
        tracks = {
            s.seq_id: self._forget(s.seq_id, timeline.ended.at_ns) for s in timeline.sequences
        }
        critical = critical_of(timeline)
        if critical is None:
            charger = Charger(self.tape, self._pauses, Track(-1))
            charge_ingest(charger, timeline, timeline.ended.at_ns)
        else:
            charger = Charger(self.tape, self._pauses, tracks[critical.seq_id], tracks)
            charge_life(charger, timeline, critical, tracks[critical.seq_id], self.tape)
        ledger = Ledger(timeline.e2e_ns, entries_of(charger.book, self._request_of))
        self._note_harm(charger)
        target_ns = self._itl_target_ns(timeline.accepted.slo_class)
        stalls, cut = find_stalls(
            timeline, tracks, self.tape, self._pauses, self._takers, target_ns
        )
        return Account(ledger, stalls, cut)

    def _forget(self, seq_id: int, ended_ns: int) -> Track:
        self._constrained.discard(seq_id)
        self._over.append((ended_ns, seq_id))
        return self._tracks.pop(seq_id, None) or Track(seq_id)

    def _submitted(self, fact: SequenceSubmitted) -> None:
        track = self._tracks.setdefault(fact.seq_id, Track(fact.seq_id))
        accepted = self._accepted.get(fact.request_id)
        if accepted is None:
            return
        track.late_ns = self._itl_target_ns(accepted.slo_class)
        self._siblings.setdefault(fact.request_id, {})[fact.seq_id] = track
        self._takers[fact.seq_id] = Taker(
            accepted.request_id, accepted.trace_id, accepted.tenant, accepted.slo_class
        )
        if len(self._takers) > _TAKERS_KEPT:
            self._takers.popitem(last=False)

    def _reader(self, fact: SequencePaused | SequenceResumed) -> None:
        track = self._tracks.get(fact.seq_id)
        if track is None:
            return
        if isinstance(fact, SequencePaused):
            track.paused(fact.at_ns)
        else:
            track.resumed(fact.at_ns)

    def _step(self, step: StepRecorded) -> None:
        """Each row's part goes to its sequence: of the decodes, as whole numbers that add up."""
        index, cut = self.tape.append(step, self._constrained)
        if index % _TRIM_EVERY_STEPS == 0:
            self._trim(step.committed_ns)
        at_ns, tracks, prompts_ns = step.committed_ns, self._tracks, iter(cut.prompts_ns)
        token_ns, context_ns, decodes_ns = cut.token_ns, cut.context_ns, cut.decodes_ns
        decoded, told_ns = 0.5, 0  # rounds to the nearest
        late: list[Track] = []
        for row in step.rows:
            track = tracks.get(row.seq_id)
            if row.is_prefill:
                spent_ns, prompt_ns = 0, next(prompts_ns)
                if track is not None:
                    track.split[index] = split_prompt(row, track, prompt_ns)
            else:
                decoded += row.tokens * token_ns + row.context_tokens * context_ns
                until_ns = int(decoded)
                spent_ns, told_ns = until_ns - told_ns, until_ns
            if track is None:
                continue
            track.steps.append(index)
            track.decode_ns += spent_ns
            track.decoded_ns.append(track.decode_ns)
            if row.sampled and not row.wasted:
                if track.late_ns is not None and at_ns - track.token_ns > track.late_ns:
                    late.append(track)
                else:
                    track.token_ns, track.token_step = at_ns, index
        assert told_ns == decodes_ns, f"decode rows have {told_ns} ns of {decodes_ns}"
        for track in late:
            self._token_was_late(track, index, at_ns)

    def _trim(self, now_ns: int) -> None:
        """Steps, and names of who was in them, are kept for accounts that are still to come: as
        long as the oldest request."""
        oldest = next(iter(self._accepted.values()), None)
        oldest_ns = now_ns if oldest is None else min(now_ns, oldest.at_ns)
        before_ns = oldest_ns - _TRIM_MARGIN_NS
        self.tape.forget_before(before_ns)
        while self._over and self._over[0][0] < before_ns:
            self._takers.pop(self._over.popleft()[1], None)

    def _token_was_late(self, track: Track, index: int, at_ns: int) -> None:
        """Its culprit is known now, while that request may still be traced. A first token is
        not late."""
        first, begin_ns = track.token_step + 1, track.token_ns
        track.token_ns, track.token_step = at_ns, index
        if first <= 0 or first < self.tape.first:
            return
        own = self._siblings.get(self._request_of(track.seq_id) or "", {track.seq_id: track})
        paused_ns = track.pause[1] - max(begin_ns, track.pause[0])
        found = culprit_of(self.tape, own, first, index + 1, paused_ns)
        taker = None if found is None else self._takers.get(found.seq_id)
        if found is not None and taker is not None:
            track.late.add(begin_ns, at_ns, found)
            self.harm.accuse(taker.request_id)

    def _request_of(self, seq_id: int) -> str | None:
        taker = self._takers.get(seq_id)
        return None if taker is None else taker.request_id

    def _note_harm(self, charger: Charger) -> None:
        for (_, _, part, payer), spent_ns in charger.book.items():
            if part is Part.CO_DECODE:
                self.harm.add_batch(spent_ns)
            elif isinstance(payer, int) and spent_ns and payer in self._takers:
                self.harm.add(self._takers[payer], part, spent_ns)


def split_prompt(row: Row, track: Track, spent_ns: int) -> tuple[int, int, int]:
    """A prompt row's time: computed for the first time, again after a preemption, and what a
    larger prefix cache would have had (the tokens that followed those it did have)."""
    first = track.hit_tokens or 0
    again = row.recompute_tokens
    from_token = max(row.context_tokens, first)
    until_token = min(row.context_tokens + row.tokens, first + track.ghost_tokens)
    avoidable = min(max(0, until_token - from_token), row.tokens - again)
    fresh = row.tokens - again - avoidable
    fresh_ns, again_ns, avoidable_ns = apportion((fresh, again, avoidable), spent_ns)
    return fresh_ns, again_ns, avoidable_ns
