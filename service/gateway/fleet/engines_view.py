"""The engines of a fleet gateway as `/debug/engines` shows them."""

from __future__ import annotations

import msgspec

from service.gateway.fleet.link import EngineLink


class EngineView(msgspec.Struct, frozen=True):
    """One engine of the membership. `why` says in words why it is not ready. What is not known is
    None; `outstanding` are the requests of this gateway there."""

    name: str
    address: str
    role: str
    state: str
    why: str
    incarnation: int
    backend: str | None
    running: int | None
    waiting: int | None
    prompt_tokens: int | None
    blocks_used: int | None
    blocks_total: int | None
    report_age_s: float | None
    outstanding: int


class EnginesView(msgspec.Struct, frozen=True):
    """Answer of GET /debug/engines."""

    engines: list[EngineView]


def view_of(link: EngineLink, now_ns: int, outstanding: int) -> EngineView:
    """One engine, as of now."""
    load = None if link.report is None else link.report.load
    age_ns = None if link.reported_ns is None else now_ns - link.reported_ns
    member, started = link.member, link.started
    return EngineView(
        name=link.name,
        address=f"{member.host}:{member.port}",
        role=link.role.value,
        state=link.state.value,
        why=link.why,
        incarnation=link.incarnation,
        backend=None if started is None else started.backend,
        running=None if load is None else load.running,
        waiting=None if load is None else load.waiting,
        prompt_tokens=None if load is None else load.prompt_tokens,
        blocks_used=None if load is None else load.blocks_used,
        blocks_total=None if load is None else load.blocks_total,
        report_age_s=None if age_ns is None else round(age_ns / 1e9, 3),
        outstanding=outstanding,
    )
