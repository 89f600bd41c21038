"""Who took the time: the requests and tenants that the verdict names, then those of the ledger.

The ledger is direct: it has who shared a step with whom, and not why there was a queue. So what
only it names is marked, and is never called the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dashboards.report.incident import Culprit
from dashboards.report.requests import RequestLine
from diagnosis.symptoms import Finding
from telemetry.ledger.harm import HarmReport

SHOWN = 8
_LEAST_SHARE = 0.05


def culprits_of(
    findings: Sequence[Finding],
    lines: Mapping[str, RequestLine],
    harm: HarmReport,
    begin_ns: int,
    end_ns: int,
) -> tuple[Culprit, ...]:
    """The culprits that are named, in the order of the findings; then the largest of the ledger, of
    requests that were live in [begin, end)."""
    by_tenant = _by_tenant(lines.values(), begin_ns, end_ns)
    found: dict[str, Culprit] = {}
    for finding in findings:
        for name in finding.culprits:
            if name not in found and len(found) < SHOWN:
                found[name] = _named(name, lines, by_tenant, harm, begin_ns)
    for name, spent_ns in harm.by_request_ns.items():
        line = lines.get(name)
        if line is None or name in found or len(found) >= SHOWN:
            continue
        is_there = line.accepted_ns < end_ns and line.ended_ns > begin_ns
        if is_there and spent_ns > _LEAST_SHARE * harm.total_ns:
            found[name] = _request(line, harm, begin_ns, is_named=False)
    return tuple(found.values())


def _named(
    name: str,
    lines: Mapping[str, RequestLine],
    by_tenant: Mapping[str, list[RequestLine]],
    harm: HarmReport,
    zero_ns: int,
) -> Culprit:
    line = lines.get(name)
    if line is not None:
        return _request(line, harm, zero_ns, is_named=True)
    mine = by_tenant.get(name, [])
    spent_ns = harm.by_tenant_ns.get(name)
    return Culprit(
        name=name,
        is_request=not mine,  # of a request that is not in the record, only the id is known
        is_named=True,
        took_ms=None if spent_ns is None else spent_ns / 1e6,
        requests=len(mine),
        prompt_tokens=sum(line.prompt_tokens or 0 for line in mine) if mine else None,
        output_tokens=sum(line.output_tokens for line in mine) if mine else None,
    )


def _request(line: RequestLine, harm: HarmReport, zero_ns: int, *, is_named: bool) -> Culprit:
    spent_ns = harm.by_request_ns.get(line.request_id)
    return Culprit(
        name=line.request_id,
        is_request=True,
        is_named=is_named,
        took_ms=None if spent_ns is None else spent_ns / 1e6,
        requests=1,
        tenant=line.tenant,
        slo_class=line.slo_class,
        prompt_tokens=line.prompt_tokens,
        output_tokens=line.output_tokens,
        arrived_s=(line.accepted_ns - zero_ns) / 1e9,
    )


def _by_tenant(
    lines: Iterable[RequestLine], begin_ns: int, end_ns: int
) -> dict[str, list[RequestLine]]:
    """The requests of each tenant that were live in [begin, end)."""
    found: dict[str, list[RequestLine]] = {}
    for line in lines:
        if line.accepted_ns < end_ns and line.ended_ns > begin_ns:
            found.setdefault(line.tenant, []).append(line)
    return found
