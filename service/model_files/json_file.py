"""Reads the JSON files of a model and of an adapter, which anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.config.setting import ConfigError


def read_json(path: Path) -> Any:
    """What the file says. Raises ConfigError in one line where it is missing or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON ({error})") from error


def read_object(path: Path) -> dict[str, Any]:
    """The same of a file that has an object. Raises ConfigError."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return value
