"""How old what the router knows of an engine is, and what other gateways sent there.

A report says its age, as far as that is known. It also says how many of this gateway's requests the
engine had received when it was made: if one is missing that was sent a second ago, the report is
about a second old, whatever any clock says.
"""

from __future__ import annotations

from collections import deque

from telemetry.facts.fleet.routing_records import EngineReported

_KEPT = 4096


class EngineSignal:
    """The last report of one incarnation of an engine, which joined at `joined_ns`."""

    def __init__(self, joined_ns: int) -> None:
        self.report: EngineReported | None = None
        self.made_ns = joined_ns
        """A moment that the last report is surely not younger than."""
        self._sent: deque[tuple[int, int]] = deque(maxlen=_KEPT)  # ordinal, when
        self._sent_count = self._ended_count = 0
        self._believed: int | None = None

    @property
    def rows(self) -> int:
        """Decode rows in the last report."""
        return 0 if self.report is None else self.report.decode_rows

    @property
    def budget_tokens(self) -> int | None:
        """The token budget of a step, by the last report; None without one."""
        return None if self.report is None else self.report.budget_tokens

    def age_ns(self, now_ns: int) -> int:
        """At least so old is what is known."""
        return max(0, now_ns - self.made_ns)

    def sent(self, ordinal: int, at_ns: int) -> None:
        self._sent.append((ordinal, at_ns))
        self._sent_count = max(self._sent_count, ordinal)

    def ended(self) -> None:
        self._ended_count += 1

    def reported(self, report: EngineReported) -> int:
        """How many sequences others must have sent since the last report, at least. Where the
        report does not say which are this gateway's, each of its requests is taken for one."""
        while self._sent and self._sent[0][0] <= report.received:
            self._sent.popleft()
        made_ns = report.at_ns - report.age_ns
        if self._sent:
            made_ns = min(made_ns, self._sent[0][1])
        self.made_ns = max(self.made_ns, made_ns)
        own = report.own_sequences
        own = report.received - report.ended if own is None else own
        others = report.running + report.waiting - own
        before, self._believed = self._believed, others
        self.report = report
        return max(0, others - before) if before is not None else 0
