"""What a search found, if the autopilot may propose it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from diagnosis.autopilot.books import Tally
from diagnosis.autopilot.bounds import Bounds
from diagnosis.autopilot.thresholds import FORECAST_OFF, LEAST_GAIN, LEAST_KNOWN, LEAST_NOISE
from diagnosis.settings_search.answer import SettingsAnswer, Trial
from telemetry.facts.limits import AUTO, LimitValue
from telemetry.facts.reasons import AutopilotReason as Reason

Values = dict[str, LimitValue]
_BUDGET = ("max_batched_tokens", "max_auto_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One change: the settings of one trial, which have one forecast together.

    `before` are measured requests by class; `promised` is the share of good ones that a class
    should come to, for each that has a share before. `gaining` are the classes it is for.
    """

    values: Values
    was: Values
    before: dict[str, Tally]
    promised: dict[str, float]
    gaining: tuple[str, ...]

    @property
    def shares(self) -> dict[str, float]:
        """Before, by class."""
        return {name: round(one.share, 4) for name, one in self.before.items()}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a change that the search found is not proposed."""

    reason: Reason
    why: str
    values: Values
    was: Values


_Refuse = Callable[[Reason, str], Refusal]


def values_of(trial: Trial) -> Values:
    """The new values by name."""
    return {one.name: one.value for one in trial.settings}


def consider(
    answer: SettingsAnswer,
    bounds: Bounds,
    in_force: Mapping[str, LimitValue],
    before: Mapping[str, Tally],
) -> Proposal | Refusal | None:
    """What a search found, as a proposal, or why it is refused; None where the search found no
    gain."""
    trial = answer.best_runtime
    if trial is None or not trial.settings:
        return None
    values = values_of(trial)
    was = {name: in_force.get(name) for name in values}

    def refuse(reason: Reason, why: str) -> Refusal:
        return Refusal(reason, why, values, was)

    for one in trial.settings:
        if not one.runtime or trial.replicas != 1:
            return refuse(Reason.OUT_OF_BOUNDS, f"{one.name} cannot change while the server runs")
        if one.name not in bounds or not bounds[one.name].allows(one.value):
            return refuse(Reason.OUT_OF_BOUNDS, f"{one} is not within the bounds")
        if one.name not in in_force or in_force[one.name] != one.was:
            return refuse(Reason.STALE, f"{one.name} is not {one.was} any more")
    if all(in_force[name] == value for name, value in values.items()):
        return None
    return _judged(answer, trial, refuse_with=refuse, before=before, values=values, was=was)


def _judged(
    answer: SettingsAnswer,
    trial: Trial,
    *,
    refuse_with: _Refuse,
    before: Mapping[str, Tally],
    values: Values,
    was: Values,
) -> Proposal | Refusal:
    """Is it a gain for one class, and no loss beyond noise for any?"""
    gains: dict[str, float] = {}
    for name, present in answer.present.classes.items():
        after = trial.classes.get(name)
        if not present.requests or after is None:
            continue
        gains[name] = after.good_share - present.good_share
        noise = max(LEAST_NOISE, answer.noise.get(name, 0.0))
        if gains[name] < -noise:
            return refuse_with(
                Reason.LOSS,
                f"{name} would lose: {present.good_share:.0%} good, then {after.good_share:.0%}",
            )
    gaining = [
        name for name, gain in gains.items() if gain > max(LEAST_GAIN, answer.noise.get(name, 0.0))
    ]
    if not gaining:
        return refuse_with(Reason.NO_GAIN, "no class would gain more than noise")
    off = [name for name in gaining if _is_off(answer, name, gains[name])]
    if len(off) == len(gaining):
        return refuse_with(
            Reason.FORECAST_OFF,
            f"the replay without a change is too far from what was measured of {', '.join(off)}",
        )
    enough = [name for name in gaining if _of(before, name).requests >= LEAST_KNOWN]
    if not enough:
        return refuse_with(
            Reason.TOO_FEW_REQUESTS, f"too few requests of {', '.join(gaining)} to measure it by"
        )
    known = {name: one for name, one in before.items() if one.requests >= LEAST_KNOWN}
    promised = {
        name: round(min(1.0, max(0.0, one.share + max(0.0, gains.get(name, 0.0)))), 4)
        for name, one in known.items()
    }
    kept = tuple(sorted(name for name in enough if promised[name] > known[name].share))
    if not kept:
        return refuse_with(Reason.NO_GAIN, "what would gain is good already, as measured")
    return Proposal(values=values, was=was, before=known, promised=promised, gaining=kept)


def _is_off(answer: SettingsAnswer, name: str, gain: float) -> bool:
    recorded = answer.recorded.get(name)
    if recorded is None:
        return True
    distance = abs(recorded.good_share - answer.present.classes[name].good_share)
    return distance > FORECAST_OFF + gain


def _of(tallies: Mapping[str, Tally], name: str) -> Tally:
    return tallies.get(name, Tally())


def way_back(values: Values, in_force_before: Mapping[str, LimitValue]) -> Values:
    """The values that undo a change: what was in force before, with the cap of an automatic
    budget."""
    found = {name: in_force_before[name] for name in values}
    if found.get("max_batched_tokens") == AUTO:
        found["max_auto_tokens"] = in_force_before.get("max_auto_tokens")
    elif in_force_before.get("max_auto_tokens") is None:
        found.pop("max_auto_tokens", None)  # there is none with a fixed budget
    return found


def whole(names: Iterable[str]) -> tuple[str, ...]:
    """All names of these limits: the token budget has two, since the cap of an automatic one has a
    name of its own."""
    found = tuple(names)
    if not any(name in _BUDGET for name in found):
        return found
    return found + tuple(name for name in _BUDGET if name not in found)


def leads_back(best: Values, ours: Values, back: Values) -> bool:
    """Whether each limit of ours that `best` changes would come nearer to what it is in `back`, or
    go beyond. False where it changes none of them."""
    changed = best.keys() & ours.keys() & back.keys()
    return bool(changed) and all(_leads(best[one], ours[one], back[one]) for one in changed)


def _leads(best: LimitValue, ours: LimitValue, back: LimitValue) -> bool:
    best_size, our_size, back_size = map(_size, (best, ours, back))
    if our_size is None:
        return best != ours
    if best_size is None or back_size is None:
        return best == back
    return best_size != our_size and (best_size > our_size) == (back_size > our_size)


def _size(value: LimitValue) -> float | None:
    """A limit as a number; None for what is no number. No limit is the largest one."""
    if value is None:
        return inf
    return None if isinstance(value, bool | str | dict) else float(value)
