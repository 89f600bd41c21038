"""Named scenarios for `phasescope drill --sim`; each is a function of its seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec

from lab.simulation.faults import Faults, disturb
from lab.simulation.sim_adapters import SimAdapter, any_adapters, any_unloads
from lab.simulation.sim_executor import LinearCost
from lab.simulation.workload import (
    SIM_CLASSES,
    Arrival,
    Mix,
    bursts,
    long_tail,
    poisson,
    prefixes,
    read_trace,
    sharegpt,
)
from lab.simulation.world import Scenario
from service.config.settings import ConfigError
from service.engine.admission import Limits
from service.engine.fairness import Policy
from service.engine.inbox import Command, FlushCache, SetLimits, SetStepCost
from service.engine.kv.cpu_offload import Retention
from service.engine.limits_record import runtime_of
from telemetry.facts.limits import changed_names

_MS = 1_000_000
_SECOND = 1_000_000_000


def small_limits(**changes: object) -> Limits:
    """Limits so small that slots, blocks and budget run out soon."""
    limits = Limits(
        block_tokens=4,
        blocks_total=64,
        max_model_tokens=64,
        max_seqs=8,
        budget_tokens=16,
        chunked_prefill=True,
        queue_limit_requests=1000,
        queue_limit_tokens=1_000_000,
        cache_identity="sim",
    )
    return replace(limits, **changes)  # type: ignore[arg-type]


def _poisson(random: Random, seed: int) -> Scenario:
    mix = Mix(random, 64)
    return _plain("poisson", seed, poisson(mix, 20, 5.0))


def _bursts(random: Random, seed: int) -> Scenario:
    mix = Mix(random, 64)
    return _plain("bursts", seed, bursts(mix, 24, 8, 2 * _SECOND))


def _sharegpt(random: Random, seed: int) -> Scenario:
    mix = Mix(random, 128, lengths=sharegpt)
    limits = small_limits(max_model_tokens=128, budget_tokens=32, blocks_total=128)
    return _plain("sharegpt", seed, poisson(mix, 16, 4.0), limits)


def _long_tail(random: Random, seed: int) -> Scenario:
    mix = Mix(random, 64, lengths=long_tail)
    return _plain("long_tail", seed, poisson(mix, 40, 20.0))


def _shared_prefix(random: Random, seed: int) -> Scenario:
    mix = Mix(random, 64, shared_prefixes=prefixes(random, 3, 20), tenants=("a", "b"))
    mix.lengths = lambda r, n: (r.randint(1, 8), r.randint(1, 12))
    limits = small_limits(blocks_total=32, host_slots=8, retention=Retention(tenant_share=0.5))
    return _plain("shared_prefix", seed, poisson(mix, 40, 10.0), limits)


def _tenants(random: Random, seed: int) -> Scenario:
    """One tenant floods, one sends few requests, under fair shares."""
    flood = poisson(Mix(random, 64, tenants=("flood",)), 30, 20.0)
    calm = poisson(Mix(random, 64, tenants=("calm",)), 10, 3.0)
    limits = small_limits(policy=Policy.VTC, max_seqs=4)
    return _plain("tenants", seed, [*flood, *calm], limits)


def _overload(random: Random, seed: int) -> Scenario:
    mix = Mix(random, 64)
    limits = small_limits(queue_limit_requests=8, queue_limit_tokens=300)
    return _plain("overload", seed, poisson(mix, 60, 100.0), limits)


def _classes(random: Random, seed: int) -> Scenario:
    """Voice and chat beside a batch job's long prompts: the step budget follows their targets."""
    voice = Mix(random, 64, classes=("voice",), lengths=lambda r, n: (r.randint(1, 8), 20))
    chat = Mix(random, 64, classes=("chat", "code"))
    batch = Mix(random, 64, classes=("batch",), lengths=lambda r, n: (r.randint(30, 60), 3))
    arrivals = [*poisson(voice, 12, 4.0), *poisson(chat, 8, 3.0), *bursts(batch, 16, 8, _SECOND)]
    limits = small_limits(
        blocks_total=160, budget_tokens=64, auto_budget=True, slo_order=True, policy=Policy.VTC,
        tile_rows=0 if seed % 3 else 8,
    )  # fmt: skip
    cost = LinearCost(prefill_token_ns=_MS)
    plain = _plain("classes", seed, arrivals, limits)
    return replace(plain, cost=cost, knows_cost=True)


