"""Faults of clients: slow readers, and disconnects whose sequences leak."""

from __future__ import annotations

import math
from dataclasses import replace

from lab.drills.injection import HookInjection
from lab.drills.mechanism import DEV, TEST, Mechanism
from lab.drills.traffic import DECODE_SHARE, STEADY, TENANTS, Mix, PlannedRequest, Reader, Scene

# with 20 logprobs a token takes a kilobyte on the wire: such a stream is larger than the buffers of
# the kernel and the gateway, so that the gateway notices the slow reader
_LOGPROBS = Mix(name="told", prompt=(16, 32), output=(100, 120), fields={"n": 4, "logprobs": 20})
_LOGPROBS_EVERY_S = 5.0
_SLOW = Reader(tokens_per_s=5.0)
_STOPS_READING = Reader(stop_after_tokens=8, stop_s=12.0)
_LONG_OUTPUTS = Mix(name="left", output=(160, 200))
_LONG_CHOICES = replace(_LONG_OUTPUTS, output=(80, 100), fields={"n": 4})
_DISCONNECTS_EARLY = Reader(leave_after_tokens=6)


def _logprob_streams(scene: Scene, reader: Reader) -> list[PlannedRequest]:
    """Baseline and, at even intervals from beginning to end, streams with log-probabilities. In the
    fault a share of these, the first included, is read by `reader`; nothing else changes."""
    begin_s, end_s = scene.fault_span_s
    draw, found = scene.rng("told"), list[PlannedRequest]()
    at_s = float(draw.uniform(0, _LOGPROBS_EVERY_S))
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
                body=_LOGPROBS.body(draw),
                tenant=TENANTS[len(found) % len(TENANTS)],
                reader=reader if is_slow else STEADY,
                is_culprit=is_slow and reader is not STEADY,
            )
        )
        at_s += _LOGPROBS_EVERY_S
    return scene.baseline() + found


def _early_disconnects(scene: Scene, mix: Mix) -> list[PlannedRequest]:
    """Clients that disconnect early, from beginning to end. They cost little when their sequences
    are cancelled, and `intensity` of the capacity when these go on."""
    choices = int(mix.fields.get("n", 1))
    outputs = choices * sum(mix.output) / sum(scene.mix.output)
    cost = (1 - DECODE_SHARE) + DECODE_SHARE * outputs
    rate_per_s = scene.intensity * scene.capacity.requests_per_s / cost
    return scene.baseline() + scene.requests(
        "leaving", rate_per_s, scene.whole_span_s, mix, reader=_DISCONNECTS_EARLY, is_culprit=True
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
        traffic=lambda scene: _logprob_streams(scene, _SLOW),
        clean=lambda scene: _logprob_streams(scene, STEADY),
    ),
    Mechanism(
        symptom="slow_client",
        name="stopped",
        split=TEST,
        about="readers take nothing for 12 seconds in the middle of their streams",
        unit="of long streams",
        levels=(0.6, 0.8, 1.0),
        harms=("stall_p95",),
        flags=("--stream-buffer", "16"),
        load=0.15,
        traffic=lambda scene: _logprob_streams(scene, _STOPS_READING),
        clean=lambda scene: _logprob_streams(scene, STEADY),
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
        traffic=lambda scene: _early_disconnects(scene, _LONG_OUTPUTS),
        injection=lambda scene: HookInjection("gateway", "leak", how="all"),
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
        traffic=lambda scene: _early_disconnects(scene, _LONG_CHOICES),
        injection=lambda scene: HookInjection("gateway", "leak", how="siblings"),
    ),
)
