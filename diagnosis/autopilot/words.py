"""Decisions in words: short lines, for people, within the length of a change's `why`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from diagnosis.autopilot.proposal import Proposal
from telemetry.facts.limits import LimitValue
from telemetry.facts.reasons import AutopilotReason as Reason

MOST_CHARACTERS = 200  # as `why` of PUT /debug/limits: it becomes an attribute of spans

_SAID = {
    Reason.GAIN: "a replay of the last minute finds it better",
    Reason.PROMISE_KEPT: "what was promised has come",
    Reason.PROMISE_MISSED: "what was promised has not come",
    Reason.TOO_FEW_REQUESTS: "too few requests to measure it by",
    Reason.ENGINE_RESTARTED: "the engine restarted while it was measured",
    Reason.OPERATOR: "somebody else changed limits",
    Reason.LOAD_CHANGED: "the load changed while it was measured",
    Reason.BACKLOG: "a class with a backlog from before became worse, as it may by itself",
    Reason.NO_GAIN_IN_GOING_BACK: "not proven; a replay of what is now finds no gain in going back",
    Reason.NOT_CONFIRMED: "the engine did not put it in force",
    Reason.NO_ANSWER: "the search gave no answer",
    Reason.TRIED_BEFORE: "it was rolled back under the same load",
    Reason.COOLING: "changed too short a time ago",
    Reason.HEALTHY: "nothing is wrong any more",
    Reason.NO_GAIN: "a later replay finds no gain in it",
}


def said(reason: Reason, slo_class: str = "") -> str:
    """Why, as a sentence without a subject."""
    if reason is Reason.WORSE:
        return f"{slo_class or 'a class'} became clearly worse"
    return _SAID.get(reason, reason.value.replace("_", " "))


def change(values: Mapping[str, LimitValue], was: Mapping[str, LimitValue]) -> str:
    """`max_num_seqs 2 -> 16`."""
    return ", ".join(f"{name} {_value(was.get(name))} -> {_value(v)}" for name, v in values.items())


def promise(proposal: Proposal) -> str:
    """`chat 41 % -> 97 % good`, for the classes that gain."""
    return ", ".join(
        f"{name} {_percent(proposal.before[name].share)} -> "
        f"{_percent(proposal.promised[name])} good"
        for name in proposal.gaining
    )


def came(measured: Mapping[str, float], names: Iterable[str]) -> str:
    """`chat 96 % good`."""
    known = [name for name in names if name in measured]
    return ", ".join(f"{name} {_percent(measured[name])} good" for name in known)


def cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _value(value: LimitValue) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case float():
            return f"{value:g}"
        case _:
            return str(value)
