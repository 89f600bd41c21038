"""One request as a waterfall: its phases over time, its ledger, its late tokens."""

from __future__ import annotations

from collections import Counter

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from telemetry.clocks.boundaries import ClockFinding, WireSplit
from telemetry.requests.account import Entry, NotObserved, Part, Stall

_BAR_CELLS = 48
_STALLS_SHOWN = 12
_ELSEWHERE = frozenset((NotObserved.AT_NODE.value, NotObserved.ENGINE.value))


class ExplainedPhase(msgspec.Struct, frozen=True):
    """One phase, [start, end)."""

    name: str
    start_ns: int
    end_ns: int


class ExplainedPrefill(msgspec.Struct, frozen=True):
    """The chunks of the prompts; a latency target bounded the steps of `bounded_chunks` of them,
    at the tightest `step_target_ns`."""

    chunks: int
    bounded_chunks: int
    step_target_ns: int | None


class ExplainedLedger(msgspec.Struct, frozen=True):
    """The exact split of the E2E time; `residue_ns`, what is missing from the sum, is 0. A request
    that is `core_only` is known from the core of an attached engine alone."""

    sum_ns: int
    residue_ns: int
    unattributed_ns: int
    entries: tuple[Entry, ...]
    not_observed_ns: int = 0
    core_only: bool = False


class ExplainedChunk(msgspec.Struct, frozen=True):
    """One prefill chunk."""

    step_id: int
    start_ns: int
    end_ns: int
    tokens: int
    context_tokens: int


class ExplainedGap(msgspec.Struct, frozen=True):
    """From a preemption to the next token."""

    step_id: int
    start_ns: int
    end_ns: int


class ExplainedRemote(msgspec.Struct, frozen=True):
    """The time at a node of the fleet; its parts are in the ledger."""

    engine: str
    incarnation: str
    epoch: int
    wire_ns: int | None = None
    split: WireSplit | None = None
    offset_low_ns: int | None = None
    offset_high_ns: int | None = None
    findings: tuple[ClockFinding, ...] = ()


class ExplainedSequence(msgspec.Struct, frozen=True):
    """One choice of the request; `wait_ns` is time in the queue by reason."""

    seq_id: int
    wait_ns: dict[str, int] = {}
    chunks: tuple[ExplainedChunk, ...] = ()
    preempted: tuple[ExplainedGap, ...] = ()
    remote: ExplainedRemote | None = None


