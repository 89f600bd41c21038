"""Faults of the configuration: a server with a wrong limit takes over from a good one."""

from __future__ import annotations

import math
from dataclasses import replace

from lab.drills.mechanism import DEV, Mechanism, Need
from lab.drills.traffic import Mix, PlannedRequest, Scene

_BLOCK_TOKENS = 16
_CACHE_MIB = 256
_CONTEXT_TOKENS = 256
_CACHE = ("--kv-memory", f"{_CACHE_MIB}MiB", "--max-model-len", str(_CONTEXT_TOKENS))
# two of these do not fit into the blocks of the largest request: one waits for the other to end
_WIDE = Mix(name="wide", prompt=(130, 160), output=(40, 80))
_GROWING = Mix(name="growing", prompt=(8, 16), output=(100, 200))
_WRITING = Mix(name="writing", prompt=(8, 16), output=(24, 48))
_READING = Mix(name="reading", prompt=(80, 200))
# the batch size up to which throughput rises; a larger batch only makes steps slower, so that a
# wave of requests lasts until the next one
_GOOD_SEQS = 16
_WAVE = 4 * _GOOD_SEQS
_GOOD_BUDGET = 512


def _cache_of(blocks: int, need: Need) -> tuple[str, ...]:
    """Flags for a cache of so many blocks, at least those of the largest request."""
    least = _CONTEXT_TOKENS // _BLOCK_TOKENS
    block_bytes = (_CACHE_MIB << 20) / need.blocks_total
    return "--kv-memory", str(math.ceil(max(blocks, least) * block_bytes))


def _regular_arrivals(scene: Scene) -> list[PlannedRequest]:
    """At regular intervals, so that the number of running requests is steady; at random they might
    all fit for a long time."""
    return scene.requests("usual", scene.rate_per_s, scene.whole_span_s, regular=True)


def _arrival_waves(scene: Scene) -> list[PlannedRequest]:
    """A wave of requests whenever the last is nearly done, so that many always decode together. In
    a wave requests are 10 ms apart, because clients cannot send all of them at once."""
    waves = scene.requests("usual", scene.rate_per_s, scene.whole_span_s, burst=_WAVE, regular=True)
    spread = [
        replace(request, at_s=request.at_s + 0.01 * (n % _WAVE)) for n, request in enumerate(waves)
    ]
    return [request for request in spread if request.at_s < scene.phases.end_s]


LIMITS = (
    Mechanism(
        symptom="kv_exhaustion",
        name="small_pool",
        split=DEV,
        about="the cache holds one request, where the same traffic had room for many",
        unit="largest requests",
        levels=(1.0,),
        harms=("ttft_p95",),
        flags=_CACHE,
        mix=_WIDE,
        load=0.65,
        bad_flags=lambda need, requests: _cache_of(
            round(requests * _CONTEXT_TOKENS / _BLOCK_TOKENS), need
        ),
    ),
    Mechanism(
        symptom="kv_thrash",
        name="tight_pool",
        split=DEV,
        about="the cache is little larger than the largest request, and outputs are long",
        unit="largest requests",
        levels=(2.0, 1.75, 1.5),
        harms=("stall_p95", "e2e_p50"),
        flags=_CACHE,
        mix=_GROWING,
        load=0.8,
        traffic=_regular_arrivals,
        bad_flags=lambda need, requests: _cache_of(
            round(requests * (_GROWING.prompt[1] + _GROWING.output[1]) / _BLOCK_TOKENS), need
        ),
    ),
    Mechanism(
        symptom="oversized_batch",
        name="many_seqs",
        split=DEV,
        about="several times as many sequences may decode together",
        unit="times as many",
        levels=(3.0, 3.5, 4.0),
        harms=("itl_p50",),
        flags=("--max-num-seqs", str(_GOOD_SEQS)),
        mix=_WRITING,
        load=1.4,  # of the capacity that eight users reached
        traffic=_arrival_waves,
        bad_flags=lambda need, factor: ("--max-num-seqs", str(round(factor * _GOOD_SEQS))),
    ),
    Mechanism(
        symptom="budget_too_small",
        name="small_budget",
        split=DEV,
        about="steps may take few tokens, so that prompts need many of them",
        unit="tokens a step",
        levels=(4.0, 3.0, 2.0),
        harms=("ttft_p50",),
        flags=("--max-num-seqs", "2", "--max-batched-tokens", str(_GOOD_BUDGET)),
        mix=_READING,
        load=0.65,
        bad_flags=lambda need, tokens: ("--max-batched-tokens", str(round(tokens))),
    ),
)
