"""The web console that the server starts beside itself."""

from __future__ import annotations

from typing import Annotated

import msgspec

from service.config.setting import ENV_PREFIX, Group, Unit, check_fields, setting

CONSOLE_PORT = 8090
CONSOLE_TOKEN = f"{ENV_PREFIX}CONSOLE_TOKEN"  # of the console's process; no flag, which others see


class ConsoleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Whether `phasescope console` is started with the server, and on which port of 127.0.0.1."""

    enabled: Annotated[
        bool,
        setting(
            "--console",
            Group.CONSOLE,
            "start the web console too, as a process of its own (needs phasescope[console])",
        ),
    ] = False
    port: Annotated[
        int,
        setting(
            "--console-port",
            Group.CONSOLE,
            "port of 127.0.0.1 on which the console listens",
            unit=Unit.PORT,
            ge=1,
            le=65_535,
        ),
    ] = CONSOLE_PORT

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be."""
        check_fields(self)
