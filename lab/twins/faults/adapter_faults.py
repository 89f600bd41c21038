"""Faults of adapters: more of them are asked for than there is memory for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random

from lab.simulation.sim_adapters import SimAdapter
from lab.twins.fault import Fault, Mechanisms
from lab.twins.physics import MS
from lab.twins.simulated_run import SimulatedRun, Span
from lab.twins.traffic import Setting
from telemetry.facts.adapter_records import AdapterLoaded
from telemetry.facts.records import Fact, SequenceSubmitted

_BYTES = 20 << 20
_KNOWN, _USED = 12, 4


def _several_adapters(setting: Setting, draw: Random) -> None:
    """Memory for the adapters that are used; more are known."""
    setting.adapters = tuple(
        SimAdapter(
            name=f"adapter-{number}",
            bytes=_BYTES,
            read_ns=int(draw.uniform(200, 400) * MS),
            place_ns=int(draw.uniform(5, 15) * MS),
        )
        for number in range(_KNOWN)
    )
    setting.adapters_used = _USED
    setting.limits = replace(setting.limits, adapter_bytes=_USED * _BYTES, max_adapters=_KNOWN)


def _many_adapters(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Requests name all adapters that are known."""
    for spec in run.arriving_in(span):
        if spec.adapter:
            spec.adapter = draw.randint(1, _KNOWN)


def _less_memory(setting: Setting, good: Sequence[Fact], draw: Random) -> None:
    setting.limits = replace(setting.limits, adapter_bytes=_BYTES)


def _waited(facts: Sequence[Fact], culprits: Collection[str]) -> frozenset[str]:
    """Requests that a load was waited for."""
    woken = {seq_id for fact in facts if isinstance(fact, AdapterLoaded) for seq_id in fact.seq_ids}
    return frozenset(
        fact.request_id
        for fact in facts
        if isinstance(fact, SequenceSubmitted) and fact.seq_id in woken
    )


ADAPTERS: Mechanisms = {
    "many": Fault(prepare=_several_adapters, inject=_many_adapters, victims=_waited),
    "memory": Fault(prepare=_several_adapters, misconfigure=_less_memory, victims=_waited),
}
