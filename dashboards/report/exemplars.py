"""Ten requests that were hit, each as a waterfall: chosen, and drawn in shares of their time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dashboards.explain import Explained
from dashboards.report.incident import Bar, Exemplar, LateToken, LedgerLine
from dashboards.report.requests import RequestLine
from diagnosis.routed.symptoms import FleetFault
from diagnosis.symptoms import Finding
from telemetry.facts.reasons import Phase
from telemetry.requests.account import Stall
from telemetry.stats.slo_report import Verdict

SHOWN = 10
_LEDGER_LINES = 8
_LATE_TOKENS = 5
_LATE_BARS = 40
_NAMED_VICTIM = "named by the verdict as a victim"
_SLOWEST = "among the slowest of this time"
_MISSED: dict[Verdict, str] = {
    Verdict.LATE_FIRST_TOKEN: "its first token was late",
    Verdict.SLOW_TOKENS: "its tokens were late",
    Verdict.REJECTED: "it was refused",
    Verdict.EXPIRED: "its deadline passed",
    Verdict.FAILED: "it failed",
    Verdict.SHUTDOWN: "the server shut down",
}


def chosen(
    causes: Sequence[Finding | FleetFault],
    lines: Mapping[str, RequestLine],
    begin_ns: int,
    end_ns: int,
) -> dict[str, str]:
    """The ids of the requests to show, with the reason: victims of the first cause, in its order,
    then those that missed their SLO, then the slowest; those with the longest delay first."""
    during = [
        line for line in lines.values() if line.accepted_ns < end_ns and line.ended_ns > begin_ns
    ]
    victims = [name for cause in causes[:1] for name in cause.victims if name in lines]
    found: dict[str, str] = {}
    _add(found, victims, lambda name: _NAMED_VICTIM)
    worst = sorted(during, key=_lateness_ns, reverse=True)
    _add(
        found, [one.request_id for one in worst if one.is_hit], lambda n: _MISSED[lines[n].verdict]
    )
    _add(found, [one.request_id for one in worst], lambda name: _SLOWEST)
    return found


def _add(found: dict[str, str], names: Iterable[str], why: Callable[[str], str]) -> None:
    for name in names:
        if len(found) >= SHOWN:
            return
        found.setdefault(name, why(name))


def _lateness_ns(line: RequestLine) -> int:
    """The longest time that its client saw nothing."""
    first_ns = line.e2e_ns if line.ttft_ns is None else line.ttft_ns
    return max(first_ns, line.gap_max_ns or 0)


def exemplar(line: RequestLine, why: str, described: bytes | None, zero_ns: int) -> Exemplar:
    """A request for the page; `described` is its timeline, None where that is not kept."""
    explained = None if described is None else msgspec.json.decode(described, type=Explained)
    bars, late = ((), ()) if explained is None else (_bars(explained), _late_bars(explained))
    stalls = () if explained is None else explained.stalls
    cut = 0 if explained is None else explained.stalls_cut
    return Exemplar(
        request_id=line.request_id,
        trace_id="" if explained is None else explained.trace_id,
        tenant=line.tenant,
        slo_class=line.slo_class,
        why=why,
        outcome=line.outcome,
        verdict=line.verdict.value,
        arrived_s=(line.accepted_ns - zero_ns) / 1e9,
        e2e_ms=line.e2e_ns / 1e6,
        ttft_ms=None if line.ttft_ns is None else line.ttft_ns / 1e6,
        gap_max_ms=None if line.gap_max_ns is None else line.gap_max_ns / 1e6,
        prompt_tokens=line.prompt_tokens,
        output_tokens=line.output_tokens,
        bars=bars,
        late=late,
        ledger=() if explained is None else _ledger(explained),
        late_tokens=tuple(_late_token(one, line.accepted_ns) for one in _longest(stalls)),
        late_tokens_cut=max(0, len(stalls) - _LATE_TOKENS) + cut,
    )


def _span(explained: Explained) -> tuple[int, int]:
    begin_ns = explained.phases[0].start_ns
    return begin_ns, max(1, explained.phases[-1].end_ns - begin_ns)


def _bars(explained: Explained) -> tuple[Bar, ...]:
    if not explained.phases:
        return ()
    begin_ns, whole_ns = _span(explained)
    return tuple(
        Bar(
            name=Phase(one.name).value.removeprefix("gateway."),
            left=(one.start_ns - begin_ns) / whole_ns,
            width=(one.end_ns - one.start_ns) / whole_ns,
            ms=(one.end_ns - one.start_ns) / 1e6,
        )
        for one in explained.phases
    )


def _late_bars(explained: Explained) -> tuple[Bar, ...]:
    """Late tokens, the longest of them."""
    if not explained.phases:
        return ()
    begin_ns, whole_ns = _span(explained)
    return tuple(
        Bar(
            name="",
            left=max(0.0, (one.begin_ns - begin_ns) / whole_ns),
            width=(one.end_ns - one.begin_ns) / whole_ns,
            ms=(one.end_ns - one.begin_ns) / 1e6,
        )
        for one in _longest(explained.stalls, _LATE_BARS)
    )


def _ledger(explained: Explained) -> tuple[LedgerLine, ...]:
    """The largest parts, and the others in one line."""
    if explained.ledger is None:
        return ()
    entries = sorted(explained.ledger.entries, key=lambda entry: -entry.ns)
    whole_ns = max(1, explained.e2e_ns)
    found = [
        LedgerLine(
            state=f"{one.state.value}: {one.reason}" if one.reason else one.state.value,
            part=one.part.value,
            payer=one.payer or "",
            ms=one.ns / 1e6,
            share=one.ns / whole_ns,
        )
        for one in entries[:_LEDGER_LINES]
    ]
    rest_ns = sum(one.ns for one in entries[_LEDGER_LINES:])
    if rest_ns:
        count = len(entries) - _LEDGER_LINES
        found.append(
            LedgerLine(
                state="", part=f"{count} smaller parts", payer="", ms=rest_ns / 1e6,
                share=rest_ns / whole_ns,
            )
        )  # fmt: skip
    return tuple(found)


def _longest(stalls: Sequence[Stall], count: int = _LATE_TOKENS) -> list[Stall]:
    """The longest of them, in the order of time."""
    longest = sorted(stalls, key=lambda one: one.begin_ns - one.end_ns)[:count]
    return sorted(longest, key=lambda one: one.begin_ns)


def _late_token(stall: Stall, accepted_ns: int) -> LateToken:
    return LateToken(
        after_ms=(stall.begin_ns - accepted_ns) / 1e6,
        gap_ms=(stall.end_ns - stall.begin_ns) / 1e6,
        allowed_ms=stall.target_ns / 1e6,
        part=f"{stall.part.value} ({stall.reason})" if stall.reason else stall.part.value,
        culprit=stall.culprit_request_id or stall.cause or "",
    )
