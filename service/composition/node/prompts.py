"""Prompts that this node's engine computes for others, as requests of the node's telemetry.

Each is a request of its own with one sequence, from when the engine took it to its first token. So
the node's spans, histograms, ledger and diagnosis have it, and what it shared steps with is charged
to it. Its spans are in the trace of the request at the other engine. Its blocks may be on their way
for longer: it is live, for whoever waits until nothing is, until the engine has released them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.engine.inbox import Cancel
from service.gateway.engine_client.client import EngineClient
from service.gateway.server_state import LiveRequest
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import EngineStarted, SequenceEnded, SequencesListed
from telemetry.facts.fleet.kv_transfer_records import KvHeld, KvPromptTaken, KvReleased
from telemetry.facts.reasons import EndReason, FactSource, Outcome
from telemetry.facts.recorder import Lane
from telemetry.facts.records import (
    Fact,
    FactsLost,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)

ROUTE = "kv.prefill"
_Cancel = Callable[[int, EndReason], None]


@dataclass(slots=True)
class _Prompt:
    """Implements `LiveRequest`. `keeps_blocks` for the other engine, which takes them."""

    request_id: str
    seq_id: int
    epoch: int
    tenant: str
    cancel: _Cancel
    keeps_blocks: bool = False

    def interrupt(self, reason: EndReason) -> None:
        self.cancel(self.seq_id, reason)


class PromptsForOthers:
    """Takes each frame's facts, before they are recorded: what it records itself comes first, in
    `lane`. A drain waits until `handlers` has none."""

    def __init__(
        self, lane: Lane, handlers: dict[str, LiveRequest], model: str, cancel: _Cancel
    ) -> None:
        self._lane, self._handlers, self._model, self._cancel = lane, handlers, model, cancel
        self._live: dict[int, _Prompt] = {}
        self._sending: dict[int, _Prompt] = {}  # by epoch: they have ended, and keep their blocks

    def take(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case KvPromptTaken():
                    self._taken(fact)
                case KvHeld() if fact.seq_id in self._live:
                    self._live[fact.seq_id].keeps_blocks = True
                case SequenceEnded() if fact.seq_id in self._live:
                    self._ended(self._live.pop(fact.seq_id), fact.at_ns, fact.reason)
                case KvReleased():
                    self._sent(fact.epoch)
                case FactsLost() if fact.source is FactSource.ENGINE:
                    self._all_sent()  # releases may be among them
                case SequencesListed():  # facts were lost, ends may be among them
                    for seq_id in fact.over(self._live):
                        self._ended(self._live.pop(seq_id), fact.at_ns, EndReason.END_LOST)
                case EngineStarted():
                    self.engine_gone(fact.at_ns)  # the one before
                case _:
                    pass

    def engine_gone(self, at_ns: int) -> None:
        """The engine has ended: none of its prompts is computed or sent any more."""
        for prompt in self._live.values():
            self._ended(prompt, at_ns, EndReason.ENGINE_DIED)
        self._live.clear()
        self._all_sent()

    def _taken(self, fact: KvPromptTaken) -> None:
        request_id = f"{fact.request_id}.{ROUTE}"
        while request_id in self._handlers:
            request_id += "+"
        prompt = _Prompt(request_id, fact.seq_id, fact.epoch, fact.tenant, self._cancel)
        self._live[fact.seq_id] = prompt
        self._handlers[request_id] = prompt
        self._lane.append(
            RequestAccepted(
                request_id=request_id,
                at_ns=fact.at_ns,
                trace_id=fact.trace_id,
                parent_span_id=fact.span_id,
                trace_sampled=fact.sampled,
                trace_state=None,
                route=ROUTE,
                operation=ROUTE,
                tenant=fact.tenant,
                slo_class="",
            )
        )
        self._lane.append(
            RequestParsed(
                request_id=request_id,
                at_ns=fact.at_ns,
                model=self._model,
                stream=True,
                choices=1,
                max_tokens=1,
                temperature=None,
                top_p=None,
                top_k=None,
                seed=None,
            )
        )
        self._lane.append(RequestTokenized(request_id, fact.at_ns, fact.prompt_tokens))
        self._lane.append(SequenceSubmitted(request_id, fact.at_ns, fact.seq_id, 0))

    def _sent(self, epoch: int) -> None:
        """The blocks of a prompt are kept no more, or nobody waits for them."""
        prompt = self._sending.pop(epoch, None)
        if prompt is not None:
            self._handlers.pop(prompt.request_id, None)

    def _all_sent(self) -> None:
        for epoch in list(self._sending):
            self._sent(epoch)

    def _ended(self, prompt: _Prompt, at_ns: int, reason: EndReason) -> None:
        is_finished = reason.outcome is Outcome.FINISHED
        if is_finished and prompt.keeps_blocks:
            self._sending[prompt.epoch] = prompt
            prompt.cancel = lambda seq_id, reason: self._sent(prompt.epoch)
        else:
            self._handlers.pop(prompt.request_id, None)
        self._lane.append(
            RequestEnded(
                request_id=prompt.request_id,
                at_ns=at_ns,
                reason=reason,
                status=200 if is_finished else 0,
                error_type=None if is_finished else reason.value,
                output_tokens=int(is_finished),
                first_sent_ns=at_ns if is_finished else None,
                detokenized_ns=None,
                detokenize_busy_ns=0,
                bytes_sent=0,
                detected_ns=None if is_finished else at_ns,
            )
        )


def prompts_of(
    client: EngineClient, lane: Lane, handlers: dict[str, LiveRequest], model: str, clock: Clock
) -> PromptsForOthers:
    """The prompts for others, of whichever engine the client has; they end with it."""
    prompts = PromptsForOthers(
        lane, handlers, model, lambda seq_id, reason: client.send(Cancel(seq_id, reason))
    )
    client.on_detach = lambda: prompts.engine_gone(clock.now_ns())
    return prompts
