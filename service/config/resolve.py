"""Which value is in force: flag, else environment, else config file, else default.

The default of some settings depends on the hardware. Each value keeps where it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from service.config.attach_settings import ATTACH_VARIABLE
from service.config.config_file import read_config_file
from service.config.console_settings import CONSOLE_TOKEN
from service.config.hardware import Hardware, find_hardware
from service.config.model_ref import ModelRef
from service.config.setting import ENV_PREFIX, ConfigError, Setting
from service.config.settings import AttachedConfig, ObserverConfig, ServeConfig
from service.config.tenant_keys import TenantKeys, read_tenant_keys
from service.config.tree import (
    all_settings,
    attach_settings,
    build,
    build_attached,
    node_settings,
)

CONFIG = "config"  # the flag and the variable that name the config file
_FLAG = re.compile(r"--[a-z][a-z-]*")
Config = TypeVar("Config", bound=ObserverConfig)


class Source(StrEnum):
    """Where a value came from, the strongest first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    HARDWARE = "hardware"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class InForce:
    """A value, and which flag, variable, file or GPU it is from; empty for a default."""

    setting: Setting
    value: Any
    source: Source
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.origin}".rstrip()


@dataclass(frozen=True, slots=True)
class Resolution:
    """What is in force, by key. `unknown_variables` begin like ours and are no settings."""

    settings: Mapping[str, InForce]
    config_file: str | None
    unknown_variables: tuple[str, ...]

    def __getitem__(self, key: str) -> Any:
        return self.settings[key].value

    def config(self, model: ModelRef) -> ServeConfig:
        """The structs, validated. Raises ConfigError, which says where values that do not work
        together came from."""
        return self._checked(lambda: build(self._values, model, self._tenant_keys()))

    def node(self, model: ModelRef) -> ServeConfig:
        """The same for `phasescope engine`."""

        def made() -> ServeConfig:
            config = build(self._values, model, self._tenant_keys())
            config.node.validate()
            return config

        return self._checked(made)

    def attached(self) -> AttachedConfig:
        """The same for `phasescope attach`."""
        return self._checked(lambda: build_attached(self._values))

    @property
    def _values(self) -> dict[str, Any]:
        return {key: one.value for key, one in self.settings.items()}

    def _tenant_keys(self) -> TenantKeys:
        known = self.settings.get("tenant_keys")
        return read_tenant_keys(None if known is None else known.value)

    def _checked(self, made: Callable[[], Config]) -> Config:
        try:
            config = made()
            config.validate()
        except ConfigError as error:
            raise self.explained(error) from error
        return config

    def explained(self, error: ConfigError) -> ConfigError:
        """The error with the places of the settings that its message names, where they are not
        flags."""
        by_flag = {flag: one for one in self.settings.values() for flag in one.setting.flags}
        named = [by_flag.get(flag) for flag in dict.fromkeys(_FLAG.findall(str(error)))]
        told = (Source.FLAG, Source.DEFAULT)
        places = [
            f"{one.setting.details.flag} is from {one}"
            for one in named
            if one is not None and one.source not in told
        ]
        return ConfigError(f"{error} ({'; '.join(places)})") if places else error


def resolve(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    hardware_of: Callable[[str], Hardware] = find_hardware,
    known: Mapping[str, Setting] | None = None,
) -> Resolution:
    """`flags` are the values of those that were given, by key; `hardware_of` says what a
    `--device` means here; `known` are the settings of the command, by default those of `serve`.
    Raises ConfigError with one line."""
    path, where = flags.get(CONFIG), f"--{CONFIG}"
    if path is None:
        where = ENV_PREFIX + CONFIG.upper()
        path = environment.get(where)
    stated = {} if path is None else read_config_file(path, where)
    found: dict[str, InForce] = {}
    for key, one in (all_settings() if known is None else known).items():
        if key in flags:
            flag = one.flags[-1] if flags[key] is False else one.flags[0]
            found[key] = InForce(one, flags[key], Source.FLAG, flag)
        elif one.variable in environment:
            value = one.parse(environment[one.variable], one.variable)
            found[key] = InForce(one, value, Source.ENVIRONMENT, one.variable)
        elif key in stated:
            found[key] = InForce(one, stated[key], Source.FILE, str(path))
        else:
            found[key] = InForce(one, one.default, Source.DEFAULT)
    return Resolution(_with_hardware(found, hardware_of), path, _unknown(environment))


def _with_hardware(
    found: dict[str, InForce], hardware_of: Callable[[str], Hardware]
) -> dict[str, InForce]:
    """The settings with the defaults of the GPU that computes; it is looked for only if one of them
    counts."""
    open_keys = [
        key
        for key, one in found.items()
        if one.source is Source.DEFAULT and one.setting.details.gpu is not None
    ]
    hardware = hardware_of(found["device"].value) if open_keys else Hardware()
    if hardware.gpu is None:
        return found
    for key in open_keys:
        one = found[key].setting
        large, value = one.details.large_gpu, one.details.gpu
        if hardware.is_large and large is not None:
            value = large
        found[key] = InForce(one, value, Source.HARDWARE, hardware.gpu)
    return found


def _unknown(environment: Iterable[str]) -> tuple[str, ...]:
    settings = {**attach_settings(), **node_settings(), **all_settings()}
    known = {one.variable for one in settings.values()}
    known |= {ENV_PREFIX + CONFIG.upper(), ATTACH_VARIABLE, CONSOLE_TOKEN}
    return tuple(
        sorted(name for name in environment if name.startswith(ENV_PREFIX) and name not in known)
    )
