"""What would have helped, for a report: root cause and settings search on the incident's time."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dashboards.report.incident import Forecast, Gain, Incident, Remedies
from diagnosis.detection.reference import Reference
from diagnosis.root_cause.root import (
    ACTIONS,
    REMEDIES,
    RelativeWindow,
    RootCause,
    promises_of,
    root_cause,
    why_not_compared,
)
from diagnosis.root_cause.thresholds import LEAST_REFERENCE_S, REPLAYED_REFERENCE_NS
from diagnosis.settings_search.answer import ClassForecast, SettingsAnswer, Trial
from diagnosis.settings_search.words import sentences
from diagnosis.spans import Span
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.classifier import Diagnosis
from diagnosis.verdicts.offline import policy_for
from lab.replay.recorded import NotReplayable, read_runs
from telemetry.facts.records import fact_ns
from telemetry.journal.journal_reader import Journal
from telemetry.requests.slo_policy import SloPolicy

_LEAST_WINDOW_S = 1.0
_MARGIN_NS = 1_000  # seconds before the end are not exact to the nanosecond


def remedies_of(
    journal: Journal,
    incident: Incident,
    policy: SloPolicy | None,
    baseline: Reference | None,
    progress: Callable[[str], None],
) -> Remedies:
    """Raises JournalError."""
    if incident.verdict == "healthy":
        return Remedies(why_not="Nothing was found, so there is nothing to replay.")
    try:
        if incident.ends_s is None:
            found = root_cause(journal, None, None, baseline, progress, policy_for(journal, policy))
            helped = remedies_from(found, found.promises)
        else:
            helped = _help_of_past(journal, incident, baseline, progress)
    except NotReplayable as error:
        return Remedies(why_not=f"It could not be replayed: {error}.")
    why_not = " ".join(filter(None, (helped.why_not, beyond_replay(incident))))
    return msgspec.structs.replace(helped, why_not=why_not)


def beyond_replay(incident: Incident) -> str:
    """Why no remedy is promised against the first cause; empty where a replay can tell."""
    top = incident.top
    if top is None or top.symptom in ACTIONS or top.symptom is Symptom.SLO_MISSED:
        return ""
    return (
        f"{top.symptom.value} lies outside of what a scheduler decides, so no replay can promise a "
        "gain against it: follow the runbook."
    )


def _help_of_past(
    journal: Journal,
    incident: Incident,
    baseline: Reference | None,
    progress: Callable[[str], None],
) -> Remedies:
    """The remedies for an incident that was over before the record ended: its own time against that
    before it. Settings are searched for the last seconds of a record only, so they are not here.
    Raises NotReplayable."""
    progress("reading the journal")
    run = read_runs(journal.facts())[-1]
    stamps = [fact_ns(fact) for fact in (*run.facts, *run.others)]
    last_ns = max(stamps, default=run.started.at_ns)
    known_ns = max(run.started.at_ns, journal.header.cut_ns or 0)
    begin_ns = max(known_ns + _MARGIN_NS, incident.begin_ns - REPLAYED_REFERENCE_NS)
    window = RelativeWindow.of(Span(incident.begin_ns, min(incident.end_ns, last_ns)), last_ns)
    reference = RelativeWindow.of(Span(begin_ns, incident.begin_ns), last_ns)
    if window.from_s - window.until_s < _LEAST_WINDOW_S:
        raise NotReplayable("it was over within a second")
    if baseline is None and reference.from_s - reference.until_s < LEAST_REFERENCE_S:
        raise NotReplayable("the record has too little time from before it to compare with")
    found = root_cause(journal, window, reference, baseline, progress)
    said = Diagnosis(incident.findings, 0, 0, False, verdict=incident.verdict)
    return remedies_from(found, promises_of(said, found.explanation))


def remedies_from(found: RootCause, promises: dict[str, str]) -> Remedies:
    """The promise against each finding, then what the removal of each cause would have given, and
    the best settings; or why nothing was compared."""
    gains = [
        Gain(action=f"Against {symptom}", promise=told, is_remedy=True)
        for symptom, told in promises.items()
    ]
    for gain in found.explanation.gains:
        before_ms, now_ms = found.explanation.moved[gain.symptom]
        gains.append(
            Gain(
                action=f"Without {gain.cause.value}: {REMEDIES[gain.cause]}",
                promise=f"{gain.symptom} {now_ms:.0f} ms -> {now_ms * (1 - gain.gain):.0f} ms "
                f"({100 * gain.gain:.0f} % less; it was {before_ms:.0f} ms before)",
            )
        )
    why = why_not_compared(found)
    why_not = f"No cause could be tried: {why}." if why else ""
    if found.settings is None:
        return Remedies(gains=tuple(gains), why_not=why_not)
    return Remedies(
        why_not=why_not,
        gains=(*_settings_gains(found.settings), *gains),
        sentences=sentences(found.settings),
        forecasts=tuple(_forecasts(found.settings)),
    )


def _settings_gains(answer: SettingsAnswer) -> list[Gain]:
    """The best settings that can be set now, and the best of all where that is another."""
    found: list[Gain] = []
    trials = [answer.best_runtime]
    trials += [answer.best] if answer.best != answer.best_runtime else []
    for trial in trials:
        if trial is not None and trial.settings:
            action = "Set " + ", ".join(str(setting) for setting in trial.settings)
            promise = _promise(trial, answer)
            found.append(
                Gain(action=action, promise=promise, is_runtime=trial.is_runtime, is_remedy=True)
            )
    return found


def _promise(trial: Trial, answer: SettingsAnswer) -> str:
    """The share of good requests, now and then, of the classes that change."""
    changes = [
        f"{name} {100 * was.good_share:.0f} % -> {100 * then.good_share:.0f} % good"
        for name, was in answer.compared.classes.items()
        if (then := trial.classes.get(name)) is not None
        and abs(then.good_share - was.good_share) > answer.noise.get(name, 0.0)
    ]
    return ", ".join(changes) or "no class changes beyond noise"


def _forecasts(answer: SettingsAnswer) -> list[Forecast]:
    found = _rows("measured", answer.recorded) + _rows("replayed as it was", answer.present.classes)
    if answer.best_runtime is not None:
        found += _rows("best that can be set now", answer.best_runtime.classes)
    if answer.best is not None and answer.best != answer.best_runtime:
        found += _rows("best of all settings", answer.best.classes)
    if answer.capacity is not None:
        label = f"one of {answer.capacity.replicas} replicas"
        found += _rows(label, answer.capacity.classes)
    return found


def _rows(label: str, classes: dict[str, ClassForecast]) -> list[Forecast]:
    return [
        Forecast(
            label=label,
            slo_class=name,
            requests=one.requests,
            good_pct=100 * one.good_share,
            ttft_p95_ms=one.ttft_p95_ms,
            itl_p99_ms=one.itl_p99_ms,
        )
        for name, one in classes.items()
        if one.requests
    ]
