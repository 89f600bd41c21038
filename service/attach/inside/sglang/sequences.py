"""The live sequences of SGLang's scheduler, and the facts about each of them.

All methods run on the scheduler's loop, but `listing` (the thread that sends).
"""

from __future__ import annotations

from typing import Any

from service.attach.inside.sglang.ends import output_tokens
from service.attach.inside.sglang.live import Live
from service.attach.inside.transport import Listing, Sender
from service.attach.wire import SequenceName, sent_name
from telemetry.facts.engine_records import (
    GrammarCompiled,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequenceRefused,
    SequencesListed,
)
from telemetry.facts.reasons import EndReason

TENANT = "default"  # SGLang knows no tenants


class Sequences:
    """`live` has them by SGLang's name. `waiting` of them, with `waiting_tokens`, are in the queue
    or wait for their grammar. Facts carry the number of the step that comes next, `step_id`."""

    def __init__(self, sender: Sender) -> None:
        self.live: dict[str, Live] = {}
        self.waiting = self.waiting_tokens = self.step_id = 0
        self.preempted: list[int] = []  # since the last plan
        self._sender = sender
        self._last_seq_id = 0

    def listing(self, at_ns: int) -> Listing:
        last_seq_id, live = self._last_seq_id, self.live.copy().values()
        fact = SequencesListed(at_ns, tuple(one.seq_id for one in live), last_seq_id)
        return fact, [SequenceName(one.seq_id, one.name) for one in live]

    def known(self, request: Any) -> Live | None:
        live = self.live.get(request.rid)
        return live if live is not None and live.request is request else None

    def enqueue(
        self, request: Any, at_ns: int, received_ns: int | None, *, awaits_grammar: bool
    ) -> None:
        """A request that was not known came to the scheduler."""
        seq_id, name = self._number(request, at_ns)
        tokens = len(request.origin_input_ids)
        live = Live(name, seq_id, request, tokens, at_ns, awaits_grammar=awaits_grammar)
        self.live[request.rid] = live
        self.waiting += 1
        self.waiting_tokens += tokens
        self._sender.append(
            SequenceQueued(
                seq_id=seq_id,
                at_ns=at_ns,
                step_id=self.step_id,
                prompt_tokens=tokens,
                max_tokens=request.sampling_params.max_new_tokens,
                tenant=TENANT,
                priority=request.priority or 0,
                constrained=awaits_grammar or request.grammar is not None,
                blocks=(),
                received_ns=received_ns,
            )
        )

    def refuse(self, request: Any, at_ns: int, reason: EndReason) -> None:
        """The queue did not take a request that was not known."""
        seq_id, _ = self._number(request, at_ns)
        self._sender.append(
            SequenceRefused(
                seq_id,
                at_ns,
                self.step_id,
                len(request.origin_input_ids),
                request.sampling_params.max_new_tokens,
                TENANT,
                request.priority or 0,
            )
        )
        self._sender.append(SequenceEnded(seq_id, at_ns, self.step_id, reason, 0, 0))

    def compiled(self, live: Live, at_ns: int) -> None:
        """The grammar of a waiting sequence was compiled, or refused."""
        refused = live.request.to_finish is not None
        live.awaits_grammar = False
        if refused and live.abort_reason is None:
            live.abort_reason = EndReason.GRAMMAR_INVALID
        compile_ns = at_ns - live.queued_ns
        self._sender.append(
            GrammarCompiled(live.seq_id, at_ns, self.step_id, compile_ns, False, refused)
        )

    def preempt(self, live: Live) -> None:
        """A sequence that ran is in the queue again, without its keys and values."""
        live.is_waiting = True
        live.preemptions += 1
        live.lost_tokens = max(live.lost_tokens, live.computed_tokens)
        live.computed_tokens = 0
        live.output_tokens = len(live.request.output_ids)
        live.queued_tokens = len(live.request.origin_input_ids) + live.output_tokens
        self.waiting += 1
        self.waiting_tokens += live.queued_tokens
        self.preempted.append(live.seq_id)

    def admit(self, live: Live, at_ns: int, hit_tokens: int) -> None:
        """The sequence got its first row, or its first one after a preemption."""
        request = live.request
        self._leave_queue(live)
        self._sender.append(
            SequenceAdmitted(
                seq_id=live.seq_id,
                at_ns=at_ns,
                step_id=self.step_id,
                known_tokens=len(request.origin_input_ids) + len(request.output_ids),
                hit_tokens=hit_tokens,
                host_tokens=min(hit_tokens, request.host_hit_length),
                ghost_tokens=0,
            )
        )

    def end(self, live: Live, reason: EndReason, at_ns: int) -> None:
        live.has_ended = True
        if live.is_waiting:
            self._leave_queue(live)
        output = output_tokens(live.request)
        self._sender.append(
            SequenceEnded(live.seq_id, at_ns, self.step_id, reason, output, live.preemptions)
        )
        del self.live[live.request.rid]

    def _number(self, request: Any, at_ns: int) -> tuple[int, str]:
        """The number of a new sequence, with the name that the front end knows it by."""
        stale = self.live.get(request.rid)
        if stale is not None:  # a session goes on under the name of its last turn
            self.end(stale, EndReason.END_LOST, at_ns)
        self._last_seq_id += 1
        name = sent_name(request.rid)
        self._sender.name(self._last_seq_id, name)
        return self._last_seq_id, name

    def _leave_queue(self, live: Live) -> None:
        live.is_waiting = False
        self.waiting -= 1
        self.waiting_tokens -= live.queued_tokens
