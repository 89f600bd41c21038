"""The file of `--tenant-keys`: API keys, the tenant of each, and the best priority it may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from service.config.setting import ConfigError
from telemetry.facts.credentials import KeyUnusable, usable_key

_PRIORITIES = range(-100, 101)


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """Tenants, and best priorities, by key."""

    tenants: dict[str, str] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)


def read_tenant_keys(path: str | None) -> TenantKeys:
    """From a file of 'TENANT KEY [BEST-PRIORITY]' lines; no keys without one. Raises ConfigError,
    which never contains a key."""
    found = TenantKeys()
    if path is None:
        return found
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"--tenant-keys {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--tenant-keys {path}: not a text file: {error}") from error
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) not in (2, 3) or words[1] in found.tenants:
            raise ConfigError(
                f"--tenant-keys {path}:{number}: expected 'TENANT KEY [BEST-PRIORITY]', "
                "each key once"
            )
        try:
            usable_key(words[1])
        except KeyUnusable as error:
            raise ConfigError(f"--tenant-keys {path}:{number}: {error}") from error
        found.tenants[words[1]] = words[0]
        if len(words) == 3:
            found.priorities[words[1]] = _priority(words[2], f"--tenant-keys {path}:{number}")
    if not found.tenants:
        raise ConfigError(f"--tenant-keys {path}: no keys in it; without the flag the API is open")
    return found


def _priority(word: str, where: str) -> int:
    try:
        best = int(word)
    except ValueError:
        best = _PRIORITIES.stop
    if best not in _PRIORITIES:
        raise ConfigError(f"{where}: a priority is a whole number from -100 (the best) to 100")
    return best
