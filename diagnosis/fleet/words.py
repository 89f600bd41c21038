"""The verdict on a fleet in sentences: what it is, and then what it rests on."""

from __future__ import annotations

from typing import assert_never

from diagnosis.fleet.compare import Comparison
from diagnosis.fleet.judge import BadReplica, FleetVerdict, InCommon, Scope
from diagnosis.fleet.sides import Side
from diagnosis.fleet.thresholds import UNEVEN_RATIO

_MOST_CULPRITS = 3


def sentences(verdict: FleetVerdict) -> tuple[str, ...]:
    """The first is the verdict."""
    first = _verdict(verdict)
    if verdict.unread:
        first += f" ({verdict.unread} without an answer)"
    unsure = (f"{one.name}: indeterminate; {one.why}" for one in verdict.unsure)
    return (first, *map(_bad, verdict.bad), *unsure, *map(_common, verdict.in_common))


def _verdict(verdict: FleetVerdict) -> str:
    judged, shown = verdict.judged, ", ".join(symptom.value for symptom in verdict.shared)
    showing = "all" if verdict.showing == judged else f"{verdict.showing} of"
    match verdict.scope:
        case Scope.HEALTHY:
            return f"healthy: nothing found on the {judged} replicas that have traffic"
        case Scope.BAD_REPLICA:
            many = f"{len(verdict.bad)} bad replicas" if len(verdict.bad) > 1 else "one bad replica"
            also = f"; nearly all show {shown} as well, which may follow from it" if shown else ""
            return f"{many} of {judged}: {', '.join(one.name for one in verdict.bad)}{also}"
        case Scope.BAD_TRAFFIC:
            apart = "" if verdict.in_common else "; no tenant or class stands out"
            return f"bad traffic: {showing} {judged} replicas show {shown}{apart}"
        case Scope.COMMON_CAUSE:
            return (
                f"a common cause: {showing} {judged} replicas show {shown}, which no traffic "
                "makes; look at what they share: the machine, the release, the settings"
            )
        case Scope.UNEVEN_TRAFFIC:
            names = ", ".join(one.name for one in verdict.bad)
            return f"uneven traffic: {names} of {judged} gets more, or worse, than the others"
        case Scope.NOT_ENOUGH:
            return f"not enough to say: {verdict.why}"
        case _:
            assert_never(verdict.scope)


def _bad(bad: BadReplica) -> str:
    symptom = "slow, without a finding" if bad.symptom is None else bad.symptom.value
    said = [f"{bad.name}: {symptom}"]
    if bad.side is Side.TRAFFIC:
        said.append("which is about what it was sent and not about its machine")
    if bad.compared is not None:
        said.append(compared_text(bad.compared))
    if bad.load_ratio is not None:
        more = "; look at the balancer" if bad.load_ratio >= UNEVEN_RATIO else ""
        said.append(f"it has {bad.load_ratio:.1f} times the others' median of requests{more}")
    if bad.culprits:
        said.append(f"culprits {', '.join(bad.culprits[:_MOST_CULPRITS])}")
    said += [f"it alone has {what}" for what in bad.alone_in]
    return "; ".join(said)


def compared_text(compared: Comparison) -> str:
    """How much slower a replica is, than whom, and on which requests."""
    what = f"{compared.measure.value.upper()} p{100 * compared.quantile:.0f}"
    value_ms, median_ms = compared.value_ns / 1e6, compared.median_ns / 1e6
    others = "the other's" if compared.others == 1 else f"the median of {compared.others} others,"
    return (
        f"{what} is {value_ms:.0f} ms, {compared.ratio:.1f} times {others} {median_ms:.0f} ms "
        f"(class {compared.slo_class}, prompts of {compared.prompt} tokens)"
    )


def _common(one: InCommon) -> str:
    if one.share is None:
        return f"in common: {one.role} {one.name}"
    part = f"{100 * one.share:.0f} % of the {'misses' if one.role == 'class' else 'requests'}"
    return f"in common: {one.role} {one.name}, at least {part} of each"
