"""A real server lists its live requests, in its journal only."""

from __future__ import annotations

from pathlib import Path

from telemetry.facts.engine_records import EngineIdled, SequenceEnded, SequencesListed
from telemetry.facts.records import Fact, RequestsListed
from telemetry.journal.journal_reader import open_journal
from tests.support.servers.server import Server, eventually


def test_engine_and_gateway_list_no_live_request_when_they_go_idle(tmp_path: Path) -> None:
    with Server("--model", "dummy:tiny") as server:

        def facts() -> list[Fact]:
            path = tmp_path / "now.journal"
            path.write_bytes(server.client.get("/debug/journal").content)
            return list(open_journal(path).facts())

        assert server.completion(max_tokens=4).is_success

        def lists() -> list[Fact]:
            return [fact for fact in facts() if isinstance(fact, RequestsListed)]

        eventually(lists, "a list of requests", 60)
        found = facts()
        metrics = server.client.get("/metrics").text

    ended = [fact for fact in found if isinstance(fact, SequenceEnded)]
    listed = [fact for fact in found if isinstance(fact, SequencesListed)]
    assert len(listed) == sum(isinstance(fact, EngineIdled) for fact in found)
    assert {one.seq_ids for one in listed} == {()}
    assert listed[-1].last_seq_id == ended[-1].seq_id
    assert next(f for f in found if isinstance(f, RequestsListed)).request_ids == ()
    assert "phasescope_folds_detached{" not in metrics
    assert 'phasescope_fold_errors_total{fold="phases_slo"} 0' in metrics
    assert 'phasescope_requests_total{outcome="lost"} 0' in metrics
