"""What each kind of imported evidence is, and which causes it can tell."""

from __future__ import annotations

from diagnosis.importers.kinds import KINDS, Certainty, Kind
from diagnosis.importers.quantities import Imported
from diagnosis.importers.ways import NEVER, Told, told_by_kind
from diagnosis.symptoms import Symptom
from docs.generate.markdown import code, table

_HEAD = """# Imported evidence

Written from `diagnosis.importers` by `make docs`. What `phasescope diagnose --from KIND` can tell
from each kind; how to use it: [Importers](../importers.md).
"""
_TABLE = """How surely a full record of each kind tells each cause. *counted*: the engine itself
counted it. *measured*: what the cause does is measured, and what looks most alike is ruled out.
*likely*: it fits what is measured, and so would another cause, which the finding names. A dash: it
cannot be told.
"""
_ABSENT = """What a kind would need besides, for each cause that it cannot tell. A file may have
less than its kind; then the answer says what is missing in it.
"""


def document() -> str:
    told = {kind: told_by_kind(kind) for kind in Kind}
    return "\n".join(
        [
            _HEAD,
            "## The kinds",
            "",
            *table(["kind", "what it is", "tested on", "to know"], _kinds()),
            "",
            "## What each kind can tell",
            "",
            _TABLE,
            *table(["cause", *(code(kind.value) for kind in Kind)], _matrix(told)),
            "",
            "## What is missing",
            "",
            _ABSENT,
            *table(["cause", "missing"], _missing(told)),
            "",
            "## What is measured",
            "",
            "Under `evidence`; the same with `usual_` before it is of the time that is compared.",
            "",
            *table(
                ["name", "unit", "meaning"],
                [[code(one.value), one.unit.value, one.meaning] for one in Imported],
            ),
            "",
        ]
    )


def _kinds() -> list[list[str]]:
    return [
        [code(kind.value), facts.source, facts.tested, facts.limits]
        for kind, facts in KINDS.items()
    ]


def _matrix(told: dict[Kind, list[Told]]) -> list[list[str]]:
    return [
        [code(symptom.value), *(_cell(told[kind][place]) for kind in Kind)]
        for place, symptom in enumerate(Symptom)
        if symptom not in NEVER
    ]


def _cell(one: Told) -> str:
    if one.way is None:
        return ""
    certainty: Certainty = one.way.certainty
    return certainty.value


def _missing(told: dict[Kind, list[Told]]) -> list[list[str]]:
    rows: list[list[str]] = []
    for place, symptom in enumerate(Symptom):
        if symptom in NEVER:
            rows.append([code(symptom.value), f"from all: {NEVER[symptom]}"])
            continue
        by_reason: dict[str, list[str]] = {}
        for kind in Kind:
            one = told[kind][place]
            if one.way is None:
                by_reason.setdefault(one.missing, []).append(code(kind.value))
        said = "; ".join(f"{', '.join(kinds)}: {why}" for why, kinds in by_reason.items())
        rows.append([code(symptom.value), said])
    return rows
