"""Tails that clients make: one reader of many, and some of those who leave."""

from __future__ import annotations

import math

from lab.drills.harm import Harm, HarmMeasure
from lab.drills.injection import HookInjection
from lab.drills.mechanism import Mechanism
from lab.drills.mechanisms.tails.shared import OTHERS_LATE_FIRST, tail
from lab.drills.traffic import DECODE_SHARE, STEADY, TENANTS, Mix, PlannedRequest, Reader, Scene

# with 20 logprobs a token takes a kilobyte on the wire: such a stream is larger than the buffers of
# the kernel and the gateway, so that the gateway notices the slow reader
_STREAM = Mix(name="told", prompt=(16, 32), output=(100, 120), fields={"n": 4, "logprobs": 20})
_STREAM_EVERY_S = 4.0
_STREAM_TOKENS = 200
_SPURTS = Reader(spurt_tokens=60, pause_s=1.5)
_ANSWER = Mix(name="left", output=(160, 200))
_LEAVES_EARLY = Reader(leave_after_tokens=6)
_LEAKED = 0.8
"""The share of capacity that sequences of clients that left would take, if none was cancelled."""

# of the long streams alone: they are one request in six
_STREAMS_GAP = Harm(measure=HarmMeasure.GAP_SHARE, everyone=True, least_tokens=_STREAM_TOKENS)


def _streams(scene: Scene, share: float) -> list[PlannedRequest]:
    """The baseline and, at even intervals, long streams; in the fault a share of these, the first
    included, is read in spurts."""
    begin_s, end_s = scene.fault_span_s
    draw, found, in_fault = scene.rng("told"), list[PlannedRequest](), 0
    at_s = float(draw.uniform(0, _STREAM_EVERY_S))
    while at_s < scene.phases.end_s:
        is_slow = False
        if begin_s <= at_s < end_s:
            slow = math.ceil(in_fault * share)
            in_fault += 1
            is_slow = math.ceil(in_fault * share) > slow
        found.append(
            PlannedRequest(
                at_s=at_s,
                body=_STREAM.body(draw),
                tenant=TENANTS[len(found) % len(TENANTS)],
                reader=_SPURTS if is_slow else STEADY,
                is_culprit=is_slow,
            )
        )
        at_s += _STREAM_EVERY_S
    return scene.baseline() + found


def _leavers(scene: Scene) -> list[PlannedRequest]:
    """The baseline and, from beginning to end, clients that leave early."""
    outputs = sum(_ANSWER.output) / sum(scene.mix.output)
    cost = (1 - DECODE_SHARE) + DECODE_SHARE * outputs
    rate_per_s = _LEAKED * scene.capacity.requests_per_s / cost
    return scene.baseline() + scene.requests(
        "leaving", rate_per_s, scene.whole_span_s, _ANSWER, reader=_LEAVES_EARLY, is_culprit=True
    )


READER_TAILS: tuple[Mechanism, ...] = (
    tail(
        (0.1, 1.0),
        _STREAMS_GAP,
        symptom="slow_client",
        name="in_spurts",
        about="some long streams are read in spurts, with pauses of a second and a half",
        unit="of long streams",
        flags=("--stream-buffer", "16"),
        load=0.15,
        traffic=lambda scene: _streams(scene, scene.intensity),
        clean=lambda scene: _streams(scene, 0.0),
    ),
    tail(
        (0.1, 1.0),
        OTHERS_LATE_FIRST,
        symptom="cancellation_leak",
        name="some_lost",
        about="clients leave early, and some of their sequences are not cancelled",
        unit="of those who leave",
        flags=("--max-num-seqs", "8"),
        load=0.4,
        traffic=_leavers,
        injection=lambda scene: HookInjection(
            "gateway", "leak", how="share", share=scene.intensity, seed=scene.seed
        ),
    ),
)
