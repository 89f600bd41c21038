"""Servers without a fault: one with a light load, one with a high load."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.traffic import Setting


def _light(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.27, 0.33)


def _busy(setting: Setting, draw: Random) -> None:
    """Some requests come in clusters, and at the highest load the cache is almost full. It is too
    small to keep prefixes for long, which adds a tenth to the load."""
    setting.load = draw.uniform(0.68, 0.74)
    setting.cluster_chance, setting.steady = 0.12, True
    setting.limits = replace(setting.limits, max_seqs=12, blocks_total=draw.randint(92, 98))


LIGHT: Mechanisms = {"poisson": Fault(prepare=_light)}
BUSY: Mechanisms = {"clusters": Fault(prepare=_busy)}
