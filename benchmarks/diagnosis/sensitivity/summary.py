"""How many verdicts differ with each number changed, as it is committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.diagnosis.sensitivity.changes import Variant
from benchmarks.diagnosis.sensitivity.sweep import Judged, Said


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Of one variant on the cases of one kind: answers that differ, right ones that were lost and
    gained, and the difference in the number of false alarms."""

    cases: int
    differ: int
    lost: int
    gained: int
    alarms: int


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """One number times `factor`, and its effect by kind of case; a kind that it takes no part in
    is missing."""

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
    name: str
    module: str
    value: float | tuple[float, ...]
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


def plain_of(judged: Iterable[Judged]) -> dict[str, tuple[int, int, int]]:
    found: dict[str, tuple[int, int, int]] = {}
    for one in judged:
        right, cases, alarms = found.get(one.kind, (0, 0, 0))
        found[one.kind] = right + one.plain.is_right, cases + 1, alarms + one.plain.alarms
    return found


def rows_of(judged: Sequence[Judged], variants: Iterable[Variant]) -> tuple[Row, ...]:
    """The most sensitive first."""
    by_name: dict[str, list[Variant]] = {}
    for variant in variants:
        by_name.setdefault(variant.row.name, []).append(variant)
    found = [
        Row(
            name=mine[0].row.name,
            module=mine[0].row.module,
            value=mine[0].row.value,
            changed=tuple(_changed(one, judged) for one in mine),
        )
        for mine in by_name.values()
    ]
    return tuple(sorted(found, key=lambda row: (-row.touched, row.name)))


def _changed(variant: Variant, judged: Sequence[Judged]) -> Changed:
    pairs: dict[str, list[tuple[Said, Said]]] = {}
    for one in judged:
        if variant.name in one.changed:
            pairs.setdefault(one.kind, []).append((one.plain, one.changed[variant.name]))
    effects = {kind: _effect(mine) for kind, mine in pairs.items()}
    return Changed(factor=variant.factor, value=variant.value, effects=effects)


def _effect(pairs: Sequence[tuple[Said, Said]]) -> Effect:
    return Effect(
        cases=len(pairs),
        differ=sum(was.answer != now.answer for was, now in pairs),
        lost=sum(was.is_right and not now.is_right for was, now in pairs),
        gained=sum(now.is_right and not was.is_right for was, now in pairs),
        alarms=sum(now.alarms - was.alarms for was, now in pairs),
    )
