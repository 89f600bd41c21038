"""All settings by key, and the one place where the structs are built from their values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from service.config.setting import Group, Setting, settings_of
from service.config.settings import (
    SECTIONS,
    AutopilotConfig,
    ConsoleConfig,
    EngineConfig,
    GatewayConfig,
    HttpConfig,
    MetricsConfig,
    ModelRef,
    PeaksConfig,
    RecorderConfig,
    ServeConfig,
    TracingConfig,
)
from service.config.tenant_keys import TenantKeys


@cache
def all_settings() -> Mapping[str, Setting]:
    """By key, in the order of their groups."""
    order = list(Group)
    found = [one for section in SECTIONS for one in settings_of(section)]
    found.sort(key=lambda one: order.index(one.details.group))
    by_key = {one.key: one for one in found}
    assert len(by_key) == len(found), "two settings have one key"
    return by_key


def build(values: Mapping[str, Any], model: ModelRef, keys: TenantKeys) -> ServeConfig:
    """The structs that engine and gateway get, from a value for each key; not yet validated."""

    def fields(owner: type[msgspec.Struct]) -> dict[str, Any]:
        return {one.field: values[one.key] for one in settings_of(owner)}

    return ServeConfig(
        engine=EngineConfig(model=model, **fields(EngineConfig)),
        gateway=GatewayConfig(
            tenant_keys=keys.tenants,
            http=HttpConfig(key_priorities=keys.priorities, **fields(HttpConfig)),
            **fields(GatewayConfig),
        ),
        tracing=TracingConfig(**fields(TracingConfig)),
        peaks=PeaksConfig(**fields(PeaksConfig)),
        recorder=RecorderConfig(**fields(RecorderConfig)),
        metrics=MetricsConfig(**fields(MetricsConfig)),
        autopilot=AutopilotConfig(**fields(AutopilotConfig)),
        console=ConsoleConfig(**fields(ConsoleConfig)),
    )
