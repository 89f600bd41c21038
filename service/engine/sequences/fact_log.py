"""Facts and emissions of sequences that the engine loop has not taken yet.

A pending fact lacks only its stamp: the loop takes all of them at once, at a moment that it has
read from the clock anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from service.engine.inbox import Submit
from service.engine.plan import Emission
from service.engine.sequences.request import Request
from telemetry.facts.engine_records import (
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequenceRefused,
)
from telemetry.facts.fleet.kv_transfer_records import KvHeld
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact
from telemetry.facts.step_parts import BlocksSealed

PendingFact = Callable[..., Fact]


class FactLog:
    """Owns pending facts, emissions, sealed blocks, and the number of the next step."""

    def __init__(self) -> None:
        self.next_step_id = 0
        self._facts: list[PendingFact] = []
        self._emissions: list[Emission] = []
        self._sealed: list[BlocksSealed] = []

    def record(self, fact: PendingFact) -> None:
        """Add a fact that is complete but for `at_ns`."""
        self._facts.append(fact)

    def emit(self, emission: Emission) -> None:
        """Add a token, or the end of a sequence, for the client."""
        self._emissions.append(emission)

    def seal(self, sealed: BlocksSealed) -> None:
        """Add aliases of full blocks, for the record of the step that is committed next."""
        self._sealed.append(sealed)

    def queued(self, request: Request, blocks: tuple[int, ...] | None) -> None:
        """Record that the queue has taken a sequence; `blocks` are aliases of its prompt's."""
        fields = self._submission(request.submit)
        submit = request.submit
        self.record(
            partial(
                SequenceQueued,
                blocks=blocks,
                awaits_adapter=request.awaits_adapter,
                receives_kv=submit.receives_kv,
                sends_kv=submit.sends_kv,
                **fields,
            )
        )

    def refused(self, submit: Submit) -> None:
        """Record that the queue has not taken a sequence."""
        self.record(partial(SequenceRefused, **self._submission(submit)))

    def admitted(self, request: Request, host_tokens: int, ghost_tokens: int) -> None:
        """Record an admission: `host_tokens` of its prefix hits come from CPU offload, and
        `ghost_tokens` more would have been hits in a larger cache. What it received is no hit."""
        self.record(
            partial(
                SequenceAdmitted,
                seq_id=request.seq_id,
                step_id=self.next_step_id,
                known_tokens=request.known_tokens,
                hit_tokens=request.computed_tokens - request.received_tokens,
                host_tokens=host_tokens,
                ghost_tokens=ghost_tokens,
                received_tokens=request.received_tokens,
            )
        )

    def ended(
        self, request: Request, reason: EndReason, emit: bool = True, detail: str | None = None
    ) -> None:
        """Record the terminal fact; emit the end unless the last token's emission carries it."""
        self.record(
            partial(
                SequenceEnded,
                seq_id=request.seq_id,
                step_id=self.next_step_id,
                reason=reason,
                output_tokens=len(request.outputs),
                preemptions=request.preemptions,
            )
        )
        if emit:
            self.emit(Emission(request.seq_id, None, reason, detail))

    def held(self, seq_id: int, epoch: int, blocks: int) -> None:
        """Record that the blocks of a sequence are kept to be sent in transfer `epoch`."""
        step_id = self.next_step_id
        self.record(partial(KvHeld, seq_id=seq_id, step_id=step_id, epoch=epoch, blocks=blocks))

    def take_facts(self, now_ns: int) -> list[Fact]:
        """Facts since the last call, all stamped `now_ns`."""
        taken, self._facts = self._facts, []
        return [fact(at_ns=now_ns) for fact in taken]

    def take_emissions(self) -> list[Emission]:
        """Emissions since the last call."""
        taken, self._emissions = self._emissions, []
        return taken

    def take_sealed(self) -> tuple[BlocksSealed, ...]:
        """Sealed blocks since the last call."""
        if not self._sealed:
            return ()
        taken, self._sealed = tuple(self._sealed), []
        return taken

    def _submission(self, submit: Submit) -> dict[str, Any]:
        """Fields that SequenceQueued and SequenceRefused have in common."""
        return {
            "seq_id": submit.seq_id,
            "step_id": self.next_step_id,
            "prompt_tokens": len(submit.prompt),
            "max_tokens": submit.max_tokens,
            "tenant": submit.tenant,
            "priority": submit.priority,
            "deadline_ns": submit.deadline_ns,
            "constrained": submit.grammar is not None,
            "first_token_by_ns": submit.first_token_by_ns,
            "ttft_target_ns": submit.ttft_target_ns,
            "itl_target_ns": submit.itl_target_ns,
            "adapter": submit.adapter,
            **_reads_of(submit),
        }


def _reads_of(submit: Submit) -> dict[str, Any]:
    output = submit.prompt_output
    if output is None:
        return {}
    pooling = None if output.pooling is None else output.pooling.value
    return {"prompt_logprobs": output.logprobs, "pooling": pooling}
