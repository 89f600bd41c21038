"""Twins in which a cause brings about another: the truth is a chain, its first link the fault.

Each is a fault of `lab.twins.faults` on a server that is near a limit, where it leads to more: few
slots, a small cache, ingest on the event loop. Whether the later links came about is for the facts
to say (`has_come_about`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from lab.twins.fault import Fault
from lab.twins.faults.client_faults import INGEST, LEAK
from lab.twins.faults.load_faults import COLD_CACHE, OVERLOAD, UNFAIRNESS
from lab.twins.faults.output_faults import GRAMMAR, SAMPLING
from lab.twins.faults.slow_faults import BANDWIDTH, STALLED, STARVED, THROTTLED
from lab.twins.physics import MS, SECOND
from lab.twins.simulated_run import SimulatedRun, Span
from lab.twins.traffic import Reader, Setting
from lab.twins.twin import Twin, simulate_twin
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.host_records import HostPaused
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.facts.records import Fact, fact_ns

_QUEUE = 1.0  # requests that wait, beyond those before
_FULL = 0.9  # of the blocks
_PREEMPTED = 0.2  # sequences a second, beyond those before
_BLOCKED = 0.1  # of the time the event loop stands, beyond before
_BESIDE = 1.3  # times as many prompt tokens beside decodes as before


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainMechanism:
    """`links` are symptoms by name, the cause first. `fault` injects the cause alone."""

    links: tuple[str, ...]
    fault: Fault


def _small_cache(setting: Setting, draw: Random) -> None:
    """A cache that is enough while every client reads and none leaves its sequences behind."""
    setting.prompt, setting.outputs = (32, 112), (24, 80)
    setting.system_share, setting.two_choices = 0.0, 0.0
    setting.stream_buffer_tokens = 16
    setting.load = draw.uniform(0.4, 0.5)
    setting.limits = replace(setting.limits, max_model_tokens=256, blocks_total=52, max_seqs=32)


def _few_slots(setting: Setting, draw: Random) -> None:
    """Set as many slots as the load needs, and a few more."""
    setting.limits = replace(setting.limits, max_seqs=8)
    setting.load = draw.uniform(0.62, 0.7)


def _after(
    first: Callable[[Setting, Random], None], *others: Callable[[Setting, Random], None]
) -> Callable[[Setting, Random], None]:
    def prepare(setting: Setting, draw: Random) -> None:
        for edit in (first, *others):
            edit(setting, draw)

    return prepare


def _read_slowly(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Some clients read six to eight tokens a second."""
    share = draw.uniform(0.5, 0.6)
    for spec in run.arriving_in(span):
        is_plain = spec.stream and spec.choices == 1 and spec.disconnect_ns is None
        if is_plain and draw.random() < share:
            spec.reader = Reader(interval_ns=int(draw.uniform(120, 170) * MS))
            run.culprits.add(spec.number)


def _on(fault: Fault, *more: Callable[[Setting, Random], None]) -> Fault:
    """The same fault on a server that is prepared further."""
    return replace(fault, prepare=_after(fault.prepare, *more))


def _with_leavers(setting: Setting, draw: Random) -> None:
    _small_cache(setting, draw)
    setting.load = draw.uniform(0.6, 0.7)
    setting.disconnects = draw.uniform(0.3, 0.4)
    setting.disconnect_outputs = (120, 140)


def _tokenizer_of_few_slots(setting: Setting, draw: Random) -> None:
    _few_slots(setting, draw)
    setting.one_tokenizer = True


