"""Episodes are judged by what stood, and by what clients saw."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.diagnosis.records import _without_owner, folder_of, pack
from benchmarks.diagnosis.score import (
    alarms,
    breaks_slo,
    cleared_s,
    judge,
    macro_f1,
    named_most,
    pairs_of,
    score,
)
from lab.drills.client import Sent
from lab.drills.mechanism import CHAINS, SOAK, TAILS
from lab.drills.outcome.conditions import Conditions, read
from lab.drills.outcome.labels import Label
from lab.drills.outcome.result import (
    ClientSummary,
    EpisodeResult,
    first_harmed_ns,
    reference_requests,
    thresholds_of,
)
from lab.drills.outcome.truth import discard_reasons
from lab.drills.pace import MachineSpeed
from lab.drills.registry import find
from lab.drills.spec import Phases
from lab.drills.watch import PollSample, VerdictChange, timeline
from telemetry.facts.clock import MonotonicClock
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.servers.served import facts_of, served, started

MS = 1_000_000
PHASES = Phases(warm_up_s=10, reference_s=10, fault_s=10, recovery_s=10)
LABEL = Label(
    symptom="host_stall", mechanism="gc", intensity=300.0, unit="ms", seed=1, on_ns=5, off_ns=9,
    victims=("1a-0001",), culprits=(),
)  # fmt: skip


def sent(number: int, due_ms: int, first_ms: int | None, end_ms: int | None, *gaps_ms: int) -> Sent:
    return Sent(
        request_id=str(number),
        tenant="red",
        is_culprit=False,
        due_ns=due_ms * MS,
        first_ns=None if first_ms is None else first_ms * MS,
        last_ns=None if end_ms is None else end_ms * MS,
        end_ns=None if end_ms is None else end_ms * MS,
        status=200,
        tokens=1 + len(gaps_ms),
        gaps_us=[1000 * gap_ms for gap_ms in gaps_ms],
    )


USUAL = [
    sent(number, 100 * number, 100 * number + 10, 100 * number + 50, 10, 20, 10)
    for number in range(5)
]


def test_harm_is_measured_against_the_reference() -> None:
    """Half above what its requests had, for something that came after the onset; a longer answer
    is no harm."""
    onset_ns = 1000 * MS
    slow_start = sent(8, -700, 5000, 9000, *[500] * 8)
    limits = thresholds_of(
        reference_requests([slow_start, *USUAL, sent(9, 1000, 9000, 9999)], onset_ns, 1.0)
    )

    assert limits is not None
    assert (limits.ttft_ns, limits.gap_ns) == (15 * MS, 30 * MS)
    assert limits.tpot_ns == pytest.approx(20 * MS)
    late_first, late_before = sent(9, 1000, 1020, 1050), sent(9, 900, 990, 1050)
    assert limits.are_exceeded_by(late_first, onset_ns)
    assert not limits.are_exceeded_by(late_before, onset_ns)
    assert not limits.are_exceeded_by(sent(9, 900, 990, 999), onset_ns)
    assert not limits.are_exceeded_by(sent(9, 1000, 1014, 1094, *[10] * 8), onset_ns)
    assert limits.are_exceeded_by(sent(9, 1000, 1014, 1035, 21), onset_ns)
    assert limits.are_exceeded_by(sent(9, 900, 910, 1065, 50, 50, 45, 5, 5), onset_ns)
    assert limits.are_exceeded_by(sent(9, 960, 970, 1031, *[5] * 6, 31), onset_ns)
    assert not limits.are_exceeded_by(sent(9, 960, 965, 1026, 31, *[5] * 6), onset_ns)
    assert thresholds_of([]) is None


def test_the_first_harmed_request_is_none_that_the_fault_added_and_after_the_onset() -> None:
    """Requests in flight at the onset count from the onset on; one that was added counts only where
    no other was harmed, and none that came when the fault was over."""
    limits = thresholds_of(USUAL)
    culprit = sent(7, 1000, 1100, 1200)
    culprit.is_culprit = True
    log = [*USUAL, culprit, sent(8, 1300, 1310, 1350), sent(9, 1400, 1450, 1500)]
    assert limits is not None

    def first_ms(
        log: list[Sent], on_ms: int, off_ms: int = 2000, adds: bool = True
    ) -> float | None:
        found = first_harmed_ns(log, limits, (on_ms * MS, off_ms * MS), adds=adds)
        return None if found is None else found / MS

    assert first_ms(log, 1000) == 1400
    assert first_ms(log, 1000, adds=False) == 1000
    assert first_ms(log, 1000, off_ms=1400) == 1000
    assert first_ms(log, 1001, off_ms=1400, adds=False) == 1001
    log.append(sent(10, 900, 1020, 1050))
    assert first_ms(log, 1000) == 1000
    assert first_ms(USUAL, 1000) is None
    assert first_ms([*USUAL, culprit], 500) == 1000
    assert first_ms([*USUAL, culprit], 500, off_ms=1000) is None


def test_an_episode_on_a_loaded_machine_is_discarded() -> None:
    """By each figure that was measured; what was not measured is no objection."""
    calm = Conditions(lag_p99_ms=1.0, foreign=0.02, steal=None, pressure=0.3)

    assert calm.discard_reasons() == []
    busy = msgspec.structs.replace(calm, lag_p99_ms=9.0, foreign=0.5, steal=0.2)
    assert len(busy.discard_reasons()) == 3


@pytest.mark.parametrize(("series", "count"), [("", 1), (TAILS, 0), (CHAINS, 0), (SOAK, 0)])
def test_a_hundredth_of_the_clients_may_be_late_where_harm_is_seconds_or_a_95th_percentile(
    series: str, count: int
) -> None:
    mechanism = replace(find("healthy_light", "steady"), series=series)
    late = Conditions(lag_p99_ms=9.0, foreign=0.02, steal=None, pressure=0.3)

    assert len(late.discard_reasons(mechanism.lag_limit_ms)) == count
    too_late = msgspec.structs.replace(late, lag_p99_ms=26.0)
    assert len(too_late.discard_reasons(mechanism.lag_limit_ms)) == 1


def test_what_a_server_starts_is_no_foreign_load() -> None:
    """Neither while it runs nor when it has ended: the server searches settings in a process."""
    spin = "import time; end = time.thread_time() + 0.3\nwhile time.thread_time() < end: pass"
    start = f"subprocess.run([sys.executable, '-c', {spin!r}])"
    code = f"import subprocess, sys, time; {start}; print(flush=True); {start}; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()  # the first has ended, the second runs
        found = read(MonotonicClock(), [server.pid], ())
        alone = read(MonotonicClock(), [], ())
        server.kill()

    assert found.own_ns - alone.own_ns >= 280_000_000


def test_an_episode_with_steal_time_in_the_fault_is_discarded() -> None:
    """During the fault only for what no fault of ours does; in health to the end."""
    stolen = Conditions(lag_p99_ms=1.0, foreign=0.9, steal=0.2, pressure=0.3)
    calm = msgspec.structs.replace(stolen, foreign=0.0, steal=0.0)
    at = {"reference": calm, "fault": stolen, "recovery": stolen}

    assert discard_reasons({**at, "fault": calm}, is_fault=True) == []
    assert discard_reasons(at, is_fault=True) == ["fault: 20.0 % of a core was stolen"]
    assert len(discard_reasons(at, is_fault=False)) == 4


def test_a_timeline_keeps_changes_of_the_verdict() -> None:
    """An answer in the contract's form, and one of an older server without a verdict."""
    answers: list[dict[str, object]] = [
        {"findings": []},
        {"verdict": "healthy", "findings": [], "onset_ns": None},
        {
            "verdict": "fault",
            "findings": [{"symptom": "host_stall", "confidence": 0.9}],
            "onset_ns": 2_000_000_000,
        },
    ]
    looks = [
        PollSample(
            at_ns=n * 10**9, until_ns=n * 10**9, polls=1, answer=msgspec.Raw(msgspec.json.encode(a))
        )
        for n, a in enumerate(answers, 1)
    ]

    assert timeline(looks, 10**9) == [
        VerdictChange(at_s=0.0, verdict="healthy"),
        VerdictChange(at_s=2.0, verdict="fault", named=(("host_stall", 0.9),), onset_s=1.0),
    ]


