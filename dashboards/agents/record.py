"""What agents ask of the last minutes: incidents, and requests by their latency, from a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from dashboards.agents.reader import DebugReader, ErrorKind, ToolFailed
from dashboards.monitor.client import Unreachable
from dashboards.report.requests import RequestLine, RequestLines
from dashboards.report.verdicts import VerdictWatch
from dashboards.source import scratch_journal
from diagnosis.routed.symptoms import FleetFault
from diagnosis.symptoms import Finding
from diagnosis.verdicts.classifier import Diagnoser
from telemetry.facts.clock import Clock, WallAnchor, utc_text
from telemetry.facts.reasons import EndReason
from telemetry.journal.journal_reader import Journal, JournalError, open_journal
from telemetry.journal.replay import replay_folds
from telemetry.requests.assumed_end import assumed_end
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.slo_policy import DEFAULT_POLICY

_KEPT_NS = 5_000_000_000  # a conversation asks several times in a row
_SECOND_NS = 1_000_000_000


class By(StrEnum):
    """What requests are ranked by."""

    TTFT = "ttft"
    GAP = "longest_gap"
    E2E = "e2e"


_VALUES: dict[By, Callable[[RequestLine], int | None]] = {
    By.TTFT: lambda line: line.e2e_ns if line.is_live and line.ttft_ns is None else line.ttft_ns,
    By.GAP: lambda line: line.gap_max_ns,
    By.E2E: lambda line: line.e2e_ns,
}


class RecordView:
    """One journal, folded."""

    def __init__(self, journal: Journal) -> None:
        """Raises JournalError."""
        policy = journal.header.slo or DEFAULT_POLICY
        self._lines = RequestLines(policy)
        self._watch = VerdictWatch(Diagnoser(None, policy, journal.cut_requests))
        phases = PhaseFold([self._lines.on_timeline], cut=journal.cut_requests)
        last_ns = replay_folds(journal.facts(), [self._watch, self._lines, phases])
        self._last_ns = journal.header.at_ns if last_ns is None else last_ns
        phases.close()
        self._lines.is_over = True
        for request_id in list(self._lines.live):
            end = assumed_end(request_id, self._last_ns, EndReason.SHUTDOWN)
            phases.on_facts((end,))
        phases.close()
        anchors = journal.header.anchors
        self._anchor = anchors[-1] if anchors else WallAnchor(0, 0)

    def incidents(self) -> list[dict[str, Any]]:
        """The newest first."""
        return [
            {
                "verdict": one.worst.verdict,
                "findings": [_found(cause) for cause in one.worst.causes],
                "why": one.worst.why,
                "began": self._clock(one.onset_ns),
                "found": self._clock(one.found_ns),
                "ended": None if one.end_ns is None else self._clock(one.end_ns),
                "seconds": ((one.end_ns or self._last_ns) - one.onset_ns) / _SECOND_NS,
            }
            for one in reversed(self._watch.incidents)
        ]

    def slowest(
        self, by: By, count: int, slo_class: str | None, tenant: str | None
    ) -> list[dict[str, Any]]:
        """The slowest first; those without the value are left out."""
        value = _VALUES[by]
        known = [(value(line), line) for line in self._chosen(slo_class, tenant)]
        ranked = sorted(
            ((found, line) for found, line in known if found is not None),
            key=lambda one: (-one[0], one[1].request_id),
        )
        return [self._described(line) for _, line in ranked[:count]]

    def _chosen(self, slo_class: str | None, tenant: str | None) -> Iterable[RequestLine]:
        for line in self._lines.lines.values():
            if slo_class in (None, line.slo_class) and tenant in (None, line.tenant):
                yield line

    def _described(self, line: RequestLine) -> dict[str, Any]:
        return {
            "request_id": line.request_id,
            "tenant": line.tenant,
            "slo_class": line.slo_class,
            "outcome": line.outcome,
            "verdict": line.verdict.value,
            "arrived": self._clock(line.accepted_ns),
            "e2e_ms": line.e2e_ns / 1e6,
            "ttft_ms": None if line.ttft_ns is None else line.ttft_ns / 1e6,
            "longest_gap_ms": None if line.gap_max_ns is None else line.gap_max_ns / 1e6,
            "prompt_tokens": line.prompt_tokens,
            "output_tokens": line.output_tokens,
        }

    def _clock(self, at_ns: int) -> str:
        return utc_text(self._anchor.to_unix_ns(at_ns))


class RecordCache:
    """The server's journal, folded, and kept for some seconds."""

    def __init__(self, reader: DebugReader, clock: Clock) -> None:
        self._reader, self._clock = reader, clock
        self._kept: RecordView | None = None
        self._read_ns = 0

    def view(self) -> RecordView:
        """Raises ToolFailed."""
        now_ns = self._clock.now_ns()
        if self._kept is None or now_ns - self._read_ns > _KEPT_NS:
            self._kept, self._read_ns = self._read(), now_ns
        return self._kept

    def _read(self) -> RecordView:
        try:
            with scratch_journal() as path:
                self._reader.download_journal(path)
                return RecordView(open_journal(path))
        except ToolFailed as failed:
            if failed.kind is ErrorKind.NOT_FOUND:
                raise ToolFailed(ErrorKind.NOT_AVAILABLE, str(failed)) from failed
            raise
        except (JournalError, OSError, Unreachable) as error:
            raise ToolFailed(ErrorKind.UNREACHABLE, f"the journal: {error}") from error


def _found(one: Finding | FleetFault) -> dict[str, Any]:
    """A cause; of a fleet's no confidence is stated."""
    return {
        "symptom": one.symptom.value,
        "claim": one.claim,
        "confidence": one.confidence if isinstance(one, Finding) else None,
        "harm_ms": one.harm_ms,
        "culprits": one.culprits,
        "runbook": one.runbook,
    }
