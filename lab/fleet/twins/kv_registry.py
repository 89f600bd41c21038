"""Mechanisms of what goes wrong between engines that compute prompts and engines that decode."""

from __future__ import annotations

from dataclasses import replace

from lab.fleet.disaggregated.scenario import MS, SECOND
from lab.fleet.twins.kv_world import LINK, KvFleet, KvMechanism, Traffic, limits, simulate_kv
from lab.fleet.twins.twin import SPAN_S, FleetTwin, Plan, plan_of

HEALTHY = "healthy_kv"


def _quiet(plan: Plan) -> KvFleet:
    return KvFleet(usual=Traffic(per_s=plan.random.uniform(1.5, 3.5)))


def _surge(plan: Plan) -> KvFleet:
    per_s = plan.random.uniform(1.5, 2.5)
    return KvFleet(usual=Traffic(per_s=per_s), trouble=Traffic(per_s=1.4 * per_s))


def _hang_ups(plan: Plan) -> KvFleet:
    """Clients leave, and every transfer is fenced at once."""
    return KvFleet(trouble=Traffic(cancel_ns=(50 * MS, 200 * MS)))


def _flips(plan: Plan) -> KvFleet:
    return KvFleet(link=replace(LINK, flip=plan.random.uniform(0.01, 0.05)))


def _seldom_flips(plan: Plan) -> KvFleet:
    return KvFleet(link=replace(LINK, flip=plan.random.uniform(0.006, 0.01)))


def _stalls(plan: Plan) -> KvFleet:
    found: list[tuple[int, int]] = []
    at_ns = plan.onset_ns
    while at_ns < plan.over_ns:
        end_ns = at_ns + int(plan.random.uniform(4, 6) * SECOND)
        found.append((at_ns, min(end_ns, plan.over_ns)))
        at_ns = end_ns + int(plan.random.uniform(0.3, 0.8) * SECOND)
    return KvFleet(stalls=tuple(found))


def _frozen(plan: Plan) -> KvFleet:
    return KvFleet(freezes=((plan.onset_ns, plan.over_ns),))


def _slow_link(plan: Plan) -> KvFleet:
    block_ns = int(LINK.block_ns * plan.random.uniform(40, 60))
    return KvFleet(link=replace(LINK, block_ns=block_ns))


def _far_link(plan: Plan) -> KvFleet:
    return KvFleet(link=replace(LINK, delay_ns=int(plan.random.uniform(150, 300) * MS)))


def _many_prompts(plan: Plan) -> KvFleet:
    return KvFleet(trouble=Traffic(per_s=plan.random.uniform(8.5, 10), output=(2, 4)))


def _long_prompts(plan: Plan) -> KvFleet:
    return KvFleet(
        trouble=Traffic(per_s=3.5, prompt=(300, 380), output=(2, 4)), limits=limits(blocks=2000)
    )


def _long_outputs(plan: Plan) -> KvFleet:
    return KvFleet(
        trouble=Traffic(per_s=4.2, output=(90, 120)), limits=limits(blocks=4000, max_seqs=4)
    )


def _many_outputs(plan: Plan) -> KvFleet:
    return KvFleet(
        trouble=Traffic(per_s=8.5, prompt=(30, 60), output=(40, 60)),
        limits=limits(blocks=4000, max_seqs=4),
    )


def _few_blocks(plan: Plan) -> KvFleet:
    return KvFleet(
        usual=Traffic(prompt=(40, 70), output=(40, 60)),
        trouble=Traffic(per_s=4.5, prompt=(110, 140), output=(4, 8)),
        limits=limits(blocks=90),
    )


def _large_prompts(plan: Plan) -> KvFleet:
    return KvFleet(
        usual=Traffic(prompt=(40, 70), output=(40, 60)),
        trouble=Traffic(per_s=2.0, prompt=(200, 260), output=(4, 8)),
        limits=limits(blocks=120),
    )


def _cancelled_and_deaf(plan: Plan) -> KvFleet:
    """Clients leave, and the fences that would free their blocks are lost."""
    return KvFleet(
        trouble=Traffic(per_s=4.0, cancel_ns=(50 * MS, 250 * MS)),
        link=replace(LINK, loss=0.93),
        limits=limits(blocks=300),
    )


def _cancelled_and_frozen(plan: Plan) -> KvFleet:
    """Clients leave while the other engine stands still."""
    return KvFleet(
        trouble=Traffic(per_s=4.0, cancel_ns=(50 * MS, 250 * MS)),
        freezes=((plan.onset_ns, plan.over_ns),),
        limits=limits(blocks=300),
    )


def _short_prompts(plan: Plan) -> KvFleet:
    return KvFleet(
        usual=Traffic(per_s=3.0, output=(100, 160)),
        trouble=Traffic(per_s=3.0, prompt=(5, 12), output=(4, 8)),
        limits=limits(blocks=1500),
    )


def _idle_decoder(plan: Plan) -> KvFleet:
    return KvFleet(
        usual=Traffic(per_s=3.0, output=(100, 160)),
        trouble=Traffic(per_s=2.0, prompt=(12, 24), output=(2, 3)),
        limits=limits(blocks=1500),
    )


KV_TWINS: dict[str, dict[str, KvMechanism]] = {
    HEALTHY: {"quiet": _quiet, "surge": _surge, "hang_ups": _hang_ups},
    "prefill_bound": {"many": _many_prompts, "long": _long_prompts},
    "decode_bound": {"long": _long_outputs, "many": _many_outputs},
    "transfer_slow": {"rate": _slow_link, "far": _far_link},
    "transfer_stall": {"stalls": _stalls, "frozen": _frozen},
    "staging_full": {"many": _few_blocks, "large": _large_prompts},
    "kv_stranded": {"deaf": _cancelled_and_deaf, "frozen": _cancelled_and_frozen},
    "split_not_worth_it": {"short": _short_prompts, "idle": _idle_decoder},
    "kv_corrupt": {"flips": _flips, "seldom": _seldom_flips},
}
"""The first mechanism of a symptom is for development, the others are held out."""


def build_kv_twin(name: str, seed: int, mechanism: str | None = None) -> FleetTwin:
    """Raises KeyError."""
    known = KV_TWINS[name]
    mechanism = mechanism or next(iter(known))
    plan = plan_of(name, mechanism, seed)
    symptom = "" if name == HEALTHY else name
    return simulate_kv(symptom, mechanism, plan, known[mechanism](plan), int(SPAN_S * SECOND))