def chaos(random: Random, seed: int) -> Scenario:
    """Random limits and workload, misbehaving clients, and faults."""
    tenants = random.choice((("",), ("a", "b"), ("a", "b", "c")))
    mix = Mix(random, 64, tenants=tenants)
    mix.lengths = random.choice((mix.lengths, sharegpt, long_tail))
    if random.random() < 0.5:
        mix.shared_prefixes = prefixes(random, random.randint(1, 3), random.randint(4, 30))
    if random.random() < 0.6:
        mix.classes = random.choice((tuple(SIM_CLASSES), ("voice", "batch"), ("chat",)))
    count = random.randint(1, 24)
    if random.random() < 0.5:
        arrivals = poisson(mix, count, random.choice((2.0, 10.0, 50.0)))
    else:
        arrivals = bursts(mix, count, random.randint(2, 12), random.randrange(1, _SECOND))
    horizon_ns = 3 * _SECOND
    arrivals = [disturb(random, arrival, horizon_ns) for arrival in arrivals]
    depth = random.choice((1, 2))
    limits = replace(_any_limits(random, depth), tile_rows=0 if seed % 3 else 8)
    scenario = Scenario(
        name="chaos",
        seed=seed,
        limits=limits,
        arrivals=tuple(arrivals),
        depth=depth,
        faults=_any_faults(random, horizon_ns),
        commands=_any_commands(random, horizon_ns),
        period=random.choice((None, 3, 7)),
        cost=LinearCost(prefill_token_ns=random.choice((200_000, _MS, 3 * _MS))),
        knows_cost=random.random() < 0.7,
    )
    changes = _any_changes(random, limits, horizon_ns)
    scenario = replace(scenario, commands=(*scenario.commands, *changes))
    return _with_adapters(scenario, Random(f"adapters:{seed}"), horizon_ns)


def _with_adapters(scenario: Scenario, random: Random, horizon_ns: int) -> Scenario:
    """In a third of the worlds some requests want adapters, for which there is little memory."""
    if random.random() < 0.67:
        return scenario
    adapters = any_adapters(random)
    names = [*(adapter.name for adapter in adapters), ""]
    limits = replace(
        scenario.limits,
        adapter_bytes=random.choice((100, 200, 300, 1000)),
        max_adapters=random.choice((1, 2, 8)),
    )
    return replace(
        scenario,
        limits=limits,
        adapters=adapters,
        arrivals=tuple(replace(one, adapter=random.choice(names)) for one in scenario.arrivals),
        commands=(*scenario.commands, *any_unloads(random, adapters, horizon_ns)),
    )


def _adapters(random: Random, seed: int) -> Scenario:
    """More adapters than there is memory for."""
    arrivals = poisson(Mix(random, 64), 40, 12.0)
    adapters = tuple(SimAdapter(name=name) for name in "klmnop")
    arrivals = [replace(one, adapter=random.choice("klmnop")) for one in arrivals]
    limits = small_limits(adapter_bytes=300, max_adapters=8)
    return replace(_plain("adapters", seed, arrivals, limits), adapters=adapters)


SCENARIOS: dict[str, Callable[[Random, int], Scenario]] = {
    "poisson": _poisson,
    "bursts": _bursts,
    "sharegpt": _sharegpt,
    "long_tail": _long_tail,
    "shared_prefix": _shared_prefix,
    "tenants": _tenants,
    "overload": _overload,
    "classes": _classes,
    "adapters": _adapters,
    "chaos": chaos,
}


def build_scenario(name: str, seed: int) -> Scenario:
    """The scenario of that name and seed. Raises ConfigError."""
    make = SCENARIOS.get(name)
    if make is None:
        raise ConfigError(f"no scenario {name!r}; choose {', '.join(SCENARIOS)}")
    return make(Random(f"{name}:{seed}"), seed)


