"""The machine below a server: its processes, its memory traffic, and its GPUs."""

from __future__ import annotations

from dashboards.grafana.queries import RATE_WINDOW, highest, rate, samples, total
from dashboards.grafana.spec import Board, Needs, Panel, Query, Row
from telemetry.metrics.catalog import machine


def _host(title: str, pattern: str, unit: str, about: str, factor: str = "") -> Panel:
    """Quantities of the host by a pattern of their names. Nanoseconds of a second are a share."""
    value = highest(machine.HOST, "instance", "quantity", where=(f'quantity=~"{pattern}"',))
    return Panel(
        title=title,
        queries=(Query(f"{value}{factor}", "{{instance}} {{quantity}}"),),
        unit=unit,
        about=about,
    )


def _gpu(title: str, pattern: str, unit: str, about: str, factor: str = "") -> Panel:
    value = highest(machine.GPU, "instance", "gpu", "quantity", where=(f'quantity=~"{pattern}"',))
    return Panel(
        title=title,
        queries=(Query(f"{value}{factor}", "{{instance}} {{gpu}} {{quantity}}"),),
        unit=unit,
        about=about,
        needs=Needs.GPU,
    )


_SLOWED = (
    "max by (instance, gpu, quantity) (rate("
    + samples(machine.GPU, 'quantity=~"power_capped_s|power_braked_s|thermally_.*_s"')
    + f"[{RATE_WINDOW}]))"
)

_PROCESSES = Row(
    title="Processes",
    panels=(
        _host(
            "Main threads running, and waiting for a CPU",
            ".*_(run|wait)_ns",
            "percentunit",
            "Of the last second. Waiting means that something else has the CPU.",
            " / 1e9",
        ),
        _host("Resident memory", ".*_resident_bytes", "bytes", "Of each process."),
        _host(
            "Longest lag of the gateway's event loop",
            "loop_lag_max_ns",
            "s",
            "In the last second.",
            " / 1e9",
        ),
        _host(
            "Time taken by the hypervisor and by quotas",
            "steal_ns|throttled_ns",
            "percentunit",
            "Steal is over all CPUs; throttled is the CPU quota of the cgroup.",
            " / 1e9",
        ),
        _host(
            "Pressure",
            "pressure_.*_ns",
            "percentunit",
            "Time in which at least one task waited for CPU, memory or I/O (PSI).",
            " / 1e9",
        ),
        Panel(
            title="Pauses of the processes",
            queries=(
                Query(
                    rate(machine.HOST_PAUSE_SECONDS, "process", "cause"), "{{process}} {{cause}}"
                ),
            ),
            unit="percentunit",
            about=machine.HOST_PAUSE_SECONDS.help,
        ),
        Panel(
            title="Number of pauses",
            queries=(
                Query(rate(machine.HOST_PAUSES, "process", "cause"), "{{process}} {{cause}}"),
            ),
            unit="cps",
            about=machine.HOST_PAUSES.help,
        ),
    ),
)

_ROOFLINE = Row(
    title="What steps must read and compute",
    panels=(
        Panel(
            title="Bytes that steps must read",
            queries=(Query(rate(machine.MODELLED_BYTES, "instance"), "{{instance}} modelled"),),
            unit="Bps",
            about=machine.MODELLED_BYTES.help,
        ),
        Panel(
            title="Operations that steps must compute",
            queries=(Query(rate(machine.MODELLED_FLOPS, "instance"), "{{instance}} modelled"),),
            unit="flops",
            about=machine.MODELLED_FLOPS.help,
        ),
        Panel(
            title="Utilization of the model (MBU, MFU)",
            queries=(
                Query(highest(machine.MBU, "instance", "kind"), "{{instance}} {{kind}} bandwidth"),
                Query(highest(machine.MFU, "instance", "kind"), "{{instance}} {{kind}} FLOPs"),
            ),
            unit="percentunit",
            about=f"{machine.MBU.help} {machine.MFU.help}",
            needs=Needs.PEAKS,
        ),
        Panel(
            title="Peaks of the machine",
            queries=(Query(highest(machine.PEAK, "instance", "of"), "{{instance}} {{of}}"),),
            about=machine.PEAK.help,
            needs=Needs.PEAKS,
        ),
        Panel(
            title="Memory traffic, measured",
            queries=(
                Query(
                    highest(machine.MEASURED_BANDWIDTH, "instance", "provenance"),
                    "{{instance}} {{provenance}}",
                ),
            ),
            unit="Bps",
            about=machine.MEASURED_BANDWIDTH.help,
            needs=Needs.COUNTERS,
        ),
    ),
)

_GPUS = Row(
    title="GPUs",
    panels=(
        _gpu(
            "Busy",
            "(gpu|sm|tensor|memory_controller)_busy_pct|sm_occupancy_pct",
            "percent",
            "gpu_busy is the share of time in which anything ran, which says little; sm_busy and "
            "tensor_busy come from hardware counters.",
        ),
        _gpu(
            "Memory bandwidth in use",
            "dram_bandwidth_pct",
            "percent",
            "Of the peak, from hardware counters.",
        ),
        _gpu("Memory", "memory_.*_bytes", "bytes", "What the driver reserves is not in used."),
        _gpu("Power", "power.*_w", "watt", "Drawn, and the limit that is enforced."),
        _gpu("Temperature", ".*temperature_c", "celsius", "Of the chip and of its memory."),
        _gpu(
            "Clocks",
            ".*_clock.*_mhz",
            "hertz",
            "Below the highest one under load: throttled by power or heat.",
            " * 1e6",
        ),
        Panel(
            title="Time slowed down by power or heat",
            queries=(Query(_SLOWED, "{{instance}} {{gpu}} {{quantity}}"),),
            unit="percentunit",
            about="Share of the time in which the driver lowered the clocks, by its reason.",
            needs=Needs.GPU,
        ),
        _gpu("PCIe and NVLink", "(pcie|nvlink)_.*_bytes_per_s", "Bps", "Sent and received."),
        _gpu(
            "Errors of memory and bus",
            "ecc_.*|remap.*|pcie_replays",
            "short",
            "Corrected ones are early signs; a failed remapping wants a new GPU.",
        ),
        Panel(
            title="Errors of the driver since the start",
            queries=(
                Query(
                    total(machine.GPU_XIDS, "instance", "gpu", "xid"),
                    "{{instance}} {{gpu}} XID {{xid}}",
                ),
            ),
            about=machine.GPU_XIDS.help,
            needs=Needs.GPU,
        ),
    ),
)

BOARD = Board(
    name="machine",
    title="phasescope / Host and GPU",
    about="The machine below a server: its processes, its memory traffic, and its GPUs.",
    rows=(_PROCESSES, _ROOFLINE, _GPUS),
)
