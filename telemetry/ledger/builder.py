"""Keeps the tape, follows the sequences along it, and builds each ended request's account.

The phase fold hands it every fact and asks for the account when a request has ended. Both have
then seen the same facts, so an account does not depend on how facts are batched.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace

from telemetry.facts.adapter_records import AdapterLoaded
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
from telemetry.facts.reasons import HostProcess
from telemetry.facts.records import Fact, RequestAccepted, RequestsListed, SequenceSubmitted
from telemetry.host.pauses import pause_of
from telemetry.ledger.charging import Charger, Pauses
from telemetry.ledger.harm import Harm, SequenceOwner
from telemetry.ledger.lifecycle import charge_request, charge_without_engine
from telemetry.ledger.remote import charge_remote_request, is_remote
from telemetry.ledger.stalls import culprit_of, find_stalls
from telemetry.ledger.tape import Tape, apportion
from telemetry.ledger.track import Track
from telemetry.requests.account import Account, Ledger, Part, entries_of
from telemetry.requests.engine_span import critical_sequence
from telemetry.requests.phases import RequestTimeline

DEFAULT_ITL_TARGET_NS = 100_000_000
_OWNERS_KEPT = 65_536
_TRIM_EVERY_STEPS = 1024
_TRIM_MARGIN_NS = 10_000_000_000  # the facts of a request may come later than those of its steps


class LedgerBuilder:
    """Ledgers, stalls and harm of ended requests. `itl_target_ns(slo_class)` is the longest gap
    between tokens that a class allows, in ns."""

    def __init__(self, itl_target_ns: Callable[[str], int]) -> None:
        self.tape = Tape()
        self.harm = Harm()
        self._itl_target_ns = itl_target_ns
        self._pauses = Pauses()
        self._is_attached = False
        self._tracks: dict[int, Track] = {}
        self._constrained: set[int] = set()
        self._accepted: dict[str, RequestAccepted] = {}
        self._owners: OrderedDict[int, SequenceOwner] = OrderedDict()
        self._ended: deque[tuple[int, int]] = deque(maxlen=_OWNERS_KEPT)  # (ended_ns, seq_id)
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
                self._pause_fact(fact)
            case SequencesListed() | RequestsListed():
                self.forget_unlisted(fact)
            case EngineStarted():
                self.tape.restart(fact.at_ns)
                self._is_attached = fact.is_attached
                self._pauses = replace(self._pauses, explain_forward=not fact.is_attached)
            case HostPaused(process=HostProcess.GATEWAY) if self._is_attached:
                pass  # of the process that observes, and not of the engine's front end
            case AdapterLoaded():
                self._pauses.placed(fact.at_ns, fact.place_ns)
            case HostPaused():
                self._pauses.of(fact.process).append(pause_of(fact))
            case _:
                pass

    @property
    def live(self) -> int:
        """Live requests and sequences for which state is kept."""
        return len(self._accepted) + len(self._tracks.keys() | self._constrained)

    @property
    def owned_sequences(self) -> int:
        """Sequences whose request is known, ended ones included."""
        return len(self._owners)

    def forget_unlisted(self, listed: SequencesListed | RequestsListed) -> None:
        """Drop the state of requests or sequences that a list of the live ones does not name:
        their terminal fact was lost. The phase fold has emitted their timelines already."""
        if isinstance(listed, RequestsListed):
            live = frozenset(listed.request_ids)
            for request_id, accepted in list(self._accepted.items()):
                if request_id not in live and accepted.was_read_before(listed.at_ns):
                    del self._accepted[request_id]
                    self._siblings.pop(request_id, None)
            return
        for seq_id in listed.over(self._tracks.keys() | self._constrained):
            if self._request_of(seq_id) not in self._accepted:  # else its account is still needed
                self._forget(seq_id, listed.at_ns)

    def build(self, timeline: RequestTimeline) -> Account:
        """The account of an ended request; its state is dropped."""
        self._accepted.pop(timeline.accepted.request_id, None)
        self._siblings.pop(timeline.accepted.request_id, None)
        tracks = {
            s.seq_id: self._forget(s.seq_id, timeline.ended.at_ns) for s in timeline.sequences
        }
        critical = critical_sequence(timeline)
        if critical is None:
            charger = Charger(self.tape, self._pauses, Track(-1))
            charge_without_engine(charger, timeline)
        elif is_remote(critical):
            charger = Charger(self.tape, self._pauses, Track(-1))
            charge_remote_request(charger, timeline, critical)
        else:
            charger = Charger(self.tape, self._pauses, tracks[critical.seq_id], tracks)
            charge_request(charger, timeline, critical, tracks[critical.seq_id], self.tape)
        ledger = Ledger(timeline.e2e_ns, entries_of(charger.book, self._request_of))
        self._note_harm(charger)
        if critical is not None and is_remote(critical):  # its node has the stalls, with culprits
            return Account(ledger)
        target_ns = self._itl_target_ns(timeline.accepted.slo_class)
        stalls, cut = find_stalls(
            timeline, tracks, self.tape, self._pauses, self._owners, target_ns
        )
        return Account(ledger, stalls, cut, timeline.is_core_only)

    def _forget(self, seq_id: int, ended_ns: int) -> Track:
        self._constrained.discard(seq_id)
        self._ended.append((ended_ns, seq_id))
        return self._tracks.pop(seq_id, None) or Track(seq_id)

    def _submitted(self, fact: SequenceSubmitted) -> None:
        track = self._tracks.setdefault(fact.seq_id, Track(fact.seq_id))
        accepted = self._accepted.get(fact.request_id)
        if accepted is None:
            return
        track.late_ns = self._itl_target_ns(accepted.slo_class)
        self._siblings.setdefault(fact.request_id, {})[fact.seq_id] = track
        self._owners[fact.seq_id] = SequenceOwner(
            accepted.request_id, accepted.trace_id, accepted.tenant, accepted.slo_class
        )
        if len(self._owners) > _OWNERS_KEPT:
            self._owners.popitem(last=False)

    def _pause_fact(self, fact: SequencePaused | SequenceResumed) -> None:
        track = self._tracks.get(fact.seq_id)
        if track is None:
            return
        if isinstance(fact, SequencePaused):
            track.paused(fact.at_ns)
        else:
            track.resumed(fact.at_ns)

    def _step(self, step: StepRecorded) -> None:
        """Charge each row's share to its sequence. Decode shares are rounded so that they add up
        to the step's exactly."""
        index, cut = self.tape.append(step, self._constrained)
        if index % _TRIM_EVERY_STEPS == 0:
            self._trim(step.committed_ns)
        at_ns, tracks, prompts_ns = step.committed_ns, self._tracks, iter(cut.prompts_ns)
        token_ns, context_ns, decodes_ns = cut.token_ns, cut.context_ns, cut.decodes_ns
        decoded, charged_ns = 0.5, 0  # 0.5 rounds to the nearest
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
                spent_ns, charged_ns = until_ns - charged_ns, until_ns
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
        assert charged_ns == decodes_ns, f"decode rows have {charged_ns} ns of {decodes_ns}"
        for track in late:
            self._token_was_late(track, index, at_ns)

    def _trim(self, now_ns: int) -> None:
        """Drop steps and owners from before the oldest live request: no account needs them."""
        oldest = next(iter(self._accepted.values()), None)
        oldest_ns = now_ns if oldest is None else min(now_ns, oldest.at_ns)
        before_ns = oldest_ns - _TRIM_MARGIN_NS
        self.tape.forget_before(before_ns)
        while self._ended and self._ended[0][0] < before_ns:
            self._owners.pop(self._ended.popleft()[1], None)

    def _token_was_late(self, track: Track, index: int, at_ns: int) -> None:
        """Find the culprit now, while its trace can still be kept. A first token is never late."""
        first, begin_ns = track.token_step + 1, track.token_ns
        track.token_ns, track.token_step = at_ns, index
        if first <= 0 or first < self.tape.first:
            return
        own = self._siblings.get(self._request_of(track.seq_id) or "", {track.seq_id: track})
        paused_ns = track.pause[1] - max(begin_ns, track.pause[0])
        found = culprit_of(self.tape, own, first, index + 1, paused_ns)
        owner = None if found is None else self._owners.get(found.seq_id)
        if found is not None and owner is not None:
            track.late.add(begin_ns, at_ns, found)
            self.harm.mark_culprit(owner.request_id)

    def _request_of(self, seq_id: int) -> str | None:
        owner = self._owners.get(seq_id)
        return None if owner is None else owner.request_id

    def _note_harm(self, charger: Charger) -> None:
        for (_, _, part, payer), spent_ns in charger.book.items():
            if part is Part.CO_DECODE:
                self.harm.add_batch(spent_ns)
            elif isinstance(payer, int) and spent_ns and payer in self._owners:
                self.harm.add(self._owners[payer], part, spent_ns)


def split_prompt(row: Row, track: Track, spent_ns: int) -> tuple[int, int, int]:
    """A prompt row's time in ns: (computed for the first time, recomputed after a preemption,
    avoidable). Avoidable are the tokens after the prefix hit that a larger cache would have had."""
    first = track.hit_tokens or 0
    again = row.recompute_tokens
    from_token = max(row.context_tokens, first)
    until_token = min(row.context_tokens + row.tokens, first + track.ghost_tokens)
    avoidable = min(max(0, until_token - from_token), row.tokens - again)
    fresh = row.tokens - again - avoidable
    fresh_ns, again_ns, avoidable_ns = apportion((fresh, again, avoidable), spent_ns)
    return fresh_ns, again_ns, avoidable_ns
