"""Faults that a GPU's own measurements tell apart: heat, power, another process, a slow rank, a
late launch, an error that the driver reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lab.twins.fault import Fault
from lab.twins.gpus import GpuFault
from lab.twins.physics import MS, SECOND, Slowdown
from lab.twins.simulated_run import Death, Outage, SimulatedRun, Span
from lab.twins.traffic import Setting
from service.engine.plan import Plan
from telemetry.facts.reasons import ClockEvent, StepFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMechanism:
    """`symptom` is the truth; `said` is what a claim or a culprit must contain."""

    symptom: str
    fault: Fault
    said: str = ""


def _gpus(count: int, *unmeasured: str) -> Callable[[Setting, Random], None]:
    def prepare(setting: Setting, draw: Random) -> None:
        setting.gpus, setting.unmeasured = count, frozenset(unmeasured)

    return prepare


def _slow(run: SimulatedRun, span: Span, factor: float, prompt: float | None = None) -> None:
    run.slowdowns.append(
        Slowdown(
            begin_ns=span.begin_ns,
            end_ns=span.end_ns,
            base=factor,
            decode=factor,
            context=factor,
            prompt=factor if prompt is None else prompt,
        )
    )


def _differs(run: SimulatedRun, span: Span, **how: int | float) -> None:
    assert run.gpus is not None
    run.gpus.faults.append(GpuFault(begin_ns=span.begin_ns, end_ns=span.end_ns, **how))  # type: ignore[arg-type]


def _heat(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The driver lowers the clock to cool the GPU."""
    factor = draw.uniform(1.5, 1.9)
    _slow(run, span, factor)
    events = int(ClockEvent.SW_THERMAL_SLOWDOWN | ClockEvent.HW_THERMAL_SLOWDOWN)
    clock_mhz = int(1980 / factor)
    _differs(run, span, clock_mhz=clock_mhz, events=events, temperature_c=91.0, power_w=310.0)


def _power(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A lower power limit caps the clock. Prompts compute most, and become slower than decodes."""
    factor = draw.uniform(1.4, 1.6)
    _slow(run, span, factor, prompt=factor * 1.1)
    events = int(ClockEvent.SW_POWER_CAP)
    _differs(run, span, clock_mhz=int(1980 / factor), events=events, power_w=250.0)


def _other_process(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Another process takes memory and bandwidth of the same GPU; all kernels wait for it."""
    factor = draw.uniform(1.5, 1.9)
    _slow(run, span, factor, prompt=factor * draw.uniform(0.9, 1.0))
    _differs(run, span, memory_more_bytes=9 << 30, dram_more_pct=draw.uniform(30, 45))


def _slow_rank(run: SimulatedRun, span: Span, draw: Random) -> None:
    """One of four ranks is slower, and the others wait for it."""
    _differs(run, span, gpu=2, slower=draw.uniform(1.5, 1.8))


def _hot_rank(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The same, and its GPU says why."""
    events = int(ClockEvent.HW_SLOWDOWN)
    _differs(run, span, gpu=3, slower=draw.uniform(1.5, 1.8), clock_mhz=1100, events=events)


def _late_launch(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The host needs long to launch a step; the device is as fast as it was."""
    _differs(run, span, launch_ns=int(draw.uniform(14, 20) * MS))


def _failing_kernels(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Steps fail with an error of the device, each with an XID of the driver."""
    assert run.gpus is not None
    gpus, every_ns = run.gpus, int(draw.uniform(1.5, 2.5) * SECOND)
    last_ns = [span.begin_ns - every_ns]

    def fails(plan: Plan, at_ns: int) -> StepFailure | None:
        if not span.has(at_ns) or at_ns < last_ns[0] + every_ns:
            return None
        last_ns[0] = at_ns
        gpus.xids.append((at_ns + 5 * MS, 0, 31))
        return StepFailure.KERNEL_ERROR

    run.fails = fails


def _lost_gpu(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The GPU falls off the bus: the engine ends without a word of its own."""
    assert run.gpus is not None
    begin_ns = span.begin_ns
    run.gpus.xids.append((begin_ns - 20 * MS, 0, 79))
    down_ns = begin_ns + int(draw.uniform(8, 12) * SECOND)
    death = Death(begin_ns, -6, "the engine process ended by signal 6")
    run.outage = Outage(begin_ns, down_ns, (death,))
    run.injected = Span(begin_ns, down_ns)


GPU_FAULTS: dict[str, GpuMechanism] = {
    "heat": GpuMechanism(
        symptom="throttled", fault=Fault(prepare=_gpus(1), inject=_heat), said="thermal"
    ),
    "power": GpuMechanism(
        symptom="throttled", fault=Fault(prepare=_gpus(1), inject=_power), said="sw_power_cap"
    ),
    "other_process": GpuMechanism(
        symptom="memory_bandwidth",
        fault=Fault(prepare=_gpus(1), inject=_other_process),
        said="gpu 0",
    ),
    "other_process_without_counters": GpuMechanism(
        symptom="memory_bandwidth",
        fault=Fault(prepare=_gpus(1, "dram_bandwidth_pct", "clock_events"), inject=_other_process),
        said="gpu 0",
    ),
    "slow_rank": GpuMechanism(
        symptom="throttled", fault=Fault(prepare=_gpus(4), inject=_slow_rank), said="rank 2"
    ),
    "hot_rank": GpuMechanism(
        symptom="throttled", fault=Fault(prepare=_gpus(4), inject=_hot_rank), said="rank 3"
    ),
    "late_launch": GpuMechanism(
        symptom="host_stall", fault=Fault(prepare=_gpus(1), inject=_late_launch), said="launches"
    ),
    "failing_kernels": GpuMechanism(
        symptom="step_failure",
        fault=Fault(prepare=_gpus(1), inject=_failing_kernels),
        said="XID 31",
    ),
    "lost_gpu": GpuMechanism(
        symptom="step_failure", fault=Fault(prepare=_gpus(2), inject=_lost_gpu), said="XID 79"
    ),
    "healthy": GpuMechanism(symptom="healthy", fault=Fault(prepare=_gpus(2))),
}
"""Mechanisms by name, with a healthy server that has GPUs."""
