"""Everything that `phasescope serve` is told, and the names that other packages import.

A value that is measured at start (the number of cache blocks) is not a setting: it is
an argument of whatever needs it.
"""

from __future__ import annotations

import msgspec

from service.config.attach_settings import AttachConfig
from service.config.console_settings import ConsoleConfig
from service.config.engine_settings import EXECUTORS, EngineConfig
from service.config.fleet_settings import FleetConfig, NodeConfig
from service.config.gateway_settings import (
    ANY_ADDRESS,
    DEFAULT_COMPAT,
    LEAST_ENGINE_DEADLINE_S,
    Compat,
    GatewayConfig,
    KeysSettings,
)
from service.config.http_settings import HttpConfig
from service.config.model_ref import ModelKind, ModelRef, ModelSettings, SamplingDefaults
from service.config.setting import ConfigError
from service.config.telemetry_settings import (
    AutopilotConfig,
    LogsConfig,
    MetricsConfig,
    PeaksConfig,
    RecorderConfig,
    TracingConfig,
)

__all__ = [
    "ANY_ADDRESS",
    "DEFAULT_COMPAT",
    "EXECUTORS",
    "LEAST_ENGINE_DEADLINE_S",
    "SECTIONS",
    "AttachConfig",
    "AttachedConfig",
    "AutopilotConfig",
    "Compat",
    "ConfigError",
    "ConsoleConfig",
    "EngineConfig",
    "FleetConfig",
    "GatewayConfig",
    "HttpConfig",
    "KeysSettings",
    "LogsConfig",
    "MetricsConfig",
    "ModelKind",
    "ModelRef",
    "ModelSettings",
    "NodeConfig",
    "ObserverConfig",
    "PeaksConfig",
    "RecorderConfig",
    "SamplingDefaults",
    "ServeConfig",
    "TracingConfig",
]

# the structs that define settings
SECTIONS: tuple[type[msgspec.Struct], ...] = (
    ModelSettings,
    EngineConfig,
    GatewayConfig,
    KeysSettings,
    HttpConfig,
    LogsConfig,
    TracingConfig,
    PeaksConfig,
    RecorderConfig,
    MetricsConfig,
    AutopilotConfig,
    ConsoleConfig,
    FleetConfig,
)


class ObserverConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What any server is told that has telemetry, whoever runs the engine."""

    gateway: GatewayConfig
    tracing: TracingConfig
    logs: LogsConfig = LogsConfig()
    peaks: PeaksConfig = PeaksConfig()
    recorder: RecorderConfig = RecorderConfig()
    metrics: MetricsConfig = MetricsConfig()
    console: ConsoleConfig = ConsoleConfig()

    def validate(self) -> None:
        """Raise ConfigError if a value, or two together, cannot work whatever the model is."""
        self.gateway.validate()
        self.logs.validate()
        self.tracing.validate()
        self.peaks.validate()
        self.recorder.validate()
        self.metrics.validate()
        self.console.validate()
        if self.console.enabled and (self.gateway.http.uds or self.gateway.http.is_tls):
            raise ConfigError(
                "--console reads the server over plain HTTP: with --uds or TLS start "
                "`phasescope console URL` yourself"
            )


class ServeConfig(ObserverConfig, frozen=True, kw_only=True):
    """Everything that `phasescope serve` was told, or `phasescope engine`, which alone has a `node`
    to heed."""

    engine: EngineConfig
    autopilot: AutopilotConfig = AutopilotConfig()
    fleet: FleetConfig = FleetConfig()
    node: NodeConfig = NodeConfig()

    def validate(self) -> None:
        """Raise ConfigError if a value, or two together, cannot work whatever the model is."""
        self.engine.validate()
        super().validate()
        self.autopilot.validate()
        self.fleet.validate()
        if self.fleet.engines is not None and self.gateway.gateways > 1:
            raise ConfigError(
                "--engines works with one gateway process a server: leave --gateways out, and "
                "start several servers with the same file behind a balancer"
            )
        if self.autopilot.mode == "act" and not self.recorder.journal_bytes:
            raise ConfigError(
                "--autopilot act replays what the flight recorder has, and --journal-memory is 0: "
                "give it memory, or --autopilot off"
            )


class AttachedConfig(ObserverConfig, frozen=True, kw_only=True):
    """Everything that `phasescope attach` was told; `watch_host` is whether the machine is
    watched."""

    attach: AttachConfig = AttachConfig()
    watch_host: bool = True

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        super().validate()
        self.attach.validate()
