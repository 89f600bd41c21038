"""Journals of simulated servers with an incident in them, for tests of reports and exports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.twins.twin import Twin
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.records import Fact, fact_ns
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import Journal, open_journal
from tests.support.worlds.twins.cases import SECOND, twin

INTO_S = 12


def interference() -> Twin:
    """Others' prompts make tokens late; culprits and victims are known."""
    return twin("prefill_interference", "huge_chunks")


def lasting(one: Twin) -> list[Fact]:
    """The record of a server twelve seconds into its fault."""
    assert one.onset_ns is not None
    return [fact for fact in one.facts if fact_ns(fact) < one.onset_ns + INTO_S * SECOND]


def journal_of_facts(folder: Path, facts: Sequence[Fact], name: str = "incident") -> Journal:
    path = folder / f"{name}.journal"
    write_journal(path, facts, MonotonicClock(), "test")
    return open_journal(path)
