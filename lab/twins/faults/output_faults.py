"""Faults of how tokens are chosen: masks, samplers, and answers that do not obey."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lab.twins.company import met
from lab.twins.fault import Fault, Mechanisms
from lab.twins.life import Life, Span
from lab.twins.physics import MS
from lab.twins.traffic import Ask, Constraint, Setting


def _many_constrained(setting: Setting, draw: Random) -> None:
    setting.constrained = draw.uniform(0.25, 0.35)


def _constrained(life: Life, span: Span) -> list[tuple[Ask, Constraint]]:
    asks = life.coming(span)
    return [(ask, ask.constraint) for ask in asks if ask.constraint is not None]


def _new_schemas(life: Life, span: Span, draw: Random) -> None:
    """Every request brings a deep schema that nobody has compiled before."""
    for ask, constraint in _constrained(life, span):
        compile_ns = int(draw.uniform(0.2, 0.5) * 1000) * MS
        mask_ns = int(draw.uniform(2.0, 4.0) * MS)
        ask.constraint = replace(constraint, compile_ns=compile_ns, cached=False, mask_ns=mask_ns)
        life.culprits.add(ask.number)


def _dear_masks(life: Life, span: Span, draw: Random) -> None:
    """Large enumerations: quick to compile, and known, but each mask takes long."""
    mask_ms = draw.uniform(6.0, 10.0)
    for ask, constraint in _constrained(life, span):
        cached = draw.random() < 0.7
        ask.constraint = replace(
            constraint,
            compile_ns=int(draw.uniform(20, 60) * MS),
            cached=cached,
            mask_ns=int(mask_ms * draw.uniform(0.8, 1.2) * MS),
        )
        life.culprits.add(ask.number)


GRAMMAR: Mechanisms = {
    "new_schemas": Fault(prepare=_many_constrained, strike=_new_schemas, victims=met),
    "dear_masks": Fault(prepare=_many_constrained, strike=_dear_masks, victims=met),
}


def _broken_template(life: Life, span: Span, draw: Random) -> None:
    """Most constrained answers end by themselves and are not what was asked for."""
    share = draw.uniform(0.5, 1.0)
    for ask, constraint in _constrained(life, span):
        if draw.random() < share:
            ask.constraint = replace(constraint, valid=False)
            life.victims.add(ask.number)


def _cut_short(life: Life, span: Span, draw: Random) -> None:
    """Clients allow too few tokens for the answer that they want."""
    share = draw.uniform(0.6, 1.0)
    for ask, _ in _constrained(life, span):
        if draw.random() < share:
            ask.outputs = ask.max_tokens = max(4, ask.outputs * 2 // 3)
            life.victims.add(ask.number)


INVALID: Mechanisms = {
    "template": Fault(prepare=_many_constrained, strike=_broken_template),
    "cut": Fault(prepare=_many_constrained, strike=_cut_short),
}


def _many_choices(life: Life, span: Span, draw: Random) -> None:
    """A few requests want eight choices each, with everything that a sampler can be asked."""
    share, sample_ns = draw.uniform(0.06, 0.1), int(draw.uniform(2.0, 4.0) * MS)
    _sample_heavily(life, span, draw, share, sample_ns, choices=8)


def _many_scores(life: Life, span: Span, draw: Random) -> None:
    """A fifth of the requests want the likeliest tokens of the whole vocabulary in order."""
    share, sample_ns = draw.uniform(0.18, 0.26), int(draw.uniform(8.0, 12.0) * MS)
    _sample_heavily(life, span, draw, share, sample_ns, choices=1)


def _sample_heavily(
    life: Life, span: Span, draw: Random, share: float, sample_ns: int, choices: int
) -> None:
    for ask in life.coming(span):
        if draw.random() < share:
            ask.choices, ask.hang_up_ns = choices, None
            ask.temperature, ask.top_p, ask.sample_ns = 1.2, 0.9, sample_ns
            life.culprits.add(ask.number)


SAMPLING: Mechanisms = {
    "choices": Fault(strike=_many_choices, victims=met),
    "logprobs": Fault(strike=_many_scores, victims=met),
}
