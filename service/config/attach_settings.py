"""Where the adapters of an attached engine find the sidecar."""

from __future__ import annotations

from typing import Annotated

import msgspec

from service.config.http_settings import SOCKET_PATH_BYTES
from service.config.setting import ConfigError, Group, check_fields, setting

ATTACH_PORT = 8001
ATTACH_VARIABLE = "PHASESCOPE_ATTACH"
"""The variable that `service.attach.wire` also names: not a setting, but a variable of the engine
with our prefix."""


class AttachConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that only `phasescope attach` has."""

    socket: Annotated[
        str | None,
        setting(
            "--socket",
            Group.ATTACH,
            "unix socket on which the engine's processes send what they do",
            metavar="PATH",
            unset="PHASESCOPE_ATTACH, else a path of this user that names the port",
            min_length=1,
        ),
    ] = None

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        check_fields(self)
        if self.socket is not None and len(self.socket.encode()) > SOCKET_PATH_BYTES:
            raise ConfigError(f"--socket is longer than {SOCKET_PATH_BYTES} bytes")
