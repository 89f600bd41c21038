"""Makes facts of what vLLM's scheduler did. One object an engine core; its methods raise nothing.

A step is an output of `schedule` with at least one token, from the moment `schedule` was entered
until `update_from_output` returned; or one that says who waits for KV blocks from elsewhere, where
these are others than before. With asynchronous scheduling two steps overlap. All methods run on the
engine's loop, but `received` (the thread that receives), `compiled` (a thread that compiles),
`listing` and `is_resting` (the thread that sends).
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.attach.inside.block_aliases import BlockAliases
from service.attach.inside.front_end.vllm_front import no_python_front_end
from service.attach.inside.guard import Guard, guarded, where
from service.attach.inside.transport import Listing, Sender, report_not_observed
from service.attach.inside.vllm_core.ends import end_reason
from service.attach.inside.vllm_core.grammars import hook_grammars
from service.attach.inside.vllm_core.live import Ending, Flight, Live, planned_row
from service.attach.inside.vllm_core.sequences import sequence_admitted, sequence_queued
from service.attach.inside.vllm_core.start import engine_started, index_of
from service.attach.inside.vllm_core.steps import (
    blocks_sealed,
    engine_idled,
    sampled_tokens,
    step_recorded,
)
from service.attach.inside.vllm_core.waits import Waits
from service.attach.wire import Role, SequenceName, sent_name
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import (
    GrammarCompiled,
    SequenceEnded,
    SequencesListed,
)
from telemetry.facts.reasons import EndReason

_MOST_FLIGHTS = 64
_MOST_RECEIVED = 10_000
_MOST_PROMPT_BLOCKS = 256

Arguments = tuple[Any, ...]
Named = Mapping[str, Any]


class Observer:
    """The live sequences and the steps in flight of one scheduler. `statuses` is vLLM's enum
    RequestStatus."""

    def __init__(self, scheduler: Any, statuses: Any, path: Path, version: str) -> None:
        self.is_on = True
        self.now_ns = MonotonicClock().now_ns
        self._scheduler, self._statuses = scheduler, statuses
        self._guards: dict[str, Guard] = {}
        self._live: dict[str, Live] = {}
        self._flights: deque[Flight] = deque(maxlen=_MOST_FLIGHTS)
        self._received: dict[str, int] = {}
        self._compiled: OrderedDict[int, int] = OrderedDict()
        self._compiling: dict[str, Live] = {}
        self._ending: list[Ending] = []
        self._preempted: list[int] = []
        self._last_seq_id = self._next_step_id = self._waiting_tokens = 0
        self._current: Flight | None = None
        self._collected_ns = 0
        self._is_updating = self._is_everything = False
        self._is_idle = True
        self._waits = Waits(scheduler, statuses)
        self._aliases = BlockAliases()
        hash_tokens = getattr(scheduler, "hash_block_size", scheduler.block_size)
        self._caches_prefixes = bool(scheduler.cache_config.enable_prefix_caching)
        self._block_tokens = hash_tokens if hash_tokens == scheduler.block_size else 0
        self._sender = Sender(
            Role.ENGINE_CORE,
            "vllm",
            version,
            index_of(scheduler),
            path=path,
            listing=self.listing,
            is_resting=self.is_resting,
        )

    @classmethod
    def of(cls, scheduler: Any, path: Path, version: str) -> Observer | None:
        """For a scheduler that was just made. None, with the reason in the sidecar, if it is not as
        it is expected to be."""
        try:
            from vllm.v1.request import RequestStatus

            observer = cls(scheduler, RequestStatus, path, version)
            observer._begin(version)
            return observer
        except Exception as error:
            report_not_observed(
                Role.ENGINE_CORE, "vllm", version, path=path, hook="__init__", error=error
            )
            return None

    def guard_of(self, hook: str, is_vital: bool) -> Guard:
        guard = self._guards.get(hook)
        if guard is None:
            guard = self._guards[hook] = Guard(hook, self._turn_off, is_vital=is_vital)
        return guard

    def listing(self) -> Listing:
        """Every live sequence, for the thread that sends."""
        last_seq_id, live = self._last_seq_id, self._live.copy().values()
        fact = SequencesListed(self.now_ns(), tuple(one.seq_id for one in live), last_seq_id)
        return fact, [SequenceName(one.seq_id, sent_name(one.key)) for one in live]

    def is_resting(self) -> bool:
        """Whether the loop waits although sequences are live: the engine is paused, or they are
        sessions whose clients have to say more. For the thread that sends."""
        try:
            return not self._flights and not self._scheduler.has_unfinished_requests()
        except Exception:
            return False

    def close(self) -> None:
        """The engine shuts down: what waits is sent."""
        self.is_on = False
        self._sender.close(0.5)

    @guarded("preprocess_add_request", is_vital=False)
    def received(self, args: Arguments, named: Named) -> None:
        if len(self._received) >= _MOST_RECEIVED:  # requests that never came to the scheduler
            self._received.clear()
        self._received[_first(args, named, "request").request_id] = self.now_ns()

    @guarded("_create_grammar", is_vital=False)
    def compiled(self, begin_ns: int, args: Arguments, named: Named) -> None:
        key = hash(_first(args, named, "request").request_id)  # whose length a client chooses
        self._compiled[key] = self.now_ns() - begin_ns
        if len(self._compiled) > _MOST_RECEIVED:  # of requests that ended meanwhile
            self._compiled.popitem(last=False)

    @guarded("add_request")
    def added(self, at_ns: int, args: Arguments, named: Named) -> None:
        request = _first(args, named, "request")
        key = request.request_id
        received_ns = self._received.pop(key, None)
        if key in self._live or self._scheduler.requests.get(key) is not request:
            return  # more input for a session that goes on, or the end of its input
        constrained = request.status == self._statuses.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        blocks = self._prompt_blocks(request)
        tokens, seq_id = request.num_prompt_tokens, self._last_seq_id + 1
        live = Live(key, seq_id, request, tokens, told_blocks=len(blocks or ()))
        live.seal_tokens = (live.told_blocks + 1) * self._block_tokens
        live.awaits_grammar = constrained
        self._live[key], self._last_seq_id = live, seq_id
        if constrained:
            self._compiling[key] = live
        self._waiting_tokens += tokens
        self._is_idle = False
        self._sender.name(seq_id, sent_name(key))
        self._sender.append(sequence_queued(live, at_ns, self._next_step_id, blocks, received_ns))
        self._sender.turn_ns = at_ns

    @guarded("schedule")
    def planned(self, begin_ns: int, output: Any, args: Arguments, named: Named) -> None:
        planned_ns = self.now_ns()
        self._sender.turn_ns = planned_ns if self._live else None
        if self._compiling:
            self._note_compiled(begin_ns)
        if not output.total_num_scheduled_tokens and not self._waits.has_news(self._live):
            if not self._flights:
                self._write_idle(planned_ns)  # until a load has come, or a grammar
            return
        rows = []
        for key, tokens in output.num_scheduled_tokens.items():
            live = self._live.get(key)
            if live is None:
                continue
            if live.is_waiting:
                self._admit(live, begin_ns, tokens)
            rows.append(planned_row(live, tokens))
        preempted = tuple(self._preempted)
        is_throttled = bool(args[0] if args else named.get("throttle_prefills"))
        skips = self._waits.skips(output, self._live, bool(preempted), is_throttled)
        self._is_idle = False
        self._flights.append(
            Flight(
                output,
                self._next_step_id,
                begin_ns,
                planned_ns,
                rows,
                skips,
                preempted,
                self._scheduler.max_num_scheduled_tokens,
            )
        )
        self._preempted.clear()
        self._next_step_id += 1

    @guarded("_preempt_request")
    def preempting(self, args: Arguments, named: Named) -> None:
        request = _first(args, named, "request")
        live = self._live.get(request.request_id)
        if live is None:
            return
        live.computed_tokens = max(live.computed_tokens, request.num_computed_tokens)
        live.is_waiting, live.queued_tokens = True, request.num_tokens
        self._waiting_tokens += live.queued_tokens
        self._preempted.append(live.seq_id)

    @guarded("update_from_output")
    def collected(self, args: Arguments, named: Named) -> None:
        self._collected_ns = self.now_ns()
        self._is_updating, self._current = True, None
        output = _first(args, named, "scheduler_output")
        for flight in self._flights:
            if flight.output is output:
                self._current = flight
                self._flights.remove(flight)
                return

    @guarded("update_from_output")
    def committed(self, outputs: Any) -> None:
        committed_ns = self.now_ns()
        self._is_updating = False
        flight, self._current = self._current, None
        if flight is not None:
            sealed = blocks_sealed(flight, self._block_tokens, self._aliases)
            step = step_recorded(
                flight,
                self._scheduler,
                self._collected_ns,
                committed_ns,
                sampled_tokens(outputs),
                self._waiting_tokens,
                sealed,
            )
            self._sender.append(step)
        ending, self._ending = self._ending, []
        for one in ending:
            self._end(one, committed_ns)
        self._sender.turn_ns = committed_ns
        self._note_idle(committed_ns)

    @guarded("finish_requests")
    def finishing(self, args: Arguments, named: Named) -> None:
        self._is_everything = _first(args, named, "request_ids") is None

    @guarded("finish_requests")
    def finished(self) -> None:
        self._is_everything = False
        if not self._is_updating:
            self._note_idle(self.now_ns())

    @guarded("_free_request")
    def ended(self, args: Arguments, named: Named) -> None:
        """A sequence ended. What ends while a step is committed is recorded after that step."""
        request = _first(args, named, "request")
        live = self._live.get(request.request_id)
        if live is None or live.has_ended:
            return
        live.has_ended = True
        ending = Ending(
            live,
            end_reason(live, self._statuses, self._is_everything),
            request.num_output_tokens,
            request.num_preemptions,
        )
        if self._is_updating:
            self._ending.append(ending)
        else:
            self._end(ending, self.now_ns())

    def _begin(self, version: str) -> None:
        self._sender.started(engine_started(self._scheduler, version, self.now_ns()))
        if (reason := no_python_front_end(os.environ)) is not None:
            self._sender.turn_off("front_end", reason)
        try:
            hook_grammars(self._scheduler.structured_output_manager, self.now_ns, self.compiled)
        except AttributeError as error:
            self._sender.turn_off("_create_grammar", where(error))

    def _turn_off(self, hook: str, reason: str, is_all: bool) -> None:
        if is_all:
            self.is_on = False
            self._live.clear()
            self._flights.clear()
        self._sender.turn_off(hook, reason, is_all=is_all)

    def _prompt_blocks(self, request: Any) -> tuple[int, ...] | None:
        hashes = request.block_hashes
        if not hashes or not self._block_tokens:
            return () if self._caches_prefixes else None
        return self._aliases.of(hashes[:_MOST_PROMPT_BLOCKS])

    def _admit(self, live: Live, at_ns: int, tokens: int) -> None:
        """A waiting sequence got its first row, or its first one after a preemption."""
        self._waiting_tokens -= live.queued_tokens
        live.is_waiting, live.prefill_tokens = False, live.request.num_tokens
        self._sender.append(sequence_admitted(live, at_ns, self._next_step_id, tokens))

    def _note_compiled(self, at_ns: int) -> None:
        """Grammars that the plan at `at_ns` found compiled."""
        waits = self._statuses.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        for key, live in list(self._compiling.items()):
            if live.request.status != waits:
                self._record_grammar(key, live, at_ns, refused=False)

    def _record_grammar(self, key: str, live: Live, at_ns: int, *, refused: bool) -> None:
        del self._compiling[key]
        live.awaits_grammar = False
        compile_ns = self._compiled.pop(hash(key), 0)
        self._sender.append(
            GrammarCompiled(live.seq_id, at_ns, self._next_step_id, compile_ns, False, refused)
        )

    def _end(self, ending: Ending, at_ns: int) -> None:
        live, reason, output_tokens, preemptions = ending
        key = live.key
        if key in self._compiling:
            if reason is EndReason.GRAMMAR_INVALID:
                self._record_grammar(key, live, at_ns, refused=True)
            else:
                del self._compiling[key]
                self._compiled.pop(hash(key), None)
        if live.is_waiting:
            self._waiting_tokens -= live.queued_tokens
        self._sender.append(
            SequenceEnded(
                live.seq_id, at_ns, self._next_step_id, reason, output_tokens, preemptions
            )
        )
        self._live.pop(key, None)
        self._is_idle = False

    def _note_idle(self, at_ns: int) -> None:
        if self._live or self._flights:
            return
        self._sender.turn_ns = None
        self._write_idle(at_ns)

    def _write_idle(self, at_ns: int) -> None:
        if not self._is_idle:
            self._is_idle = True
            self._sender.append(engine_idled(self._scheduler, at_ns))


def _first(args: Arguments, named: Named, name: str) -> Any:
    """The first argument of a call, however it was given."""
    return args[0] if args else named[name]
