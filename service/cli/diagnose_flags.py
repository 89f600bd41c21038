"""Which flags of `phasescope diagnose` go together: one that would be ignored is refused."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from service.config.settings import ConfigError

Given = frozenset[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """Flags that need or forbid others; `fits` says whether those that were given are the right
    ones, `told` what is right."""

    flags: tuple[str, ...]
    fits: Callable[[Given], bool]
    told: str


_OF_JUDGING = (
    "root", "settings", "only_runtime", "without", "window", "reference", "baseline", "slo_file",
    "json",
)  # fmt: skip
_RULES = (
    Rule(_OF_JUDGING, lambda given: "save_baseline" not in given, "goes without --save-baseline"),
    Rule(
        ("only_runtime", "without"),
        lambda given: "settings" in given and "root" not in given,
        "goes with --settings, and without --root",
    ),
    Rule(("window", "reference"), lambda given: "root" in given, "goes with --root or --from"),
    Rule(
        ("baseline",),
        lambda given: "root" in given or "settings" not in given,
        "goes with --settings only beside --root",
    ),
    Rule(
        ("slo_file",),
        lambda given: "settings" in given or "root" not in given,
        "goes with --root only beside --settings",
    ),
)


def flag_of(name: str) -> str:
    """The flag as it is typed."""
    return f"--{name.replace('_', '-')}"


def check_flags(args: argparse.Namespace) -> None:
    """Check the flags for one server or record of ours. Raises ConfigError."""
    known = {*_OF_JUDGING, "save_baseline"}
    given = frozenset(name for name in known if getattr(args, name) not in (None, False))
    for rule in _RULES:
        wrong = [flag_of(name) for name in rule.flags if name in given]
        if wrong and not rule.fits(given):
            raise ConfigError(f"{', '.join(wrong)} {rule.told}")
