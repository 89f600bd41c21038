"""Flags of `phasescope serve` and `phasescope config`, made from the settings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from service.config.resolve import CONFIG, Resolution, resolve
from service.config.setting import ConfigError, Group, Setting
from service.config.settings import AttachedConfig, ModelKind, ModelRef, ObserverConfig, ServeConfig
from service.config.tree import all_settings, attach_settings, node_settings

NAMES = (
    "Each flag is also an environment variable and a key of a config file: --log-format is "
    "PHASESCOPE_LOG_FORMAT and log_format. A flag wins over a variable, a variable over the "
    "file, the file over the default."
)
_NO_MODEL = ModelRef(kind=ModelKind.DUMMY, path="", name="")


class ShownDefault:
    """A default as `--help` and the reference show it; it is never the value of a flag."""

    def __init__(self, setting: Setting) -> None:
        details = setting.details
        self.is_value = setting.default is not None
        self.text = setting.format(setting.default) if self.is_value else details.unset or ""
        if details.gpu is not None:
            self.text += f"; on a GPU {details.gpu}"
        if details.large_gpu is not None:
            self.text += f", with 70 GiB or more {details.large_gpu}"

    def __str__(self) -> str:
        return self.text or "none"


class SettingAction(argparse.Action):
    """Checks a value when it is parsed, and stores it in `given`, by the setting's key. ConfigError
    passes through the parser."""

    def __init__(self, option_strings: Sequence[str], dest: str, setting: Setting) -> None:
        self.setting = setting
        super().__init__(
            option_strings,
            dest,
            nargs=0 if setting.is_switch else "+" if setting.is_list else None,
            default=ShownDefault(setting),
            metavar=None if setting.is_switch else setting.placeholder,
            help=setting.details.help,
        )

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setting, flag = self.setting, option_string or self.option_strings[0]
        if setting.is_switch:
            value: Any = flag == setting.flags[0]
        elif setting.is_list:  # may be given several times
            value = (*namespace.given.get(setting.key, ()), *setting.check(values, flag))
        else:
            value = setting.parse(values, flag)
        namespace.given = {**namespace.given, setting.key: value}


def add_settings(
    parser: argparse.ArgumentParser, settings: Mapping[str, Setting] | None = None, more: str = ""
) -> None:
    """The settings, by default those of `serve`, in their groups, and the flag of the config file.
    `more` ends the line of usage."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.usage = f"%(prog)s [--config FILE] [FLAG VALUE ...]{more}"
    parser.epilog = NAMES
    parser.set_defaults(given={})
    source = parser.add_argument_group("config file")
    source.add_argument(
        f"--{CONFIG}",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="TOML file with a key for each setting, as in max_num_seqs = 128",
    )
    groups = {group: parser.add_argument_group(group.value) for group in Group}
    for one in (all_settings() if settings is None else settings).values():
        groups[one.details.group].add_argument(
            *one.flags, action=SettingAction, dest=argparse.SUPPRESS, setting=one
        )


def resolved(args: argparse.Namespace) -> Resolution:
    """Every setting, from flags, environment, config file and hardware. Raises ConfigError."""
    file = getattr(args, CONFIG, None)
    return resolve(args.given | ({} if file is None else {CONFIG: file}), os.environ)


def resolved_attach(args: argparse.Namespace) -> Resolution:
    """The same for `phasescope attach`, which has settings of its own."""
    file = getattr(args, CONFIG, None)
    flags = args.given | ({} if file is None else {CONFIG: file})
    return resolve(flags, os.environ, known=attach_settings())


def resolved_node(args: argparse.Namespace) -> Resolution:
    """The same for `phasescope engine`."""
    file = getattr(args, CONFIG, None)
    flags = args.given | ({} if file is None else {CONFIG: file})
    return resolve(flags, os.environ, known=node_settings())


def checked_node(resolution: Resolution) -> ServeConfig:
    """Its settings, after a check of them and of the files that they name; `engine.model` is a
    placeholder. Raises ConfigError."""
    config = resolution.node(_NO_MODEL)
    try:
        _check_files(config)
    except ConfigError as error:
        raise resolution.explained(error) from error
    return config


def checked_attach(resolution: Resolution) -> AttachedConfig:
    """Its settings, after a check of them and of the files that they name. Raises ConfigError."""
    config = resolution.attached()
    try:
        _check_metrics_files(config)
    except ConfigError as error:
        raise resolution.explained(error) from error
    return config


def checked(resolution: Resolution) -> ServeConfig:
    """The settings, after a check of them and of the files that they name. The model is not looked
    for; `engine.model` is a placeholder. Raises ConfigError."""
    config = resolution.config(_NO_MODEL)
    try:
        _check_files(config)
    except ConfigError as error:
        raise resolution.explained(error) from error
    return config


def _check_files(config: ServeConfig) -> None:
    _check_metrics_files(config)
    if config.autopilot.bounds_file is not None:
        from diagnosis.autopilot.bounds import BoundsError, bounds_of

        try:
            bounds_of(config.autopilot.bounds_file)
        except BoundsError as error:
            raise ConfigError(f"--autopilot-bounds {error}") from error


def _check_metrics_files(config: ObserverConfig) -> None:
    from telemetry.requests.slo_policy import SloFileError, policy_of

    try:
        policy_of(config.metrics.slo_file)
    except SloFileError as error:
        raise ConfigError(f"--slo-file {error}") from error
    if config.metrics.baseline is None:
        return
    from diagnosis.verdicts.baseline_file import BaselineError, read_baseline  # brings numpy

    try:
        read_baseline(Path(config.metrics.baseline))
    except BaselineError as error:
        raise ConfigError(f"--baseline {error}") from error
