"""LoRA adapters: how much memory they get."""

from __future__ import annotations

from typing import Annotated

import msgspec

from service.config.setting import Group, Unit, setting


class AdapterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the engine process; without `lora_bytes` it serves no adapters."""

    lora_bytes: Annotated[
        int | None,
        setting(
            "--lora-memory",
            Group.MODEL,
            "memory of the device for LoRA adapters, as in 1GiB",
            unit=Unit.BYTES,
            unset="no adapters",
            hint="leave it out for no adapters",
            gt=0,
        ),
    ] = None
