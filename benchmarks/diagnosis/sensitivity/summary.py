"""How many answers differ with each number changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.diagnosis.sensitivity.changes import Variant
from benchmarks.diagnosis.sensitivity.result import Changed, Effect, Row
from benchmarks.diagnosis.sensitivity.sweep import Judged, Said


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
            kinds=tuple(sorted({one.kind for one in judged if mine[0].name in one.changed})),
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
    some = {kind: effect for kind, effect in effects.items() if effect != Effect()}
    return Changed(factor=variant.factor, value=variant.value, effects=some)


def _effect(pairs: Sequence[tuple[Said, Said]]) -> Effect:
    return Effect(
        differ=sum(was.answer != now.answer for was, now in pairs),
        lost=sum(was.is_right and not now.is_right for was, now in pairs),
        gained=sum(now.is_right and not was.is_right for was, now in pairs),
        alarms=sum(now.alarms - was.alarms for was, now in pairs),
    )
