"""SLO reports of several servers as one: as if one server had judged all their requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from telemetry.stats.slo_report import SloReport, SloStatus, SloWindow, burn_of

_Key = tuple[str, int, int, float]


def merged_slo(reports: Iterable[SloReport]) -> tuple[SloStatus, ...]:
    """One status for each class, in the order in which they come. Classes of one name that promise
    other things on another server are other classes, and stay apart."""
    found: dict[_Key, list[SloStatus]] = {}
    for report in reports:
        for status in report.classes:
            key = (status.name, status.ttft_target_ns, status.itl_target_ns, status.objective)
            found.setdefault(key, []).append(status)
    return tuple(map(_status, found.values()))


def _status(parts: Sequence[SloStatus]) -> SloStatus:
    """One class of several servers as one status: counts are added."""
    first = parts[0]
    verdicts: Counter[str] = Counter()
    windows: dict[int, list[SloWindow]] = {}
    for part in parts:
        verdicts.update(part.requests)
        for window in part.windows:
            windows.setdefault(window.window_s, []).append(window)
    return SloStatus(
        name=first.name,
        ttft_target_ns=first.ttft_target_ns,
        itl_target_ns=first.itl_target_ns,
        objective=first.objective,
        requests=dict(verdicts),
        tokens=sum(part.tokens for part in parts),
        good_tokens=sum(part.good_tokens for part in parts),
        windows=tuple(_window(same, first.objective) for same in windows.values()),
    )


def _window(parts: Sequence[SloWindow], objective: float) -> SloWindow:
    """Servers that started at different times cover different parts of a window, so rates are the
    sums of theirs."""
    attempted, good = sum(one.attempted for one in parts), sum(one.good for one in parts)
    return SloWindow(
        window_s=parts[0].window_s,
        covered_s=max(one.covered_s for one in parts),
        attempted=attempted,
        good=good,
        tokens=sum(one.tokens for one in parts),
        good_tokens=sum(one.good_tokens for one in parts),
        good_requests_per_s=sum(one.good_requests_per_s for one in parts),
        good_tokens_per_s=sum(one.good_tokens_per_s for one in parts),
        burn=burn_of(attempted, good, objective),
    )
