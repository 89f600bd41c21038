"""Faults of the load: number, length, shared prefixes and tenants of requests."""

from __future__ import annotations

from dataclasses import replace

from lab.drills.injection import CacheFlushing
from lab.drills.mechanism import DEV, TEST, Mechanism
from lab.drills.traffic import DECODE_SHARE, TENANTS, Mix, PlannedRequest, Scene, without

_LONG = Mix(name="long", prompt=(300, 450), output=(4, 8))
SHARED_PREFIX = Mix(name="shared", prompt=(16, 48), shared_tokens=400)
_SALTED = Mix(name="salted", prompt=(416, 448))
_BUSY_FLAGS = ("--max-num-seqs", "6", "--max-model-len", "256")


def _more_requests(scene: Scene) -> list[PlannedRequest]:
    extra_per_s = scene.intensity * scene.capacity.requests_per_s - scene.rate_per_s
    more = scene.requests("more", extra_per_s, scene.fault_span_s, is_culprit=True)
    return scene.baseline() + more


def _longer_outputs(scene: Scene) -> list[PlannedRequest]:
    """The same rate of requests, with outputs so long that demand is `intensity` times capacity."""
    factor = (scene.intensity / scene.load - (1 - DECODE_SHARE)) / DECODE_SHARE
    low, high = scene.mix.output
    longer = replace(scene.mix, output=(int(low * factor), int(high * factor)))
    requests = scene.requests(
        "longer", scene.rate_per_s, scene.fault_span_s, longer, is_culprit=True
    )
    return without(scene.baseline(), scene.fault_span_s) + requests


def _some_long_prompts(scene: Scene) -> list[PlannedRequest]:
    """At regular intervals: so few come that a Poisson process might bring only one."""
    rate_per_s = scene.intensity * scene.rate_per_s
    return scene.baseline() + scene.requests(
        "long", rate_per_s, scene.fault_span_s, _LONG, regular=True, is_culprit=True
    )


def longer_prompts(scene: Scene, rate_per_s: float) -> list[PlannedRequest]:
    """The baseline, and in the fault so many requests a second with prompts that are so many times
    as long instead."""
    low, high = scene.mix.prompt
    longer = replace(scene.mix, prompt=(int(low * scene.intensity), int(high * scene.intensity)))
    requests = scene.requests("grown", rate_per_s, scene.fault_span_s, longer, is_culprit=True)
    return without(scene.baseline(), scene.fault_span_s) + requests


def _prompts_grow(scene: Scene) -> list[PlannedRequest]:
    """Longer prompts, and fewer requests: the same prompt tokens a second."""
    return longer_prompts(scene, scene.rate_per_s / scene.intensity)


def with_warm_cache(scene: Scene) -> list[PlannedRequest]:
    """The baseline, after one request of each tenant, whose prefix cache it fills."""
    draw = scene.rng("primed")
    first = [
        PlannedRequest(at_s=0.5 * number, body=scene.mix.body(draw), tenant=tenant)
        for number, tenant in enumerate(TENANTS)
    ]
    return first + scene.baseline()


def _salted_prompts(scene: Scene) -> list[PlannedRequest]:
    """A share of the prompts has no shared prefix, so that it misses the prefix cache."""
    baseline, salted = with_warm_cache(scene), list[PlannedRequest]()
    draw, lengths = scene.rng("salted"), scene.rng("salted prompts")
    begin_s, end_s = scene.fault_span_s
    for request in baseline:
        is_salted = begin_s <= request.at_s < end_s and draw.random() < scene.intensity
        body = _SALTED.body(lengths) if is_salted else request.body
        salted.append(replace(request, body=body, is_culprit=is_salted))
    return salted


def _flood(scene: Scene) -> list[PlannedRequest]:
    """One tenant sends `intensity` times its share."""
    rate_per_s = (scene.intensity - 1) * scene.rate_per_s / len(TENANTS)
    return scene.baseline() + scene.requests(
        "flood", rate_per_s, scene.fault_span_s, tenant=TENANTS[0], is_culprit=True
    )


