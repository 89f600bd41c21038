"""Contributors of findings: what watches one kind of harm, and how findings are put together.

The fold (`verdicts.classifier`) asks each in turn. Each gets the counted facts and the baseline
when it is made, so a further one is one more entry in the list of the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from diagnosis.symptoms import Finding, Symptom
from telemetry.facts.records import Fact


class Contributor(Protocol):
    """Watches one kind of harm. `onset_ns` is since when there is some, None while there is none;
    `is_elevated` whether some may have begun, so that this time must not become a baseline."""

    @property
    def onset_ns(self) -> int | None: ...

    @property
    def is_elevated(self) -> bool: ...

    def on_fact(self, fact: Fact) -> None:
        """Every fact, after it was counted."""
        ...

    def on_tick(self, begin_ns: int) -> None:
        """The tick that began at `begin_ns` is complete."""
        ...

    def findings(self, end_ns: int, *, is_whole: bool) -> list[Finding]:
        """What holds at `end_ns`, worst first; `is_whole` is False where facts are missing, so that
        a gap in the record may look like harm."""
        ...


Annotator = Callable[[Sequence[Finding], int], list[Finding]]
"""Changes the list of all findings that hold at a time: its order, or what one says of another."""


def merged(found: Sequence[Sequence[Finding]]) -> list[Finding]:
    """The findings of all contributors: what ends requests first, then in the order given. Of one
    symptom the first finding is kept."""
    kept: dict[Symptom, Finding] = {}
    for findings in found:
        named = frozenset(kept)
        kept |= {finding.symptom: finding for finding in findings if finding.symptom not in named}
    return sorted(kept.values(), key=_is_no_failure)


def _is_no_failure(finding: Finding) -> bool:
    """The sort key: what ends requests comes before what delays them."""
    return finding.symptom not in (
        Symptom.ENGINE_HUNG,
        Symptom.OUT_OF_MEMORY,
        Symptom.STEP_FAILURE,
        Symptom.LOAD_FAILURE,
    )
