"""Clients and the gateway's streams: what is submitted, disconnects, and slow readers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from lab.simulation.virtual_engine import VirtualEngine
from lab.twins.device import END_TOKEN, Needs
from lab.twins.gateway import EventLoop, SimulatedRequest
from lab.twins.physics import MS
from service.engine.inbox import Cancel, GrammarReady, Pause, Resume, Submit
from service.engine.plan import Emission, Grammar, GrammarKind, SamplingParams
from telemetry.facts.reasons import EndReason, Outcome

_WIRE_NS = 150_000
_GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, "{}")


class Clients:
    """The requests that one engine process serves, until `until_ns`. Writes the sampling needs of
    their sequences into `needs`, for the device."""

    def __init__(
        self,
        engine: VirtualEngine,
        requests: Iterable[SimulatedRequest],
        loop: EventLoop,
        buffer_tokens: int,
        needs: dict[int, Needs],
        until_ns: int | None,
    ) -> None:
        self._engine, self._loop = engine, loop
        self._buffer_tokens = buffer_tokens
        self._needs = needs
        self._until_ns = until_ns
        self._by_seq: dict[int, SimulatedRequest] = {}
        self._compiler_free_ns = 0
        for request in requests:
            self._schedule(request)

    def take(self, emissions: list[Emission]) -> None:
        """Deliver the emissions of a step, at the moment of its commit."""
        now_ns = self._engine.clock.now_ns()
        if self._until_ns is not None and now_ns > self._until_ns:
            return  # the engine died in this step
        for emission in emissions:
            request = self._by_seq[emission.seq_id]
            if request.is_over:
                continue  # the client has disconnected
            if emission.sample is not None:
                self._token(request, now_ns)
            if emission.end is not None:
                self._ended(request, emission.seq_id, emission.end, now_ns)

    def close(self) -> None:
        """The engine has ended: requests that are not over end with ENGINE_DIED."""
        for request in self._by_seq.values():
            if not request.is_over:
                assert self._until_ns is not None, f"{request.request_id} has not ended"
                request.finish(EndReason.ENGINE_DIED, self._until_ns)

    def _schedule(self, request: SimulatedRequest) -> None:
        spec = request.spec
        assert request.submitted_ns is not None
        at_ns = request.submitted_ns + _WIRE_NS
        prompt = spec.prompt()
        request.open = set(request.seq_ids)
        for seq_id in request.seq_ids:
            self._by_seq[seq_id] = request
            needs = self._needs_of(request)
            if not needs.is_default:
                self._needs[seq_id] = needs
            self._engine.send_at(at_ns, _submit(request, seq_id, prompt))
            if spec.constraint is not None:
                self._compile(seq_id, at_ns, request)
        if spec.disconnect_ns is not None:
            noticed_ns = max(spec.at_ns + spec.disconnect_ns, request.submitted_ns + MS)
            self._engine.at(self._loop.free_ns(noticed_ns), partial(self._disconnect, request))

    def _needs_of(self, request: SimulatedRequest) -> Needs:
        spec = request.spec
        return Needs(
            ends_at=spec.outputs - 1 if spec.outputs < spec.max_tokens else None,
            sample_ns=spec.sample_ns,
            mask_ns=0 if spec.constraint is None else spec.constraint.mask_ns,
        )

    def _compile(self, seq_id: int, at_ns: int, request: SimulatedRequest) -> None:
        """One worker compiles grammars in the order in which they come; the choices of a request
        share one."""
        constraint = request.spec.constraint
        assert constraint is not None
        cached = constraint.cached or seq_id != request.seq_ids[0]
        compiled_ns = 0 if cached else constraint.compile_ns
        self._compiler_free_ns = max(self._compiler_free_ns, at_ns) + compiled_ns
        ready_ns = at_ns if constraint.cached else self._compiler_free_ns
        self._engine.send_at(ready_ns, GrammarReady(seq_id, compiled_ns, cached, None))

    def _token(self, request: SimulatedRequest, now_ns: int) -> None:
        request.first_token_ns = request.first_token_ns or now_ns
        request.last_ns = now_ns
        request.tokens += 1
        reader = request.spec.reader
        if reader is None:
            return
        token_read_ns = request.token_read_ns
        after_ns = token_read_ns[-1] + reader.interval_ns if token_read_ns else now_ns
        token_read_ns.append(max(now_ns, after_ns))
        behind = self._buffer_tokens + 1
        if not request.paused and len(token_read_ns) > behind and token_read_ns[-behind] > now_ns:
            request.paused = True
            self._engine.send(Pause(request.seq_ids[0]))
            resumes_ns = token_read_ns[-1 - self._buffer_tokens // 2]
            self._engine.at(self._loop.free_ns(resumes_ns), partial(self._resume, request))

    def _resume(self, request: SimulatedRequest) -> None:
        if request.paused and not request.is_over:
            request.paused = False
            self._engine.send(Resume(request.seq_ids[0]))

    def _ended(self, request: SimulatedRequest, seq_id: int, end: EndReason, now_ns: int) -> None:
        request.open.discard(seq_id)
        if end.outcome is not Outcome.FINISHED:
            request.finish(end, now_ns)
            for sibling in request.open:
                self._engine.send(Cancel(sibling, EndReason.DISCONNECT))
        elif not request.open:
            request.finish(end, now_ns)

    def _disconnect(self, request: SimulatedRequest) -> None:
        """The gateway notices a disconnect, and cancels the sequences that are not leaked."""
        if request.is_over:
            return
        now_ns = self._engine.clock.now_ns()
        request.finish(EndReason.DISCONNECT, now_ns, now_ns)
        cancelled = request.seq_ids[: len(request.seq_ids) - request.spec.leaked_sequences]
        for seq_id in cancelled:
            if seq_id in request.open:
                self._engine.send(Cancel(seq_id, EndReason.DISCONNECT))


def _submit(request: SimulatedRequest, seq_id: int, prompt: list[int]) -> Submit:
    spec = request.spec
    return Submit(
        seq_id=seq_id,
        prompt=prompt,
        max_tokens=spec.max_tokens,
        sampling=SamplingParams(temperature=spec.temperature, top_p=spec.top_p, seed=seq_id),
        end_token_ids=(END_TOKEN,),
        tenant=spec.tenant,
        cache_salt=spec.salt,
        grammar=None if spec.constraint is None else _GRAMMAR,
        adapter=spec.adapter,
    )
