"""Limits as people type them: `16`, `auto`, `none`, `on`, `a:2,b:0.5`."""

from __future__ import annotations

import math
from typing import Any

_SWITCHES = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
WEIGHTS = "tenant_weights"


def limit_value(name: str, text: str) -> Any:
    """A value as it is meant; the server knows which are possible. Raises ValueError."""
    return _weights(text) if name == WEIGHTS else _value(text.strip())


def _value(text: str) -> str | int | float | bool | None:
    if text.lower() == "none":
        return None
    if text.lower() in _SWITCHES:
        return _SWITCHES[text.lower()]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):
            return number  # JSON has no other
    return text


def _weights(text: str) -> dict[str, float]:
    """`a:2,b:0.5`; none takes all away."""
    found: dict[str, float] = {}
    for pair in text.split(",") if text.strip().lower() != "none" else ():
        tenant, colon, weight = pair.rpartition(":")
        try:
            found[tenant.strip()] = float(weight)
        except ValueError:
            colon = ""
        if not colon or not math.isfinite(found[tenant.strip()]):
            raise ValueError(f"{WEIGHTS}={text}: give TENANT:WEIGHT, as in a:2,b:0.5")
    return found
