"""Metrics of telemetry itself: facts, folds, the journal and its dumps."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

FACTS_LOST = Metric(
    "phasescope_facts_lost", Kind.COUNTER, "Number of facts lost before a fold took them."
)
FACTS_WAITING = Metric(
    "phasescope_facts_waiting",
    Kind.GAUGE,
    "Number of recorded facts that the folds have not taken yet.",
)
FOLDS_DETACHED = Metric(
    "phasescope_folds_detached",
    Kind.GAUGE,
    "Whether a part of telemetry is detached because it raised: 1 for each one, absent otherwise.",
    ("fold",),
)
FOLD_ERRORS = Metric(
    "phasescope_fold_errors",
    Kind.COUNTER,
    "Number of exceptions raised by a part of telemetry.",
    ("fold",),
)
FOLD_SECONDS = Metric(
    "phasescope_fold_seconds", Kind.COUNTER, "Seconds spent in a fold of telemetry.", ("fold",)
)
RECORDING = Metric(
    "phasescope_recording", Kind.GAUGE, "Whether facts are recorded: 1 if so, 0 when switched off."
)
JOURNAL_BYTES = Metric(
    "phasescope_journal_bytes", Kind.GAUGE, "Memory in bytes that the journal uses."
)
JOURNAL_CAPACITY = Metric(
    "phasescope_journal_capacity_bytes", Kind.GAUGE, "Memory in bytes that the journal may use."
)
JOURNAL_FACTS = Metric("phasescope_journal_facts", Kind.GAUGE, "Number of facts in the journal.")
JOURNAL_SECONDS = Metric(
    "phasescope_journal_seconds", Kind.GAUGE, "Seconds that the facts in the journal cover."
)
JOURNAL_DROPPED = Metric(
    "phasescope_journal_facts_dropped",
    Kind.COUNTER,
    "Number of facts dropped from the journal to make room for newer ones.",
)
JOURNAL_SHORT = Metric(
    "phasescope_journal_short",
    Kind.GAUGE,
    "Whether the journal is full and covers less than five minutes: 1 if so, else 0.",
)
JOURNAL_WRITE_ERRORS = Metric(
    "phasescope_journal_write_errors",
    Kind.COUNTER,
    "Number of times that the journal could not be written to its folder.",
)
JOURNAL_PIECES_LOST = Metric(
    "phasescope_journal_pieces_lost",
    Kind.COUNTER,
    "Number of pieces of the journal, about a second each, dropped from memory before its folder "
    "could be written.",
)
DUMPS = Metric(
    "phasescope_dumps", Kind.COUNTER, "Number of journal dumps written, by reason.", ("reason",)
)
DUMPS_SUPPRESSED = Metric(
    "phasescope_dumps_suppressed",
    Kind.COUNTER,
    "Number of journal dumps not written because one had been written shortly before, by reason.",
    ("reason",),
)
DUMPS_FAILED = Metric(
    "phasescope_dumps_failed", Kind.COUNTER, "Number of journal dumps that could not be written."
)
STALLS = Metric(
    "phasescope_engine_stalls",
    Kind.COUNTER,
    "Number of times that an engine with work committed no step for too long.",
)
REPORTS = Metric("phasescope_reports", Kind.COUNTER, "Number of incident folders written.")
REPORTS_SUPPRESSED = Metric(
    "phasescope_reports_suppressed",
    Kind.COUNTER,
    "Number of incidents without a folder because one had been written shortly before.",
)
REPORT_FAILURES = Metric(
    "phasescope_report_failures",
    Kind.COUNTER,
    "Number of incident folders that could not be written, or not whole, by reason.",
    ("reason",),
)
ACCOUNTED = Metric(
    "phasescope_accounted_seconds",
    Kind.COUNTER,
    "Seconds of ended requests, from accepted to ended, that the ledger has split into parts.",
)
NOT_OBSERVED = Metric(
    "phasescope_not_observed_seconds",
    Kind.COUNTER,
    "Seconds of ended requests that nothing observes, by reason: on the way to the core of an "
    "attached engine (to_engine), on the way back (to_front_end), in a front end without the "
    "adapter (front_end), in an engine core that told nothing of the request (engine), or at an "
    "engine node whose account did not come or contradicts itself (at_node). 0 with an engine of "
    "our own.",
    ("reason",),
)
CLOCK_FINDINGS = Metric(
    "phasescope_clock_findings",
    Kind.COUNTER,
    "Number of sequences at nodes of a fleet whose time shows a fault of clocks or accounts, by "
    "finding. 0 with an engine of our own.",
    ("finding",),
)
CLOCK_STEPS = Metric(
    "phasescope_clock_steps",
    Kind.COUNTER,
    "Number of times that the clock of a node of the fleet and this one were found further apart, "
    "or nearer, than drift explains. 0 with an engine of our own.",
)
CLOCK_EPSILON = Metric(
    "phasescope_clock_epsilon_seconds",
    Kind.GAUGE,
    "Most by which the offset of a node's clock to this one may be wrong, by engine. Absent while "
    "it is not bounded, of nodes that were not heard of for a minute, and with an engine of our "
    "own.",
    ("engine",),
)
NOT_OBSERVED_SHARE = Metric(
    "phasescope_not_observed_share",
    Kind.GAUGE,
    "Share of a request's time that nothing observes, 0 to 1: the median and the 99th percentile "
    "over the ended requests.",
    ("percentile",),
)
