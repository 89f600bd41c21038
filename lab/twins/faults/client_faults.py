"""Clients that read slowly, or leave; and a gateway that is late with everybody."""

from __future__ import annotations

from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.life import Life, Span
from lab.twins.physics import MS
from lab.twins.traffic import Ask, Reader, Setting


def _small_buffers(setting: Setting, draw: Random) -> None:
    setting.outputs = (24, 80)
    setting.stream_buffer_tokens = 16


def _slow_readers(life: Life, span: Span, draw: Random) -> None:
    """Some read four to seven tokens a second."""
    share = draw.uniform(0.15, 0.3)
    for ask in _streams(life, span):
        if draw.random() < share:
            _slow(life, ask, draw.uniform(140, 250))


def _long_buffers(setting: Setting, draw: Random) -> None:
    setting.outputs = (24, 80)


def _slow_proxy(life: Life, span: Span, draw: Random) -> None:
    """What is in front of one tenant's clients passes on little by little; the gateway's buffers
    hold all of it, so nothing is paused."""
    tenant = next(iter(life.setting.tenants))
    interval_ms = draw.uniform(60, 120)
    for ask in _streams(life, span):
        if ask.tenant == tenant:
            _slow(life, ask, interval_ms)


def _streams(life: Life, span: Span) -> list[Ask]:
    asks = life.coming(span)
    return [ask for ask in asks if ask.stream and ask.choices == 1 and ask.hang_up_ns is None]


def _slow(life: Life, ask: Ask, interval_ms: float) -> None:
    ask.reader = Reader(interval_ns=int(interval_ms * MS))
    life.culprits.add(ask.number)
    life.victims.add(ask.number)


SLOW_CLIENT: Mechanisms = {
    "readers": Fault(prepare=_small_buffers, strike=_slow_readers),
    "proxy": Fault(prepare=_long_buffers, strike=_slow_proxy),
}


def _quitters(setting: Setting, draw: Random) -> None:
    """Some want long answers and leave before they have them, all the time."""
    setting.quitters = draw.uniform(0.08, 0.13)
    setting.quitter_outputs = (250, 450)


def _leak(life: Life, span: Span, draw: Random) -> None:
    """From now on nobody tells the engine."""
    for ask in life.coming(span):
        if ask.hang_up_ns is not None:
            ask.orphans = ask.choices
            life.culprits.add(ask.number)


def _siblings(life: Life, span: Span, draw: Random) -> None:
    """Quitters ask for three choices each; only the first is cancelled."""
    for ask in life.coming(span):
        if ask.hang_up_ns is not None:
            ask.choices, ask.orphans = 3, 2
            ask.outputs //= 2
            life.culprits.add(ask.number)


LEAK: Mechanisms = {
    "no_abort": Fault(prepare=_quitters, strike=_leak),
    "siblings": Fault(prepare=_quitters, strike=_siblings),
}


def _one_tokenizer(setting: Setting, draw: Random) -> None:
    setting.one_tokenizer = True


def _huge_bodies(life: Life, span: Span, draw: Random) -> None:
    """Prompts of about 200 kB keep whatever encodes them busy for half the time or more, and are
    then found to be too long."""
    setting = life.setting
    busy, tokens = draw.uniform(0.55, 0.75), (40_000, 65_000)
    rate = busy / (sum(tokens) / 2 * 5.25e-6)
    huge = setting.asks(draw, span.begin_ns, span.end_ns, rate=rate)
    for ask in huge:
        ask.body_tokens, ask.hang_up_ns = draw.randint(*tokens), None
    life.add(huge)
    life.culprits |= {ask.number for ask in huge}


INGEST: Mechanisms = {
    "on_the_loop": Fault(strike=_huge_bodies),
    "one_worker": Fault(prepare=_one_tokenizer, strike=_huge_bodies),
}
