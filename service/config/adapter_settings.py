"""LoRA adapters: how much memory they get, which are served, and from where more may be loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

from service.config.setting import ConfigError, Group, Unit, setting

ADAPTER_NAME_CHARACTERS = 128
MOST_PLACED = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")  # it is a label, and stands in lists


class AdapterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the engine process; without `lora_bytes` it serves no adapters."""

    lora_bytes: Annotated[
        int | None,
        setting(
            "--lora-memory",
            Group.ADAPTERS,
            "memory of the device for LoRA adapters, as in 1GiB; adapters that no sequence uses "
            "are evicted for others, the least recently used first",
            unit=Unit.BYTES,
            unset="no adapters",
            hint="leave it out for no adapters",
            gt=0,
        ),
    ] = None
    max_adapters: Annotated[
        int,
        setting(
            "--max-loras",
            Group.ADAPTERS,
            "adapters in memory at once, and so in one batch",
            unit=Unit.ADAPTERS,
            ge=1,
            le=MOST_PLACED,
        ),
    ] = 16
    loras: Annotated[
        tuple[str, ...],
        setting(
            "--lora",
            Group.ADAPTERS,
            "an adapter to serve: the name that clients use for it as `model`, and the folder that "
            "PEFT's save_pretrained wrote; several, or the flag several times",
            metavar="NAME=FOLDER",
        ),
    ] = ()
    lora_root: Annotated[
        str | None,
        setting(
            "--lora-root",
            Group.ADAPTERS,
            "allow POST /v1/load_lora_adapter and /v1/unload_lora_adapter, for folders below this "
            "one; they need the --debug-key, where there is one",
            metavar="FOLDER",
            unset="adapters are those of the start",
            min_length=1,
        ),
    ] = None
    lora_read_timeout_s: Annotated[
        float,
        setting(
            "--lora-read-timeout",
            Group.ADAPTERS,
            "an adapter whose files are not read by then has failed",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            gt=0,
        ),
    ] = 30.0

    @property
    def named_loras(self) -> list[tuple[str, Path]]:
        """Name and folder of each adapter of the start."""
        pairs = (text.partition("=") for text in self.loras)
        return [(name, Path(folder).expanduser()) for name, _, folder in pairs]

    def check_adapters(self, served: str) -> None:
        """Raise ConfigError if they cannot work; `served` is the name of the base model."""
        if self.lora_bytes is None and (self.loras or self.lora_root):
            flag = "--lora" if self.loras else "--lora-root"
            raise ConfigError(
                f"{flag} needs --lora-memory: say how much memory adapters may take, as in 1GiB"
            )
        names = [served]
        for text in self.loras:
            name, equals, folder = text.partition("=")
            if not equals or not folder:
                raise ConfigError(f"--lora {text}: give NAME=FOLDER")
            check_name(f"--lora {text}", name)
            if name in names:
                raise ConfigError(f"--lora {text}: {name!r} is served already; choose another name")
            names.append(name)
        if self.lora_root is not None and not Path(self.lora_root).expanduser().is_dir():
            raise ConfigError(f"--lora-root {self.lora_root} is not a folder")


def check_name(where: str, name: str) -> None:
    """Raise ConfigError if an adapter cannot have that name."""
    if len(name) > ADAPTER_NAME_CHARACTERS or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: a name has 1 to {ADAPTER_NAME_CHARACTERS} letters, digits and . _ : / -, "
            "and begins with a letter or a digit"
        )
