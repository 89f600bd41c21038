"""Too much, too long, too cold, too greedy: faults of what is asked for."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lab.twins.company import met_prompts_of
from lab.twins.fault import Fault, Mechanisms
from lab.twins.life import Life, Span
from lab.twins.physics import SECOND
from lab.twins.traffic import Ask, Setting
from service.engine.inbox import FlushCache

_LONG = 6


def _more_requests(life: Life, span: Span, draw: Random) -> None:
    """Demand becomes 1.4 to 2.2 times what the engine can do."""
    setting = life.setting
    extra = (draw.uniform(1.4, 2.2) - setting.load) * setting.capacity_per_s
    life.add(setting.asks(draw, span.begin_ns, span.end_ns, rate=extra))


def _twice_the_requests(life: Life, span: Span, draw: Random) -> None:
    """A little more than twice as many as usual, whatever that is."""
    setting = life.setting
    extra = draw.uniform(1.0, 1.4) * setting.rate_per_s
    life.add(setting.asks(draw, span.begin_ns, span.end_ns, rate=extra))


def _longer_answers(life: Life, span: Span, draw: Random) -> None:
    """No more requests, but demand becomes as much by what they want."""
    setting = life.setting
    factor = draw.uniform(1.4, 1.9) / setting.load
    own = sum(setting.prompt) / 2 * setting.physics.prompt_token_ns
    whole = SECOND / setting.capacity_per_s
    longer = (factor * whole - own) / (whole - own)
    for ask in life.coming(span):
        if ask.hang_up_ns is None:
            ask.outputs = int(ask.outputs * longer)
            ask.max_tokens = int(ask.max_tokens * longer) + 8


OVERLOAD: Mechanisms = {
    "requests": Fault(strike=_more_requests),
    "outputs": Fault(strike=_longer_answers),
}
MILD_OVERLOAD = Fault(strike=_twice_the_requests)
"""For company: with another fault beside it nothing would be left of a server otherwise."""


def _whole_prompts(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.4, 0.55)
    setting.limits = replace(setting.limits, chunked_prefill=False)


def _huge_chunks(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.4, 0.55)
    setting.limits = replace(setting.limits, budget_tokens=2048)


def _long_guests(life: Life, span: Span, draw: Random) -> None:
    """Some prompts of 600 to 900 tokens beside the usual ones."""
    setting = life.setting
    rate = draw.uniform(0.07, 0.11) * setting.rate_per_s
    guests = setting.asks(draw, span.begin_ns, span.end_ns, rate=rate)
    for ask in guests:
        ask.system_tokens, ask.own_tokens = 0, draw.randint(600, 900)
        ask.hang_up_ns, ask.outputs = None, min(ask.outputs, 40)
    life.add(guests)
    life.culprits |= {ask.number for ask in guests}


INTERFERENCE: Mechanisms = {
    "unchunked": Fault(prepare=_whole_prompts, strike=_long_guests, victims=met_prompts_of),
    "huge_chunks": Fault(prepare=_huge_chunks, strike=_long_guests, victims=met_prompts_of),
}


def _small_chunks(setting: Setting, draw: Random) -> None:
    setting.limits = replace(setting.limits, budget_tokens=64)


def _lengthen(life: Life, span: Span, asks: list[Ask]) -> None:
    """Prompts of these six times as long, and a sixth of the requests."""
    kept = {ask.number for ask in asks[::_LONG]}
    gone = {ask.number for ask in asks} - kept
    life.asks = [ask for ask in life.asks if ask.number not in gone]
    for ask in asks[::_LONG]:
        ask.own_tokens *= _LONG
    life.culprits |= kept
    life.victims |= kept


def _all_long(life: Life, span: Span, draw: Random) -> None:
    _lengthen(life, span, life.coming(span))


def _one_tenant_long(life: Life, span: Span, draw: Random) -> None:
    tenant = next(iter(life.setting.tenants))
    _lengthen(life, span, [ask for ask in life.coming(span) if ask.tenant == tenant])


LONG_PROMPTS: Mechanisms = {
    "all": Fault(prepare=_small_chunks, strike=_all_long),
    "one_tenant": Fault(prepare=_small_chunks, strike=_one_tenant_long),
}


def _long_system_prompts(setting: Setting, draw: Random) -> None:
    setting.system_tokens, setting.system_share = 400, 0.95
    setting.prompt = (16, 80)
    setting.load = draw.uniform(0.2, 0.3)


def _flushes(life: Life, span: Span, draw: Random) -> None:
    """Somebody empties the cache several times a second."""
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        life.commands.append((at_ns, FlushCache()))
        at_ns += int(draw.uniform(0.12, 0.4) * SECOND)


def _salts(life: Life, span: Span, draw: Random) -> None:
    """Every request has a salt of its own."""
    for ask in life.coming(span):
        ask.salt = f"{draw.getrandbits(32):x}"


def _small_cache(setting: Setting, draw: Random) -> None:
    """It holds about ten of them."""
    _long_system_prompts(setting, draw)
    setting.systems = 2
    setting.limits = replace(setting.limits, blocks_total=288)


def _working_set(life: Life, span: Span, draw: Random) -> None:
    """As many requests of the same length, but of so many applications that their system
    prompts push each other out."""
    kinds = draw.randint(9, 12)
    for ask in life.coming(span):
        ask.system = draw.randrange(kinds)


COLD_CACHE: Mechanisms = {
    "flush": Fault(prepare=_long_system_prompts, strike=_flushes),
    "salt": Fault(prepare=_long_system_prompts, strike=_salts),
    "working_set": Fault(prepare=_small_cache, strike=_working_set),
}


def _one_of_three(setting: Setting, draw: Random) -> None:
    setting.tenants = dict.fromkeys(("amber", "birch", "cedar"), 1.0)
    setting.load = draw.uniform(0.36, 0.44)


def _mark_greedy(life: Life, greedy: str) -> None:
    life.culprits.add(greedy)
    life.victims |= set(life.setting.tenants) - {greedy}


def _flood(life: Life, span: Span, draw: Random) -> None:
    """One tenant asks five times as often; all together want about what the engine can do."""
    setting = life.setting
    greedy = draw.choice(sorted(setting.tenants))
    share = setting.tenants[greedy] / sum(setting.tenants.values())
    extra = setting.asks(draw, span.begin_ns, span.end_ns, rate=4 * share * setting.rate_per_s)
    for ask in extra:
        ask.tenant = greedy
    life.add(extra)
    _mark_greedy(life, greedy)


def _batches(life: Life, span: Span, draw: Random) -> None:
    """One tenant sends whole batches, less in sum than the engine could do."""
    setting = life.setting
    greedy = draw.choice(sorted(setting.tenants))
    extra = (draw.uniform(0.85, 0.95) - setting.load) * setting.capacity_per_s
    every_s = draw.uniform(3.5, 5.0)
    at_ns = span.begin_ns
    batches: list[Ask] = []
    while at_ns < span.end_ns:
        batches += [
            setting.ask(draw, number, at_ns + draw.randrange(SECOND // 10))
            for number in range(int(extra * every_s))
        ]
        at_ns += int(every_s * SECOND)
    for ask in batches:
        ask.tenant, ask.hang_up_ns = greedy, None
    life.add(batches)
    _mark_greedy(life, greedy)


UNFAIRNESS: Mechanisms = {
    "flood": Fault(prepare=_one_of_three, strike=_flood),
    "batches": Fault(prepare=_one_of_three, strike=_batches),
}
