"""Servers without a fault: light and high load, surges, and a rate that changes as over a day."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.traffic import Setting, Surges, Swing


def _light(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.27, 0.33)


def _busy(setting: Setting, draw: Random) -> None:
    """Some requests come in clusters, and at the highest load the cache is almost full. It is too
    small to keep prefixes for long, which adds a tenth to the load."""
    setting.load = draw.uniform(0.68, 0.74)
    setting.cluster_chance, setting.steady = 0.12, True
    setting.limits = replace(setting.limits, max_seqs=12, blocks_total=draw.randint(92, 98))


def _surging(setting: Setting, draw: Random) -> None:
    setting.load, setting.surges = draw.uniform(0.3, 0.5), Surges()


def _swinging(setting: Setting, draw: Random) -> None:
    setting.load, setting.swing = draw.uniform(0.4, 0.5), Swing(period_s=60.0)


SURGES: Mechanisms = {"mmpp": Fault(prepare=_surging)}
SWING: Mechanisms = {"slow_ramp": Fault(prepare=_swinging)}
LIGHT: Mechanisms = {"poisson": Fault(prepare=_light)}
BUSY: Mechanisms = {"clusters": Fault(prepare=_busy)}
