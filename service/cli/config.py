"""`phasescope config`: the settings that are in force, and where each value came from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from service.cli.settings_flags import add_settings, checked, resolved
from service.config.resolve import InForce, Resolution
from service.config.setting import Setting, Unit

_COLUMN = 44


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "config",
        help="print the settings that `serve` would use with the same flags, and where each comes "
        "from",
        description="Takes all flags of serve, the same environment and the same config file. "
        "Prints each value that is in force and where it came from, as a TOML file that --config "
        "takes. Keys and logins are never printed. The model is not loaded.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON", default=argparse.SUPPRESS)
    add_settings(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    resolution = resolved(args)
    checked(resolution)
    if getattr(args, "json", False):
        print(json.dumps(as_json(resolution), indent=2))
    else:
        print("\n".join(as_toml(resolution)))
    return 0


def as_json(resolution: Resolution) -> dict[str, Any]:
    """All settings as JSON; the value of a secret is shown as "set" or null, a URL without its
    login."""
    return {
        "config_file": resolution.config_file,
        "unknown_variables": list(resolution.unknown_variables),
        "settings": {
            key: {
                "value": _public(one),
                "unit": one.setting.details.unit,
                "source": one.source,
                "origin": one.origin or None,
                "unset_means": one.setting.details.unset if one.value is None else None,
                "flag": one.setting.details.flag,
                "variable": one.setting.variable,
            }
            for key, one in resolution.settings.items()
        },
    }


def as_toml(resolution: Resolution) -> Iterator[str]:
    """Lines of a config file with the same settings, without secrets."""
    yield f"# config file: {resolution.config_file or 'none'}"
    for name in resolution.unknown_variables:
        yield f"# {name} is not a setting"
    group = None
    for key, one in resolution.settings.items():
        if one.setting.details.group is not group:
            group = one.setting.details.group
            yield ""
            yield f"# {group.value}"
        if one.value is None:
            yield f"# {key} is not set: {one.setting.details.unset}"
        elif one.setting.details.secret:
            yield f"{f'# {key} is set':<{_COLUMN}}  # {one}"
        elif (shown := one.setting.shown(one.value)) != one.value:
            yield f"{f'# {key} is set, less its login: {shown}':<{_COLUMN}}  # {one}"
        else:
            yield f"{f'{key} = {_literal(one.setting, one.value)}':<{_COLUMN}}  # {_comment(one)}"


def _comment(one: InForce) -> str:
    unit = one.setting.details.unit
    plain = unit is None or unit is Unit.BYTES
    return str(one) if plain else f"{unit}; {one}"


def _public(one: InForce) -> Any:
    if one.setting.details.secret:
        return None if one.value is None else "set"
    return one.setting.shown(one.value)


def _literal(setting: Setting, value: Any) -> str:
    """A value as TOML."""
    if setting.is_size:
        return json.dumps(setting.format(value))
    return json.dumps(list(value) if setting.is_list else value, ensure_ascii=False)
