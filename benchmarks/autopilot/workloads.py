"""Workloads that shift, on a server with nothing wrong.

A workload is parts, one after another, each with its streams; all are drawn from its seed.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.autopilot.drills import CHAT, ESSAY, LONG, Stream

PLACES = 64
"""Slots of a server as it starts by default. Loads are shares of what as many clients get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`parts` take turns, `part_s` seconds each, and begin again after the last."""

    name: str
    seed: int
    parts: tuple[tuple[Stream, ...], ...]
    part_s: float = 120.0


def _chat(load: float, tenant: str = "calm") -> Stream:
    return Stream(mix=CHAT, load=load, tenant=tenant)


HEAVIEST = (_chat(0.85),)  # what is promised is what it keeps

SHIFTING: tuple[Workload, ...] = (
    Workload(name="shifting-steps", seed=5200, parts=((_chat(0.3),), (_chat(0.8),))),
    Workload(
        name="shifting-lengths",
        seed=5201,
        parts=((_chat(0.6),), (Stream(mix=LONG, load=0.6),)),
    ),
    Workload(
        name="shifting-kinds",
        seed=5202,
        parts=((_chat(0.6),), (Stream(mix=ESSAY, load=0.6),), (_chat(0.3),)),
    ),
    Workload(
        name="shifting-tenants",
        seed=5203,
        parts=(
            (_chat(0.3),),
            (_chat(0.3), Stream(mix=ESSAY, load=0.9, tenant="flood")),
        ),
    ),
    Workload(
        name="shifting-overload",
        seed=5204,
        parts=((_chat(0.5),), (_chat(1.15),), (_chat(0.2),)),
        part_s=100.0,
    ),
)