def trace_scenario(path: Path, seed: int) -> Scenario:
    """A trace file's arrivals on a larger engine. Raises ConfigError."""
    limits = small_limits(
        block_tokens=16, blocks_total=4096, max_model_tokens=8192, budget_tokens=512, max_seqs=64
    )
    arrivals = read_trace(path, Random(seed), limits.max_model_tokens)
    return _plain("trace", seed, arrivals, limits)


def _plain(name: str, seed: int, arrivals: list[Arrival], limits: Limits | None = None) -> Scenario:
    return Scenario(name=name, seed=seed, limits=limits or small_limits(), arrivals=tuple(arrivals))


def _any_limits(random: Random, depth: int) -> Limits:
    max_seqs = random.randint(1, 8)
    return small_limits(
        blocks_total=random.randint(16, 48),
        max_seqs=max_seqs,
        budget_tokens=random.randint(max_seqs, random.choice((32, 64))),
        chunked_prefill=random.random() < 0.8,
        queue_limit_requests=random.choice((4, 1000)),
        queue_limit_tokens=random.choice((200, 1_000_000)),
        policy=random.choice(tuple(Policy)),
        ageing_ns=random.choice((100 * _MS, 30 * _SECOND)),
        tenant_max_seqs=random.choice((None, None, 1, 2)),
        tenant_queue_limit=random.choice((None, None, 3)),
        itl_target_ns=random.choice((None, 30 * _MS)),
        prefix_cache=random.random() < 0.8,
        draft_tokens=random.choice((0, 3)) if depth == 1 else 0,
        host_slots=random.choice((0, 0, 4)),
        retention=Retention(
            tenant_share=random.choice((1.0, 0.3)), ttl_ns=random.choice((None, _SECOND))
        ),
        auto_budget=random.random() < 0.6,
        slo_order=random.random() < 0.6,
        refuse_late=random.random() < 0.3,
    )


def _any_faults(random: Random, horizon_ns: int) -> Faults:
    if random.random() < 0.4:
        return Faults()
    return Faults(
        slow_chance=random.choice((0.0, 0.1)),
        failure_chance=random.choice((0.0, 0.0, 0.02)),
        out_of_memory_tokens=random.choice((None, None, 24)),
        restarts_ns=(random.randrange(horizon_ns),) if random.random() < 0.2 else (),
        wall_jumps=((random.randrange(horizon_ns), random.randrange(-_SECOND, _SECOND)),),
    )


def _any_commands(random: Random, horizon_ns: int) -> tuple[tuple[int, Command], ...]:
    commands: list[tuple[int, Command]] = []
    if random.random() < 0.3:
        commands.append((random.randrange(horizon_ns), FlushCache()))
    if random.random() < 0.5:
        cost = SetStepCost(base_ns=20 * _MS, prefill_token_ns=200_000, decode_row_ns=_MS)
        commands.append((random.randrange(horizon_ns), cost))
    return tuple(commands)


def _any_changes(random: Random, limits: Limits, horizon_ns: int) -> list[tuple[int, SetLimits]]:
    """Changes of limits, most of the time none."""
    count = random.choice((0, 0, 1, 3))
    in_force, found = runtime_of(limits), list[tuple[int, SetLimits]]()
    for at_ns in sorted(random.randrange(horizon_ns) for _ in range(count)):
        max_seqs = random.randint(1, limits.max_seqs)
        wanted = msgspec.structs.replace(
            in_force,
            max_seqs=max_seqs,
            budget_tokens=random.randint(max_seqs, limits.budget_tokens),
            queue_limit_requests=random.choice((2, 1000)),
            tenant_max_seqs=random.choice((None, None, 1)),
            tenant_queue_limit=random.choice((None, None, 2)),
            tenant_weights=random.choice(({}, {"a": 3.0}, {"a": 0.5, "b": 2.0})),
            itl_target_ns=random.choice((None, 30 * _MS)),
            prefix_cache=limits.prefix_cache and random.random() < 0.5,
            draft_tokens=random.choice((0, limits.draft_tokens)),
            auto_budget=random.random() < 0.5,
            slo_order=random.random() < 0.5,
            refuse_late=random.random() < 0.5,
        )
        changed = changed_names(in_force, wanted)
        found.append((at_ns, SetLimits(limits=wanted, changed=changed, by="sim", why="chaos")))
        in_force = wanted
    return found
