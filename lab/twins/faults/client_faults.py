"""Faults of clients: slow readers, leaked sequences, and prompts that block the gateway."""

from __future__ import annotations

from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.physics import MS
from lab.twins.simulated_run import SimulatedRun, Span
from lab.twins.traffic import Reader, RequestSpec, Setting


def _small_buffers(setting: Setting, draw: Random) -> None:
    setting.outputs = (24, 80)
    setting.stream_buffer_tokens = 16


def _slow_readers(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Some clients read four to seven tokens a second."""
    share = draw.uniform(0.15, 0.3)
    for spec in _streams(run, span):
        if draw.random() < share:
            _read_slowly(run, spec, draw.uniform(140, 250))


def _long_buffers(setting: Setting, draw: Random) -> None:
    setting.outputs = (24, 80)


def _slow_proxy(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A proxy of one tenant's clients reads slowly; the gateway's buffers hold everything, so
    nothing is paused."""
    tenant = next(iter(run.setting.tenants))
    interval_ms = draw.uniform(60, 120)
    for spec in _streams(run, span):
        if spec.tenant == tenant:
            _read_slowly(run, spec, interval_ms)


def _streams(run: SimulatedRun, span: Span) -> list[RequestSpec]:
    specs = run.arriving_in(span)
    return [
        spec for spec in specs if spec.stream and spec.choices == 1 and spec.disconnect_ns is None
    ]


def _read_slowly(run: SimulatedRun, spec: RequestSpec, interval_ms: float) -> None:
    spec.reader = Reader(interval_ns=int(interval_ms * MS))
    run.culprits.add(spec.number)
    run.victims.add(spec.number)


SLOW_CLIENT: Mechanisms = {
    "readers": Fault(prepare=_small_buffers, inject=_slow_readers),
    "proxy": Fault(prepare=_long_buffers, inject=_slow_proxy),
}


def _early_disconnects(setting: Setting, draw: Random) -> None:
    """Some clients want long answers and disconnect before the end, fault or not."""
    setting.disconnects = draw.uniform(0.08, 0.13)
    setting.disconnect_outputs = (250, 450)


def _leak(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The gateway does not cancel sequences of clients that disconnected."""
    for spec in run.arriving_in(span):
        if spec.disconnect_ns is not None:
            spec.leaked_sequences = spec.choices
            run.culprits.add(spec.number)


def _siblings(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Clients that disconnect ask for three choices each; only the first is cancelled."""
    for spec in run.arriving_in(span):
        if spec.disconnect_ns is not None:
            spec.choices, spec.leaked_sequences = 3, 2
            spec.outputs //= 2
            run.culprits.add(spec.number)


LEAK: Mechanisms = {
    "no_abort": Fault(prepare=_early_disconnects, inject=_leak),
    "siblings": Fault(prepare=_early_disconnects, inject=_siblings),
}


def _one_tokenizer(setting: Setting, draw: Random) -> None:
    setting.one_tokenizer = True


def _huge_bodies(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Prompts of about 200 kB keep the tokenizer busy for 55 to 75 % of the time, and are then
    refused as too long."""
    setting = run.setting
    busy, tokens = draw.uniform(0.55, 0.75), (40_000, 65_000)
    rate = busy / (sum(tokens) / 2 * 5.25e-6)
    huge = setting.specs(draw, span.begin_ns, span.end_ns, rate=rate)
    for spec in huge:
        spec.body_tokens, spec.disconnect_ns = draw.randint(*tokens), None
    run.add(huge)
    run.culprits |= {spec.number for spec in huge}


INGEST: Mechanisms = {
    "on_the_loop": Fault(inject=_huge_bodies),
    "one_worker": Fault(prepare=_one_tokenizer, inject=_huge_bodies),
}
