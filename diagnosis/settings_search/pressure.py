"""Where requests wait in a replay: it decides which settings are tried next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from diagnosis.settings_search.replicas import tokens_of
from diagnosis.spans import Span
from lab.replay.recorded import RecordedRun
from telemetry.facts.engine_records import SequenceRefused, StepRecorded
from telemetry.facts.reasons import WaitReason
from telemetry.facts.records import Fact


@dataclass(frozen=True, slots=True)
class Pressure:
    """Shares of 0 to 1. `waits` are of the waits in steps by their binding reason, `preempting` of
    the steps that preempted, `mixed` of the steps that computed prompts beside decodes.
    `acceptance` is of draft tokens, None without any. `dominant` is of the tokens of the tenant
    with the most of them, 0 with a single tenant; `refused` of the sequences. With
    `knows_prefixes` the record has which prompts begin alike."""

    waits: dict[WaitReason, float]
    preempting: float
    mixed: float
    acceptance: float | None
    dominant: float
    refused: float
    queues: bool
    knows_prefixes: bool

    def wait(self, *reasons: WaitReason) -> float:
        return sum(self.waits.get(reason, 0.0) for reason in reasons)


def pressure_of(run: RecordedRun, facts: Iterable[Fact], window: Span) -> Pressure:
    """Where requests wait: of the steps among `facts` that began in the window, and of all
    sequences of the run."""
    waits: Counter[WaitReason] = Counter()
    preempting = mixed = drafted = accepted = 0
    steps = [f for f in facts if isinstance(f, StepRecorded) and window.has(f.begin_ns)]
    for step in steps:
        waits.update(skip.reason for skip in step.skips)
        preempting += bool(step.preempted)
        prompts = sum(row.is_prefill for row in step.rows)
        mixed += 0 < prompts < len(step.rows)
        for row in step.rows:
            if not row.is_prefill and row.tokens > 1 and not row.wasted:
                drafted += row.tokens - 1
                accepted += row.sampled - 1
    came = list(run.sequences.values())
    total, count = sum(waits.values()), max(1, len(steps))
    return Pressure(
        waits={reason: number / total for reason, number in waits.items()},
        preempting=preempting / count,
        mixed=mixed / count,
        acceptance=accepted / drafted if drafted else None,
        dominant=_dominant(run),
        refused=sum(isinstance(one.entry, SequenceRefused) for one in came) / max(1, len(came)),
        queues=any(step.waiting for step in steps),
        knows_prefixes=any(one.is_cacheable for one in came),
    )


def _dominant(run: RecordedRun) -> float:
    work: Counter[str] = Counter()
    for one in run.sequences.values():
        work[one.entry.tenant] += tokens_of(one)
    if len(work) < 2:
        return 0.0
    return max(work.values()) / sum(work.values())
