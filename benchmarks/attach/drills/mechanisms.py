"""The causes that apply to an attached vLLM: mechanisms of `lab.drills` with vLLM's own flags.

Those that act inside our server (orders to its hooks) are replaced by what acts from outside:
signals to vLLM's processes, a CPU quota of their control group. Heavy sampling is left out, since
nothing outside the worker sees it; so are causes that only our own server can have.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.attach.drills.injections import CoreStops, CpuQuota, EngineCoreStop
from benchmarks.attach.vllm_server import BLOCK_TOKENS
from lab.drills.injection import HelperInjection, InjectionTarget
from lab.drills.mechanism import DEV, TEST, Mechanism, Need
from lab.drills.outside import Helper
from lab.drills.registry import find
from lab.drills.traffic import Mix, PlannedRequest, Scene

_BUDGET, _SEQS = "--max-num-batched-tokens", "--max-num-seqs"
_CONTEXT, _BLOCKS = "--max-model-len", "--num-gpu-blocks-override"
_SMALL_CONTEXT_TOKENS = 256
_GOOD_BLOCKS = 400
_SMALL = (_CONTEXT, str(_SMALL_CONTEXT_TOKENS), _BLOCKS, str(_GOOD_BLOCKS))
_GOOD_SEQS = 16
_STREAMS = Mix(name="streams", prompt=(16, 48), output=(48, 96))


def _blocks(largest: float) -> tuple[str, ...]:
    """A pool for so many of the largest request, and the block that vLLM keeps for itself."""
    return _BLOCKS, str(round(largest * _SMALL_CONTEXT_TOKENS / BLOCK_TOKENS) + 1)


_GROWING = Mix(name="growing answers", prompt=(8, 16), output=(90, 120))
_WAVE = 6


def _waves(scene: Scene) -> list[PlannedRequest]:
    """Requests that begin together: all fit when they begin, and not when they have grown. The next
    wave comes when the last is nearly done, so that few wait for a first block: vLLM lets nobody
    pass a sequence that has lost its own."""
    waves = scene.requests("usual", scene.rate_per_s, scene.whole_span_s, burst=_WAVE, regular=True)
    return [replace(one, at_s=one.at_s + 0.02 * (n % _WAVE)) for n, one in enumerate(waves)]


def _worker(what: str, *values: float) -> HelperInjection:
    """A helper that acts on the process that computes; `values` follow its process id."""

    def make(target: InjectionTarget) -> list[Helper]:
        return [Helper(what, target.server.engine_pid, *values, target.other_core)]

    return HelperInjection(make)


DEMAND = (
    find("healthy_light", "poisson"),
    replace(find("healthy_busy", "bursts"), flags=(_SEQS, "8", *_SMALL)),
    find("queue_overload", "rate"),
    find("queue_overload", "longer_outputs"),
    replace(
        find("prefill_interference", "no_chunking"),
        flags=("--no-enable-chunked-prefill", _BUDGET, "2048"),
    ),
    replace(find("prefill_interference", "large_chunks"), flags=(_BUDGET, "2048")),
    replace(find("long_prompts", "grown"), flags=(_BUDGET, "48")),
    replace(find("prefix_cache_cold", "salt"), load=0.45),
    replace(find("unfairness", "flood"), flags=(_SEQS, "8")),
)

LIMITS = (
    replace(
        find("kv_exhaustion", "small_pool"),
        flags=_SMALL,
        bad_flags=lambda need, requests: _blocks(max(1.0, requests)),
    ),
    replace(
        find("kv_thrash", "tight_pool"),
        about="six requests that begin together fit into the cache until they have grown",
        flags=_SMALL,
        levels=(1.75, 1.6, 1.5),
        mix=_GROWING,
        load=0.5,
        traffic=_waves,
        bad_flags=lambda need, requests: _blocks(requests),
    ),
    replace(
        find("oversized_batch", "many_seqs"),
        flags=(_SEQS, str(_GOOD_SEQS)),
        bad_flags=lambda need, factor: (_SEQS, str(round(factor * _GOOD_SEQS))),
    ),
    replace(
        find("budget_too_small", "small_budget"),
        flags=(_SEQS, "2", _BUDGET, "512"),
        bad_flags=lambda need, tokens: (_BUDGET, str(max(2, round(tokens)))),
    ),
)

MACHINE = (
    find("memory_bandwidth", "memcpy"),
    find("memory_bandwidth", "triad"),
    Mechanism(
        symptom="throttled",
        name="stopped",
        split=DEV,
        about="the worker's process is stopped and continued, 20 to 70 ms at a time",
        unit="of the time",
        levels=(0.3, 0.4, 0.5),
        harms=("itl_p50", "e2e_p50"),
        load=0.35,
        injection=lambda scene: _worker("stopper", scene.intensity, scene.seed),
    ),
    Mechanism(
        symptom="throttled",
        name="quota",
        split=TEST,
        about="the control group of vLLM's processes has a CPU quota",
        unit="of a core",
        levels=(0.7, 0.6, 0.5),
        harms=("itl_p50", "e2e_p50"),
        load=0.35,
        injection=lambda scene: CpuQuota(scene.intensity),
    ),
    Mechanism(
        symptom="host_stall",
        name="core_stopped",
        split=DEV,
        about="each second the engine core's process, not the worker, stands still",
        unit="ms",
        levels=(200.0, 300.0, 500.0),
        harms=("stall_p50",),
        load=0.5,
        injection=lambda scene: CoreStops(scene.intensity),
    ),
    # with the same priority, or a little better, a process hardly gets the core of vLLM's worker
    replace(find("cpu_starvation", "priority"), levels=(4.0, 5.0, 6.0)),
    Mechanism(
        symptom="engine_hung",
        name="stopped",
        split=DEV,
        about="the engine core's process is stopped and continued",
        unit="s",
        levels=(12.0, 15.0, 20.0),
        load=0.4,
        mix=_STREAMS,
        injection=lambda scene: EngineCoreStop(scene.intensity),
    ),
)

WORK = (
    find("ingest_backlog", "long_texts"),
    find("ingest_backlog", "many_ids"),
    find("grammar_cost", "deep_schemas"),
    find("grammar_cost", "open_regexes"),
    replace(find("slow_client", "slow"), flags=()),
    replace(find("slow_client", "stopped"), flags=()),
)

MECHANISMS: tuple[Mechanism, ...] = (*DEMAND, *LIMITS, *MACHINE, *WORK)
ABSTAINED = ("grammar_cost", "slow_client")
"""Classes that are not judged on vLLM, by name: what tells them is not seen there."""
HARMLESS = ("memory_bandwidth",)
"""Classes whose mechanisms do not harm it here: with one thread in float32 it computes, and waits
little for memory, so a copy on the other core makes a token 1 ms later. Like those above they are
in no series, but can be asked for."""
LAYERS = 6
"""Layers that run, of the model's 30, with random weights: on one core vLLM takes 80 ms for a step
of all 30, and a fault of half a minute would be over before requests tell it."""
_MODEL = ("--load-format", "dummy", "--hf-overrides", json.dumps({"num_hidden_layers": LAYERS}))
BASE_FLAGS = (*_MODEL, _SEQS, "16", _BUDGET, "256", _CONTEXT, "2048")


def symptoms() -> list[str]:
    """Every class, healthy ones included, each once."""
    return list(dict.fromkeys(one.symptom for one in MECHANISMS))


def judged() -> list[str]:
    """The symptoms that are judged on vLLM."""
    return [one for one in symptoms() if one not in (*ABSTAINED, *HARMLESS)]


def of_split(split: str, classes: Sequence[str]) -> list[Mechanism]:
    """One mechanism of each class: of that split, or the first where the class has none of it."""
    found = []
    for symptom in classes:
        mine = [one for one in MECHANISMS if one.symptom == symptom]
        found.append(next((one for one in mine if one.split == split), mine[0]))
    return found


NO_NEED = Need(blocks_total=0)
"""Bad flags of vLLM are absolute: they follow from nothing that the good server had."""
