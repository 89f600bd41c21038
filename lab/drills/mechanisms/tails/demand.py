"""Tails that the load makes: small bursts, a long prompt now and then, one tenant among ten."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from lab.drills.mechanism import Mechanism
from lab.drills.mechanisms.tails.shared import (
    LATE_FIRST,
    OTHERS_GAPS,
    OTHERS_LATE_FIRST,
    tail,
)
from lab.drills.traffic import (
    TENANTS,
    Mix,
    PlannedRequest,
    Scene,
    completion_body,
    token_ids,
)

_BURST_EVERY_S = 5.0
_SHORT = Mix(name="short", prompt=(16, 32))
_PASTED = Mix(name="pasted", prompt=(280, 320), output=(4, 8))
_SHARED_TOKENS = 400
_SHARED = Mix(name="shared", prompt=(16, 48), shared_tokens=_SHARED_TOKENS)
_EVERY_FIFTH = 5
_TEN = tuple(f"tenant-{number}" for number in range(10))
_STAMP_TOKENS = 4


def _bursts(scene: Scene, tenant: str | None = None) -> list[PlannedRequest]:
    """At regular intervals so many requests at once, of all tenants or of one."""
    burst = max(1, round(scene.intensity))
    return scene.requests(
        "bursts",
        burst / _BURST_EVERY_S,
        scene.fault_span_s,
        burst=burst,
        regular=True,
        tenant=tenant,
        is_culprit=True,
    )


def _pasted(scene: Scene) -> list[PlannedRequest]:
    return scene.baseline() + scene.requests(
        "pasted", scene.intensity / 60, scene.fault_span_s, _PASTED, regular=True, is_culprit=True
    )


def _some_grow(scene: Scene) -> list[PlannedRequest]:
    """The baseline's requests, of which every fifth of the fault has a prompt `intensity` times as
    long; all else stays."""
    low, high = scene.mix.prompt
    longer = replace(scene.mix, prompt=(int(low * scene.intensity), int(high * scene.intensity)))
    draw, found, count = scene.rng("grown"), list[PlannedRequest](), 0
    begin_s, end_s = scene.fault_span_s
    for request in scene.baseline():
        if begin_s <= request.at_s < end_s:
            count += 1
            if count % _EVERY_FIFTH == 1:
                request = replace(request, body=longer.body(draw), is_culprit=True)
        found.append(request)
    return found


def _shared_prompts(scene: Scene) -> list[PlannedRequest]:
    """The baseline, after one request that fills the prefix cache."""
    first = PlannedRequest(at_s=0.0, body=scene.mix.body(scene.rng("primed")), tenant=TENANTS[0])
    return [first, *scene.baseline()]


def _stamped_prompts(scene: Scene) -> list[PlannedRequest]:
    """One tenant puts the time into the shared text, in each request another one, `intensity`
    tokens before its end: what follows it is computed anew."""
    draw, (begin_s, end_s) = scene.rng("stamped"), scene.fault_span_s
    found: list[PlannedRequest] = []
    for request in _shared_prompts(scene):
        if begin_s <= request.at_s < end_s and request.tenant == TENANTS[0]:
            request = replace(request, body=_stamped(scene, draw), is_culprit=True)
        found.append(request)
    return found


def _stamped(scene: Scene, draw: np.random.Generator) -> bytes:
    shared = token_ids(np.random.default_rng(zlib.crc32(b"shared")), _SHARED_TOKENS)
    place = max(0, _SHARED_TOKENS - round(scene.intensity))
    shared[place : place + _STAMP_TOKENS] = token_ids(draw, _STAMP_TOKENS)
    own = token_ids(draw, int(draw.integers(scene.mix.prompt[0], scene.mix.prompt[1] + 1)))
    output = int(draw.integers(scene.mix.output[0], scene.mix.output[1] + 1))
    return completion_body([*shared[:_SHARED_TOKENS], *own], output)


def _ten_tenants(scene: Scene) -> list[PlannedRequest]:
    draw = scene.rng("tenants")
    return [
        replace(request, tenant=_TEN[int(draw.integers(len(_TEN)))]) for request in scene.baseline()
    ]


DEMAND_TAILS: tuple[Mechanism, ...] = (
    tail(
        (2.0, 80.0),
        LATE_FIRST,
        symptom="queue_overload",
        name="small_bursts",
        about="every five seconds a few more requests come at once than there are slots for",
        unit="requests at once",
        flags=("--max-num-seqs", "6"),
        load=0.4,
        traffic=lambda scene: scene.baseline() + _bursts(scene),
        clean=Scene.baseline,
    ),
    tail(
        (4.0, 90.0),
        OTHERS_GAPS,
        symptom="prefill_interference",
        name="pasted",
        about="now and then a prompt of 300 tokens, computed in one piece among short ones",
        unit="a minute",
        flags=("--max-batched-tokens", "1024"),
        mix=_SHORT,
        load=0.35,
        traffic=_pasted,
        clean=Scene.baseline,
    ),
    tail(
        (2.0, 30.0),
        LATE_FIRST,
        symptom="long_prompts",
        name="every_fifth",
        about="the prompt of every fifth request becomes longer",
        unit="times as long",
        flags=("--max-batched-tokens", "48"),
        load=0.35,
        traffic=_some_grow,
        clean=Scene.baseline,
    ),
    tail(
        (24.0, 400.0),
        LATE_FIRST,
        symptom="prefix_cache_cold",
        name="time_stamp",
        about="one tenant of three puts the time into the text that all prompts begin with, so "
        "that what comes after it is computed anew",
        unit="tokens after it",
        mix=_SHARED,
        load=0.25,
        traffic=_stamped_prompts,
        clean=_shared_prompts,
    ),
    tail(
        (2.0, 80.0),
        OTHERS_LATE_FIRST,
        symptom="unfairness",
        name="one_of_ten",
        about="every five seconds one tenant of ten sends many requests at once, and requests are "
        "served as they came",
        unit="requests at once",
        flags=("--fairness", "fcfs", "--max-num-seqs", "6"),
        load=0.4,
        traffic=lambda scene: _ten_tenants(scene) + _bursts(scene, _TEN[3]),
        clean=_ten_tenants,
        culprit_tenant=_TEN[3],
    ),
)
