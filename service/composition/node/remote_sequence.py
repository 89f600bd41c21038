"""One sequence of a gateway at a node: the facts that the node records of it.

To the node's telemetry it is a request of its own, with one sequence: accepted when its submit was
read, ended when its last emission that its gateway counts was written. So the node's spans,
histograms, ledger and diagnosis are those of any server. Its request id is the gateway's; further
choices of the request have their number behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from service.fleet.wire.messages import RemoteSubmit
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.recorder import Lane
from telemetry.facts.records import (
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)


class RemoteSequence:
    """`seq_id` is the node's number, `theirs` the gateway's; `written` counts emissions. The node
    gives it `request_id`, `wanted_id` if that is free. Its submit was read at `received_ns`. To
    operators and a drain it is a live request (`service.gateway.server_state`); `cancel` ends it in
    the engine."""

    def __init__(
        self,
        submit: RemoteSubmit,
        seq_id: int,
        received_ns: int,
        lane: Lane,
        clock: Clock,
        cancel: Callable[[int, EndReason], None],
    ) -> None:
        self.seq_id, self.theirs = seq_id, submit.seq_id
        choice = submit.about.choice
        self.wanted_id = submit.about.request_id + (f".{choice}" if choice else "")
        self.request_id, self.tenant = self.wanted_id, submit.tenant
        self._cancel = cancel
        self.gateways_id, self.incarnation = submit.about.request_id, submit.incarnation
        self.has_ended = False
        self._lane, self._clock = lane, clock
        self.received_ns = received_ns
        self._emissions_ns: list[int] = []
        self._read_ns: int | None = None
        self._tokens = 0
        self._cancelled: tuple[EndReason, int, int] | None = None  # reason, seen, when

    def interrupt(self, reason: EndReason) -> None:
        """End it from this side; its gateway gets the reason."""
        self._cancel(self.seq_id, reason)

    def accepted(self, submit: RemoteSubmit, model: str) -> None:
        """The submit was read."""
        about, now_ns = submit.about, self._clock.now_ns()
        self._lane.append(
            RequestAccepted(
                request_id=self.request_id,
                at_ns=self.received_ns,
                trace_id=about.trace_id,
                parent_span_id=about.span_id,
                trace_sampled=about.sampled,
                trace_state=None,
                route=about.route or "fleet",
                operation=about.operation or "chat",
                tenant=submit.tenant,
                slo_class=about.slo_class,
            )
        )
        sampling = submit.sampling
        self._lane.append(
            RequestParsed(
                request_id=self.request_id,
                at_ns=now_ns,
                model=model,
                stream=True,
                choices=1,
                max_tokens=submit.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=sampling.seed,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
            )
        )
        self._lane.append(RequestTokenized(self.request_id, now_ns, len(submit.prompt)))

    def submitted(self) -> None:
        """It is handed to the engine next."""
        now_ns = self._clock.now_ns()
        self._lane.append(SequenceSubmitted(self.request_id, now_ns, self.seq_id, 0))

    def waited_ns(self, admitted_ns: int) -> int:
        """From when its submit was read until it came into the batch."""
        return max(0, admitted_ns - self.received_ns)

    def wrote(self, has_token: bool, read_ns: int, at_ns: int) -> None:
        """An emission that was read from the engine at `read_ns` was written at `at_ns`."""
        self._emissions_ns.append(at_ns)
        self._tokens += has_token
        self._read_ns = read_ns

    def cancelled(self, reason: EndReason, seen: int) -> None:
        """Its gateway wants no more of it, and has counted `seen` emissions; the first time
        counts."""
        if self._cancelled is None:
            self._cancelled = (reason, min(seen, len(self._emissions_ns)), self._clock.now_ns())

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled is not None

    @property
    def written(self) -> int:
        return len(self._emissions_ns)

    @property
    def counted(self) -> int:
        """Emissions that its gateway counts, as far as is known here."""
        return self.written if self._cancelled is None else self._cancelled[1]

    def ended(self, reason: EndReason) -> None:
        """Record the end, once."""
        if self.has_ended:
            return
        self.has_ended = True
        at_ns, detected_ns = self._end_ns()
        if self._cancelled is not None:
            reason = self._cancelled[0]
        is_finished = reason.outcome is Outcome.FINISHED
        first_ns = self._emissions_ns[0] if self._emissions_ns else None
        read_ns = at_ns if self._read_ns is None else min(self._read_ns, at_ns)
        self._lane.append(
            RequestEnded(
                request_id=self.request_id,
                at_ns=at_ns,
                reason=reason,
                status=200 if is_finished else 0,
                error_type=None if is_finished else reason.value,
                output_tokens=self._tokens,
                first_sent_ns=None if first_ns is None else min(first_ns, at_ns),
                detokenized_ns=read_ns if self._emissions_ns else None,
                detokenize_busy_ns=0,
                bytes_sent=0,
                detected_ns=detected_ns,
                received_ns=at_ns if is_finished and self._cancelled is not None else None,
            )
        )

    def _end_ns(self) -> tuple[int, int | None]:
        """When the last emission was written that the gateway counts, and when the cancellation
        came. A gateway that counts none leaves the time until then."""
        stamps = self._emissions_ns
        if self._cancelled is None:
            return (stamps[-1] if stamps else self._clock.now_ns()), None
        _, seen, at_ns = self._cancelled
        return (stamps[seen - 1] if seen else at_ns), at_ns
