"""A fold over facts: follows live requests, and files each in the book of its SLO class when it is
known to be good or late.

Facts may be lost. Requests that were live then are not judged, because a token that is missing in
the record looks like one that is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from diagnosis.detection.steady_rows import SteadyRows
from diagnosis.promises.class_book import ClassBook
from diagnosis.promises.requests import DELIVER, LiveRequest, LiveSequence, Missed
from diagnosis.promises.step_clock import HOST, Reading, Rows, StepClock, fitted, went_to
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    RecordingSet,
    Row,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequencesListed,
    StepCostSet,
    StepRecorded,
)
from telemetry.facts.reasons import Outcome, WaitReason
from telemetry.facts.records import (
    EngineDied,
    Fact,
    FactsLost,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestsListed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.requests.slo_policy import SloPolicy
from telemetry.stats.slo import allowed_late, judge_unfinished
from telemetry.stats.slo_report import Verdict

_KEPT_LIVE = 16_000
_NOT_ITS_FAULT = (Verdict.CLIENT_CANCELLED, Verdict.INVALID, Verdict.UNMEASURED)


class BookKeeper:
    """`books` has the classes that had requests. `cut` are requests whose first facts are missing:
    they are not judged."""

    def __init__(self, policy: SloPolicy, cut: Collection[str] = ()) -> None:
        self.books: dict[str, ClassBook] = {}
        self.clock = StepClock()
        self._policy = policy
        self._cut = frozenset(cut)
        self._live: dict[str, LiveRequest] = {}
        self._sequences: dict[int, LiveSequence] = {}
        self._steady = SteadyRows(self._add_gaps)
        self._queued: dict[int, str] = {}
        self._last_step_id: int | None = None
        self._is_recording = True

    @property
    def live(self) -> int:
        """Requests and sequences in the books; zero when all have ended."""
        return len(self._live) + len(self._sequences.keys() | self._queued.keys())

    def on_fact(self, fact: Fact) -> None:
        match fact:
            case StepRecorded():
                self._step(fact)
            case RequestAccepted():
                self._accepted(fact)
            case RequestParsed() if fact.request_id in self._live:
                self._live[fact.request_id].stream = fact.stream
            case RequestTokenized() if fact.request_id in self._live:
                self._live[fact.request_id].prompt_tokens = fact.prompt_tokens
            case SequenceSubmitted():
                self._submitted(fact)
            case RequestEnded():
                self._ended(fact)
            case RequestsListed():
                self._listed(fact)
            case _:
                self._of_engine(fact)

    def tick(self, end_ns: int) -> None:
        """Judge what waits, then each class."""
        for book in self.books.values():
            book.tick(end_ns)

    def _of_engine(self, fact: Fact) -> None:
        match fact:
            case SequenceQueued():
                sequence = self._sequences.get(fact.seq_id)
                if sequence is not None:
                    self._queued[fact.seq_id] = fact.tenant
                    sequence.request.most_gaps += max(0, fact.max_tokens - 1)
            case SequenceAdmitted():
                sequence = self._sequences.get(fact.seq_id)
                if sequence is not None and sequence.row_ns is None:
                    sequence.request.hit_tokens = fact.hit_tokens
                    sequence.request.received_tokens = fact.received_tokens
            case SequenceEnded():
                self._steady.leave(fact.seq_id)
                self._sequences.pop(fact.seq_id, None)
                self._queued.pop(fact.seq_id, None)
            case SequencesListed():
                for sequence in [self._sequences[one] for one in fact.over(list(self._sequences))]:
                    self._forget(sequence.request)
            case StepCostSet():
                self.clock.cost = fact
            case EngineIdled():
                self.clock.idle()
            case EngineStarted() | EngineDied():
                self.clock.idle()
                self._last_step_id = None
            case RecordingSet():
                self._is_recording = fact.enabled
                self._forget_all()
            case FactsLost() if fact.source.is_of_requests:
                self._forget_all()
            case _:
                pass

    # Requests

    def _accepted(self, fact: RequestAccepted) -> None:
        old = self._live.get(fact.request_id)
        if old is not None:
            self._forget(old)
        if fact.request_id in self._cut or not self._is_recording:
            return
        target = self._policy.of(fact.slo_class)
        book = self.books.get(target.name)
        if book is None:
            book = self.books[target.name] = ClassBook(target, fact.at_ns)
        request = self._live[fact.request_id] = LiveRequest.of(fact, target)
        book.waiting.append(request)
        if len(self._live) > _KEPT_LIVE:
            self._forget(next(iter(self._live.values())))

    def _submitted(self, fact: SequenceSubmitted) -> None:
        request = self._live.get(fact.request_id)
        if request is None:
            return
        self._settle(request)
        self._steady.leave(fact.seq_id)
        request.sequences.append(fact.seq_id)
        self.books[request.target.name].seen(request)
        capped_ns = self.clock.capped_ns[request.tenant]
        self._sequences[fact.seq_id] = LiveSequence(request, fact.at_ns, self.clock.now, capped_ns)

    def _ended(self, fact: RequestEnded) -> None:
        request = self._live.get(fact.request_id)
        if request is None:
            return
        self._settle(request)
        book = self.books[request.target.name]
        if request.missed is None:
            what = self._late_at_end(request, fact)
            if what is not None:
                book.missed(request, what, fact.at_ns)
            elif fact.reason.outcome is Outcome.FINISHED and request.first_ns is not None:
                book.attainment.good()
        elif request.is_waiting:
            self._charge_wait(book, request, fact.at_ns)
        book.ended(fact.at_ns, request)
        self._forget(request)

    def _late_at_end(self, request: LiveRequest, fact: RequestEnded) -> Missed | None:
        """What it missed, None where it is good or does not count. The first token of a stream has
        come when it was sent."""
        verdict = judge_unfinished(fact.reason)
        if verdict is not None:
            return None if verdict in _NOT_ITS_FAULT else Missed.UNSERVED
        if request.first_ns is None:
            return None
        book, shown_ns = self.books[request.target.name], request.first_ns
        if request.stream and fact.first_sent_ns is not None:
            shown_ns = fact.first_sent_ns
        ttft_ns = shown_ns - request.accepted_ns
        if ttft_ns > request.target.ttft_ns:
            parts = Counter({DELIVER: shown_ns - request.first_ns})
            book.charge(fact.at_ns, parts, ttft_ns - request.target.ttft_ns)
            return Missed.FIRST_TOKEN
        return Missed.TOKENS if request.late > allowed_late(request.gaps) else None

    def _listed(self, fact: RequestsListed) -> None:
        """The end of a request that is not listed was lost."""
        listed = frozenset(fact.request_ids)
        for request in [one for one in self._live.values() if one.accepted_ns < fact.at_ns]:
            if request.request_id not in listed:
                self._forget(request)

    def _forget(self, request: LiveRequest) -> None:
        """It is not live any more; what is not judged by now will not be."""
        self._live.pop(request.request_id, None)
        book = self.books[request.target.name]
        book.overdue.pop(request.request_id, None)
        if request.is_running:
            request.is_running = False
            book.attainment.running -= 1
        request.is_waiting = False
        self._settle(request)
        for seq_id in request.sequences:
            self._sequences.pop(seq_id, None)
            self._queued.pop(seq_id, None)

    def _settle(self, request: LiveRequest) -> None:
        """Add the gaps that it had so far; its next rows are looked at one by one."""
        for seq_id in request.sequences:
            self._steady.leave(seq_id)

    def _add_gaps(self, seq_id: int, gaps: int, worst_ns: int, at_ns: int) -> None:
        """So many gaps were counted together with those of others; `at_ns` ended the last one."""
        sequence = self._sequences[seq_id]
        request = sequence.request
        request.gaps += gaps
        request.worst_gap_ns = max(request.worst_gap_ns, worst_ns)
        sequence.last_ns, sequence.last = at_ns, self.clock.now

    def _forget_all(self) -> None:
        for request in list(self._live.values()):
            self._forget(request)

    # Steps

    def _step(self, step: StepRecorded) -> None:
        if self._last_step_id is not None and step.step_id > self._last_step_id + 1:
            self._forget_all()
        self._last_step_id = step.step_id
        others = self._steady.step(step)
        before = self.clock.now
        rows = self.clock.step(step, self._queued, others)
        for skip in step.skips:
            self._skipped(skip.seq_id, skip.reason)
        for seq_id in step.preempted:
            self._skipped(seq_id, WaitReason.PREEMPTED)
        late: Counter[tuple[str, Reading, int]] = Counter()
        at_ns, now, sequences = step.committed_ns, self.clock.now, self._sequences
        for row in others:
            sequence = sequences.get(row.seq_id)
            if sequence is None:
                continue
            last_ns = sequence.last_ns
            if last_ns is None:
                self._prompt_row(sequence, row, step, before, rows)
            elif row.sampled and not row.wasted:
                request, gap_ns = sequence.request, at_ns - last_ns
                request.gaps += row.sampled
                if gap_ns > request.worst_gap_ns:
                    request.worst_gap_ns = gap_ns
                if gap_ns > request.target.itl_ns:
                    self._late_token(sequence, gap_ns, at_ns, late)
                sequence.skipped, sequence.last_ns, sequence.last = None, at_ns, now
                if len(request.sequences) == 1:
                    self._steady.join(row.seq_id, request.target.itl_ns)
        self._charge_gaps(late, at_ns)

    def _skipped(self, seq_id: int, reason: WaitReason) -> None:
        """A sequence that had tokens has no row in the step."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None and sequence.last_ns is not None:
            sequence.skipped = sequence.skipped or Counter()
            sequence.skipped[f"wait: {reason.value}"] += self.clock.turn_ns

    def _prompt_row(
        self, sequence: LiveSequence, row: Row, step: StepRecorded, before: Reading, rows: Rows
    ) -> None:
        """A row of a sequence without a token: of its prompt, or, if its prompt was computed before
        the record begins, of an answer that cannot be judged."""
        if not row.is_prefill:
            self._forget(sequence.request)
            return
        if sequence.row_ns is None:
            sequence.row_ns, sequence.first_row = step.begin_ns, before
            self._queued.pop(row.seq_id, None)
        sequence.own_ns += rows.prompts.get(row.seq_id, 0.0) * rows.scale
        sequence.own_ns += row.scored * rows.score_row_ns
        if row.sampled and not row.wasted:
            self._first_token(sequence, step.committed_ns)

    def _first_token(self, sequence: LiveSequence, at_ns: int) -> None:
        request = sequence.request
        if request.first_ns is None:
            book = self.books[request.target.name]
            ttft_ns = at_ns - request.accepted_ns
            book.first_token(at_ns, ttft_ns)
            if ttft_ns > request.target.ttft_ns:
                if request.missed is None:
                    book.missed(request, Missed.FIRST_TOKEN, at_ns)
                parts = sequence.first_token_parts(self.clock, at_ns)
                book.charge(at_ns, parts, ttft_ns - request.target.ttft_ns)
            else:
                request.is_running = True
                book.attainment.running += 1
            book.overdue.pop(request.request_id, None)
            request.first_ns, request.is_waiting = at_ns, False
        sequence.last_ns, sequence.last = at_ns, self.clock.now

    def _late_token(
        self,
        sequence: LiveSequence,
        gap_ns: int,
        at_ns: int,
        late: Counter[tuple[str, Reading, int]],
    ) -> None:
        request = sequence.request
        request.late += 1
        name = request.target.name
        if sequence.skipped is None:  # most have the same two readings: charged together
            late[name, sequence.last, gap_ns] += 1
        else:
            parts = sequence.gap_parts(self.clock, gap_ns)
            self.books[name].charge(at_ns, parts, gap_ns - request.target.itl_ns)
        if request.missed is None and request.is_sure_to_be_slow:
            self.books[name].missed(request, Missed.TOKENS, at_ns)

    def _charge_gaps(self, late: Counter[tuple[str, Reading, int]], at_ns: int) -> None:
        for (name, last, gap_ns), count in late.items():
            book = self.books[name]
            parts = fitted(went_to(last, self.clock.now), gap_ns, HOST)
            all_parts = Counter({part: count * ns for part, ns in parts.items()})
            book.charge(at_ns, all_parts, count * (gap_ns - book.target.itl_ns))

    def _charge_wait(self, book: ClassBook, request: LiveRequest, at_ns: int) -> None:
        """It has ended without a first token, beyond its target."""
        for seq_id in request.sequences[:1]:
            sequence = self._sequences.get(seq_id)
            if sequence is not None:
                parts = sequence.first_token_parts(self.clock, at_ns)
                book.charge(at_ns, parts, at_ns - request.due_ns)

    def waiting_parts(self, book: ClassBook, at_ns: int, most: int = 64) -> Counter[str]:
        """Where the time of those requests went that still wait beyond the target, in ns."""
        found: Counter[str] = Counter()
        for request in list(book.overdue.values())[:most]:
            for seq_id in request.sequences[:1]:
                sequence = self._sequences.get(seq_id)
                if sequence is not None:
                    found += sequence.first_token_parts(self.clock, at_ns)
        return found
