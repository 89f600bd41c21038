"""What-if of a fleet: what a gateway recorded, decided again, simulated again, and with changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from diagnosis.root_cause.outcomes import Outcomes, outcomes_of
from lab.fleet.recorded.apart import FleetApart
from lab.fleet.recorded.change import FleetChange, change_of
from lab.fleet.recorded.record import FleetNotReplayable, FleetRecord, read_fleet
from lab.fleet.recorded.world import ReplayedFleet
from lab.simulation.evidence import InvariantViolated
from service.config.settings import ConfigError
from service.fleet.routing.decision_replay import NoRouter, replay_decisions
from telemetry.facts.clock import Clock
from telemetry.facts.fleet.sequence_records import RemoteAdmitted, SequenceSent
from telemetry.facts.records import Fact
from telemetry.journal.journal_reader import Journal
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy


class FleetIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The router's `choices`, made again from the facts; `differing` came out otherwise. Others are
    `undecidable`: what was sent before them is not in the record."""

    choices: int
    differing: int
    undecidable: int

    @property
    def holds(self) -> bool:
        return not self.differing and not self.undecidable


class FleetRun(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the requests. `sent` to each engine; `hit_share` of all prompt tokens were in
    a prefix cache. For `apart` prompts another engine computed the KV; None: not recorded there."""

    outcomes: Outcomes
    sent: dict[str, int]
    hit_share: float
    apart: int | None


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """`identity` is None, with the reason in `not_compared`, where the journal does not begin with
    the router. `changed` is None without changes. All rates are over the time from the first
    request to the last end as recorded. `speed` is that time over the real time of the simulation.
    """

    requests: int
    engines: int
    identity: FleetIdentity | None
    not_compared: str | None
    recorded: FleetRun
    replayed: FleetRun
    changed: FleetRun | None
    changes: list[str]
    speed: float


def fleet_identity(journal: Journal) -> FleetIdentity:
    """Each recorded choice, made again by the same router from the facts before it. Raises
    FleetNotReplayable where no router starts before them."""
    try:
        again = replay_decisions(journal.facts(), most_differing=1 << 30)
    except NoRouter as error:
        raise FleetNotReplayable(f"choices cannot be made again: {error}") from error
    differing = len(again.differing)
    return FleetIdentity(choices=again.choices, differing=differing, undecidable=again.undecidable)


def replay_fleet_journal(
    journal: Journal,
    clock: Clock,
    changes: Sequence[str] = (),
    policy: SloPolicy = DEFAULT_POLICY,
    progress: Callable[[str], None] = lambda what: None,
) -> tuple[FleetReport, list[Fact]]:
    """The report, and the facts of the last simulation. Raises FleetNotReplayable, JournalError,
    ConfigError."""
    change = change_of(changes)
    progress("reading the journal")
    record = read_fleet(journal.facts())
    cut = journal.cut_requests
    identity, why = _identity(journal, progress)
    recorded = _run_of(list(journal.facts()), policy, cut, None)
    span_s = recorded.outcomes.span_s
    progress("simulating it as it was")
    begun_ns = clock.now_ns()
    facts, apart = _simulated(record, _as_it_was(record), ())
    taken_ns = max(1, clock.now_ns() - begun_ns)
    replayed = _run_of(facts, policy, cut, apart, span_s)
    changed: FleetRun | None = None
    if changes:
        progress(f"simulating it with {' '.join(changes)}")
        facts, apart = _simulated(record, _with_roles(record, change), changes)
        changed = _run_of(facts, policy, cut, apart, span_s)
    report = FleetReport(
        requests=len(record.asks),
        engines=len(record.engines),
        identity=identity,
        not_compared=why,
        recorded=recorded,
        replayed=replayed,
        changed=changed,
        changes=list(changes),
        speed=span_s * 1e9 / taken_ns,
    )
    return report, facts


def _identity(
    journal: Journal, progress: Callable[[str], None]
) -> tuple[FleetIdentity | None, str | None]:
    header = journal.header
    if header.cut_ns is not None:
        return None, f"the journal's first {header.facts_dropped} facts were dropped"
    if header.facts_lost:
        return None, f"{header.facts_lost} facts were lost before they were kept"
    progress("making each choice again")
    return fleet_identity(journal), None


def _as_it_was(record: FleetRecord) -> FleetChange:
    """Where engines computed prompts for others, they do."""
    computing = sum(one.only_computes_prompts for one in record.engines.values())
    generating = len(record.engines) - computing
    if not computing or not generating:
        return FleetChange()
    return FleetChange(prefill=computing, decode=generating)


def _with_roles(record: FleetRecord, change: FleetChange) -> FleetChange:
    """Without a number of engines these are as recorded."""
    if change.is_apart or change.engines is not None:
        return change
    was = _as_it_was(record)
    return replace(change, prefill=was.prefill, decode=was.decode)


def _simulated(
    record: FleetRecord, change: FleetChange, words: Sequence[str]
) -> tuple[list[Fact], int]:
    """The gateway's facts, and how many prompts went to engines that compute them for others."""
    try:
        if change.is_apart:
            fleet = FleetApart(record, change)
            return fleet.replayed(), fleet.apart
        return ReplayedFleet(record, change).replayed(), 0
    except AssertionError as error:
        raise ConfigError(f"--set {' '.join(words)}: {error}") from error
    except InvariantViolated as error:
        raise FleetNotReplayable(f"the simulation does not hold what it must: {error}") from error


def _run_of(
    facts: list[Fact],
    policy: SloPolicy,
    cut: frozenset[str],
    apart: int | None,
    span_s: float | None = None,
) -> FleetRun:
    sent: Counter[str] = Counter()
    prompt = hit = 0
    for fact in facts:
        if isinstance(fact, SequenceSent):
            sent[fact.engine] += 1
        elif isinstance(fact, RemoteAdmitted):
            prompt += fact.known_tokens
            hit += fact.hit_tokens
    return FleetRun(
        outcomes=outcomes_of(facts, policy, cut, span_s),
        sent=dict(sorted(sent.items())),
        hit_share=hit / prompt if prompt else 0.0,
        apart=apart,
    )
