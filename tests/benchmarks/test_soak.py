"""The soak counts alarms without a reason, and what the autopilot made worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.autopilot.running import Decided
from benchmarks.autopilot.scoring import Harm, harms_of
from benchmarks.diagnosis.soak.__main__ import (
    OUT,
    decisions_of,
    main,
    read_report,
    refuse_other_code,
    write_report,
)
from benchmarks.diagnosis.soak.plan import segments
from benchmarks.diagnosis.soak.scoring import (
    SegmentResult,
    SoakAlarm,
    alarms_in,
    figures,
    unsure_s,
    with_reason,
)
from benchmarks.promised import Slo
from lab.drills.client import Sent
from lab.drills.pace import MachineSpeed
from lab.drills.watch import VerdictChange
from service.config.settings import ConfigError
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import AutopilotDecision, AutopilotReason
from telemetry.journal.journal import write_journal
from tests.support.servers.served import started

SECOND = 1_000_000_000
SLO = Slo(ttft_ms=300, itl_ms=100, objective=0.99)


def said(at_s: float, top: str | None) -> VerdictChange:
    named = () if top is None else ((top, 0.9),)
    return VerdictChange(at_s=at_s, verdict="healthy" if top is None else "fault", named=named)


def test_segments_take_turns_through_all_patterns_and_loads() -> None:
    """Seeds and names differ; a short try keeps the order of its phases."""
    found = segments(13, 900.0)

    assert {one.pattern for one in found[:3]} == {"steady", "bursty", "daily"}
    assert (min(one.load for one in found), max(one.load for one in found)) == (0.2, 0.85)
    assert len({one.seed for one in found}) == 13
    assert found[0].phases.end_s == pytest.approx(900)
    assert sum(one.phases.end_s - one.phases.reference_at_s for one in found) > 3 * 3600
    assert segments(1, 20.0)[0].phases.end_s == pytest.approx(20)
    assert segments(1, 20.0)[0].phases.fault_s > 0
    assert [one.seed for one in segments(3, 900.0, 9800)] == [9800, 9801, 9802]


def test_an_alarm_lasts_until_the_next_calm_word() -> None:
    """With all that it named; what it said of the warm-up is cut off."""
    turns = [
        said(5, "throttled"), said(12, None), said(100, "kv_thrash"), said(103, "host_stall"),
        said(104.5, None), said(899, "kv_thrash"),
    ]  # fmt: skip
    found = alarms_in(turns, 10, 900)

    assert [(one.from_s, one.until_s) for one in found] == [(10, 12), (100, 104.5), (899, 900)]
    assert found[1].named == ("kv_thrash", "host_stall")
    assert found[1].length_s == 4.5
    unsure = VerdictChange(at_s=50, verdict="indeterminate")
    assert unsure_s([said(0, None), unsure, said(60, None)], 20, 900) == 10.0


def request(at_s: float, ttft_ms: float, *gaps_ms: int) -> Sent:
    due_ns = int(at_s * SECOND)
    return Sent(
        request_id="a", tenant="red", is_culprit=False, due_ns=due_ns, status=200,
        first_ns=due_ns + int(ttft_ms * 1e6), end_ns=due_ns, tokens=1,
        gaps_us=[1000 * gap for gap in gaps_ms],
    )  # fmt: skip


def test_an_alarm_with_a_reason_is_no_false_one() -> None:
    """A slow core for what says so, missed targets for what says so, and nothing else."""
    slo = SLO
    calm, slow = MachineSpeed(40.0), MachineSpeed(40.0, taken=range(90, 110))
    good, late = [request(at, 100, 50) for at in range(40, 100)], request(95.5, 900)
    stalled = request(96.5, 100, 50, 150)

    def reason(named: str, log: list[Sent], machine: MachineSpeed = calm) -> str:
        alarm = SoakAlarm(from_s=100, until_s=103, named=(named,))
        return with_reason(alarm, machine, log, 0, slo).reason

    assert reason("throttled", good, slow) == "the machine was slow"
    assert reason("kv_thrash", good, slow) == ""
    assert reason("throttled", good) == ""
    assert reason("slo_missed", good) == ""
    assert reason("slo_missed", [*good, late]) == "the SLO was missed"
    assert reason("slo_missed", [*good, stalled]) == "the SLO was missed"
    assert reason("kv_thrash", [*good, late]) == ""


def segment(pattern: str, *alarms: SoakAlarm, **more: Any) -> SegmentResult:
    found = SegmentResult(
        name=pattern, date="", cpu="", slo=SLO, seed=1, pattern=pattern, load=0.5, watched_s=1100,
        requests=100, good=1.0, ttft_p95_ms=100.0, unsure_s=0.0, alarms=list(alarms), decisions=[],
        harms=[], discarded=[],
    )  # fmt: skip
    return msgspec.structs.replace(found, **more)


def decided(decision: str, at_s: float) -> Decided:
    return Decided(
        at_s=at_s, decision=decision, reason="gain", limits={}, before={}, promised={},
        measured={}, why="",
    )  # fmt: skip


def test_the_soak_holds_with_one_short_false_alarm_and_no_more() -> None:
    """Alarms with a reason are not counted, and neither are hours that do not count."""
    short = SoakAlarm(from_s=1, until_s=5, named=("kv_thrash",))
    long = SoakAlarm(from_s=1, until_s=7, named=("kv_thrash",))
    named = SoakAlarm(from_s=1, until_s=99, named=("throttled",), reason="the machine was slow")
    calm = [*8 * [segment("steady")], segment("bursty"), segment("daily", named, short)]

    assert all(figure.holds for figure in figures(calm))
    assert [one.holds for one in figures([*calm, segment("daily", short)])].count(False) == 1
    assert [one.holds for one in figures([*calm[:9], segment("daily", long)])].count(False) == 1
    bad = figures([*calm[:9], segment("daily", named, short, discarded=["steal"])])
    assert [one.name for one in bad if not one.holds] == [
        "hours watched", "patterns", "workloads of ten minutes",
    ]  # fmt: skip


def test_the_soak_does_not_hold_when_the_autopilot_makes_it_worse_or_turns_back() -> None:
    """A change whose minute after has clearly fewer good requests than its minute before; a change
    that was good, or within noise, is none."""
    calm = [*8 * [segment("steady")], segment("bursty"), segment("daily")]
    good, late = (
        [request(at, 100, 50) for at in range(60)],
        [request(60 + at, 900) for at in range(60)],
    )

    good_after = [request(60 + at, 100) for at in range(1, 60)]

    assert harms_of([decided("applied", 60)], [*good, *late], 0, SLO) == [
        Harm(at_s=60, before=1.0, after=0.0)
    ]
    assert harms_of([decided("proposed", 60)], [*good, *late], 0, SLO) == []
    assert harms_of([decided("applied", 60)], [*good, *good_after, late[0]], 0, SLO) == []
    harmed = segment("daily", harms=[Harm(at_s=60, before=1.0, after=0.0)])
    turned = segment("daily", decisions=[decided("rolled_back", at) for at in (1, 2, 3)])
    for bad, why in ((harmed, "changes that made a class worse"), (turned, "changes taken back")):
        assert [one.name for one in figures([*calm, bad]) if not one.holds] == [why]


def test_the_soak_goes_on_with_its_report_on_any_machine(tmp_path: Path) -> None:
    """Segments come back as they were written, in the order of their seeds."""
    path = tmp_path / "soak.json"
    found = [segment("daily", cpu="another", seed=2), segment("steady", seed=1)]

    assert read_report(path) == []
    write_report(path, found)
    assert read_report(path) == found[::-1]


def test_a_report_of_another_version_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor one of a version that is not known, though it can be read: nothing is run, and nothing is
    lost."""
    path = tmp_path / "soak.json"
    write_report(path, [segment("steady", code="0123456789ab")])
    before = path.read_bytes()
    words = ["soak", "--out", str(path), "--work", str(tmp_path), "--segments", "1"]
    monkeypatch.setattr("sys.argv", words)

    with pytest.raises(SystemExit):
        main()
    assert "0123456789ab" in capsys.readouterr().err
    assert path.read_bytes() == before
    refuse_other_code([segment("steady", code="this")], "this")
    with pytest.raises(ConfigError, match="unknown"):
        refuse_other_code([segment("steady")], "this")
    assert read_report(OUT)


def test_what_the_autopilot_did_is_read_from_the_record(tmp_path: Path) -> None:
    """In seconds of the traffic."""
    fact = AutopilotDecided(
        at_ns=70 * SECOND, number=1, decision=AutopilotDecision.APPLIED,
        reason=AutopilotReason.GAIN, limits={"max_num_seqs": 8}, was={"max_num_seqs": 16},
        before={}, promised={"chat": 1.0}, measured={}, why="",
    )  # fmt: skip
    write_journal(tmp_path / "journal", [started(), fact], MonotonicClock(), "test")
    [found] = decisions_of(tmp_path / "journal", 10 * SECOND)

    assert (found.at_s, found.decision, found.limits) == (60.0, "applied", {"max_num_seqs": 8})
