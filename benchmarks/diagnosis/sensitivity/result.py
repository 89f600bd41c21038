"""What a sweep found, as it is committed."""

from __future__ import annotations

import json

import msgspec


class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The effect of one variant on the cases of one kind: answers that differ, right ones that were
    lost and gained, and the difference in the number of false alarms."""

    differ: int = 0
    lost: int = 0
    gained: int = 0
    alarms: int = 0


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """One number times `factor`, and its effect by kind of case; a kind on which it has none is
    missing."""

    factor: float
    value: float | tuple[float, ...]
    effects: dict[str, Effect]

    @property
    def differ(self) -> int:
        return sum(effect.differ for effect in self.effects.values())

    @property
    def net(self) -> int:
        """Right answers gained less those lost."""
        return sum(effect.gained - effect.lost for effect in self.effects.values())

    @property
    def alarms(self) -> int:
        return sum(effect.alarms for effect in self.effects.values())


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """`kinds` of cases are those in whose decision the number takes part."""

    name: str
    module: str
    value: float | tuple[float, ...]
    kinds: tuple[str, ...]
    changed: tuple[Changed, ...]

    @property
    def differ(self) -> int:
        """Answers that differ in the worse of its directions."""
        return max((one.differ for one in self.changed), default=0)

    @property
    def touched(self) -> int:
        """The same, with false alarms that came or went."""
        return max((one.differ + abs(one.alarms) for one in self.changed), default=0)


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """`plain` are right answers, cases and false alarms of each kind without a change."""

    machine: dict[str, object]
    first_seed: int
    seeds: int
    root_seeds: int
    plain: dict[str, tuple[int, int, int]]
    rows: tuple[Row, ...]


def text(found: Sweep) -> str:
    """JSON with a line for each number."""
    head = msgspec.to_builtins(msgspec.structs.replace(found, rows=()))
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    rows = ",\n".join(msgspec.json.encode(row).decode() for row in found.rows)
    return "{\n" + ",\n".join(lines[:-1]) + f',\n"rows": [\n{rows}\n]\n}}\n'
