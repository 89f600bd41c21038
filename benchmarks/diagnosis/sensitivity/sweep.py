"""The twins and records of the sweep, and what each changed number makes of them.

A case is judged with all changes at once and kept in a file, so that a sweep that was stopped goes
on where it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.diagnosis.again import turns_of_verdicts
from benchmarks.diagnosis.episodes import RESULTS, read_kept
from benchmarks.diagnosis.records import folder_of
from benchmarks.diagnosis.score import judge, machine_speed, truth_of
from benchmarks.diagnosis.sensitivity.changes import Changes, variants
from benchmarks.diagnosis.sensitivity.roots import causes_of
from benchmarks.diagnosis.sensitivity.shared import Record, Verdicts, judge_each
from benchmarks.diagnosis.virtual.twins import HEALTHY, judge_verdicts
from diagnosis.root_cause.root import ACTIONS
from lab.twins.registry import TWINS, build_twin
from telemetry.journal.journal_reader import open_journal

TWIN, RECORD, ROOT = "twins", "records", "root causes"
_OF_ROOTS = ("diagnosis.root_cause.", "lab.replay.", "telemetry.costs.")
_NO_VERDICT = (
    "diagnosis.root_cause.",
    "diagnosis.settings_search.",
    "diagnosis.autopilot.",
    "lab.",
)
_SHARED = "diagnosis.thresholds"  # has numbers of both; who uses them decides


class Case(NamedTuple):
    """`name` is a class of twins, or an episode with a record."""

    kind: str
    name: str
    mechanism: str = ""
    seed: int = 0

    @property
    def file(self) -> str:
        parts = (self.kind.replace(" ", "_"), self.name, self.mechanism, str(self.seed))
        return "-".join(part for part in parts if part) + ".json"


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of one case, and how many false alarms there are in it."""

    answer: str
    is_right: bool
    alarms: int = 0


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of one case without a change and, by variant, with it; a variant that does not
    take part in such a case is not in it."""

    kind: str
    name: str
    plain: Said
    changed: dict[str, Said]


def cases(first: int, seeds: int, root_seeds: int) -> list[Case]:
    """Every class of twins with its mechanisms in turn; the committed records; and root causes of
    each symptom that a replay can undo, with its mechanisms in turn."""
    found = [
        Case(TWIN, name, TWINS[name][seed % len(TWINS[name])], seed)
        for seed in range(first, first + seeds)
        for name in TWINS
    ]
    found += [Case(RECORD, kept.episode.name) for kept in read_kept(RESULTS)]
    found += [
        Case(ROOT, symptom.value, TWINS[symptom.value][seed % len(TWINS[symptom.value])], seed)
        for seed in range(first, first + root_seeds)
        for symptom in ACTIONS
    ]
    return found


@cache
def all_changes() -> tuple[Changes, ...]:
    return tuple(Changes(variant) for variant in variants())


def changes_for(kind: str) -> list[Changes]:
    """The changes that are in use where such a case is decided."""
    decides = _decides_root if kind == ROOT else _decides_verdict
    return [one for one in all_changes() if any(map(decides, one.modules))]


def _decides_root(module: str) -> bool:
    return module.startswith(_OF_ROOTS)


def _decides_verdict(module: str) -> bool:
    """Fits of costs, and all rooms of the diagnosis but those that work on replays."""
    return module != _SHARED and not module.startswith(_NO_VERDICT)


def judged(case: Case) -> Judged:
    changes = changes_for(case.kind)
    answers = {TWIN: _twin, RECORD: _record, ROOT: _root}[case.kind](case, changes)
    names = [change.variants[0].name for change in changes]
    return Judged(
        kind=case.kind,
        name=case.name,
        plain=answers[0],
        changed=dict(zip(names, answers[1:], strict=True)),
    )


def judged_in(task: tuple[Case, Path]) -> Judged:
    """From the folder, if the case was judged before."""
    case, folder = task
    path = folder / case.file
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Judged)
    found = judged(case)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(found))
    part.replace(path)
    return found


def _twin(case: Case, changes: Sequence[Changes]) -> list[Said]:
    """The finding that stood longest in the second half of the fault, as `twins` has it."""
    twin = build_twin(case.name, case.seed, case.mechanism)
    truth = HEALTHY if case.name.startswith(HEALTHY) else case.name

    def answer(verdicts: Verdicts) -> Said:
        one = judge_verdicts(twin, truth, verdicts, 0.0)
        return Said(answer=one.named[0], is_right=one.is_right, alarms=one.alarms_before)

    return judge_each(Record(twin.facts, twin.before, twin.policy), changes, answer)


def _record(case: Case, changes: Sequence[Changes]) -> list[Said]:
    """What stood first for most of the second half of the fault, as `score` has it."""
    (kept,) = (one for one in read_kept(RESULTS) if one.episode.name == case.name)
    episode = kept.episode
    with tempfile.TemporaryDirectory() as work:
        folder = folder_of(case.name, Path(work))
        assert folder is not None, f"{case.name} has no record"
        facts = list(open_journal(folder / "journal").facts())
        reference = folder / "reference.journal"
        before = list(open_journal(reference).facts()) if reference.exists() else None

    def answer(verdicts: Verdicts) -> Said:
        turns = turns_of_verdicts(verdicts, episode.begin_ns)
        again = msgspec.structs.replace(episode, verdicts=turns)
        one = judge(again, machine_speed(kept))
        right = one.answer == truth_of(episode)
        return Said(answer=one.answer, is_right=right, alarms=one.alarms)

    return judge_each(Record(facts, before), changes, answer)


def _root(case: Case, changes: Sequence[Changes]) -> list[Said]:
    """The cause that explains most; right if it is an action against the symptom."""
    twin = build_twin(case.name, case.seed, case.mechanism)
    known = {symptom.value: causes for symptom, causes in ACTIONS.items()}[case.name]
    return [
        Said(answer="nothing" if cause is None else cause.value, is_right=cause in known)
        for cause in causes_of(twin, changes)
    ]
