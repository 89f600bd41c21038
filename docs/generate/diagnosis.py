"""The numbers that decide a verdict, and the measurements that evidence is made of."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import msgspec

from benchmarks.diagnosis.sensitivity.result import Changed, Row, Sweep
from diagnosis.evidence import Counted, Late, Measurement, Promised
from diagnosis.routed.evidence import Routed, Transferred
from diagnosis.threshold_table import Threshold
from diagnosis.threshold_table import table as all_thresholds
from diagnosis.verdicts.rules import RULES
from docs.generate.markdown import code, table

_SWEEP = Path(__file__).parents[2] / "benchmarks" / "results" / "diagnosis" / "sensitivity.json"
_THRESHOLDS = """# Thresholds

Written from the modules that are named below by `make docs`. Every number that decides whether
there is a fault, what it is charged to, what is said of it, and what would have helped. *by hand*:
chosen on development scores, not fitted. A *tick* is half a second, *sd* a standard deviation of
the baseline.

*When changed* says how many answers differ when the number is a fifth smaller or a quarter larger,
all else as it is; in brackets the change in right answers and in false alarms, where there is one.
`python -m benchmarks.diagnosis.sensitivity` measures it. {cases}.
"""
_EVIDENCE = """# Evidence

Written from `diagnosis.evidence` by `make docs`. What a finding may show under `evidence`, each
with `name`, `value` and `unit`. A `value` of null: not measured in this window, which is another
thing than 0. *Usual* is of the baseline, and not measured before there is one.
"""


def thresholds() -> str:
    """The page of the table."""
    sweep = msgspec.json.decode(_SWEEP.read_bytes(), type=Sweep) if _SWEEP.exists() else None
    swept = {} if sweep is None else {row.name: row for row in sweep.rows}
    cases = "That run is not committed, so the column says *not measured*"
    if sweep is not None:
        counts = (f"{count} {kind}" for kind, (_, count, _) in sweep.plain.items())
        cases = f"Its cases: {' and '.join(counts)}"
    lines = [_THRESHOLDS.format(cases=cases)]
    for module, rows in groupby(all_thresholds(), key=lambda row: row.module):
        shown = [
            [
                code(row.name),
                _value(row.value),
                row.unit,
                row.meaning,
                row.reason,
                _sensitivity(row, swept.get(row.name)),
            ]
            for row in rows
        ]
        head = ["name", "value", "unit", "meaning", "reason", "when changed"]
        lines += [f"## {code(module)}", "", *table(head, shown), ""]
    return "\n".join(lines)


def _value(value: float | tuple[float, ...]) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_value, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _sensitivity(row: Threshold, swept: Row | None) -> str:
    if swept is None or swept.value != row.value:
        return "not measured"
    if not swept.kinds:
        return "in no such case"
    return "; ".join(f"{_value(one.value)}: {_effect(one)}" for one in swept.changed)


def _effect(changed: Changed) -> str:
    more = [f"{changed.net:+} right"] if changed.net else []
    more += [f"{changed.alarms:+} false alarms"] if changed.alarms else []
    return f"{changed.differ} differ" * bool(changed.differ) + (
        f" ({', '.join(more)})" if more else "" if changed.differ else "none"
    )


def evidence() -> str:
    """The page of the measurements."""
    shown_by: dict[Measurement, list[str]] = {}
    for symptom, rule in RULES.items():
        for measured in {**dict.fromkeys(rule.evidence), **dict.fromkeys(rule.apart.values())}:
            shown_by.setdefault(measured, []).append(code(symptom.value))
    head = ["name", "unit", "meaning"]
    rows = [
        [code(one.value), one.unit.value, one.meaning, ", ".join(shown_by.get(one, []))]
        for one in Measurement
    ]
    counts = _rows(Counted)
    return "\n".join(
        [
            _EVIDENCE,
            "## Measured in the window that is judged",
            "",
            *table([*head, "evidence or exclusion of"], rows),
            "",
            "## Counted in the last ten seconds",
            "",
            *table(head, counts),
            "",
            "## Counted of late tokens and answers, while a fault comes back",
            "",
            *table(head, _rows(Late)),
            "",
            "## Of the SLO class that burns its error budget fastest, for `slo_missed`",
            "",
            *table(head, _rows(Promised)),
            "",
            "## Of a fleet, by its gateway",
            "",
            *table(head, _rows(Routed)),
            "",
            "## Of KV from other engines, by the engine that decodes",
            "",
            *table(head, _rows(Transferred)),
            "",
        ]
    )


def _rows(
    quantities: type[Counted] | type[Late] | type[Promised] | type[Routed] | type[Transferred],
) -> list[list[str]]:
    return [[code(one.value), one.unit.value, one.meaning] for one in quantities]
