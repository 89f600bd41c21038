"""Writes a journal as Parquet files, in one pass: a row group at a time, never all in memory.

A file appears under its name only when it is complete. Each column carries its unit and its meaning
as metadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dashboards.export.columns import LEDGER, REQUESTS, STEPS, TABLES, Kind, Table
from dashboards.export.rows import Row, ledger_rows, request_row, step_row
from dashboards.extras import need
from telemetry.facts.clock import WallAnchor
from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.records import Fact, RequestAccepted, RequestEnded
from telemetry.journal.atomic_file import atomic_file
from telemetry.journal.journal_reader import Journal
from telemetry.ledger.builder import LedgerBuilder
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

GROUP_ROWS = 50_000
_BATCH_FACTS = 512


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by table; requests that were in flight at the end are in none."""

    rows: dict[str, int]
    in_flight: int


def export(
    journal: Journal,
    folder: Path,
    policy: SloPolicy | None = None,
    group_rows: int = GROUP_ROWS,
    progress: Callable[[str], None] = lambda what: None,
) -> Exported:
    """Without a policy it is that of the server that wrote the journal. Raises JournalError,
    OSError, ExtraMissing."""
    policy = policy or journal.header.slo or DEFAULT_POLICY
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        writers = {
            table.name: stack.enter_context(_writing(table, folder, group_rows)) for table in TABLES
        }
        rows = _Rows(journal, policy, writers)
        for batch in _batches(journal):
            rows.on_facts(batch)
            progress(f"{rows.facts} facts read")
        rows.close()
        for writer in writers.values():
            writer.flush()
    counts = {name: writer.rows for name, writer in writers.items()}
    return Exported(rows=counts, in_flight=rows.in_flight)


def schema_of(table: Table) -> Any:
    """The table's Arrow schema. Raises ExtraMissing."""
    arrow = need("pyarrow", "export")
    kinds = {
        Kind.TEXT: arrow.string(),
        Kind.INT: arrow.int64(),
        Kind.FLOAT: arrow.float64(),
        Kind.BOOL: arrow.bool_(),
        Kind.TIME: arrow.timestamp("us", tz="UTC"),
    }
    fields = [
        arrow.field(
            column.name,
            kinds[column.kind],
            metadata={"unit": column.unit.value, "description": column.meaning},
        )
        for column in table.columns
    ]
    return arrow.schema(fields, metadata={"description": table.meaning})


class _Writer:
    """Collects rows, and writes a row group when there are enough."""

    def __init__(self, table: Table, path: Path, group_rows: int) -> None:
        self.rows = 0
        self._schema, self._group_rows = schema_of(table), group_rows
        self._arrow, parquet = need("pyarrow", "export"), need("pyarrow.parquet", "export")
        self._file = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._held: list[Row] = []

    def add(self, row: Row) -> None:
        self._held.append(row)
        self.rows += 1
        if len(self._held) >= self._group_rows:
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        columns = zip(*self._held, strict=True)
        arrays = [
            self._arrow.array(values, type=field.type)
            for values, field in zip(columns, self._schema, strict=True)
        ]
        self._file.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._held = []

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def _writing(table: Table, folder: Path, group_rows: int) -> Iterator[_Writer]:
    """The file gets its name when the block ends without an error."""
    with atomic_file(folder / table.file_name) as partial:
        writer = _Writer(table, partial, group_rows)
        try:
            yield writer
            writer.close()
        except BaseException:
            with contextlib.suppress(Exception):
                writer.close()
            raise


class _Rows:
    """A fold that hands rows to the writers."""

    def __init__(self, journal: Journal, policy: SloPolicy, writers: dict[str, _Writer]) -> None:
        self.facts = self._engine = 0
        self._policy, self._anchor = policy, _anchor(journal)
        self._cut = journal.cut_requests
        self._requests, self._steps = writers[REQUESTS.name], writers[STEPS.name]
        self._ledger = writers[LEDGER.name]
        self._live: set[str] = set()
        ledgers = LedgerBuilder(lambda slo_class: policy.of(slo_class).itl_ns)
        self._phases = PhaseFold([self._on_timeline], (), ledgers, self._cut)

    @property
    def in_flight(self) -> int:
        return len(self._live)

    def on_facts(self, facts: Sequence[Fact]) -> None:
        self.facts += len(facts)
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._steps.add(step_row(fact, max(1, self._engine), self._anchor))
                case EngineStarted():
                    self._engine += 1
                case RequestAccepted():
                    self._live.add(fact.request_id)
                case RequestEnded():
                    self._live.discard(fact.request_id)
                case _:
                    pass
        self._phases.on_facts(facts)

    def close(self) -> None:
        self._phases.close()

    def _on_timeline(self, timeline: RequestTimeline) -> None:
        request_id = timeline.accepted.request_id
        self._live.discard(request_id)
        is_whole = not timeline.is_incomplete and request_id not in self._cut
        self._requests.add(request_row(timeline, self._policy, self._anchor, is_whole=is_whole))
        for row in ledger_rows(timeline):
            self._ledger.add(row)


def _anchor(journal: Journal) -> WallAnchor:
    anchors = journal.header.anchors
    return anchors[-1] if anchors else WallAnchor(0, 0)


def _batches(journal: Journal) -> Iterator[list[Fact]]:
    batch: list[Fact] = []
    for fact in journal.facts():
        batch.append(fact)
        if len(batch) == _BATCH_FACTS:
            yield batch
            batch = []
    if batch:
        yield batch
