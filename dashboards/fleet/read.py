"""Accounts of servers and dumps. Servers are asked side by side, each with the same deadline, so
that one that does not answer costs the others nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import msgspec

from dashboards.monitor.client import Client, Unreachable, is_server
from diagnosis.fleet.replica import Replica
from diagnosis.symptoms import Finding
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from diagnosis.verdicts.offline import policy_for
from telemetry.facts.clock import Clock, MonotonicClock
from telemetry.facts.records import fact_ns
from telemetry.journal.journal_reader import Journal, JournalError, open_journal
from telemetry.journal.replay import Replay
from telemetry.numbers.windows import WINDOWS_S
from telemetry.stats.histogram_report import Distributions, distributions, merge
from telemetry.stats.slo import SloFold
from telemetry.stats.snapshot import PERCENTILE_WINDOW_S, Snapshot

DEADLINE_S = 5.0
WINDOW = next(name for name, length_s in WINDOWS_S.items() if length_s == PERCENTILE_WINDOW_S)
_TENANTS_ASKED = 8


class _Owner(msgspec.Struct):
    tenant: str = ""


def read_fleet(
    sources: Sequence[str],
    debug_key: str | None = None,
    deadline_s: float = DEADLINE_S,
    clock: Clock | None = None,
) -> list[Replica]:
    """One account of each source, in their order: the URL (or HOST:PORT) of a server, or a
    dump or journal folder. What cannot be read is an account that says why."""
    clock = clock or MonotonicClock()
    dumps = {source for source in sources if not is_server(source)}
    clients = {one: Client(one, debug_key) for one in sources if one not in dumps}
    found: dict[str, Replica] = {}

    def reading(source: str, client: Client) -> Callable[[], None]:
        def read() -> None:
            found[source] = read_server(client)

        return read

    threads = [Thread(target=reading(*pair), daemon=True) for pair in clients.items()]
    for thread in threads:
        thread.start()
    end_ns = clock.now_ns() + int(deadline_s * 1e9)
    for thread in threads:
        thread.join(max(0, end_ns - clock.now_ns()) / 1e9)
    in_time = dict(found)  # a thread that is late may still add its own
    late = f"has not answered within {deadline_s:g} s"
    for source, client in clients.items():
        in_time.setdefault(source, Replica(name=client.name, why_unread=late))
    for source in dumps:
        in_time[source] = read_dump(source)
    return [in_time[source] for source in dict.fromkeys(sources)]


def read_server(client: Client, with_latencies: bool = True) -> Replica:
    """Its account now. Without latencies the server has least to do for it."""
    try:
        snapshot, diagnosis = client.snapshot(), client.diagnosis()
    except Unreachable as error:
        return Replica(name=client.name, why_unread=_without_name(error, client))
    latencies, why = _latencies(client) if with_latencies else ({}, "")
    return _account(
        client.name, snapshot, diagnosis, latencies, _tenants(diagnosis, client.tenant), why
    )


def read_dump(source: str) -> Replica:
    """The account that the server could have given at the end of a dump or journal folder."""
    try:
        return _dumped(source, open_journal(Path(source)))
    except JournalError as error:
        return Replica(name=source, why_unread=str(error))


def _dumped(source: str, journal: Journal) -> Replica:
    """Raises JournalError."""
    policy = policy_for(journal)
    begin_ns = journal.header.cut_ns  # what is carried from before may be days older
    if begin_ns is None:
        begin_ns = next(map(fact_ns, journal.facts()), journal.header.at_ns)
    diagnoser = Diagnoser(None, policy, journal.cut_requests)
    slo = SloFold(policy, begin_ns)
    replay = Replay(journal, [diagnoser], [slo.on_timeline], policy=policy)
    now_ns, diagnosis = replay.last_ns, diagnoser.diagnosis()
    snapshot = replay.window.snapshot(now_ns)
    ready = snapshot.engine_pid is not None  # what the gateway thought of it is in no fact
    snapshot = msgspec.structs.replace(snapshot, ready=ready, slo=slo.report(now_ns))
    latencies = distributions(replay.histograms, WINDOW, now_ns)

    def tenant(request_id: str) -> str:
        body = replay.request(request_id)
        return "" if body is None else msgspec.json.decode(body, type=_Owner).tenant

    return _account(source, snapshot, diagnosis, latencies, _tenants(diagnosis, tenant))


def _account(
    name: str,
    snapshot: Snapshot,
    diagnosis: Diagnosis,
    latencies: Distributions,
    tenants: dict[str, str],
    why_partial: str = "",
) -> Replica:
    return Replica(
        name=name,
        why_partial=why_partial,
        diagnosis=diagnosis,
        ready=snapshot.ready,
        model=snapshot.model or "",
        backend=snapshot.backend or "",
        version=snapshot.version,
        running=snapshot.running,
        waiting=snapshot.waiting,
        blocks_used=snapshot.blocks_used,
        blocks_total=snapshot.blocks_total,
        output_tokens_per_s=snapshot.output_tokens_per_s,
        latencies=latencies,
        slo=snapshot.slo,
        tenants=tenants,
    )


def _latencies(client: Client) -> tuple[Distributions, str]:
    """Latency distributions of the last minute; else empty, and the reason."""
    try:
        return merge([client.histograms(WINDOW)]), ""
    except Unreachable as error:
        return {}, _without_name(error, client)
    except ValueError as error:
        return {}, str(error)


def _tenants(diagnosis: Diagnosis, tenant_of: Callable[[str], str]) -> dict[str, str]:
    """The tenants of culprits that are requests; others are not known by that name, and left
    out."""
    found: dict[str, str] = {}
    for culprit in _culprits(diagnosis.findings)[:_TENANTS_ASKED]:
        tenant = tenant_of(culprit)
        if tenant:
            found[culprit] = tenant
    return found


def _culprits(findings: Sequence[Finding]) -> list[str]:
    """The first of each finding before the second of any."""
    ranked = sorted(
        (rank, place, culprit)
        for place, finding in enumerate(findings)
        for rank, culprit in enumerate(finding.culprits)
    )
    return list(dict.fromkeys(culprit for _, _, culprit in ranked))


def _without_name(error: Unreachable, client: Client) -> str:
    """The reason; the name is beside it."""
    return str(error).removeprefix(client.name).strip()
