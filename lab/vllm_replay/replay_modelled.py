"""What-if replay: vLLM's scheduler over recorded arrivals, with fitted durations and changes.

Sequences come to the engine core when they came, however late they are served (open loop); outputs
have their recorded lengths. Aborts keep their times, but a sequence that the front end stopped at a
stop string ends after the recorded number of tokens. The engine core's loop is as vLLM's: up to
`depth` steps are planned before the oldest comes back, and commands are taken between iterations,
aborts also before a step's tokens are taken. The result is facts, as of any other run.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from lab.replay.iteration_cost import IterationCost
from lab.replay.noise import Noise, NoNoise
from lab.replay.retimed import retimed
from lab.vllm_replay.facts_of_replay import FactWriter
from lab.vllm_replay.protocol import (
    Arrive,
    Build,
    Command,
    Commit,
    Committed,
    Done,
    Finish,
    Flush,
    ForeignScheduler,
    GrammarIsReady,
    Plan,
    Planned,
)
from lab.vllm_replay.recording import VllmRun
from telemetry.costs.step_load import StepLoad, attention_pairs
from telemetry.facts.engine_records import CacheFlushed, SequenceQueued
from telemetry.facts.records import Fact
from telemetry.numbers.quantiles import median

EMPTY_STEP_NS = 1_000_000  # vLLM rests for a millisecond after a step without a row


class Stuck(Exception):
    """Sequences wait that can never run with these settings; the message is one line."""


@dataclass(slots=True)
class _Flight:
    step_id: int
    planned: Planned
    begin_ns: int
    planned_ns: int
    end_ns: int


@dataclass(slots=True)
class _Device:
    """Fitted durations, one step after the other."""

    cost: IterationCost
    noise: Noise
    free_ns: int = 0
    tokens: int = 0  # of the step before
    gap_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.gap_ns = self.cost.gap_ns

    def end_ns(self, planned: Planned, now_ns: int) -> int:
        """When a step that is planned now is committed."""
        begin_ns = max(now_ns, self.free_ns)
        load = load_of_planned(planned).after(self.tokens)
        self.tokens = load.tokens
        span_ns = self.cost.step_ns(load)
        disturbed = self.noise.at(begin_ns, span_ns)
        self.gap_ns = self.cost.gap_ns
        if disturbed is not None:
            span_ns, self.gap_ns = disturbed.span_ns(span_ns), disturbed.gap_ns
        self.free_ns = begin_ns + span_ns
        return self.free_ns


def load_of_planned(planned: Planned) -> StepLoad:
    """The load of a planned step, as `telemetry.costs.step_load.load_of_step` of a recorded one."""
    prompts = [row for row in planned.rows if row.is_prefill]
    decodes = [row for row in planned.rows if not row.is_prefill]
    return StepLoad(
        prompt_tokens=sum(row.tokens for row in prompts),
        pairs=sum(attention_pairs(row.tokens, row.context_tokens) for row in prompts),
        decode_tokens=sum(row.tokens for row in decodes),
        decode_rows=len(decodes),
        context_tokens=sum(row.context_tokens for row in decodes),
        sampled_rows=len(decodes) + sum(row.gives for row in prompts),
    )


def replay_modelled(
    run: VllmRun,
    scheduler: ForeignScheduler,
    cost: IterationCost,
    build: Build | None = None,
    noise: Noise | None = None,
) -> list[Fact]:
    """Facts of the replayed run, in order of time. Raises SchedulerFailed, Stuck."""
    modelled = _Modelled(run, scheduler, cost, build or run.build, noise or NoNoise())
    return retimed(run.run, modelled.run(), frozenset())


class _Modelled:
    """The engine core's loop in virtual time."""

    def __init__(
        self,
        run: VllmRun,
        scheduler: ForeignScheduler,
        cost: IterationCost,
        build: Build,
        noise: Noise,
    ) -> None:
        scheduler.do(build)
        self._run, self._scheduler = run, scheduler
        self._device = _Device(cost, noise)
        self._facts = FactWriter(run, build)
        self._now_ns = run.run.started.at_ns
        self._flights: deque[_Flight] = deque()
        self._events: list[tuple[int, int, Command]] = []
        self._arrived: set[int] = set()
        self._stops_after: dict[int, int] = {}
        self._plan_ns = median(s.planned_ns - s.begin_ns for s in run.steps) or 0
        self._commit_ns = median(s.committed_ns - s.collected_ns for s in run.steps) or 0
        self._orders = count()
        for at_ns, command in self._commands(cost):
            self._at(at_ns, command)

    def run(self) -> list[Fact]:
        """Facts until no work is left, or the engine's recorded death."""
        died_ns = self._run.run.died_ns
        while died_ns is None or self._now_ns < died_ns:
            self._deliver(only_aborts=False)
            if self._scheduler.has_requests:
                if not self._plan():
                    continue
            elif not self._flights:
                if not self._events:
                    break
                self._facts.idled(self._now_ns)
                self._now_ns = max(self._now_ns, self._events[0][0])
                continue
            self._commit()
        return self._facts.written

    def _commands(self, cost: IterationCost) -> list[tuple[int, Command]]:
        """What comes from outside, with its time at the engine core."""
        run = self._run
        found: list[tuple[int, Command]] = []
        for sequence in run.run.sequences.values():
            entry = sequence.entry
            if not isinstance(entry, SequenceQueued):
                continue
            at_ns = entry.at_ns
            if entry.received_ns is not None:
                at_ns = min(at_ns, entry.received_ns)
            elif sequence.submitted_ns is not None:
                at_ns = min(at_ns, sequence.submitted_ns + cost.wake_ns)
            found.append((at_ns, run.arrive(sequence)))
        by_front_end = run.stopped_by_front_end
        for end in run.aborted:
            if end.seq_id in by_front_end:
                self._stops_after[end.seq_id] = end.output_tokens
            else:
                found.append((end.at_ns, Finish(end.seq_id)))
        found += [(at_ns, GrammarIsReady(seq)) for seq, at_ns in run.grammar_ready_ns.items()]
        found += [(f.at_ns, Flush()) for f in run.run.facts if isinstance(f, CacheFlushed)]
        return sorted(found, key=lambda one: one[0])

    def _deliver(self, only_aborts: bool) -> None:
        """Tell the scheduler what has come until now. An abort of a sequence that it has not been
        told of comes again after that."""
        due: list[Command] = []
        kept: list[tuple[int, int, Command]] = []
        while self._events and self._events[0][0] <= self._now_ns:
            event = heapq.heappop(self._events)
            command = event[2]
            if only_aborts and not (
                isinstance(command, Finish) and command.seq_id in self._arrived
            ):
                kept.append(event)
                continue
            due.append(command)
            if isinstance(command, Arrive):
                self._arrived.add(command.seq_id)
        for event in kept:
            heapq.heappush(self._events, event)
        if due:
            replies = self._scheduler.do(*due)
            for command, reply in zip(due, replies, strict=True):
                self._facts.told(self._now_ns, command)
                if isinstance(reply, Done):
                    self._facts.ended(self._now_ns, reply.ended)

    def _plan(self) -> bool:
        """Plan a step; whether a step has to come back before the next is planned."""
        begin_ns = self._now_ns
        step_id = self._facts.next_step
        (planned,) = self._scheduler.do(Plan(step_id))
        assert isinstance(planned, Planned), "the reply to a plan"
        if not planned.rows:
            self._plan_was_empty()
            return bool(self._flights)
        self._now_ns = planned_ns = begin_ns + self._plan_ns
        end_ns = self._device.end_ns(planned, begin_ns)
        self._facts.planned(planned, planned_ns)
        self._flights.append(_Flight(step_id, planned, begin_ns, planned_ns, end_ns))
        return len(self._flights) >= self._run.depth

    def _plan_was_empty(self) -> None:
        """vLLM asks again after a rest; nothing changes before the next event or step."""
        if not self._flights and self._scheduler.has_requests:
            if not self._events:
                raise Stuck("sequences wait for ever: the cache is too small for one of them")
            self._now_ns = max(self._now_ns + EMPTY_STEP_NS, self._events[0][0])

    def _commit(self) -> None:
        flight = self._flights.popleft()
        collected_ns = max(self._now_ns, flight.end_ns - self._commit_ns)
        self._now_ns = collected_ns
        self._deliver(only_aborts=True)
        (committed,) = self._scheduler.do(Commit(flight.step_id))
        assert isinstance(committed, Committed), "the reply to a commit"
        end_ns = max(flight.end_ns, collected_ns)
        stamps = (flight.begin_ns, flight.planned_ns, collected_ns, end_ns)
        self._facts.step(flight.step_id, flight.planned, committed, stamps)
        self._now_ns = end_ns + self._device.gap_ns
        self._stop_strings(flight.planned, committed)

    def _stop_strings(self, planned: Planned, committed: Committed) -> None:
        """The front end aborts what has given its last token."""
        for row, given in zip(planned.rows, committed.given, strict=True):
            after = self._stops_after.get(row.seq_id)
            if after is not None and given and self._facts.outputs(row.seq_id) >= after:
                del self._stops_after[row.seq_id]
                self._at(self._now_ns, Finish(row.seq_id))

    def _at(self, at_ns: int, command: Command) -> None:
        """Events of one time keep their order."""
        heapq.heappush(self._events, (at_ns, next(self._orders), command))
