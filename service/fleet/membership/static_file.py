"""Membership from a TOML file:

    key_file = "fleet.key"          # beside this file, unless the path is absolute

    [engines.first]
    address = "10.0.0.1:9100"

    [engines.second]
    address = "10.0.0.2:9100"
    draining = true                 # no new requests
    role = "prefill"                # else what its node says
    kv_address = "10.0.0.9:9200"    # where other engines get KV from it, as the end of a tunnel

The file is read again when it has changed, so engines can be added, drained and removed while the
gateway runs. The key is read once.
"""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

import msgspec

from service.config.fleet_settings import address_of
from service.config.setting import ConfigError
from service.fleet.membership.members import MOST_MEMBERS, Member, Role
from service.fleet.wire.key_file import KeyFileError, read_key

log = logging.getLogger("phasescope.fleet")

_MOST_BYTES = 1 << 20
_NAME_CHARACTERS = 64


class _Engine(msgspec.Struct, forbid_unknown_fields=True):
    address: str
    role: Role = Role.ANY
    draining: bool = False
    kv_address: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    key_file: str
    engines: dict[str, _Engine]


class StaticFile:
    """Implements `Membership`."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError."""
        self._path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        found = self._read()
        try:
            self.key = read_key(str(self._path.parent / found.key_file))
        except KeyFileError as error:
            raise ConfigError(f"--engines {path}: key_file {error}") from error
        self._members = _members(found)

    def members(self) -> dict[str, Member]:
        if self._stamp() != self._seen:
            try:
                self._members = _members(self._read())
            except ConfigError as error:
                log.warning("%s; the engines stay as they were", error)
        return self._members

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> _File:
        """Raises ConfigError."""
        self._seen = self._stamp()
        try:
            with self._path.open("rb") as file:
                text = file.read(_MOST_BYTES + 1)
            if len(text) > _MOST_BYTES:
                raise ConfigError(f"--engines {self._path}: larger than {_MOST_BYTES} bytes")
            return msgspec.convert(tomllib.loads(text.decode()), _File)
        except OSError as error:
            raise ConfigError(f"--engines {self._path}: {error.strerror}") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"--engines {self._path}: {error}") from error


def _members(file: _File) -> dict[str, Member]:
    """Raises ConfigError."""
    if len(file.engines) > MOST_MEMBERS:
        raise ConfigError(f"--engines: more than {MOST_MEMBERS} engines")
    found: dict[str, Member] = {}
    for name, one in file.engines.items():
        if not 0 < len(name) <= _NAME_CHARACTERS:
            raise ConfigError(f"--engines: a name has 1 to {_NAME_CHARACTERS} characters")
        host, port = address_of(one.address, f"--engines: address of {name}")
        kv_address = None
        if one.kv_address is not None:
            kv_address = address_of(one.kv_address, f"--engines: kv_address of {name}")
        found[name] = Member(
            name=name,
            host=host,
            port=port,
            role=one.role,
            draining=one.draining,
            kv_address=kv_address,
        )
    return found
