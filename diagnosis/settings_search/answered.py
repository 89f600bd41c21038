"""A missed promise with what a search of settings says of it."""

from __future__ import annotations

import msgspec

from diagnosis.settings_search.answer import SettingsAnswer
from diagnosis.settings_search.words import sentences
from diagnosis.symptoms import Finding, MissedPromise, MissForm, Symptom
from diagnosis.verdicts.classifier import Diagnosis


def answered(diagnosis: Diagnosis, answer: SettingsAnswer) -> Diagnosis:
    """The same diagnosis; its missed promises have the answer, and the form that replays confirm.

    A form is corrected only for classes that miss in the replay too: one that is met there says
    nothing of why it was missed.
    """
    findings = tuple(
        _answered(finding, answer) if finding.symptom is Symptom.SLO_MISSED else finding
        for finding in diagnosis.findings
    )
    return msgspec.structs.replace(diagnosis, findings=findings)


def _answered(finding: Finding, answer: SettingsAnswer) -> Finding:
    promises = tuple(_confirmed(promise, answer) for promise in finding.promises)
    told = "; ".join(sentences(answer))
    corrected = [
        f"of {now.slo_class} the record had said {was.form.value}"
        for was, now in zip(finding.promises, promises, strict=True)
        if was.form is not now.form
    ]
    return msgspec.structs.replace(finding, promises=promises, answer="; ".join([told, *corrected]))


def _confirmed(promise: MissedPromise, answer: SettingsAnswer) -> MissedPromise:
    form = answer.form
    if form is None or promise.slo_class not in answer.missing:
        return promise
    return msgspec.structs.replace(promise, form=MissForm(form.value))
