"""All settings by key, and the one place where the structs are built from their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from service.config.attach_settings import ATTACH_PORT
from service.config.fleet_settings import NODE_PORT
from service.config.setting import Group, Setting, settings_of
from service.config.settings import (
    SECTIONS,
    AttachConfig,
    AttachedConfig,
    AutopilotConfig,
    ConsoleConfig,
    EngineConfig,
    FleetConfig,
    GatewayConfig,
    HttpConfig,
    LogsConfig,
    MetricsConfig,
    ModelRef,
    NodeConfig,
    PeaksConfig,
    RecorderConfig,
    ServeConfig,
    TracingConfig,
)
from service.config.tenant_keys import TenantKeys


@cache
def all_settings() -> Mapping[str, Setting]:
    """All settings by key, in the order of their groups."""
    order = list(Group)
    found = [one for section in SECTIONS for one in settings_of(section)]
    found.sort(key=lambda one: order.index(one.details.group))
    by_key = {one.key: one for one in found}
    assert len(by_key) == len(found), "two settings have one key"
    return by_key


@cache
def attach_settings() -> Mapping[str, Setting]:
    """The settings of `phasescope attach`: of telemetry and of its own small HTTP server."""
    found = {key: one for key, one in all_settings().items() if _is_of_attach(key, one)}
    found["port"] = replace(found["port"], default=ATTACH_PORT)
    return found | {one.key: one for one in settings_of(AttachConfig)}


@cache
def node_settings() -> Mapping[str, Setting]:
    """The settings of `phasescope engine`: all but those of the API that generates, and its own."""
    found = {key: one for key, one in all_settings().items() if key not in _OF_CLIENTS}
    found["port"] = replace(found["port"], default=NODE_PORT)
    return found | {one.key: one for one in settings_of(NodeConfig)}


_OF_CLIENTS = (
    "engines", "routing", "prefill_split", "gateways", "compat", "ingest_workers", "stream_buffer",
    "stream_heartbeat",
    "slow_client", "slow_client_timeout", "request_timeout", "tenant_keys",
)  # fmt: skip
_OF_ATTACH = (HttpConfig, LogsConfig, TracingConfig, PeaksConfig, RecorderConfig, MetricsConfig,
              ConsoleConfig)  # fmt: skip
_AS_WELL = ("host", "port", "max_body", "debug_key", "host_telemetry")
_OF_REQUESTS = ("best_priority",)


def _is_of_attach(key: str, one: Setting) -> bool:
    return key in _AS_WELL or (one.owner in _OF_ATTACH and key not in _OF_REQUESTS)


def build(values: Mapping[str, Any], model: ModelRef, keys: TenantKeys) -> ServeConfig:
    """The structs that engine and gateway get, from a value for each key; not yet validated."""
    return ServeConfig(
        engine=EngineConfig(model=model, **_fields(EngineConfig, values)),
        autopilot=AutopilotConfig(**_fields(AutopilotConfig, values)),
        fleet=FleetConfig(**_fields(FleetConfig, values)),
        node=NodeConfig(**_fields(NodeConfig, values)),
        **_observer(values, keys),
    )


def build_attached(values: Mapping[str, Any]) -> AttachedConfig:
    """The structs of `phasescope attach`, from a value for each of its keys; not yet validated."""
    return AttachedConfig(
        attach=AttachConfig(**_fields(AttachConfig, values)),
        watch_host=values["host_telemetry"],
        **_observer(values, TenantKeys({}, {})),
    )


def _observer(values: Mapping[str, Any], keys: TenantKeys) -> dict[str, Any]:
    """What `ObserverConfig` has."""
    http = HttpConfig(key_priorities=keys.priorities, **_fields(HttpConfig, values))
    return {
        "gateway": GatewayConfig(
            tenant_keys=keys.tenants, http=http, **_fields(GatewayConfig, values)
        ),
        "logs": LogsConfig(**_fields(LogsConfig, values)),
        "tracing": TracingConfig(**_fields(TracingConfig, values)),
        "peaks": PeaksConfig(**_fields(PeaksConfig, values)),
        "recorder": RecorderConfig(**_fields(RecorderConfig, values)),
        "metrics": MetricsConfig(**_fields(MetricsConfig, values)),
        "console": ConsoleConfig(**_fields(ConsoleConfig, values)),
    }


def _fields(owner: type[msgspec.Struct], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a struct's settings; one that is not given keeps its default."""
    return {one.field: values[one.key] for one in settings_of(owner) if one.key in values}
