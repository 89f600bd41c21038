"""The answer of a search in sentences, for operators. They hold no ids and no texts."""

from __future__ import annotations

from diagnosis.settings_search.answer import Form, Remedy, SettingsAnswer, Trial

_FORMS = {
    Form.IMPOSSIBLE: "impossible: most of the misses could not be met on an idle engine either",
    Form.ONE_CLASS: "one class only: {missing} misses its objective, all others meet theirs",
    Form.MISCONFIGURED: "misconfigured: other settings meet the objectives on this machine",
    Form.AT_ITS_LIMIT: "at its limit: no settings that were tried are enough, more replicas are",
    Form.OUTSIDE: "outside: no settings and no replicas that were tried meet the objectives; "
    "phasescope diagnose --root says what else there is",
}
_REMEDIES = {
    Remedy.RUNTIME: "can be set now",
    Remedy.SETTINGS: "needs a restart",
    Remedy.CAPACITY: "needs more replicas",
}


def sentences(answer: SettingsAnswer) -> tuple[str, ...]:
    """What kind of miss it is, and what to do, the most important first."""
    form = answer.form
    if form is None:
        return ("every class meets its objective",)
    found = [_form(form, answer)]
    remedy = answer.remedy
    if remedy is Remedy.RUNTIME and answer.best_runtime is not None:
        found.append(
            f"set {_changes(answer.best_runtime)}: {_outcome(answer.best_runtime, answer)}"
        )
    elif remedy is Remedy.SETTINGS and answer.best is not None:
        found.append(f"restart with {_changes(answer.best)}: {_outcome(answer.best, answer)}")
    elif answer.best is not None:
        found.append(f"{_changes(answer.best)} helps: {_outcome(answer.best, answer)}")
    if answer.capacity is not None:
        extra = f" with {_changes(answer.capacity)}" if answer.capacity.settings else ""
        found.append(f"{answer.capacity.replicas} replicas{extra} meet every objective")
    found += [f"{name}: {why}" for name, why in sorted(answer.impossible.items())]
    found += [f"{name} was not tried: {why}" for name, why in sorted(answer.unknown.items())]
    return tuple(found)


def _form(form: Form, answer: SettingsAnswer) -> str:
    if form is Form.OUTSIDE and answer.compared.is_met and not answer.present.is_met:
        return (
            f"outside: {answer.backlog} requests had waited since before the replay begins; "
            "without them every objective is met, so it was an earlier burst, or limits that have "
            "changed"
        )
    if form is Form.OUTSIDE and answer.present.is_met:
        return (
            "outside: what was measured misses an objective that the replayed engine meets, so the "
            "time is lost before or after the engine"
        )
    said = _FORMS[form].format(missing=", ".join(answer.missing))
    remedy = answer.remedy
    if form is Form.ONE_CLASS:
        said += f"; {_REMEDIES[remedy]}" if remedy is not None else "; nothing that was tried helps"
    return said


def _changes(trial: Trial) -> str:
    return ", ".join(str(setting) for setting in trial.settings)


def _outcome(trial: Trial, answer: SettingsAnswer) -> str:
    """The good share of each class that changes, now and then."""
    parts = [
        f"{name} {100 * was.good_share:.1f} -> {100 * now.good_share:.1f} % good"
        for name, was in answer.compared.classes.items()
        if (now := trial.classes.get(name)) is not None
        and abs(now.good_share - was.good_share) > answer.noise.get(name, 0.0)
    ]
    return ", ".join(parts) or "no class changes"
