"""Faults of clients: slow readers, and disconnects whose sequences leak."""

from __future__ import annotations

import math
from dataclasses import replace

from lab.drills.injection import ByHook
from lab.drills.mechanism import DEV, TEST, Mechanism
from lab.drills.traffic import DECODE_SHARE, STEADY, TENANTS, Mix, PlannedRequest, Reader, Scene

# with 20 logprobs a token takes a kilobyte on the wire: these are more than the kernel's and the
# gateway's buffers hold, so that the gateway notices the slow reader
_TOLD = Mix(name="told", prompt=(16, 32), output=(100, 120), fields={"n": 4, "logprobs": 20})
_TOLD_EVERY_S = 5.0
_SLOW = Reader(tokens_per_s=5.0)
_STOPPED = Reader(stop_after_tokens=8, stop_s=12.0)
_LEFT = Mix(name="left", output=(160, 200))
_LEFT_CHOICES = replace(_LEFT, output=(80, 100), fields={"n": 4})
_LEAVING = Reader(leave_after_tokens=6)


def _told(scene: Scene, reader: Reader) -> list[PlannedRequest]:
    """Streams with log-probabilities at even intervals, all the time, so that only the reading
    changes; in the fault a share is read by `reader`, the first among them."""
    begin_s, end_s = scene.fault_span_s
    draw, found = scene.rng("told"), list[PlannedRequest]()
    at_s = float(draw.uniform(0, _TOLD_EVERY_S))
    in_fault = 0
    while at_s < scene.phases.end_s:
        is_slow = False
        if begin_s <= at_s < end_s:
            slow = math.ceil(in_fault * scene.intensity)
            in_fault += 1
            is_slow = math.ceil(in_fault * scene.intensity) > slow
        found.append(
            PlannedRequest(
                at_s=at_s,
                body=_TOLD.body(draw),
                tenant=TENANTS[len(found) % len(TENANTS)],
                reader=reader if is_slow else STEADY,
                is_culprit=is_slow and reader is not STEADY,
            )
        )
        at_s += _TOLD_EVERY_S
    return scene.baseline() + found


def _leaving(scene: Scene, mix: Mix) -> list[PlannedRequest]:
    """Clients that leave soon, from beginning to end: with their requests ended at once they cost
    little, and `intensity` of the capacity when they go on."""
    choices = int(mix.fields.get("n", 1))
    outputs = choices * sum(mix.output) / sum(scene.mix.output)
    cost = (1 - DECODE_SHARE) + DECODE_SHARE * outputs
    rate_per_s = scene.intensity * scene.capacity.requests_per_s / cost
    return scene.baseline() + scene.requests(
        "leaving", rate_per_s, scene.whole_span_s, mix, reader=_LEAVING, is_culprit=True
    )


READERS = (
    Mechanism(
        symptom="slow_client",
        name="slow",
        split=DEV,
        about="streams are read at 5 tokens a second through a small buffer",
        unit="of long streams",
        levels=(0.6, 0.8, 1.0),
        harms=("tpot_p95",),
        flags=("--stream-buffer", "16"),
        load=0.15,
        traffic=lambda scene: _told(scene, _SLOW),
        clean=lambda scene: _told(scene, STEADY),
    ),
    Mechanism(
        symptom="slow_client",
        name="stopped",
        split=TEST,
        about="readers take nothing for 12 seconds in the middle of their streams",
        unit="of long streams",
        levels=(0.6, 0.8, 1.0),
        harms=("tpot_p95",),
        flags=("--stream-buffer", "16"),
        load=0.15,
        traffic=lambda scene: _told(scene, _STOPPED),
        clean=lambda scene: _told(scene, STEADY),
    ),
    Mechanism(
        symptom="cancellation_leak",
        name="abort_lost",
        split=DEV,
        about="clients disconnect, and their sequences are not cancelled",
        unit="of capacity",
        levels=(0.4, 0.6, 0.8),
        harms=("itl_p50", "e2e_p50"),
        load=0.4,
        traffic=lambda scene: _leaving(scene, _LEFT),
        injection=lambda scene: ByHook("gateway", "deaf", how="all"),
    ),
    Mechanism(
        symptom="cancellation_leak",
        name="siblings",
        split=TEST,
        about="clients disconnect, and only the first of their four choices is cancelled",
        unit="of capacity",
        levels=(0.4, 0.6, 0.8),
        harms=("itl_p50", "e2e_p50"),
        load=0.4,
        traffic=lambda scene: _leaving(scene, _LEFT_CHOICES),
        injection=lambda scene: ByHook("gateway", "deaf", how="siblings"),
    ),
)