def episode(
    symptom: str, turns: list[VerdictChange], first_harmed_s: float | None = 21.0
) -> EpisodeResult:
    is_fault = not symptom.startswith("healthy")
    return EpisodeResult(
        name=symptom, symptom=symptom, mechanism="m", intensity=1.0, seed=0, phases=PHASES,
        flags=(), capacity=None, load=0.5, begin_ns=0, on_s=20.0 if is_fault else None,
        off_s=30.0 if is_fault else None, first_harmed_s=first_harmed_s, clients={}, others={},
        harms=(), verdicts=turns, conditions={}, discarded=[], label=LABEL, label_sha256="",
    )  # fmt: skip


def fault(at_s: float, symptom: str, onset_s: float | None = None) -> VerdictChange:
    return VerdictChange(at_s=at_s, verdict="fault", named=((symptom, 0.9),), onset_s=onset_s)


def well(at_s: float) -> VerdictChange:
    return VerdictChange(at_s=at_s, verdict="healthy")


def test_an_episode_is_scored_by_the_second_half_of_its_fault() -> None:
    """Detection counts from the first harmed request, and from the onset, too; clearing from the
    end of the fault."""
    turns = [well(0), fault(22, "throttled"), fault(23, "host_stall", 20.5), well(34)]
    judged = judge(episode("host_stall", turns))

    assert judged.is_right
    assert judged.to_detect_s == pytest.approx(2.0)
    assert judged.from_onset_s == pytest.approx(3.0)
    assert judged.onset_error_s == pytest.approx(0.5)
    assert judged.to_clear_s == pytest.approx(4.0)
    assert judged.alarms == 0


