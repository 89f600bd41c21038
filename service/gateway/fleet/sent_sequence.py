"""What a gateway keeps of a sequence that it has sent to an engine elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.inbox import Submit
from service.engine.plan import Emission
from service.fleet.wire.messages import Admitted, PrefillAt, RemoteSubmit, WireRequestContext
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.fleet.link import EngineLink
from telemetry.facts.engine_records import SequenceAdmitted, SequenceQueued
from telemetry.facts.fleet.sequence_records import RemoteAccount, RemoteAccounted, RemoteAdmitted
from telemetry.facts.reasons import EndReason


@dataclass(slots=True, eq=False)
class SentSequence:
    """`request_id` is that of its request at the node. `waiting_before` sequences were
    before it in the engine's queue when that was told. `seen` of its emissions have come, the
    last at `last_ns`; `outputs` of them have a token, the first came at `first_ns`. Once it is over
    here, `reason` says why, and no emission counts any more; at `ended_ns` it had ended there."""

    seq_id: int
    link: EngineLink
    incarnation: int
    request_id: str
    prompt_tokens: int
    submit: Submit
    waiting_before: int = 0
    seen: int = 0
    outputs: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    reason: EndReason | None = None
    over_ns: int = 0
    ended_ns: int = 0
    is_cancelled: bool = False

    def took(self, emission: Emission, at_ns: int) -> bool:
        """One of its emissions has come; whether a token that counts is in it."""
        if self.reason is not None:
            return False
        self.seen += 1
        self.last_ns = at_ns
        if emission.sample is None:
            return False
        self.outputs += 1
        self.first_ns = self.first_ns or at_ns
        return True

    def over(self, reason: EndReason, at_ns: int) -> None:
        """It has ended, or its request has; the first time counts."""
        if self.reason is None:
            self.reason, self.over_ns = reason, at_ns

    def queued(self, at_ns: int, constrained: bool) -> SequenceQueued:
        """The fact that it is in the engine's queue."""
        submit = self.submit
        return SequenceQueued(
            self.seq_id, at_ns, 0, self.prompt_tokens, submit.max_tokens, submit.tenant,
            constrained=constrained,
        )  # fmt: skip

    def admitted(self, at_ns: int, said: Admitted) -> tuple[SequenceAdmitted, RemoteAdmitted]:
        """It has come into the engine's batch: what its request is told, and the fact of that."""
        self.waiting_before = 0
        known, hit, ghost = said.known_tokens, said.hit_tokens, said.ghost_tokens
        waited_ns, received = said.waited_ns, said.received_tokens
        told = SequenceAdmitted(self.seq_id, at_ns, 0, known, hit, 0, ghost)
        return told, RemoteAdmitted(
            at_ns, self.seq_id, self.link.name, known, hit, ghost, waited_ns, received
        )

    def accounted(self, account: RemoteAccount | None, emissions: int) -> RemoteAccounted:
        """The fact of its end. The account counts only if it ends with the emission that counted
        last here: else the two cannot be told apart from a clock fault."""
        assert self.reason is not None
        counts = account is not None and emissions == self.seen and self.last_ns is not None
        at_ns = self.over_ns if self.last_ns is None else self.last_ns
        return RemoteAccounted(
            at_ns=at_ns,
            seq_id=self.seq_id,
            engine=self.link.name,
            incarnation=self.incarnation,
            reason=self.reason,
            account=account if counts else None,
            first_arrived_ns=self.first_ns,
        )


def for_node(
    submit: Submit,
    about: RequestContext,
    incarnation: int,
    now_ns: int,
    prefill: PrefillAt | None = None,
) -> RemoteSubmit:
    """The submit as it travels; token ids that are encoded already are copied as bytes."""

    def left(at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - now_ns

    return RemoteSubmit(
        seq_id=submit.seq_id,
        incarnation=incarnation,
        about=WireRequestContext(
            request_id=about.request_id,
            trace_id=about.trace_id,
            span_id=about.span_id,
            sampled=about.sampled,
            slo_class=about.slo_class,
            route=about.route,
            operation=about.operation,
            choice=about.sequence,
            choices=about.sequences,
        ),
        prompt=submit.prompt,
        max_tokens=submit.max_tokens,
        sampling=submit.sampling,
        min_tokens=submit.min_tokens,
        end_token_ids=submit.end_token_ids,
        stop_token_ids=submit.stop_token_ids,
        tenant=submit.tenant,
        priority=submit.priority,
        deadline_in_ns=left(submit.deadline_ns),
        cache_salt=submit.cache_salt,
        cache_prefix=submit.cache_prefix,
        grammar=submit.grammar,
        first_token_in_ns=left(submit.first_token_by_ns),
        ttft_target_ns=submit.ttft_target_ns,
        itl_target_ns=submit.itl_target_ns,
        prompt_output=submit.prompt_output,
        prefill=prefill,
    )
