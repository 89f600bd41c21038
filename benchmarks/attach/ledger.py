"""Minutes of mixed traffic on an attached vLLM: every account adds up, and says what it cannot see.

Preemptions (a KV pool too small for the users), disconnects, long prompts, structured output,
shared prefixes, refusals. Each request's account is read from the sidecar after its end. The sum
of all parts is compared with the middleware's own time of the request, and the parts in the engine
core with the core's stamps in the journal, which are added up anew here.

    .venv/bin/python -m benchmarks.attach.ledger [--minutes 10] [--quick] [--eager]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.attach.accounts import Row, core_times, row_of
from benchmarks.attach.arguments import finish, parser_of, vllm_flags
from benchmarks.attach.client import Stream, ask
from benchmarks.attach.mixed import FAILS, KINDS, SMALL_POOL, Users, body_of
from benchmarks.attach.sidecar import Sidecar
from benchmarks.attach.vllm_server import Vllm
from benchmarks.contract.client import now_ns
from benchmarks.contract.common import (
    Figure,
    Report,
    at_least,
    at_most,
    equal,
    percentile,
    ticking,
)
from dashboards.source import journal_of

USERS = 8
P50_LIMIT, P99_LIMIT = 0.03, 0.08
SETTLE_S = 2.0
JOINS = ("joined", "core_only", "not_joined_in_time", "names_dropped")


@dataclass
class Seen:
    """Accounts, and what had none. `outside_ms` is the client's time of a finished request beyond
    the middleware's."""

    rows: list[Row] = field(default_factory=list)
    missing: Counter[str] = field(default_factory=Counter)
    outside_ms: list[float] = field(default_factory=list)


async def read_account(sidecar: Sidecar, seen: Seen, kind: str, stream: Stream) -> None:
    facts = await sidecar.facts_of(stream.request_id)
    if facts is None or "ledger" not in facts:
        seen.missing[kind] += 1
        return
    seen.rows.append(row_of(kind, facts))
    if stream.is_whole and stream.end_ns is not None:
        seen.outside_ms.append((stream.end_ns - stream.sent_ns - facts["e2e_ns"]) / 1e6)


async def check(args: argparse.Namespace) -> Report:
    minutes, seen = (0.5 if args.quick else args.minutes), Seen()
    async with (
        Sidecar() as sidecar,
        Vllm(*SMALL_POOL, *vllm_flags(args), attach_to=sidecar.socket) as server,
    ):
        await sidecar.until_attached()
        await warm_up(server.port)
        users = Users(
            server.port, USERS, lambda kind, stream: read_account(sidecar, seen, kind, stream)
        )
        async with ticking("ledger", lambda: f"{len(seen.rows)} accounts"):
            await users.run(now_ns() + int(minutes * 60e9))
        await asyncio.sleep(SETTLE_S)  # the last facts are folded
        core_ns = await asyncio.to_thread(journalled, sidecar.url)
        snapshot = await sidecar.get("/debug/snapshot")
        attached = await sidecar.get("/debug/attach")
    made = report(seen, users, core_ns, snapshot, minutes, server.flags)
    made.detail["sequences"] = {name: attached[name] for name in JOINS}
    return made


async def warm_up(port: int) -> None:
    """One request of each kind: the first structured one builds vLLM's back end of grammars."""
    draw = random.Random("warm-up")
    for kind in KINDS:
        await ask(port, body_of(kind, draw), f"warm-{kind.replace(' ', '-')}")


def journalled(url: str) -> dict[str, int]:
    """Engine-core times by the stamps of the journal."""
    with journal_of(url) as journal:
        return core_times(journal.facts())


def off_ns(rows: list[Row], core_ns: dict[str, int]) -> list[int]:
    """How many ns the parts in the core miss the core's own stamps by, of requests that have
    both."""
    return [abs(row.core_ns - core_ns[row.request_id]) for row in rows if row.request_id in core_ns]


def figures(seen: Seen, users: Users, core_ns: dict[str, int], lost: int) -> list[Figure]:
    rows = seen.rows
    shares = [row.not_observed_share for row in rows if row.kind not in FAILS]
    off = off_ns(rows, core_ns)
    return [
        equal("largest |sum of parts - time of the middleware|, ns",
              max((abs(row.residue_ns) for row in rows), default=None), 0),
        equal("largest |parts in the core - time in the core|, ns", max(off, default=None), 0),
        at_least("requests whose time in the core was compared", len(off), max(1, len(rows) // 2)),
        at_least("smallest part, ns", min((row.least_ns for row in rows), default=None), 0),
        equal("requests without an account", seen.missing.total(), 0),
        equal("answers other than asked for", len(users.unexpected), 0),
        at_most("not observed, share of a request's time, p50", percentile(shares, 0.5), P50_LIMIT),
        at_most("not observed, share of a request's time, p99", percentile(shares, 0.99),
                P99_LIMIT),
        at_least("preemptions", sum(row.preempted for row in rows), 1),
        at_least("requests with reused prefixes", sum(row.cached_tokens > 0 for row in rows), 1),
        at_least("kinds of ends", len({row.outcome for row in rows}), 3),
        equal("facts lost", lost, 0),
    ]  # fmt: skip


def report(
    seen: Seen,
    users: Users,
    core_ns: dict[str, int],
    snapshot: dict[str, Any],
    minutes: float,
    flags: tuple[str, ...],
) -> Report:
    rows = seen.rows
    parts: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    for row in rows:
        parts.update(row.parts)
        unseen.update(row.not_observed)
    total_ns = max(1, parts.total())
    counted = [row for row in rows if row.kind not in FAILS]
    by_reason = {
        reason: {
            q: percentile([row.not_observed[reason] / max(1, row.e2e_ns) for row in counted], q)
            for q in (0.5, 0.99)
        }
        for reason in unseen
    }
    table: list[list[Any]] = [["part", "seconds", "% of all time"]]
    table += [[name, ns / 1e9, 100 * ns / total_ns] for name, ns in parts.most_common()]
    wrong = [
        {"kind": row.kind, "outcome": row.outcome, "parts_ns": row.core_ns,
         "core_ns": core_ns[row.request_id]}
        for row in rows
        if core_ns.get(row.request_id, row.core_ns) != row.core_ns
    ]  # fmt: skip
    detail = {
        "minutes": minutes,
        "off_in_the_core": wrong[:20],
        "asked": dict(users.asked),
        "missing": dict(seen.missing),
        "unexpected": users.unexpected[:10],
        "outcomes": dict(Counter(row.outcome for row in rows)),
        "accounts": len(rows),
        "preemptions": sum(row.preempted for row in rows),
        "parts_s": {name: ns / 1e9 for name, ns in parts.most_common()},
        "not_observed_s": {name: ns / 1e9 for name, ns in unseen.most_common()},
        "not_observed_share_by_reason": by_reason,
        "not_observed_share_by_kind": {
            kind: percentile([row.not_observed_share for row in rows if row.kind == kind], 0.5)
            for kind in users.asked
        },
        "client_beyond_middleware_ms": {q: percentile(seen.outside_ms, q) for q in (0.5, 0.99)},
    }
    made = figures(seen, users, core_ns, int(snapshot.get("facts_lost", 0)))
    return Report("ledger", made, {"vllm": list(flags)}, detail, table)


def main() -> int:
    parser = parser_of("ledger", __doc__ or "", minutes=10.0)
    args = parser.parse_args()
    return finish(args, lambda: check(args))


if __name__ == "__main__":
    sys.exit(main())
