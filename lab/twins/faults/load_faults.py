"""Faults of the load: overload, long prompts, cold prefixes, an unfair tenant."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.physics import SECOND
from lab.twins.shared_steps import decoded_beside_prompts
from lab.twins.simulated_run import SimulatedRun, Span
from lab.twins.traffic import RequestSpec, Setting
from service.engine.inbox import FlushCache

_LENGTH_FACTOR = 6


def _more_requests(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Demand becomes 1.4 to 2.2 times what the engine can do."""
    setting = run.setting
    extra = (draw.uniform(1.4, 2.2) - setting.load) * setting.capacity_per_s
    run.add(setting.specs(draw, span.begin_ns, span.end_ns, rate=extra))


def _twice_the_requests(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Two to 2.4 times the baseline rate."""
    setting = run.setting
    extra = draw.uniform(1.0, 1.4) * setting.rate_per_s
    run.add(setting.specs(draw, span.begin_ns, span.end_ns, rate=extra))


def _longer_answers(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The same number of requests with longer outputs: the demand of an overload."""
    setting = run.setting
    factor = draw.uniform(1.4, 1.9) / setting.load
    prompt_ns = sum(setting.prompt) / 2 * setting.physics.prompt_token_ns
    request_ns = SECOND / setting.capacity_per_s
    longer = (factor * request_ns - prompt_ns) / (request_ns - prompt_ns)
    for spec in run.arriving_in(span):
        if spec.disconnect_ns is None:
            spec.outputs = int(spec.outputs * longer)
            spec.max_tokens = int(spec.max_tokens * longer) + 8


OVERLOAD: Mechanisms = {
    "requests": Fault(inject=_more_requests),
    "outputs": Fault(inject=_longer_answers),
}
MILD_OVERLOAD = Fault(inject=_twice_the_requests)
"""Overload for compounds: with the full one, the other fault would not show."""


def _whole_prompts(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.4, 0.55)
    setting.limits = replace(setting.limits, chunked_prefill=False)


def _huge_chunks(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.4, 0.55)
    setting.limits = replace(setting.limits, budget_tokens=2048)


def _long_prompt_requests(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Some prompts of 600 to 900 tokens beside the baseline traffic."""
    setting = run.setting
    rate = draw.uniform(0.07, 0.11) * setting.rate_per_s
    long_requests = setting.specs(draw, span.begin_ns, span.end_ns, rate=rate)
    for spec in long_requests:
        spec.system_tokens, spec.own_tokens = 0, draw.randint(600, 900)
        spec.disconnect_ns, spec.outputs = None, min(spec.outputs, 40)
    run.add(long_requests)
    run.culprits |= {spec.number for spec in long_requests}


INTERFERENCE: Mechanisms = {
    "unchunked": Fault(
        prepare=_whole_prompts, inject=_long_prompt_requests, victims=decoded_beside_prompts
    ),
    "huge_chunks": Fault(
        prepare=_huge_chunks, inject=_long_prompt_requests, victims=decoded_beside_prompts
    ),
}


def _small_chunks(setting: Setting, draw: Random) -> None:
    setting.limits = replace(setting.limits, budget_tokens=64)


def _lengthen(run: SimulatedRun, span: Span, specs: list[RequestSpec]) -> None:
    """Keep a sixth of these requests, with prompts six times as long."""
    kept = {spec.number for spec in specs[::_LENGTH_FACTOR]}
    removed = {spec.number for spec in specs} - kept
    run.specs = [spec for spec in run.specs if spec.number not in removed]
    for spec in specs[::_LENGTH_FACTOR]:
        spec.own_tokens *= _LENGTH_FACTOR
    run.culprits |= kept
    run.victims |= kept


def _all_long(run: SimulatedRun, span: Span, draw: Random) -> None:
    _lengthen(run, span, run.arriving_in(span))


def _one_tenant_long(run: SimulatedRun, span: Span, draw: Random) -> None:
    tenant = next(iter(run.setting.tenants))
    _lengthen(run, span, [spec for spec in run.arriving_in(span) if spec.tenant == tenant])


LONG_PROMPTS: Mechanisms = {
    "all": Fault(prepare=_small_chunks, inject=_all_long),
    "one_tenant": Fault(prepare=_small_chunks, inject=_one_tenant_long),
}


def _long_system_prompts(setting: Setting, draw: Random) -> None:
    setting.system_tokens, setting.system_share = 400, 0.95
    setting.prompt = (16, 80)
    setting.load = draw.uniform(0.2, 0.3)


def _flushes(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The prefix cache is flushed several times a second."""
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        run.commands.append((at_ns, FlushCache()))
        at_ns += int(draw.uniform(0.12, 0.4) * SECOND)


def _salts(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Every request has a salt of its own."""
    for spec in run.arriving_in(span):
        spec.salt = f"{draw.getrandbits(32):x}"


def _small_cache(setting: Setting, draw: Random) -> None:
    """A cache that holds about ten system prompts."""
    _long_system_prompts(setting, draw)
    setting.systems = 2
    setting.limits = replace(setting.limits, blocks_total=288)


def _working_set(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The same number of requests of the same length, but of so many applications that their system
    prompts push each other out."""
    kinds = draw.randint(9, 12)
    for spec in run.arriving_in(span):
        spec.system = draw.randrange(kinds)


COLD_CACHE: Mechanisms = {
    "flush": Fault(prepare=_long_system_prompts, inject=_flushes),
    "salt": Fault(prepare=_long_system_prompts, inject=_salts),
    "working_set": Fault(prepare=_small_cache, inject=_working_set),
}


def _three_tenants(setting: Setting, draw: Random) -> None:
    setting.tenants = dict.fromkeys(("amber", "birch", "cedar"), 1.0)
    setting.load = draw.uniform(0.36, 0.44)


def _mark_greedy(run: SimulatedRun, greedy: str) -> None:
    run.culprits.add(greedy)
    run.victims |= set(run.setting.tenants) - {greedy}


def _flood(run: SimulatedRun, span: Span, draw: Random) -> None:
    """One tenant sends five times as many requests; total demand is about the capacity."""
    setting = run.setting
    greedy = draw.choice(sorted(setting.tenants))
    share = setting.tenants[greedy] / sum(setting.tenants.values())
    extra = setting.specs(draw, span.begin_ns, span.end_ns, rate=4 * share * setting.rate_per_s)
    for spec in extra:
        spec.tenant = greedy
    run.add(extra)
    _mark_greedy(run, greedy)


def _batches(run: SimulatedRun, span: Span, draw: Random) -> None:
    """One tenant sends batches; total demand is below the capacity."""
    setting = run.setting
    greedy = draw.choice(sorted(setting.tenants))
    extra = (draw.uniform(0.85, 0.95) - setting.load) * setting.capacity_per_s
    every_s = draw.uniform(3.5, 5.0)
    at_ns = span.begin_ns
    batches: list[RequestSpec] = []
    while at_ns < span.end_ns:
        batches += [
            setting.spec(draw, number, at_ns + draw.randrange(SECOND // 10))
            for number in range(int(extra * every_s))
        ]
        at_ns += int(every_s * SECOND)
    for spec in batches:
        spec.tenant, spec.disconnect_ns = greedy, None
    run.add(batches)
    _mark_greedy(run, greedy)


UNFAIRNESS: Mechanisms = {
    "flood": Fault(prepare=_three_tenants, inject=_flood),
    "batches": Fault(prepare=_three_tenants, inject=_batches),
}
