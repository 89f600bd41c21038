"""Logs, traces, the machine's peaks, the flight recorder, SLO and metrics, the autopilot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from service.config.setting import ConfigError, Group, Unit, check_fields, setting

_LEAST_RECORD_BYTES = 1 << 20


class LogsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the service logs on stderr."""

    format: Annotated[
        Literal["text", "json"],
        setting(
            "--log-format",
            Group.LOGS,
            "json writes one object a line, with trace and span id where a request is concerned",
        ),
    ] = "text"

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be."""
        check_fields(self)


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans go and which are kept."""

    endpoint: Annotated[
        str | None,
        setting(
            "--otlp-endpoint",
            Group.TRACING,
            "OTLP receiver of the spans, as in http://localhost:4317",
            url=True,
            unset="the OTEL_EXPORTER_OTLP_* variables decide",
        ),
    ] = None
    protocol: Annotated[
        Literal["grpc", "http/protobuf"] | None,
        setting(
            "--otlp-protocol",
            Group.TRACING,
            "wire protocol of the spans",
            unset="the OTEL_EXPORTER_OTLP_* variables decide",
        ),
    ] = None
    service_name: Annotated[
        str | None,
        setting(
            "--service-name",
            Group.TRACING,
            "service.name of the spans",
            unset="OTEL_SERVICE_NAME, else phasescope",
        ),
    ] = None
    mode: Annotated[
        Literal["off", "sampled", "full"],
        setting(
            "--tracing",
            Group.TRACING,
            "full exports every trace; sampled keeps those that are slow, failed, cancelled, "
            "preempted, delayed others or belong to a sampled caller, and a share of the rest; may "
            "be changed while the server runs (PUT /debug/tracing)",
        ),
    ] = "full"
    rate: Annotated[
        float,
        setting(
            "--trace-rate",
            Group.TRACING,
            "the share of the rest that --tracing sampled keeps, chosen by trace id",
            unit=Unit.SHARE,
            metavar="SHARE",
            ge=0,
            le=1,
        ),
    ] = 0.01

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        check_fields(self)


class PeaksConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Measured peaks of this machine (`benchmarks.calibration`), for the roofline of an engine
    that computes on a CPU. None: not measured."""

    gb_per_s: Annotated[
        float | None,
        setting(
            "--peak-gb-per-s",
            Group.MACHINE,
            "memory bandwidth of this machine, as benchmarks.calibration measures it, for "
            "/debug/roofline on a CPU; a GPU states its own",
            unit=Unit.GB_PER_S,
            metavar="GB/S",
            unset="not measured",
            gt=0,
        ),
    ] = None
    gflop_per_s: Annotated[
        float | None,
        setting(
            "--peak-gflop-per-s",
            Group.MACHINE,
            "peak of matrix products of this machine, likewise",
            unit=Unit.GFLOP_PER_S,
            metavar="GFLOP/S",
            unset="not measured",
            gt=0,
        ),
    ] = None

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be."""
        check_fields(self)


class RecorderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The flight recorder, and what is kept of ended requests."""

    journal_bytes: Annotated[
        int,
        setting(
            "--journal-memory",
            Group.RECORDER,
            "memory for the journal of the last minutes; 0 turns the flight recorder off",
            unit=Unit.BYTES,
            ge=0,
        ),
    ] = 64 * 1024 * 1024
    timeline_bytes: Annotated[
        int,
        setting(
            "--timeline-memory",
            Group.RECORDER,
            "memory for phases and ledgers of ended requests (/debug/requests/{id}, explain); the "
            "oldest are dropped first",
            unit=Unit.BYTES,
            ge=_LEAST_RECORD_BYTES,
        ),
    ] = 64 * 1024 * 1024
    journal_dir: Annotated[
        str | None,
        setting(
            "--journal-dir",
            Group.RECORDER,
            "also write the journal to files there, so that it survives a kill of the server",
            metavar="DIR",
            unset="in memory only",
        ),
    ] = None
    dump_dir: Annotated[
        str | None,
        setting(
            "--dump-dir",
            Group.RECORDER,
            "where dumps of the journal go",
            metavar="DIR",
            unset="~/.cache/phasescope/dumps",
        ),
    ] = None
    dumps_kept: Annotated[
        int,
        setting(
            "--dumps-kept",
            Group.RECORDER,
            "dumps that are kept; the oldest are removed",
            unit=Unit.FILES,
            ge=1,
        ),
    ] = 16
    stall_s: Annotated[
        float,
        setting(
            "--stall-seconds",
            Group.RECORDER,
            "dump when an engine with work commits no step for so long; 0: never",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            hint="0 turns the watchdog off",
            ge=0,
        ),
    ] = 10.0
    root_cause: Annotated[
        bool,
        setting(
            "--root-cause",
            Group.RECORDER,
            "while something is wrong, replay the journal to find its root cause, in a process of "
            "the lowest priority that takes a twentieth of one core",
        ),
    ] = True
    report_dir: Annotated[
        str | None,
        setting(
            "--report-dir",
            Group.RECORDER,
            "write a folder there for each incident: an HTML report, the stacks of both processes "
            "and a dump, with no prompt or output in it",
            metavar="DIR",
            unset="no reports",
        ),
    ] = None
    reports_kept: Annotated[
        int,
        setting(
            "--reports-kept",
            Group.RECORDER,
            "incident folders that are kept; the oldest are removed",
            unit=Unit.FOLDERS,
            ge=1,
        ),
    ] = 8
    report_interval_s: Annotated[
        float,
        setting(
            "--report-interval",
            Group.RECORDER,
            "least time between two reports",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            ge=1,
        ),
    ] = 300.0

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        check_fields(self)
        if self.report_dir is not None and not self.journal_bytes:
            raise ConfigError("--report-dir needs the flight recorder: --journal-memory is 0")
        if self.journal_bytes and self.journal_bytes < _LEAST_RECORD_BYTES:
            raise ConfigError("--journal-memory must be 0 (off) or at least 1MiB")
        if self.journal_dir is not None:
            same = Path(self.journal_dir).resolve() == self.dump_folder.resolve()
            if same and self.journal_bytes:
                raise ConfigError(
                    f"--journal-dir {self.journal_dir}: dumps go there too, and each would remove "
                    "the files of the other: give two folders (--journal-dir, --dump-dir)"
                )

    @property
    def dump_folder(self) -> Path:
        """Where dumps go; by default below `$XDG_CACHE_HOME`, or ~/.cache."""
        if self.dump_dir is not None:
            return Path(self.dump_dir)
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(cache) / "phasescope" / "dumps"


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """SLO classes, cost, baseline, and which metrics go where."""

    slo_file: Annotated[
        str | None,
        setting(
            "--slo-file",
            Group.METRICS,
            "SLO classes and their targets, as TOML or JSON",
            metavar="FILE",
            unset="voice, code, chat and batch with a first token in 150, 200, 500 and 2000 ms and "
            "100 ms between tokens",
        ),
    ] = None
    price_per_hour: Annotated[
        float | None,
        setting(
            "--price-per-hour",
            Group.METRICS,
            "cost of this server for an hour, in any currency; /debug/slo then has the cost of a "
            "million tokens",
            unit=Unit.CURRENCY,
            metavar="PRICE",
            unset="no costs",
            hint="leave it out for no costs",
            gt=0,
        ),
    ] = None
    baseline: Annotated[
        str | None,
        setting(
            "--baseline",
            Group.METRICS,
            "compare with this file, which `phasescope diagnose --save-baseline` wrote while a "
            "server was well; a server with a wrong configuration cannot know it otherwise",
            metavar="FILE",
            unset="the server's own last forty seconds",
        ),
    ] = None
    vllm_names: Annotated[
        bool,
        setting(
            "--vllm-metrics",
            Group.METRICS,
            "also expose metrics that vLLM has under vLLM's names",
        ),
    ] = False
    otlp: Annotated[
        bool,
        setting(
            "--otlp-metrics",
            Group.METRICS,
            "send metrics to the OTLP receiver too, if one is set",
            word=True,
        ),
    ] = True

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        check_fields(self)


class AutopilotConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Whether limits that can change at run time are proposed, or also set, and which."""

    mode: Annotated[
        Literal["off", "advise", "act"],
        setting(
            "--autopilot",
            Group.AUTOPILOT,
            "while something is wrong or a class misses its objective, search the last minute for "
            "a better limit (in a process of the lowest priority, a tenth of one core); advise "
            "says it, act sets it, measures what came of it, and keeps it or goes back",
        ),
    ] = "advise"
    bounds_file: Annotated[
        str | None,
        setting(
            "--autopilot-bounds",
            Group.AUTOPILOT,
            "which limits the autopilot may set, and how far, as TOML",
            metavar="FILE",
            unset="max_batched_tokens and max_auto_tokens from 16 to 8192, max_num_seqs and "
            "tenant_max_seqs from 1 to 1024, speculative_tokens from 0 to 16, order, and "
            "prefix_cache to on",
        ),
    ] = None

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be."""
        check_fields(self)