DEMAND = (
    Mechanism(
        symptom="healthy_light",
        name="poisson",
        split=DEV,
        about="baseline requests at a low rate, from beginning to end",
        unit="of capacity",
        levels=(0.2, 0.3, 0.4),
        traffic=lambda scene: scene.requests(
            "usual", scene.intensity * scene.capacity.requests_per_s, scene.whole_span_s
        ),
    ),
    Mechanism(
        symptom="healthy_busy",
        name="bursts",
        split=DEV,
        about="baseline requests in pairs at a high rate, on a server with few slots and little "
        "cache: some wait, but nothing is wrong",
        unit="of capacity",
        levels=(0.65, 0.7, 0.75),
        flags=(*_BUSY_FLAGS, "--kv-memory", "18MiB"),
        traffic=lambda scene: scene.requests(
            "usual", scene.intensity * scene.capacity.requests_per_s, scene.whole_span_s, burst=2
        ),
    ),
    Mechanism(
        symptom="queue_overload",
        name="rate",
        split=DEV,
        about="more requests come than the server can do",
        unit="of capacity",
        levels=(1.5, 2.0, 3.0),
        harms=("ttft_p50", "e2e_p50"),
        traffic=_more_requests,
        clean=Scene.baseline,
    ),
    Mechanism(
        symptom="queue_overload",
        name="longer_outputs",
        split=TEST,
        about="as many requests come, but they want more tokens than the server can make",
        unit="of capacity",
        levels=(1.5, 2.0, 3.0),
        harms=("ttft_p50",),
        traffic=_longer_outputs,
        clean=Scene.baseline,
    ),
    Mechanism(
        symptom="prefill_interference",
        name="no_chunking",
        split=DEV,
        about="some prompts of 300 to 450 tokens among short ones, on a server that computes each "
        "in one piece",
        unit="of usual requests",
        levels=(0.12, 0.16, 0.24),
        harms=("stall_p95",),
        flags=("--no-chunked-prefill",),
        load=0.45,
        traffic=_some_long_prompts,
        clean=Scene.baseline,
    ),
    Mechanism(
        symptom="prefill_interference",
        name="large_chunks",
        split=TEST,
        about="the same prompts on a server whose steps may take 2,048 tokens",
        unit="of usual requests",
        levels=(0.12, 0.16, 0.24),
        harms=("stall_p95",),
        flags=("--max-batched-tokens", "2048"),
        load=0.45,
        traffic=_some_long_prompts,
        clean=Scene.baseline,
    ),
    Mechanism(
        symptom="long_prompts",
        name="grown",
        split=DEV,
        about="prompts become longer, and requests as much rarer",
        unit="times as long",
        levels=(4.0, 6.0, 8.0),
        harms=("ttft_p50",),
        flags=("--max-batched-tokens", "48"),
        load=0.65,
        traffic=_prompts_grow,
        clean=Scene.baseline,
    ),
    Mechanism(
        symptom="prefix_cache_cold",
        name="flush",
        split=DEV,
        about="all prompts begin with the same 400 tokens, and the cache that had them is flushed "
        "again and again",
        unit="flushes a second",
        levels=(0.25, 0.5, 1.0),
        harms=("ttft_p50",),
        mix=SHARED_PREFIX,
        load=0.2,
        traffic=with_warm_cache,
        injection=lambda scene: CacheFlushing(scene.intensity),
    ),
    Mechanism(
        symptom="prefix_cache_cold",
        name="salt",
        split=TEST,
        about="a share of the prompts no longer begins with what all had in common",
        unit="of requests",
        levels=(0.4, 0.6, 0.8),
        harms=("ttft_p50",),
        mix=SHARED_PREFIX,
        load=0.2,
        traffic=_salted_prompts,
        clean=with_warm_cache,
    ),
    Mechanism(
        symptom="unfairness",
        name="flood",
        split=DEV,
        about="one tenant sends many times its share, and requests are served as they came",
        unit="times its share",
        levels=(5.0, 7.0, 9.0),
        harms=("ttft_p50",),
        flags=("--fairness", "fcfs", "--max-num-seqs", "8"),
        traffic=_flood,
        clean=Scene.baseline,
        culprit_tenant=TENANTS[0],
    ),
)
