"""Requests, steps and ledgers as Parquet: what is written, and that the examples run."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as parquet
import pytest

from dashboards.export.columns import LEDGER, REQUESTS, STEPS, TABLES, Table
from dashboards.export.parquet import export, schema_of
from dashboards.extras import ExtraMissing, need
from service.cli.main import main
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.records import RequestEnded
from telemetry.journal.journal_reader import Journal, JournalError, open_journal
from tests.support.worlds.incidents import interference, journal_of_facts, lasting

PAGE = Path(__file__).parents[2] / "docs/operate/export.md"
QUERIES = re.findall(r"```sql\n(.+?)```", PAGE.read_text(), re.DOTALL)

# what others' notebooks rely on: columns are added at the end, never renamed or moved
FIRST = {
    "requests": "request_id trace_id tenant slo_class route is_stream outcome reason status "
    "verdict accepted_at accepted_ns ended_ns e2e_ns ttft_ns tpot_ns itl_max_ns ttft_target_ns "
    "itl_target_ns accept_ns parse_ns tokenize_ns queue_ns prefill_ns decode_ns detokenize_ns "
    "deliver_ns prompt_tokens cached_tokens output_tokens max_tokens choices prefill_chunks "
    "preemptions late_tokens is_whole",
    "steps": "engine step_id begin_at begin_ns committed_ns step_ns plan_ns launch_ns wait_ns "
    "forward_ns sample_ns commit_ns rows decode_rows prefill_tokens recompute_tokens "
    "sampled_tokens wasted_rows preempted budget_tokens target_ns running waiting waiting_tokens "
    "blocks_used blocks_cached blocks_total mask_ns masked_rows device_busy_ns device_bubble_ns "
    "rank_skew_ns",
    "ledger": "request_id ended_ns state reason part payer spent_ns",
}


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return journal_of_facts(tmp_path_factory.mktemp("export"), lasting(interference()))


@pytest.fixture(scope="module")
def tables(journal: Journal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `tables` of the documentation."""
    folder = tmp_path_factory.mktemp("exported") / "tables"
    export(journal, folder, group_rows=256)
    return folder


def rows(tables: Path, table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(tables / table.file_name).to_pylist()
    return found


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_schema_is_stable_and_says_what_each_column_is(tables: Path, table: Table) -> None:
    schema = parquet.read_schema(tables / table.file_name)
    names = FIRST[table.name].split()

    assert schema.names[: len(names)] == names
    assert schema.equals(schema_of(table), check_metadata=True)
    for field, column in zip(schema, table.columns, strict=True):
        assert field.metadata[b"unit"].decode() == column.unit.value
        assert field.metadata[b"description"].decode() == column.meaning


def test_every_ended_request_and_every_step_has_a_row(journal: Journal, tables: Path) -> None:
    facts = list(journal.facts())
    requests, steps = rows(tables, REQUESTS), rows(tables, STEPS)

    assert len(requests) == sum(isinstance(fact, RequestEnded) for fact in facts)
    recorded = [fact for fact in facts if isinstance(fact, StepRecorded)]
    assert [row["step_id"] for row in steps] == [fact.step_id for fact in recorded]
    for row in steps:
        parts = ("plan_ns", "launch_ns", "wait_ns", "forward_ns", "sample_ns", "commit_ns")
        assert sum(row[part] for part in parts) == row["step_ns"]


def test_the_ledger_of_a_request_sums_to_its_time_exactly(tables: Path) -> None:
    spent: Counter[tuple[str, int]] = Counter()
    for row in rows(tables, LEDGER):
        spent[row["request_id"], row["ended_ns"]] += row["spent_ns"]
    requests = {(row["request_id"], row["ended_ns"]): row for row in rows(tables, REQUESTS)}

    assert spent
    assert spent == {key: requests[key]["e2e_ns"] for key in spent}
    for row in requests.values():
        phases = ("accept", "parse", "tokenize", "queue", "prefill", "decode", "detokenize",
                  "deliver")  # fmt: skip
        assert sum(row[f"{phase}_ns"] or 0 for phase in phases) == row["e2e_ns"]


def test_rows_are_written_a_group_at_a_time(tables: Path) -> None:
    steps = parquet.ParquetFile(tables / STEPS.file_name)

    assert steps.num_row_groups > 1
    assert all(
        steps.metadata.row_group(number).num_rows <= 256 for number in range(steps.num_row_groups)
    )


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query).split("\n")[0][:24])
def test_the_queries_of_the_documentation_run(
    query: str, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tables.parent)

    assert duckdb.sql(query).fetchall()


def test_the_query_for_culprits_finds_those_of_the_fault(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tables.parent)
    (query,) = (one for one in QUERIES if "culprit" in one)

    worst = duckdb.sql(query).fetchall()[0]
    assert worst[0] in interference().culprits
    assert len(QUERIES) == 3


def test_a_damaged_journal_leaves_no_file_behind(journal: Journal, tmp_path: Path) -> None:
    data = bytearray(journal.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    broken = tmp_path / "broken.journal"
    broken.write_bytes(data)

    with pytest.raises(JournalError):
        export(open_journal(broken), tmp_path / "tables")
    assert list((tmp_path / "tables").iterdir()) == []


def test_the_command_says_what_it_wrote(
    journal: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(journal.path), "--out", str(tmp_path / "tables")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"requests \d+ rows, steps \d+ rows, ledger \d+ rows", said)
    assert "in flight" in said

    assert main(["export", str(tmp_path / "nothing"), "--out", str(tmp_path)]) == 1


def test_a_missing_package_is_told_with_how_to_install_it() -> None:
    with pytest.raises(ExtraMissing, match=r"pip install 'phasescope\[export\]'"):
        need("no_such_package_of_ours.part", "export")
