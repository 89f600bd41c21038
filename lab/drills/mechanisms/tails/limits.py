"""Tails of a wrong limit, which most requests never meet: a server with it takes over."""

from __future__ import annotations

import math
from dataclasses import replace

from lab.drills.mechanism import Mechanism, Need
from lab.drills.mechanisms.tails.shared import GAPS, LATE_FIRST, SHORT_STEPS, tail
from lab.drills.traffic import Mix, PlannedRequest, Scene

_BLOCK_TOKENS = 16
_CACHE_MIB = 256
_CONTEXT_TOKENS = 256
_CACHE = ("--kv-memory", f"{_CACHE_MIB}MiB", "--max-model-len", str(_CONTEXT_TOKENS))
_WIDE = Mix(name="wide", prompt=(130, 160), output=(40, 80))
_NOTES = Mix(name="notes", prompt=(8, 16), output=(24, 48))
_ESSAY = Mix(name="essay", prompt=(8, 16), output=(100, 200))
_PAPER = Mix(name="paper", prompt=(180, 240), output=(8, 16))
_RARE = 0.2
"""How many requests of the rare kind come, of the usual ones."""
_GOOD_SEQS = 8
_CROWD, _CROWD_EVERY_S = 56, 18.0


def _cache_of(largest_requests: float, need: Need) -> tuple[str, ...]:
    """Flags for a cache of so many of the largest requests, at least of one."""
    blocks = max(1.0, largest_requests) * _CONTEXT_TOKENS / _BLOCK_TOKENS
    block_bytes = (_CACHE_MIB << 20) / need.blocks_total
    return "--kv-memory", str(math.ceil(blocks) * math.ceil(block_bytes))


def _with_rare(scene: Scene, mix: Mix) -> list[PlannedRequest]:
    """The baseline and, from beginning to end, a few requests of another kind."""
    rare = scene.requests(mix.name, _RARE * scene.rate_per_s, scene.whole_span_s, mix, regular=True)
    return scene.baseline() + rare


def _with_crowds(scene: Scene) -> list[PlannedRequest]:
    """The baseline and, from beginning to end, a crowd at regular intervals, 10 ms apart."""
    crowds = scene.requests(
        "crowd", _CROWD / _CROWD_EVERY_S, scene.whole_span_s, burst=_CROWD, regular=True
    )
    spread = [
        replace(request, at_s=request.at_s - 0.5 * _CROWD_EVERY_S + 0.01 * (number % _CROWD))
        for number, request in enumerate(crowds)
    ]
    return scene.baseline() + [one for one in spread if one.at_s < scene.phases.end_s]


LIMIT_TAILS: tuple[Mechanism, ...] = (
    tail(
        (6.0, 1.0),
        LATE_FIRST,
        symptom="kv_exhaustion",
        name="few_wide",
        about="the cache has room for usual requests, and too little for the few wide ones "
        "among them",
        unit="largest requests",
        flags=_CACHE,
        load=0.4,
        traffic=lambda scene: _with_rare(scene, _WIDE),
        bad_flags=lambda need, requests: _cache_of(requests, need),
    ),
    tail(
        (8.0, 1.0),
        GAPS,
        symptom="kv_thrash",
        name="few_long",
        about="the cache is full when one of the few long outputs comes to its end, and a "
        "sequence loses its blocks",
        unit="largest requests",
        flags=(*_CACHE, *SHORT_STEPS),
        mix=_NOTES,
        load=0.45,
        traffic=lambda scene: _with_rare(scene, _ESSAY),
        bad_flags=lambda need, requests: _cache_of(requests, need),
    ),
    tail(
        (1.25, 8.0),
        GAPS,
        symptom="oversized_batch",
        name="crowds",
        about="now and then a crowd comes, and all of it may decode together",
        unit="times as many",
        flags=("--max-num-seqs", str(_GOOD_SEQS), *SHORT_STEPS),
        mix=_NOTES,
        load=0.2,
        traffic=_with_crowds,
        bad_flags=lambda need, factor: ("--max-num-seqs", str(round(factor * _GOOD_SEQS))),
    ),
    tail(
        (64.0, 4.0),
        LATE_FIRST,
        symptom="budget_too_small",
        name="few_papers",
        about="steps may take few tokens, so that the few longer prompts need many of them",
        unit="tokens a step",
        flags=("--max-num-seqs", "4", "--max-batched-tokens", "512"),
        load=0.3,
        traffic=lambda scene: _with_rare(scene, _PAPER),
        bad_flags=lambda need, tokens: ("--max-batched-tokens", str(round(tokens))),
    ),
)