def _batches_of_bodies(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Every five seconds huge prompts that the tokenizer encodes for three, and are then refused;
    what came in that time comes to the engine at once."""
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        bodies = [run.setting.spec(draw, 0, at_ns + place * 20 * MS) for place in range(8)]
        for spec in bodies:
            spec.body_tokens, spec.disconnect_ns = draw.randint(60_000, 85_000), None
        run.add(bodies)
        run.culprits |= {spec.number for spec in bodies}
        at_ns += int(draw.uniform(4.5, 5.5) * SECOND)


def _light(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.42, 0.5)


def _cache_of_short_prompts(setting: Setting, draw: Random) -> None:
    """Prompts are cheap to compute, and short; the cache is enough for these."""
    setting.physics = replace(setting.physics, prompt_token_ns=60_000)
    setting.prompt, setting.outputs = (32, 96), (24, 60)
    setting.system_share, setting.two_choices = 0.0, 0.0
    setting.load = draw.uniform(0.5, 0.6)
    setting.limits = replace(
        setting.limits, max_model_tokens=768, blocks_total=140, max_seqs=32, budget_tokens=512
    )


def _longer_prompts(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Five times as long."""
    for spec in run.arriving_in(span):
        spec.own_tokens *= 5
        run.culprits.add(spec.number)


CHAINS: dict[str, ChainMechanism] = {
    "readers_then_thrash": ChainMechanism(
        links=("slow_client", "kv_exhaustion", "kv_thrash"),
        fault=Fault(prepare=_small_cache, inject=_read_slowly),
    ),
    "leak_then_cache": ChainMechanism(
        links=("cancellation_leak", "kv_exhaustion"),
        fault=replace(LEAK["no_abort"], prepare=_with_leavers),
    ),
    "leak_then_queue": ChainMechanism(
        links=("cancellation_leak", "queue_overload"),
        fault=_on(LEAK["no_abort"], _few_slots),
    ),
    "long_prompts_then_cache": ChainMechanism(
        links=("long_prompts", "kv_exhaustion"),
        fault=Fault(prepare=_cache_of_short_prompts, inject=_longer_prompts),
    ),
    "bodies_then_loop": ChainMechanism(
        links=("ingest_backlog", "host_stall"), fault=INGEST["on_the_loop"]
    ),
    "bodies_then_wave": ChainMechanism(
        links=("ingest_backlog", "queue_overload"),
        fault=Fault(prepare=_tokenizer_of_few_slots, inject=_batches_of_bodies),
    ),
    "grammars_then_queue": ChainMechanism(
        links=("grammar_cost", "queue_overload"), fault=_on(GRAMMAR["dear_masks"], _few_slots)
    ),
    "schemas_then_queue": ChainMechanism(
        links=("grammar_cost", "queue_overload"), fault=_on(GRAMMAR["new_schemas"], _few_slots)
    ),
    "samples_then_queue": ChainMechanism(
        links=("heavy_sampling", "queue_overload"), fault=_on(SAMPLING["logprobs"], _few_slots)
    ),
    "stalls_then_queue": ChainMechanism(
        links=("host_stall", "queue_overload"), fault=_on(STALLED["blocking_write"], _few_slots)
    ),
    "hogs_then_queue": ChainMechanism(
        links=("cpu_starvation", "queue_overload"), fault=_on(STARVED["one_hog"], _few_slots)
    ),
    "quota_then_queue": ChainMechanism(
        links=("throttled", "queue_overload"), fault=_on(THROTTLED["quota"], _few_slots)
    ),
    "neighbour_then_queue": ChainMechanism(
        links=("memory_bandwidth", "queue_overload"), fault=_on(BANDWIDTH["stream"], _few_slots)
    ),
    "cold_then_interference": ChainMechanism(
        links=("prefix_cache_cold", "prefill_interference"), fault=_on(COLD_CACHE["salt"], _light)
    ),
    "flush_then_queue": ChainMechanism(
        links=("prefix_cache_cold", "queue_overload"),
        fault=_on(COLD_CACHE["flush"], _few_slots, _light),
    ),
    "flood_then_queue": ChainMechanism(
        links=("unfairness", "queue_overload"), fault=_on(UNFAIRNESS["flood"], _few_slots)
    ),
    "demand_then_cache": ChainMechanism(
        links=("queue_overload", "kv_exhaustion"), fault=_on(OVERLOAD["requests"], _small_cache)
    ),
}
"""Mechanisms by name."""


def build_chain(name: str, seed: int) -> Twin:
    """The twin of that name. Raises KeyError."""
    mechanism = CHAINS[name]
    return simulate_twin(mechanism.links[0], f"chains/{name}", seed, [mechanism.fault])


def has_come_about(link: str, one: Twin) -> bool:
    """Whether the facts show a link while the fault is there, beyond the time before; a link that
    they cannot show alone counts as there."""
    if one.onset_ns is None:
        return False
    end_ns = one.end_ns or fact_ns(one.facts[-1])
    length_ns = end_ns - one.onset_ns
    begin_ns = max(fact_ns(one.facts[0]), one.onset_ns - length_ns)
    fault = [fact for fact in one.facts if one.onset_ns <= fact_ns(fact) < end_ns]
    before = [fact for fact in one.facts if begin_ns <= fact_ns(fact) < one.onset_ns]
    seconds = (length_ns / 1e9, (one.onset_ns - begin_ns) / 1e9)
    match link:
        case "queue_overload":
            return _waiting(fault) > _waiting(before) + _QUEUE
        case "kv_exhaustion":
            return any(
                step.waiting and step.blocks_used >= _FULL * step.blocks_total
                for step in _steps(fault)
            )
        case "kv_thrash":
            return _preempted(fault) / seconds[0] > _preempted(before) / seconds[1] + _PREEMPTED
        case "host_stall":
            least_ns = _blocked_ns(before) / seconds[1] + _BLOCKED * SECOND
            return _blocked_ns(fault) / seconds[0] > least_ns
        case "prefill_interference":
            return _beside(fault) / seconds[0] > _BESIDE * _beside(before) / seconds[1]
        case _:
            return True


def _steps(facts: Sequence[Fact]) -> list[StepRecorded]:
    return [fact for fact in facts if isinstance(fact, StepRecorded)]


def _waiting(facts: Sequence[Fact]) -> float:
    """Mean over the steps."""
    steps = _steps(facts)
    return sum(step.waiting for step in steps) / max(1, len(steps))


def _preempted(facts: Sequence[Fact]) -> int:
    return sum(len(step.preempted) for step in _steps(facts))


def _blocked_ns(facts: Sequence[Fact]) -> int:
    return sum(
        fact.end_ns - fact.begin_ns
        for fact in facts
        if isinstance(fact, HostPaused)
        and fact.process is HostProcess.GATEWAY
        and fact.cause is PauseCause.LOOP_BLOCKED
    )


def _beside(facts: Sequence[Fact]) -> int:
    """Prompt tokens in steps with decodes, for each decode."""
    found = 0
    for step in _steps(facts):
        decodes = sum(not row.is_prefill for row in step.rows)
        found += decodes * sum(row.tokens for row in step.rows if row.is_prefill)
    return found
