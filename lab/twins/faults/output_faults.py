"""Faults of sampling: grammar masks, heavy sampling parameters, and invalid outputs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.physics import MS
from lab.twins.shared_steps import shared_a_step
from lab.twins.simulated_run import SimulatedRun, Span
from lab.twins.traffic import Constraint, RequestSpec, Setting


def _many_constrained(setting: Setting, draw: Random) -> None:
    setting.constrained = draw.uniform(0.25, 0.35)


def _constrained(run: SimulatedRun, span: Span) -> list[tuple[RequestSpec, Constraint]]:
    specs = run.arriving_in(span)
    return [(spec, spec.constraint) for spec in specs if spec.constraint is not None]


def _new_schemas(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Every constrained request brings a deep schema that is not cached."""
    for spec, constraint in _constrained(run, span):
        compile_ns = int(draw.uniform(0.2, 0.5) * 1000) * MS
        mask_ns = int(draw.uniform(2.0, 4.0) * MS)
        spec.constraint = replace(constraint, compile_ns=compile_ns, cached=False, mask_ns=mask_ns)
        run.culprits.add(spec.number)


def _expensive_masks(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Large enumerations: quick to compile, often cached, but each mask takes 6 to 10 ms."""
    mask_ms = draw.uniform(6.0, 10.0)
    for spec, constraint in _constrained(run, span):
        cached = draw.random() < 0.7
        spec.constraint = replace(
            constraint,
            compile_ns=int(draw.uniform(20, 60) * MS),
            cached=cached,
            mask_ns=int(mask_ms * draw.uniform(0.8, 1.2) * MS),
        )
        run.culprits.add(spec.number)


GRAMMAR: Mechanisms = {
    "new_schemas": Fault(prepare=_many_constrained, inject=_new_schemas, victims=shared_a_step),
    "dear_masks": Fault(prepare=_many_constrained, inject=_expensive_masks, victims=shared_a_step),
}


def _broken_template(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Constrained answers end by themselves and are invalid."""
    share = draw.uniform(0.5, 1.0)
    for spec, constraint in _constrained(run, span):
        if draw.random() < share:
            spec.constraint = replace(constraint, valid=False)
            run.victims.add(spec.number)


def _cut_short(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Clients allow too few tokens for the answer that they want."""
    share = draw.uniform(0.6, 1.0)
    for spec, _ in _constrained(run, span):
        if draw.random() < share:
            spec.outputs = spec.max_tokens = max(4, spec.outputs * 2 // 3)
            run.victims.add(spec.number)


INVALID: Mechanisms = {
    "template": Fault(prepare=_many_constrained, inject=_broken_template),
    "cut": Fault(prepare=_many_constrained, inject=_cut_short),
}


def _many_choices(run: SimulatedRun, span: Span, draw: Random) -> None:
    """6 to 10 % of the requests want eight choices each, with costly sampling parameters."""
    share, sample_ns = draw.uniform(0.06, 0.1), int(draw.uniform(2.0, 4.0) * MS)
    _sample_heavily(run, span, draw, share, sample_ns, choices=8)


def _many_scores(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A fifth of the requests want log-probabilities over the whole vocabulary."""
    share, sample_ns = draw.uniform(0.18, 0.26), int(draw.uniform(8.0, 12.0) * MS)
    _sample_heavily(run, span, draw, share, sample_ns, choices=1)


def _sample_heavily(
    run: SimulatedRun, span: Span, draw: Random, share: float, sample_ns: int, choices: int
) -> None:
    for spec in run.arriving_in(span):
        if draw.random() < share:
            spec.choices, spec.disconnect_ns = choices, None
            spec.temperature, spec.top_p, spec.sample_ns = 1.2, 0.9, sample_ns
            run.culprits.add(spec.number)


SAMPLING: Mechanisms = {
    "choices": Fault(inject=_many_choices, victims=shared_a_step),
    "logprobs": Fault(inject=_many_scores, victims=shared_a_step),
}
