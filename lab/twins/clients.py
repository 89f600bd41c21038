"""Who waits for the engine's answers: what they send, when they hang up, how fast they read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from lab.simulation.virtual_engine import VirtualEngine
from lab.twins.device import END_TOKEN, Needs
from lab.twins.gateway import EventLoop, Exchange
from lab.twins.physics import MS
from service.engine.inbox import Cancel, GrammarReady, Pause, Resume, Submit
from service.engine.plan import Emission, Grammar, GrammarKind, SamplingParams
from telemetry.facts.reasons import EndReason, Outcome

_WIRE_NS = 150_000
_GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, "{}")


class Clients:
    """The requests that one engine's life, which ends at `until_ns`, has to do with. They put into
    `needs` what their sequences want beyond the usual, for the device."""

    def __init__(
        self,
        engine: VirtualEngine,
        exchanges: Iterable[Exchange],
        loop: EventLoop,
        buffer_tokens: int,
        needs: dict[int, Needs],
        until_ns: int | None,
    ) -> None:
        self._engine, self._loop = engine, loop
        self._buffer_tokens = buffer_tokens
        self._needs = needs
        self._until_ns = until_ns
        self._of: dict[int, Exchange] = {}
        self._compiler_ns = 0
        for exchange in exchanges:
            self._expect(exchange)

    def take(self, emissions: list[Emission]) -> None:
        """What a step gave, at the moment of its commit."""
        now_ns = self._engine.clock.now_ns()
        if self._until_ns is not None and now_ns > self._until_ns:
            return  # it died in this step
        for emission in emissions:
            exchange = self._of[emission.seq_id]
            if exchange.is_over:
                continue  # nobody listens any more
            if emission.sample is not None:
                self._token(exchange, now_ns)
            if emission.end is not None:
                self._ended(exchange, emission.seq_id, emission.end, now_ns)

    def close(self) -> None:
        """The engine is gone, and with it everybody's rest."""
        for exchange in self._of.values():
            if not exchange.is_over:
                assert self._until_ns is not None, f"{exchange.request_id} was forgotten"
                exchange.finish(EndReason.ENGINE_DIED, self._until_ns)

    def _expect(self, exchange: Exchange) -> None:
        ask = exchange.ask
        assert exchange.submitted_ns is not None
        at_ns = exchange.submitted_ns + _WIRE_NS
        prompt = ask.prompt()
        exchange.open = set(exchange.seq_ids)
        for seq_id in exchange.seq_ids:
            self._of[seq_id] = exchange
            needs = self._needs_of(exchange)
            if not needs.is_usual:
                self._needs[seq_id] = needs
            self._engine.send_at(at_ns, _submit(exchange, seq_id, prompt))
            if ask.constraint is not None:
                self._compile(seq_id, at_ns, exchange)
        if ask.hang_up_ns is not None:
            gone_ns = max(ask.at_ns + ask.hang_up_ns, exchange.submitted_ns + MS)
            self._engine.at(self._loop.free_ns(gone_ns), partial(self._hang_up, exchange))

    def _needs_of(self, exchange: Exchange) -> Needs:
        ask = exchange.ask
        return Needs(
            ends_at=ask.outputs - 1 if ask.outputs < ask.max_tokens else None,
            sample_ns=ask.sample_ns,
            mask_ns=0 if ask.constraint is None else ask.constraint.mask_ns,
        )

    def _compile(self, seq_id: int, at_ns: int, exchange: Exchange) -> None:
        """One worker, in the order in which grammars come; those of one request are compiled
        once."""
        constraint = exchange.ask.constraint
        assert constraint is not None
        cached = constraint.cached or seq_id != exchange.seq_ids[0]
        took_ns = 0 if cached else constraint.compile_ns
        self._compiler_ns = max(self._compiler_ns, at_ns) + took_ns
        ready_ns = at_ns if constraint.cached else self._compiler_ns
        self._engine.send_at(ready_ns, GrammarReady(seq_id, took_ns, cached, None))

    def _token(self, exchange: Exchange, now_ns: int) -> None:
        exchange.first_ns = exchange.first_ns or now_ns
        exchange.last_ns = now_ns
        exchange.tokens += 1
        reader = exchange.ask.reader
        if reader is None:
            return
        taken_ns = exchange.taken_ns
        after_ns = taken_ns[-1] + reader.interval_ns if taken_ns else now_ns
        taken_ns.append(max(now_ns, after_ns))
        behind = self._buffer_tokens + 1
        if not exchange.paused and len(taken_ns) > behind and taken_ns[-behind] > now_ns:
            exchange.paused = True
            self._engine.send(Pause(exchange.seq_ids[0]))
            resumes_ns = taken_ns[-1 - self._buffer_tokens // 2]
            self._engine.at(self._loop.free_ns(resumes_ns), partial(self._resume, exchange))

    def _resume(self, exchange: Exchange) -> None:
        if exchange.paused and not exchange.is_over:
            exchange.paused = False
            self._engine.send(Resume(exchange.seq_ids[0]))

    def _ended(self, exchange: Exchange, seq_id: int, end: EndReason, now_ns: int) -> None:
        exchange.open.discard(seq_id)
        if end.outcome is not Outcome.FINISHED:
            exchange.finish(end, now_ns)
            for rest in exchange.open:
                self._engine.send(Cancel(rest, EndReason.DISCONNECT))
        elif not exchange.open:
            exchange.finish(end, now_ns)

    def _hang_up(self, exchange: Exchange) -> None:
        """The gateway notices, and cancels whatever it can."""
        if exchange.is_over:
            return
        now_ns = self._engine.clock.now_ns()
        exchange.finish(EndReason.DISCONNECT, now_ns, now_ns)
        known = exchange.seq_ids[: len(exchange.seq_ids) - exchange.ask.orphans]
        for seq_id in known:
            if seq_id in exchange.open:
                self._engine.send(Cancel(seq_id, EndReason.DISCONNECT))


def _submit(exchange: Exchange, seq_id: int, prompt: list[int]) -> Submit:
    ask = exchange.ask
    return Submit(
        seq_id=seq_id,
        prompt=prompt,
        max_tokens=ask.max_tokens,
        sampling=SamplingParams(temperature=ask.temperature, top_p=ask.top_p, seed=seq_id),
        end_token_ids=(END_TOKEN,),
        tenant=ask.tenant,
        cache_salt=ask.salt,
        grammar=None if ask.constraint is None else _GRAMMAR,
    )
