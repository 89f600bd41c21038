"""Charges an interval of a sequence's time to the steps of the tape.

A sequence with a row in a step waits for the whole step: its own row, the rows of others, and
the time that no row owns. A sequence that waits for the step is charged the same, without a row
of its own. Prompts and masks of others are charged to their owners. Decodes of others are one
sum without a payer: a batch is slow because of its size, not because of one row, and a payer for
each row would cost O(batch) for each token. An interval that begins or ends within a step takes
exactly the parts that it covers. The time of the rows has no order within a step, so it is scaled
and rounded by largest remainders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from telemetry.facts.reasons import HostProcess
from telemetry.host.pauses import Pause
from telemetry.ledger.tape import GAP_NS, At, Share, Tape, apportion
from telemetry.ledger.track import Track
from telemetry.requests.account import Book, Part, State

_PAUSES_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Pauses:
    """The last _PAUSES_KEPT pauses of each process, in the order of their ends. Those of the engine
    explain slow forward passes where these run in the process that is watched; the worker of an
    attached engine is a process of its own, whose pauses explain nothing else. `placing` are the
    spans in which the engine's loop put the weights of an adapter on the device, apart and in
    order."""

    explain_forward: bool = True
    engine: deque[Pause] = field(default_factory=lambda: deque(maxlen=_PAUSES_KEPT))
    gateway: deque[Pause] = field(default_factory=lambda: deque(maxlen=_PAUSES_KEPT))
    placing: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_PAUSES_KEPT))

    def of(self, process: HostProcess) -> deque[Pause]:
        return self.engine if process is HostProcess.ENGINE else self.gateway

    def placed(self, at_ns: int, place_ns: int) -> None:
        """An adapter was placed. Those that are placed one after the other are told together, at
        the end of the last, and so have one span."""
        begin_ns = at_ns - place_ns
        while self.placing and self.placing[-1][1] > begin_ns:
            since_ns, until_ns = self.placing.pop()
            begin_ns -= until_ns - since_ns
        if begin_ns < at_ns:
            self.placing.append((begin_ns, at_ns))


class Charger:
    """Charges intervals of one sequence to `book`. `own` are the sequences of its request, itself
    included: their time counts as the request's own."""

    def __init__(
        self, tape: Tape, pauses: Pauses, track: Track, own: Mapping[int, Track] | None = None
    ) -> None:
        self._tape = tape
        self._pauses = pauses
        self._track = track
        self._own = {track.seq_id: track} if own is None else own
        self.book: Book = Book()

    def charge(self, state: State, reason: str, part: Part, begin_ns: int, end_ns: int) -> None:
        """Charge all of [begin, end) to one part."""
        if end_ns > begin_ns:
            self.book[state, reason, part, None] += end_ns - begin_ns

    def charge_duration(
        self, state: State, reason: str, part: Part, spent_ns: int, payer: str | None = None
    ) -> None:
        """Charge a duration whose place in time is not known."""
        self.book[state, reason, part, payer] += spent_ns

    def charge_gateway(self, state: State, part: Part, begin_ns: int, end_ns: int) -> None:
        """Charge [begin, end), spent in the gateway, to one part, less the gateway's pauses."""
        self.charge(state, "", part, begin_ns, end_ns)
        for pause, since_ns, until_ns in _pauses_within(self._pauses.gateway, begin_ns, end_ns):
            self._move_to_stall(state, "", (part,), until_ns - since_ns, pause.cause.value)

    def charge_steps(self, state: State, reason: str, begin_ns: int, end_ns: int) -> None:
        """Charge [begin, end) to the steps that it covers; the rest is a gap."""
        if end_ns <= begin_ns:
            return
        before = self.book.total()
        first, stop = self._tape.overlapping(begin_ns, end_ns)
        inner = [i for i in (first, stop - 1) if first < stop and self._cut(i, begin_ns, end_ns)]
        whole_first = first + 1 if first in inner else first
        whole_stop = stop - 1 if stop - 1 in inner else stop
        for index in dict.fromkeys(inner):
            self._partial(state, reason, index, begin_ns, end_ns)
        if whole_first < whole_stop:
            self._whole(state, reason, whole_first, whole_stop)
        rest_ns = end_ns - begin_ns - (self.book.total() - before)
        self._gap(state, reason, rest_ns)
        self._pause(state, reason, begin_ns, end_ns)

    def charge_unexplained(self, state: State, reason: str, begin_ns: int, end_ns: int) -> None:
        """Charge [begin, end) in which the sequence had no row and no recorded wait reason: time
        between steps is a gap, time inside a step is unattributed."""
        if end_ns <= begin_ns:
            return
        first, stop = self._tape.overlapping(begin_ns, end_ns)
        body_ns = 0
        for index in range(first, stop):
            start_ns, step_end_ns = (
                self._tape.stamp(index, At.START),
                self._tape.stamp(index, At.END),
            )
            body_ns += max(0, min(end_ns, step_end_ns) - max(begin_ns, start_ns))
        if body_ns:
            self.book[state, reason, Part.UNATTRIBUTED, None] += body_ns
        self._gap(state, reason, end_ns - begin_ns - body_ns)
        self._pause(state, reason, begin_ns, end_ns)

    def _cut(self, index: int, begin_ns: int, end_ns: int) -> bool:
        before_ns, step_end_ns = self._tape.stamp(index, At.BEFORE), self._tape.stamp(index, At.END)
        return begin_ns > before_ns or end_ns < step_end_ns

    def _gap(self, state: State, reason: str, gap_ns: int) -> None:
        """Up to GAP_NS is the loop's turn-around; more than that is unattributed."""
        if gap_ns > 0:
            self.book[state, reason, Part.GAP, None] += min(gap_ns, GAP_NS)
        if gap_ns > GAP_NS:
            self.book[state, reason, Part.UNATTRIBUTED, None] += gap_ns - GAP_NS

    def _whole(self, state: State, reason: str, first: int, stop: int) -> None:
        """The steps [first, stop), each with the gap before it."""
        tape, book = self._tape, self.book
        sums = tape.sums(first, stop)
        for share, part in _PLAIN_SHARES:
            book[state, reason, part, None] += sums[share]
        own_ns = sum(track.decodes_ns(first, stop) for track in self._own.values())
        self._decodes(state, reason, own_ns, sums[Share.DECODES] - own_ns)
        unnamed_mask_ns = sums[Share.MASK]
        for index, named in tape.named(first, stop):
            for seq_id, spent_ns in zip(named.prompt_ids, named.prompts_ns, strict=True):
                self._prompt(state, reason, seq_id, spent_ns)
            if named.masked:
                mask_ns = tape.sum(Share.MASK, index, index + 1)
                self._mask(state, reason, named.masked, mask_ns)
                unnamed_mask_ns -= mask_ns
        book[state, reason, Part.CO_MASK, None] += unnamed_mask_ns
        for index, split_ns in self._track.split.items():
            if first <= index < stop:
                self._split(state, reason, split_ns)

    def _partial(self, state: State, reason: str, index: int, begin_ns: int, end_ns: int) -> None:
        tape, book = self._tape, self.book
        stamps, shares = tape.stamps(index), tape.sums(index, index + 1)
        named = next((found for _, found in tape.named(index, index + 1)), None)

        def covered(start: At, stop: At) -> int:
            return max(0, min(end_ns, stamps[stop]) - max(begin_ns, stamps[start]))

        self._gap(state, reason, covered(At.BEFORE, At.START))
        host_ns = covered(At.START, At.FORWARD) + covered(At.COLLECTED, At.END)
        book[state, reason, Part.HOST, None] += host_ns
        sampling_ns = covered(At.SAMPLE, At.COLLECTED)
        mask_ns, plain_ns = apportion((shares[Share.MASK], shares[Share.SAMPLING]), sampling_ns)
        if sampling_ns and not shares[Share.MASK]:
            mask_ns, plain_ns = 0, sampling_ns
        book[state, reason, Part.SAMPLE, None] += plain_ns
        if mask_ns:
            self._mask(state, reason, named.masked if named else (), mask_ns)
        forward_ns = covered(At.FORWARD, At.SAMPLE)
        if not forward_ns:
            return
        own_ns = sum(track.decodes_ns(index, index + 1) for track in self._own.values())
        parts = [shares[share] for share in (Share.BASE, Share.INTERACTION, Share.SLOW)]
        prompts_ns = named.prompts_ns if named else ()
        decodes_ns = (own_ns, shares[Share.DECODES] - own_ns)
        scaled = apportion([*parts, *decodes_ns, *prompts_ns], forward_ns)
        book[state, reason, Part.BASE, None] += scaled[0]
        book[state, reason, Part.INTERACTION, None] += scaled[1]
        book[state, reason, Part.SLOW_STEP, None] += scaled[2]
        self._decodes(state, reason, scaled[3], scaled[4])
        prompt_ids = named.prompt_ids if named else ()
        for seq_id, spent_ns in zip(prompt_ids, scaled[5:], strict=True):
            self._prompt(state, reason, seq_id, spent_ns)
            if seq_id == self._track.seq_id and index in self._track.split:
                self._split(state, reason, apportion(self._track.split[index], spent_ns))

    def _decodes(self, state: State, reason: str, own_ns: int, others_ns: int) -> None:
        self.book[state, reason, Part.OWN_DECODE, None] += own_ns
        self.book[state, reason, Part.CO_DECODE, None] += others_ns

    def _prompt(self, state: State, reason: str, seq_id: int, spent_ns: int) -> None:
        own = seq_id in self._own
        key = (
            state,
            reason,
            Part.OWN_PREFILL if own else Part.CO_PREFILL,
            None if own else seq_id,
        )
        self.book[key] += spent_ns

    def _split(self, state: State, reason: str, split_ns: Sequence[int]) -> None:
        """Take from the time of the sequence's own prompt what was computed again or could have
        been reused, in ns."""
        _, again_ns, avoidable_ns = split_ns
        self.book[state, reason, Part.OWN_PREFILL, None] -= again_ns + avoidable_ns
        self.book[state, reason, Part.OWN_RECOMPUTE, None] += again_ns
        self.book[state, reason, Part.OWN_AVOIDABLE, None] += avoidable_ns

    def _mask(self, state: State, reason: str, masked: Sequence[int], mask_ns: int) -> None:
        """Masks are computed one after another: each constrained row is charged an equal share."""
        if not masked:
            self.book[state, reason, Part.CO_MASK, None] += mask_ns
            return
        for seq_id, spent_ns in zip(masked, apportion([1] * len(masked), mask_ns), strict=True):
            own = seq_id in self._own
            key = (state, reason, Part.MASK if own else Part.CO_MASK, None if own else seq_id)
            self.book[key] += spent_ns

    def _pause(self, state: State, reason: str, begin_ns: int, end_ns: int) -> None:
        """Move what the engine's pauses cover to HOST_STALL: of gaps, host work and sampling all,
        of the forward pass at most the step's slow share. Before that, gaps in which an adapter was
        placed go to ADAPTER: nothing else runs meanwhile."""
        for since_ns, until_ns in reversed(self._pauses.placing):
            if until_ns <= begin_ns:
                break
            self._charge_placing(state, reason, max(begin_ns, since_ns), min(end_ns, until_ns))
        for pause, since_ns, until_ns in _pauses_within(self._pauses.engine, begin_ns, end_ns):
            self._charge_pause(state, reason, since_ns, until_ns, pause)

    def _charge_placing(self, state: State, reason: str, since_ns: int, until_ns: int) -> None:
        if since_ns >= until_ns:
            return
        gap_ns, *_ = self._explainable_by_pause(since_ns, until_ns)
        for part in (Part.UNATTRIBUTED, Part.GAP):
            taken_ns = min(self.book[state, reason, part, None], gap_ns)
            if taken_ns > 0:
                self.book[state, reason, part, None] -= taken_ns
                self.book[state, reason, Part.ADAPTER, None] += taken_ns
                gap_ns -= taken_ns

    def _charge_pause(
        self, state: State, reason: str, since_ns: int, until_ns: int, pause: Pause
    ) -> None:
        """All steps together: what is taken of a part is the same as step by step, since nothing
        else changes it meanwhile."""
        gap_ns, host_ns, slow_ns, sample_ns = self._explainable_by_pause(since_ns, until_ns)
        cause = pause.cause.value
        if pause.of_worker:
            gap_ns = host_ns = 0
        elif not self._pauses.explain_forward:
            slow_ns = 0
        self._move_to_stall(state, reason, (Part.UNATTRIBUTED, Part.GAP), gap_ns, cause)
        self._move_to_stall(state, reason, (Part.HOST,), host_ns, cause)
        self._move_to_stall(state, reason, (Part.SLOW_STEP,), slow_ns, cause)
        self._move_to_stall(state, reason, (Part.SAMPLE,), sample_ns, cause)

    def _explainable_by_pause(self, since_ns: int, until_ns: int) -> tuple[int, int, int, int]:
        """The time in [since, until) that a pause may explain: of gaps, of host work, of what was
        slow, and of sampling."""
        tape, left_ns = self._tape, until_ns - since_ns
        first, stop = tape.overlapping(since_ns, until_ns)
        cut = [i for i in (first, stop - 1) if first < stop and self._cut(i, since_ns, until_ns)]
        whole_first = first + 1 if first in cut else first
        whole_stop = stop - 1 if stop - 1 in cut else stop
        gap_ns = host_ns = slow_ns = sample_ns = 0
        if whole_first < whole_stop:
            sums = tape.sums(whole_first, whole_stop)
            left_ns -= sum(sums)
            gap_ns = sums[Share.SHORT_GAP] + sums[Share.LONG_GAP]
            host_ns, slow_ns = sums[Share.HOST], sums[Share.SLOW]
            sample_ns = sums[Share.SAMPLING] + sums[Share.MASK]
        for index in dict.fromkeys(cut):
            covered = self._covered(index, since_ns, until_ns)
            before_ns, start_ns, forward_ns, sampling_ns, end_ns = covered
            left_ns -= sum(covered)
            gap_ns += before_ns
            host_ns += start_ns + end_ns
            slow_ns += min(forward_ns, tape.sum(Share.SLOW, index, index + 1))
            sample_ns += sampling_ns
        return gap_ns + left_ns, host_ns, slow_ns, sample_ns

    def _covered(self, index: int, begin_ns: int, end_ns: int) -> list[int]:
        """How much of [begin, end) lies before the step, and in each of its parts in order."""
        stamps = self._tape.stamps(index)[: At.END + 1]
        return [max(0, min(end_ns, b) - max(begin_ns, a)) for a, b in pairwise(stamps)]

    def _move_to_stall(
        self, state: State, reason: str, parts: tuple[Part, ...], most_ns: int, cause: str
    ) -> None:
        for part in parts:
            taken_ns = min(self.book[state, reason, part, None], most_ns)
            if taken_ns > 0:
                self.book[state, reason, part, None] -= taken_ns
                self.book[state, reason, Part.HOST_STALL, cause] += taken_ns
                most_ns -= taken_ns


_PLAIN_SHARES = (
    (Share.HOST, Part.HOST),
    (Share.BASE, Part.BASE),
    (Share.INTERACTION, Part.INTERACTION),
    (Share.SLOW, Part.SLOW_STEP),
    (Share.SAMPLING, Part.SAMPLE),
    (Share.SHORT_GAP, Part.GAP),
    (Share.LONG_GAP, Part.UNATTRIBUTED),
)


def _pauses_within(
    pauses: deque[Pause], begin_ns: int, end_ns: int
) -> Iterator[tuple[Pause, int, int]]:
    """The pauses that overlap [begin, end), each with the part [since, until) that it covers. Where
    only the lost time is known, it is taken to lie at the end of the pause."""
    if begin_ns >= end_ns:
        return
    for pause in reversed(pauses):
        stop_ns = pause.end_ns
        if stop_ns <= begin_ns:
            break
        start_ns = stop_ns - pause.lost_ns
        if start_ns < end_ns and start_ns < stop_ns:
            yield pause, max(begin_ns, start_ns), min(end_ns, stop_ns)
