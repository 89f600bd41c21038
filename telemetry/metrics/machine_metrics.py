"""Values of the machine's metrics: pauses and the requests they delayed, samples, GPUs,
roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from telemetry.facts.host_records import HostSampled
from telemetry.host.gpu import GpuSample
from telemetry.host.host_impact import HostImpact
from telemetry.host.machine import MachineWatch
from telemetry.host.roofline import Peaks, RooflineView, StepKind, Work
from telemetry.metrics.catalog import engine
from telemetry.metrics.catalog import machine as catalog
from telemetry.metrics.metric import Metric

Family = tuple[Metric, list[tuple[Mapping[str, str], float]]]
_WINDOW_FIELDS = ("at_ns", "window_ns", "unavailable")


def heartbeat_families(age_ns: int | None, hangs: int) -> Iterator[Family]:
    """Heartbeat of the engine process; `age_ns` is None before an engine has loaded."""
    yield engine.ENGINE_HEARTBEAT_AGE, [] if age_ns is None else [({}, age_ns / 1e9)]
    yield engine.ENGINE_HUNG, [({}, float(hangs))]


def pause_families(impact: HostImpact) -> Iterator[Family]:
    """Counters of pauses by process and cause."""
    totals = [
        ({"process": process, "cause": cause}, found)
        for (process, cause), found in sorted(impact.totals.items())
    ]
    yield catalog.HOST_PAUSES, [(labels, float(found.pauses)) for labels, found in totals]
    yield catalog.HOST_PAUSE_SECONDS, [(labels, found.lost_ns / 1e9) for labels, found in totals]
    yield catalog.HOST_VICTIMS, [(labels, float(found.victims)) for labels, found in totals]
    yield (
        catalog.HOST_VICTIM_SECONDS,
        [(labels, found.victims_ns / 1e9) for labels, found in totals],
    )


def host_families(sample: HostSampled | None) -> Iterator[Family]:
    """The last sample of the host; quantities without a value are absent."""
    if sample is None:
        return
    yield (
        catalog.HOST,
        [
            ({"quantity": quantity}, float(value))
            for quantity, value in msgspec.structs.asdict(sample).items()
            if quantity not in _WINDOW_FIELDS and value is not None
        ],
    )


def gpu_families(
    samples: Sequence[GpuSample], xids: Mapping[tuple[str, int | None], int]
) -> Iterator[Family]:
    """The quantities and errors of each GPU."""
    yield (
        catalog.GPU,
        [
            ({"gpu": sample.gpu or "?", "quantity": quantity}, value)
            for sample in samples
            for quantity in sample.values
            if (value := sample.number(quantity)) is not None
        ],
    )
    yield (
        catalog.GPU_XIDS,
        [
            ({"gpu": gpu, "xid": "none" if xid is None else str(xid)}, float(count))
            for (gpu, xid), count in sorted(xids.items(), key=lambda item: str(item[0]))
        ],
    )


def roofline_families(
    totals: Mapping[StepKind, Work], view: RooflineView, peaks: Peaks
) -> Iterator[Family]:
    """Counters by kind of step, whose ratios are rates, and the utilization of the last seconds."""
    by_kind = [({"kind": kind.value}, work) for kind, work in totals.items() if work.steps]
    yield catalog.STEP_SECONDS, [(labels, work.span_ns / 1e9) for labels, work in by_kind]
    yield catalog.FORWARD_SECONDS, [(labels, work.forward_ns / 1e9) for labels, work in by_kind]
    yield catalog.MODELLED_BYTES, [(labels, work.bytes) for labels, work in by_kind]
    yield catalog.MODELLED_FLOPS, [(labels, work.flop) for labels, work in by_kind]
    for metric, field in ((catalog.MBU, "mbu"), (catalog.MFU, "mfu")):
        shares = {kind: getattr(found, field) for kind, found in view.achieved.items()}
        yield (
            metric,
            [({"kind": kind}, share) for kind, share in shares.items() if share is not None],
        )
    peak_values = {"bytes": peaks.bytes_per_s, "flops": peaks.flop_per_s}
    yield (
        catalog.PEAK,
        [({"of": name}, value) for name, value in peak_values.items() if value is not None],
    )
    measured = view.bandwidth.measured_gb_per_s
    yield (
        catalog.MEASURED_BANDWIDTH,
        [] if measured is None else [({"provenance": view.bandwidth.provenance}, measured * 1e9)],
    )


def machine_families(machine: MachineWatch) -> list[Family]:
    """All families of the machine. Hold the pump's lock."""
    gpu = gpu_families(machine.gpu.all_latest(), machine.gpu.xid_counts())
    if not machine.enabled:
        return list(gpu)
    roofline = machine.roofline
    return [
        *gpu,
        *pause_families(machine.impact),
        *host_families(machine.impact.sample),
        *roofline_families(roofline.totals, machine.roofline_view(), roofline.peaks),
    ]
