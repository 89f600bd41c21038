"""Metrics of the machine: pauses of the processes, host samples, GPUs, and the roofline."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

GPU = Metric(
    "phasescope_gpu",
    Kind.GAUGE,
    "A quantity that NVML reports for a GPU; the unit ends the name of the quantity.",
    ("gpu", "quantity"),
)
GPU_XIDS = Metric(
    "phasescope_gpu_xids",
    Kind.COUNTER,
    "Number of errors that the driver reported for a GPU, by XID.",
    ("gpu", "xid"),
)
HOST = Metric(
    "phasescope_host",
    Kind.GAUGE,
    "A quantity of the host over the last second; the unit ends the name of the quantity.",
    ("quantity",),
)
HOST_PAUSES = Metric(
    "phasescope_host_pauses",
    Kind.COUNTER,
    "Number of pauses in which a process made no progress, by process and cause.",
    ("process", "cause"),
)
HOST_PAUSE_SECONDS = Metric(
    "phasescope_host_pause_seconds",
    Kind.COUNTER,
    "Seconds in which a process made no progress, by process and cause.",
    ("process", "cause"),
)
HOST_VICTIMS = Metric(
    "phasescope_host_victims",
    Kind.COUNTER,
    "Number of requests delayed by a pause of a process, by process and cause.",
    ("process", "cause"),
)
HOST_VICTIM_SECONDS = Metric(
    "phasescope_host_victim_seconds",
    Kind.COUNTER,
    "Seconds of latency that pauses of a process added to requests, summed over requests, "
    "by process and cause.",
    ("process", "cause"),
)
STEP_SECONDS = Metric(
    "phasescope_step_seconds",
    Kind.COUNTER,
    "Seconds from the end of one step to the end of the next, by kind of step.",
    ("kind",),
)
FORWARD_SECONDS = Metric(
    "phasescope_forward_seconds",
    Kind.COUNTER,
    "Seconds of forward passes, by kind of step.",
    ("kind",),
)
MODELLED_BYTES = Metric(
    "phasescope_modelled_bytes",
    Kind.COUNTER,
    "Bytes that steps must at least read from memory, by kind of step.",
    ("kind",),
)
MODELLED_FLOPS = Metric(
    "phasescope_modelled_flops",
    Kind.COUNTER,
    "Floating point operations that steps must at least compute, by kind of step.",
    ("kind",),
)
MBU = Metric(
    "phasescope_mbu",
    Kind.GAUGE,
    "Model bandwidth utilization of the last seconds: bytes that steps must read, as a "
    "share (0 to 1) of the peak.",
    ("kind",),
)
MFU = Metric(
    "phasescope_mfu",
    Kind.GAUGE,
    "Model FLOPs utilization of the last seconds: operations that steps must compute, as "
    "a share (0 to 1) of the peak.",
    ("kind",),
)
PEAK = Metric(
    "phasescope_peak_per_second",
    Kind.GAUGE,
    "Peak rate of the hardware, in bytes or floating point operations a second.",
    ("of",),
)
MEASURED_BANDWIDTH = Metric(
    "phasescope_measured_bytes_per_second",
    Kind.GAUGE,
    "Memory traffic in bytes a second, by hardware counters.",
    ("provenance",),
)