class ExplainedPromise(msgspec.Struct, frozen=True, rename={"slo_class": "class"}):
    """The class of an ended request, its targets, and whether they were met."""

    slo_class: str
    verdict: str
    ttft_target_ns: int
    itl_target_ns: int


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/debug/requests/{id}`; a request in flight has no ledger yet."""

    request_id: str
    trace_id: str
    outcome: str
    reason: str | None
    e2e_ns: int
    phases: tuple[ExplainedPhase, ...]
    tenant: str = ""
    sequences: tuple[ExplainedSequence, ...] = ()
    ttft_ns: int | None = None
    tpot_ns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    prefill: ExplainedPrefill | None = None
    ledger: ExplainedLedger | None = None
    stalls: tuple[Stall, ...] = ()
    stalls_cut: int = 0
    slo: ExplainedPromise | None = None


def render(explained: Explained) -> RenderableType:
    """The whole view, for a terminal."""
    parts: list[RenderableType] = [_heading(explained)]
    if explained.phases:
        parts.append(_waterfall(explained))
    if explained.ledger is None:
        parts.append(Text("no ledger yet: it is computed when the request has ended"))
        return Group(*parts)
    parts.append(_ledger(explained.ledger, explained.e2e_ns))
    parts += [Text(_remote(s.seq_id, s.remote)) for s in explained.sequences if s.remote]
    scope = scope_of(explained.ledger, explained.e2e_ns)
    if scope:
        parts.append(Text(scope))
    if explained.stalls:
        parts.append(_stalls(explained))
    return Group(*parts)


def scope_of(ledger: ExplainedLedger, e2e_ns: int) -> str:
    """What the exact sum holds for, where it does not hold for the client's whole time; else
    empty."""
    if not ledger.not_observed_ns and not ledger.core_only:
        return ""
    share = 100 * ledger.not_observed_ns / max(1, e2e_ns)
    by_reason: Counter[str] = Counter()
    for entry in ledger.entries:
        if entry.part is Part.NOT_OBSERVED:
            by_reason[entry.reason] += entry.ns
    named = ", ".join(f"{reason} {ms(ns)} ms" for reason, ns in by_reason.most_common())
    is_elsewhere = _ELSEWHERE.issuperset(by_reason) and not ledger.core_only
    exact = "all other time" if is_elsewhere else "engine-core time"
    found = f"{exact} is exact; {share:.1f} % of this request was not observed"
    found += f" ({named})" if named else ""
    if ledger.core_only:
        found += "; its front end was not observed, so this is not the time of its client"
    return found


def _remote(seq_id: int, remote: ExplainedRemote) -> str:
    """One line: the node, the wire, and what the clocks allow to say."""
    words = [f"sequence {seq_id} was at node {remote.engine} ({remote.incarnation})"]
    if remote.wire_ns is not None:
        words.append(f"wire {ms(remote.wire_ns)} ms")
    split = remote.split
    if split is not None:
        words.append(f"out {ms(split.out_ns)} ± {ms(split.out_epsilon_ns)} ms")
        words.append(f"back {ms(split.back_ns)} ± {ms(split.back_epsilon_ns)} ms")
    if remote.offset_low_ns is not None and remote.offset_high_ns is not None:
        low_ns, high_ns = remote.offset_low_ns, remote.offset_high_ns
        words.append(f"its clock is ahead by {ms(low_ns)} to {ms(high_ns)} ms")
    if remote.findings:
        words.append("clocks: " + ", ".join(remote.findings))
    return "; ".join(words)


def ms(spent_ns: int) -> str:
    """Milliseconds with three digits after the point."""
    return f"{spent_ns / 1e6:,.3f}"


def _heading(explained: Explained) -> Text:
    words = [f"{explained.request_id}: {explained.outcome}"]
    if explained.reason is not None:
        words.append(f"({explained.reason})")
    words.append(f"in {ms(explained.e2e_ns)} ms")
    if explained.prompt_tokens is not None:
        words.append(
            f"| {explained.prompt_tokens} tokens in, {explained.cached_tokens or 0} cached"
        )
    if explained.output_tokens:
        words.append(f"| {explained.output_tokens} out")
    for name, value in (("TTFT", explained.ttft_ns), ("TPOT", explained.tpot_ns)):
        if value is not None:
            words.append(f"| {name} {ms(value)} ms")
    trace = f"\ntrace {explained.trace_id}{_chunks(explained.prefill)}"
    return Text(" ".join(words) + trace + _promise(explained.slo))


def _promise(slo: ExplainedPromise | None) -> str:
    if slo is None:
        return ""
    targets = f"TTFT {ms(slo.ttft_target_ns)} ms, ITL {ms(slo.itl_target_ns)} ms"
    return f"\nSLO of class {slo.slo_class} ({targets}): {slo.verdict}"


def _chunks(prefill: ExplainedPrefill | None) -> str:
    if prefill is None or prefill.step_target_ns is None:
        return ""
    return (
        f"\n{prefill.bounded_chunks} of {prefill.chunks} prefill chunks are in steps that a "
        f"latency target of {ms(prefill.step_target_ns)} ms bounded"
    )


def _waterfall(explained: Explained) -> Table:
    table = Table("phase", "", "ms", title="phases", title_justify="left", box=None)
    table.columns[2].justify = "right"
    begin_ns = explained.phases[0].start_ns
    whole_ns = max(1, explained.phases[-1].end_ns - begin_ns)
    for phase in explained.phases:
        left = _BAR_CELLS * (phase.start_ns - begin_ns) // whole_ns
        width = -(-_BAR_CELLS * (phase.end_ns - phase.start_ns) // whole_ns)
        width = min(width, _BAR_CELLS - left)
        bar = (" " * left + "█" * width).ljust(_BAR_CELLS)
        table.add_row(phase.name, bar, ms(phase.end_ns - phase.start_ns))
    return table


def _ledger(ledger: ExplainedLedger, e2e_ns: int) -> Table:
    title = f"ledger: the parts sum to {ledger.sum_ns} ns, {ledger.residue_ns} ns off"
    table = Table("state", "part", "by", "ms", "%", title=title, title_justify="left", box=None)
    table.columns[3].justify = table.columns[4].justify = "right"
    for entry in ledger.entries:
        state = f"{entry.state.value}: {entry.reason}" if entry.reason else entry.state.value
        share = 100 * entry.ns / max(1, e2e_ns)
        table.add_row(state, entry.part.value, entry.payer or "", ms(entry.ns), f"{share:.1f}")
    return table


def _stalls(explained: Explained) -> Table:
    count = len(explained.stalls) + explained.stalls_cut
    title = f"late tokens: {count}, the longest {min(count, _STALLS_SHOWN)}"
    columns = ("after ms", "gap ms", "allowed", "largest part", "ms", "culprit")
    table = Table(*columns, title=title, title_justify="left", box=None)
    for column in (0, 1, 2, 4):
        table.columns[column].justify = "right"
    begin_ns = explained.phases[0].start_ns if explained.phases else 0
    longest = sorted(explained.stalls, key=lambda stall: stall.begin_ns - stall.end_ns)
    for stall in sorted(longest[:_STALLS_SHOWN], key=lambda stall: stall.begin_ns):
        table.add_row(
            ms(stall.begin_ns - begin_ns),
            ms(stall.end_ns - stall.begin_ns),
            ms(stall.target_ns),
            f"{stall.part.value}{f' ({stall.reason})' if stall.reason else ''}",
            ms(stall.part_ns),
            stall.culprit_request_id or stall.cause or "",
        )
    return table