def test_a_name_counts_only_while_the_fault_lasts_and_as_a_verdict_of_a_fault() -> None:
    """Neither after its end, nor where it is still open what it is, nor one that stood before."""
    unsure = msgspec.structs.replace(fault(23, "host_stall"), verdict="indeterminate")

    def detected(*turns: VerdictChange) -> float | None:
        return judge(episode("host_stall", [well(0), *turns])).to_detect_s

    assert detected(fault(23, "host_stall")) == 2.0
    assert detected(fault(30.5, "host_stall")) is None
    assert detected(unsure) is None
    assert detected(unsure, fault(24, "host_stall")) == 3.0
    assert detected(fault(18, "host_stall")) is None
    assert detected(fault(18, "host_stall"), fault(22, "host_stall")) is None
    assert detected(fault(18, "host_stall"), well(19), fault(24, "host_stall")) == 3.0


def test_where_nobody_was_harmed_in_the_fault_its_name_counts_from_the_onset() -> None:
    turns = [well(0), fault(23, "host_stall")]

    assert judge(episode("host_stall", turns, first_harmed_s=None)).to_detect_s == 3.0
    assert judge(episode("host_stall", turns, first_harmed_s=30.5)).to_detect_s == 3.0


def test_a_fault_that_is_named_in_health_is_a_false_alarm() -> None:
    """Each time anew; to go from one name to another is still the same alarm."""
    turns = [well(0), fault(12, "throttled"), fault(13, "host_stall"), well(14), fault(15, "x")]

    assert alarms(turns, 10, 20) == (2, 0, 0)
    assert named_most(turns, 10, 20) == "x"
    assert cleared_s(turns, 10) is None


