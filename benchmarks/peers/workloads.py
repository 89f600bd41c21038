"""The five loads, each as a run of `phasescope bench`, and the figures taken from its result.

    c1 c8 c16   closed loop, so many clients, 64 tokens in and 128 out
    pf          prompts of 1,500 tokens one at a time, 8 tokens out, nothing else running
    mix         six steady clients (64 in, 200 out) while a 1,500-token prompt arrives every 2 s

Prompts travel as text, cut to exact lengths, so that every server tokenizes for itself; the
salt is of the repetition and the load, so that all servers get the same prompts in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.layout import Layout
from benchmarks.peers.recipes import Start
from benchmarks.samples import least_count
from lab.load.errors import BenchError
from lab.load.result import BenchResult, ClassResult, Latency, Progress, Spread
from lab.load.run import run_bench
from lab.load.spec import BenchSpec, ClassSpec, Fixed, Interval, PromptForm, Users
from service.config.settings import ConfigError

SHORT, LONG = 64, 1500
_DRAIN_S = 120.0
_STEADY, _INJECTED = "steady", "injected"


@dataclass(frozen=True)
class Load:
    """One workload; a first wave is not counted. The window lasts `seconds`, or `requests` long.

    One client has no tail, so its window may end with a reply; many clients are cut at a moment,
    or the last of them would be measured at a lower concurrency.
    """

    name: str
    seconds: float
    classes: tuple[ClassSpec, ...]
    requests: int | None = None
    warmup_requests: int = 0


def loads(scale: float, mix_interval_s: float) -> dict[str, Load]:
    """All of them, windows stretched by `scale`."""

    def single(name: str, requests: float, seconds: float, lengths: Fixed) -> Load:
        one = ClassSpec(name=name, lengths=lengths, arrivals=Users(1))
        count = max(1, round(requests * scale))
        return Load(name, seconds * scale, (one,), requests=count, warmup_requests=1)

    def closed(name: str, users: int, seconds: float, lengths: Fixed) -> Load:
        one = ClassSpec(name=name, lengths=lengths, arrivals=Users(users))
        return Load(name, seconds * scale, (one,), warmup_requests=users)

    steady = ClassSpec(name=_STEADY, lengths=Fixed(SHORT, 200), arrivals=Users(6))
    injected = ClassSpec(name=_INJECTED, lengths=Fixed(LONG, 8), arrivals=Interval(mix_interval_s))
    all_loads = (
        single("c1", 3, 12, Fixed(SHORT, 128)),
        closed("c8", 8, 18, Fixed(SHORT, 128)),
        closed("c16", 16, 24, Fixed(SHORT, 128)),
        single("pf", 5, 12, Fixed(LONG, 8)),
        # a first wave here would be most of what a slow server does
        Load("mix", 30 * scale, (steady, injected)),
    )
    return {load.name: load for load in all_loads}


def estimated_s(load: Load) -> float:
    """Window, first wave and the last replies, on a machine where a reply takes some seconds."""
    return load.seconds + 12.0


def measure(
    load: Load, url: str, start: Start, layout: Layout, salt: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Figures and checks of one cell; an `error` instead where the server cannot be measured."""
    spec = BenchSpec(
        url=url,
        classes=load.classes,
        model=start.model,
        prompt_form=PromptForm.TEXT,
        tokenizer=str(layout.hf),
        corpus=str(layout.corpus),
        extra_body=start.extra_body,
        duration_s=None if load.requests else load.seconds,
        requests=load.requests,
        warmup_requests=load.warmup_requests,
        drain_s=_DRAIN_S,
        salt=salt,
    )
    told_s = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal told_s
        if progress.elapsed_s - told_s >= 10:
            told_s = progress.elapsed_s
            tell(f"{told_s:.0f} s, {progress.ok} replies, {progress.chunks} tokens")

    try:
        result = run_bench(spec, on_progress)
    except (BenchError, ConfigError) as error:
        return {"error": str(error)}
    if result.partial:
        raise KeyboardInterrupt
    return {"figures": _figures(load, result), "checks": _checks(load, result)}


def _figures(load: Load, result: BenchResult) -> dict[str, float | None]:
    """In ms and tokens/s. ITL of `mix` is the steady streams', TTFT the injected prompts'."""
    found = {one.name: one for one in result.classes}
    streams = found[_STEADY] if load.name == "mix" else found[load.name]
    prompts = found[_INJECTED] if load.name == "mix" else streams
    figures: dict[str, float | None] = {
        "tokens_per_s": streams.throughput.output_tokens_per_s,
        **_latency("ttft", prompts.ttft),
        **_latency("itl", streams.itl),
    }
    if load.name == "mix":
        figures["injected_per_s"] = prompts.throughput.requests_per_s
    return figures


def _latency(name: str, latency: Latency | None) -> dict[str, float | None]:
    """Without a p99 of too few, which is their maximum."""
    least = {"p50": 1, "p99": least_count(0.99), "max": 1}
    return {
        f"{name}_{share}_ms": getattr(latency, f"{share}_ms")
        if latency is not None and latency.count >= count
        else None
        for share, count in least.items()
    }


def _checks(load: Load, result: BenchResult) -> dict[str, Any]:
    """What must be so for the cell to count; `problems` is empty when it does."""
    problems: list[str] = []
    for asked, one in zip(load.classes, result.classes, strict=True):
        assert isinstance(asked.lengths, Fixed)
        problems += problems_of(one, asked.lengths)
    return {
        "counted": result.total.counted,
        "ok": result.total.ok,
        "chunks": result.total.chunks,
        "tokens": result.total.chunk_tokens,
        "cached_tokens": result.total.cached_tokens,
        "server_software": result.server.software,
        "models": [entry["id"] for entry in (result.server.models or {}).get("data", ())],
        "problems": problems,
    }


def problems_of(one: ClassResult, lengths: Fixed) -> list[str]:
    """Why a class was not served as asked; empty when it was."""
    found = [f"{one.name}: {e.count} x {e.kind.value}: {e.example}" for e in one.errors]
    if one.ok == 0:
        found.append(f"{one.name}: no whole reply in the window")
    if one.cached_tokens:
        found.append(f"{one.name}: {one.cached_tokens} prompt tokens came from a cache")
    for what, seen, wanted in (
        ("prompt", one.prompt_seen, lengths.prompt),
        ("output", one.output_seen, lengths.output),
    ):
        if seen is not None and not _exact(seen, wanted):
            found.append(f"{one.name}: {what} of {seen.min} to {seen.max} tokens, asked {wanted}")
    return found


def _exact(seen: Spread, wanted: int) -> bool:
    return seen.min == seen.max == wanted
