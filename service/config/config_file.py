"""A config file: TOML, one key a setting, the names of the flags with underscores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.config.setting import ConfigError
from service.config.tree import all_settings, attach_settings, node_settings

_ALIKE = 0.7  # difflib's ratio from which two keys may be the same one


def read_config_file(path: str, where: str) -> dict[str, Any]:
    """The checked values of a file by key. `where` is the flag or the variable that named it.

    Raises ConfigError: no such file, no TOML, an unknown key, a value that is not allowed.
    """
    import tomllib  # only where there is a file

    try:
        stated = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{where} {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} {path}: not TOML: {error}") from error
    # one file may be for all commands
    settings = {**attach_settings(), **node_settings(), **all_settings()}
    found: dict[str, Any] = {}
    for key, value in stated.items():
        if key not in settings:
            raise ConfigError(f"{path}: {_unknown(key, value)}")
        found[key] = settings[key].check(value, f"{path}: {key}")
    return found


def _unknown(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"[{key}]: no tables; each setting is a key of its own, as in port = 8000"
    from difflib import get_close_matches

    near = get_close_matches(key.replace("-", "_"), all_settings(), 1, cutoff=_ALIKE)
    remedy = f"did you mean {near[0]}?" if near else "`phasescope config` lists all keys"
    return f"unknown key {key}; {remedy}"