def test_alarms_of_a_measurably_slow_machine_are_counted_separately() -> None:
    """Slow from the onset on; other causes are no excuse for any."""
    paces = [(1.3 if second in (11, 12, 15, 16) else 1.0, 1.0) for second in range(20)]
    slow = MachineSpeed(40.0, paces)
    turns = [
        well(0), fault(12.5, "throttled", 11.0), well(14), fault(16.2, "host_stall", 15.0),
        well(17), fault(19.5, "memory_bandwidth", 17.5),
    ]  # fmt: skip

    assert alarms(turns, 10, 20, slow) == (2, 1, 0)
    assert alarms(turns, 13.5, 20, slow) == (2, 1, 0)
    assert alarms(turns, 14.5, 20, slow) == (2, 0, 0)


def test_alarms_of_an_slo_missed_from_the_start_are_counted_separately() -> None:
    """Only alarms of the warm-up: after it the baseline is known."""
    turns = [well(0), fault(5, "queue_overload"), well(12), fault(13, "queue_overload")]
    late = ClientSummary(requests=9, good=9, tokens=90, ends={}, ttft_p50=501.0)

    assert alarms(turns, 10, 20, broken_until_s=10) == (1, 0, 1)
    assert alarms(turns, 10, 20) == (2, 0, 0)
    assert not breaks_slo(episode("host_stall", turns))
    slow = msgspec.structs.replace(episode("host_stall", turns), clients={"warm-up": late})
    assert breaks_slo(slow)
    kept = msgspec.structs.replace(late, ttft_p50=499.0)
    assert not breaks_slo(msgspec.structs.replace(slow, clients={"warm-up": kept}))


def test_scores_are_of_the_classes_that_make_requests_late() -> None:
    """Light and busy health are one class; the exact checks are counted apart."""
    judged = [
        judge(episode("host_stall", [well(0), fault(22, "host_stall")])),
        judge(episode("throttled", [well(0), fault(22, "host_stall")])),
        judge(episode("healthy_light", [well(0)])),
        judge(episode("healthy_busy", [well(0)])),
        judge(episode("load_failure", [])),
    ]
    found = score(judged)

    assert found["episodes"] == 4
    assert found["top_1"] == pytest.approx(0.75)
    assert macro_f1(pairs_of(judged[:4])) == pytest.approx((2 / 3 + 0 + 1) / 3, abs=1e-3)
    assert found["apart"] == {"episodes": 1, "top_1": 0.0}
    assert found["classes"]["healthy"]["recall"] == 1.0


def test_a_record_is_packed_and_found_again_where_the_work_folder_is_gone(tmp_path: Path) -> None:
    """The same facts but for the place of the model; the clients' log; nothing of who packed it."""
    folder, records = tmp_path / "work" / "one", tmp_path / "records"
    folder.mkdir(parents=True)
    begun = msgspec.structs.replace(
        started(), cache_identity="gguf /home/somebody/a.gguf; own tokenizer; int8"
    )
    facts = [begun, *facts_of(served("poisson", 4))]
    write_journal(folder / "journal", facts, MonotonicClock(), "test")
    for name in ("clients.jsonl", "server.log"):
        (folder / name).write_text(f"the {name}")
    pack(folder, records)

    found = folder_of("one", tmp_path / "elsewhere", records)
    assert found is not None
    assert sorted(path.name for path in found.iterdir()) == ["clients.jsonl", "journal"]
    named = msgspec.structs.replace(begun, cache_identity="gguf a.gguf; own tokenizer; int8")
    assert list(open_journal(found / "journal").facts()) == [named, *facts[1:]]
    assert folder_of("one", tmp_path / "work", records) == folder
    assert folder_of("two", tmp_path / "work", records) is None
    stranger = tarfile.TarInfo("journal")
    stranger.uid = stranger.gid = 1234
    stranger.uname = stranger.gname = "somebody"
    nobody = _without_owner(stranger)
    assert (nobody.uid, nobody.gid, nobody.uname, nobody.gname) == (0, 0, "", "")
    with tarfile.open(records / "one.tar.xz") as archive:
        assert {(entry.uid, entry.gid, entry.uname) for entry in archive} == {(0, 0, "")}


def test_an_episode_without_a_journal_leaves_no_record(tmp_path: Path) -> None:
    pack(tmp_path, tmp_path / "records")

    assert not (tmp_path / "records").exists()
