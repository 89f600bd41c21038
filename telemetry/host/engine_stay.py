"""The time of one sequence in the engine, and the part of it in which it was blocked by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from telemetry.facts.reasons import WaitReason

FOREVER_NS = 1 << 62


@dataclass(slots=True)
class EngineStay:
    """In the engine from `submitted_ns` to `ended_ns`; `blocked` are waits for its own grammar,
    adapter or client. `holds` are those that block it now."""

    submitted_ns: int
    ended_ns: int = FOREVER_NS
    blocked_since_ns: int | None = None
    blocked: list[tuple[int, int]] = field(default_factory=list)
    holds: set[WaitReason] = field(default_factory=set)

    def block(self, reason: WaitReason, at_ns: int) -> None:
        self.holds.add(reason)
        if self.blocked_since_ns is None:
            self.blocked_since_ns = at_ns

    def unblock(self, reason: WaitReason, at_ns: int) -> None:
        self.holds.discard(reason)
        if not self.holds:
            self.close(at_ns)

    def close(self, at_ns: int) -> None:
        """Nothing blocks it from now on."""
        if self.blocked_since_ns is not None:
            self.blocked.append((self.blocked_since_ns, at_ns))
            self.blocked_since_ns = None

    def lost_ns(self, begin_ns: int, end_ns: int) -> int:
        """The part of [begin_ns, end_ns) that it was in the engine and not blocked."""
        begin_ns, end_ns = max(begin_ns, self.submitted_ns), min(end_ns, self.ended_ns)
        lost_ns = max(0, end_ns - begin_ns)
        for since_ns, until_ns in self.blocked:
            lost_ns -= overlap(since_ns, until_ns, begin_ns, end_ns)
        if self.blocked_since_ns is not None:
            lost_ns -= overlap(self.blocked_since_ns, FOREVER_NS, begin_ns, end_ns)
        return lost_ns


def overlap(since_ns: int, until_ns: int, begin_ns: int, end_ns: int) -> int:
    return max(0, min(until_ns, end_ns) - max(since_ns, begin_ns))
