"""Drills do what they say, write the truth down where no server sees it, and clean up."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.diagnosis.episodes import series
from benchmarks.diagnosis.score import alarms, cleared_s, judge, macro_f1, named_most, score
from diagnosis.symptoms import Symptom
from service.cli.main import main
from service.config import ConfigError
from service.drill.client import Sent
from service.drill.collector import Collector
from service.drill.conditions import Conditions
from service.drill.episode import run_episode
from service.drill.labels import Label, seal, unseal
from service.drill.mechanism import DEV, TEST, Need
from service.drill.outside import Helper
from service.drill.registry import MECHANISMS, find, of_split, symptoms
from service.drill.result import EpisodeResult, limits_of
from service.drill.spec import Capacity, EpisodeSpec, Phases
from service.drill.traffic import Scene
from service.drill.watch import Look, Turn, timeline
from tests.server import eventually

MS = 1_000_000
PHASES = Phases(warm_up_s=10, reference_s=10, fault_s=10, recovery_s=10)
HELD_OUT = {
    "queue_overload", "prefill_interference", "prefix_cache_cold", "memory_bandwidth",
    "host_stall", "cpu_starvation", "grammar_cost", "slow_client", "cancellation_leak",
    "load_failure",
}  # fmt: skip


def scene_of(symptom: str, mechanism: str | None = None, seed: int = 3) -> Scene:
    found = find(symptom, mechanism)
    return Scene(
        seed=seed,
        phases=PHASES,
        capacity=Capacity(requests_per_s=10, tokens_per_s=300),
        intensity=found.level(None),
        load=found.load,
        mix=found.mix,
    )


def sent(number: int, due_ms: int, first_ms: int | None, end_ms: int | None) -> Sent:
    return Sent(
        request_id=str(number),
        tenant="red",
        is_culprit=False,
        due_ns=due_ms * MS,
        first_ns=None if first_ms is None else first_ms * MS,
        last_ns=None if end_ms is None else end_ms * MS,
        end_ns=None if end_ms is None else end_ms * MS,
        status=200,
    )


# --- the registry --------------------------------------------------------------------------


def test_every_symptom_can_be_brought_about_and_so_can_health() -> None:
    """A class without a drill would be a claim without a proof."""
    expected = {symptom.value for symptom in Symptom} | {"healthy_light", "healthy_busy"}

    assert expected == set(symptoms())


def test_every_mechanism_says_what_it_does_and_how_strongly() -> None:
    """One sentence, a unit, and levels; names are unique within a class."""
    names = [(one.symptom, one.name) for one in MECHANISMS]

    assert len(names) == len(set(names))
    for one in MECHANISMS:
        assert one.about
        assert one.unit
        assert one.levels
        assert one.level(None) in one.levels
        assert one.split in (DEV, TEST)


def test_the_test_has_mechanisms_that_development_never_sees() -> None:
    """A class with a second mechanism shows the first in one split and the second in the other."""
    dev, test = ({one.symptom: one.name for one in of_split(split)} for split in (DEV, TEST))

    assert set(dev) == set(test) == set(symptoms())
    assert {symptom for symptom in dev if dev[symptom] != test[symptom]} >= HELD_OUT


def test_every_class_has_its_turn_before_any_has_a_second() -> None:
    """Whatever part of a series has been run is balanced, and seeds of splits are apart."""
    count = len(symptoms())
    dev, test = list(series(DEV, 3)), list(series(TEST, 3))

    assert [one.mechanism.symptom for one in dev[:count]] == symptoms()
    assert len({one.name for one in dev}) == 3 * count
    assert not {one.seed for one in dev} & {one.seed for one in test}


def test_unknown_names_are_answered_with_those_that_are_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the command line it is one line and exit code 2."""
    assert main(["drill", "gremlins"]) == 2
    assert "queue_overload" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="gc, write"):
        find("host_stall", "gremlins")
    with pytest.raises(ConfigError, match="queue_overload"):
        list(series(DEV, 1, ["gremlins"]))


def test_the_command_lists_all_drills(capsys: pytest.CaptureFixture[str]) -> None:
    """A line each; and it wants to know which one, or which simulation."""
    assert main(["drill", "--list"]) == 0
    shown = capsys.readouterr().out
    for one in MECHANISMS:
        assert one.about in shown
    assert main(["drill"]) == 2


# --- traffic -------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: f"{one.symptom}-{one.name}")
def test_traffic_follows_from_the_seed_alone(mechanism: object) -> None:
    """The same seed gives the same requests, byte by byte; nothing is due after the end."""
    found = find(mechanism.symptom, mechanism.name)  # type: ignore[attr-defined]
    first, again, other = (
        found.traffic(scene_of(found.symptom, found.name, seed)) for seed in (3, 3, 4)
    )

    assert first == again
    assert first != other
    assert all(0 <= ask.at_s < PHASES.end_s for ask in first)


def test_what_a_mechanism_adds_changes_nothing_of_the_usual_requests() -> None:
    """So an episode can be compared with its healthy twin, request by request."""
    scene = scene_of("queue_overload")
    harmed = find("queue_overload").traffic(scene)

    assert [ask for ask in harmed if not ask.is_culprit] == scene.usual()
    begin_s, end_s = scene.fault_span_s
    assert all(begin_s <= ask.at_s < end_s for ask in harmed if ask.is_culprit)


def test_a_pool_that_is_too_small_still_holds_one_request() -> None:
    """A server that does not start would be another drill."""
    bad_flags = find("kv_exhaustion").bad_flags
    assert bad_flags is not None
    block_bytes = 1000
    need = Need(blocks_p75=40, blocks_total=(256 << 20) // block_bytes)

    assert int(bad_flags(need, 0.5)[1]) // block_bytes == 20
    assert int(bad_flags(need, 0.01)[1]) // block_bytes == 16


# --- labels --------------------------------------------------------------------------------


LABEL = Label(
    symptom="host_stall", mechanism="gc", intensity=300.0, unit="ms", seed=1, on_ns=5, off_ns=9,
    victims=("1a-0001",), culprits=(),
)  # fmt: skip


def test_a_label_is_for_its_owner_only_and_known_by_its_hash(tmp_path: Path) -> None:
    """In a folder of its own; what is changed afterwards is found out."""
    sealed = seal(LABEL, tmp_path, "episode")
    path = Path(sealed.path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sealed.sha256
    assert unseal(path, sealed.sha256) == LABEL
    path.write_bytes(path.read_bytes().replace(b"host_stall", b"kv_thrash!"))
    with pytest.raises(ValueError, match="changed"):
        unseal(path, sealed.sha256)


# --- helpers -------------------------------------------------------------------------------


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stopped_process_runs_again_when_its_stopper_ends() -> None:
    """It is stopped again and again, and left running whatever happens."""
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    stopper = Helper("stopper", victim.pid, 0.9, 1, -1)
    try:
        stopper.start()
        stopper.go()
        eventually(lambda: state_of(victim.pid) == "T", "a stop")
        asyncio.run(stopper.end())
        eventually(lambda: state_of(victim.pid) == "S", "sleep after the end")
    finally:
        victim.kill()
        victim.wait()


def test_a_helper_that_never_was_told_to_go_just_ends() -> None:
    """An episode that breaks off before its fault leaves nothing behind."""
    helper = Helper("busy", 0, -1)
    helper.start()

    asyncio.run(helper.end())

    assert children() == []


def test_a_hanging_collector_answers_nobody_until_it_is_told_to() -> None:
    """Exports are taken all the while."""

    async def run() -> None:
        async with Collector() as collector:
            port = int(collector.flags[1].rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            export = b"POST /v1/traces HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
            writer.write(export)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            collector.hangs = True
            writer.write(export)
            answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
            while collector.posts < 2:
                await asyncio.sleep(0.01)
            assert not answer.done()
            collector.hangs = False
            assert b"200 OK" in await answer
            writer.close()

    asyncio.run(run())


# --- results and scores --------------------------------------------------------------------


def test_who_is_harmed_is_measured_by_the_reference() -> None:
    """Half above its medians, of what was not over at the onset."""
    phases = Phases(warm_up_s=0, reference_s=1, fault_s=1, recovery_s=0)
    log = [sent(number, 100 * number, 100 * number + 10, 100 * number + 50) for number in range(5)]
    limits = limits_of(log, phases, 0)

    assert limits is not None
    assert (limits.ttft_ns, limits.e2e_ns) == (15 * MS, 75 * MS)
    assert limits.are_broken_by(sent(9, 1000, 1020, 1050), 1000 * MS)
    assert not limits.are_broken_by(sent(9, 1000, 1014, 1050), 1000 * MS)
    assert not limits.are_broken_by(sent(9, 900, 990, 999), 1000 * MS)


def test_a_machine_that_was_not_ours_is_objected_to() -> None:
    """By each figure that was measured; what was not measured is no objection."""
    calm = Conditions(lag_p99_ms=1.0, foreign=0.02, steal=None, pressure=0.3)

    assert calm.objections() == []
    busy = msgspec.structs.replace(calm, lag_p99_ms=9.0, foreign=0.5, steal=0.1)
    assert len(busy.objections()) == 3


def test_a_time_line_keeps_what_changed() -> None:
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
        Look(
            at_ns=n * 10**9, until_ns=n * 10**9, looks=1, answer=msgspec.Raw(msgspec.json.encode(a))
        )
        for n, a in enumerate(answers, 1)
    ]

    assert timeline(looks, 10**9) == [
        Turn(at_s=0.0, verdict="healthy"),
        Turn(at_s=2.0, verdict="fault", named=(("host_stall", 0.9),), onset_s=1.0),
    ]


def episode(symptom: str, turns: list[Turn], first_harmed_s: float | None = 21.0) -> EpisodeResult:
    is_fault = not symptom.startswith("healthy")
    return EpisodeResult(
        name=symptom, symptom=symptom, mechanism="m", intensity=1.0, seed=0, phases=PHASES,
        flags=(), capacity=None, load=0.5, begin_ns=0, on_s=20.0 if is_fault else None,
        off_s=30.0 if is_fault else None, first_harmed_s=first_harmed_s, clients={}, others={},
        harms=(), verdicts=turns, conditions=None, discarded=[], label=LABEL, label_sha256="",
    )  # fmt: skip


def fault(at_s: float, symptom: str, onset_s: float | None = None) -> Turn:
    return Turn(at_s=at_s, verdict="fault", named=((symptom, 0.9),), onset_s=onset_s)


def well(at_s: float) -> Turn:
    return Turn(at_s=at_s, verdict="healthy")


def test_an_episode_is_judged_by_what_stood_in_the_second_half_of_its_fault() -> None:
    """Detection counts from the first harmed request; clearing from the end of the fault."""
    turns = [well(0), fault(22, "throttled"), fault(23, "host_stall", 20.5), well(34)]
    judged = judge(episode("host_stall", turns))

    assert judged.is_right
    assert judged.to_detect_s == pytest.approx(2.0)
    assert judged.onset_error_s == pytest.approx(0.5)
    assert judged.to_clear_s == pytest.approx(4.0)
    assert judged.alarms == 0


def test_a_fault_that_is_named_in_health_is_a_false_alarm() -> None:
    """Each time anew; to go from one name to another is still the same alarm."""
    turns = [well(0), fault(12, "throttled"), fault(13, "host_stall"), well(14), fault(15, "x")]

    assert alarms(turns, 10, 20) == 2
    assert named_most(turns, 10, 20) == "x"
    assert cleared_s(turns, 10) is None


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
    assert macro_f1(judged[:4]) == pytest.approx((2 / 3 + 0 + 1) / 3, abs=1e-3)
    assert found["apart"] == {"episodes": 1, "top_1": 0.0}
    assert found["classes"]["healthy"]["recall"] == 1.0


# --- a real one ----------------------------------------------------------------------------


def children() -> list[str]:
    """Processes that this one has started and that have not ended."""
    lists = Path("/proc/self/task").glob("*/children")
    pids = [pid for path in lists for pid in path.read_text().split()]
    return [pid for pid in pids if state_of(int(pid)) != "Z"]


def test_a_stall_of_a_real_engine_is_seen_by_its_clients(tmp_path: Path) -> None:
    """The loop writes for 200 ms now and then: somebody's tokens are that late, the truth says
    when and what, and nothing of it is left behind."""
    spec = EpisodeSpec(
        symptom="host_stall",
        mechanism="write",
        intensity=200.0,
        seed=7,
        model="dummy:tiny",
        phases=Phases(warm_up_s=0.5, reference_s=1.5, fault_s=2.5, recovery_s=0.5),
        out=tmp_path,
        capacity=Capacity(requests_per_s=40, tokens_per_s=1200),
    )
    before = children(), os.sched_getaffinity(0)
    result = run_episode(spec, lambda line: None)

    label = unseal(tmp_path / "labels" / f"{result.name}.json", result.label_sha256)
    assert label == result.label
    assert (label.symptom, label.mechanism, label.intensity) == ("host_stall", "write", 200.0)
    assert label.on_ns is not None
    assert label.off_ns is not None
    assert label.off_ns - label.on_ns >= 2500 * MS
    log = msgspec.json.decode(
        b"["
        + b",".join((tmp_path / result.name / "clients.jsonl").read_bytes().splitlines())
        + b"]",
        type=list[Sent],
    )
    assert result.clients["fault"].requests == sum(
        label.on_ns <= one.due_ns < label.off_ns for one in log
    )
    held_up_us = [
        max([*one.gaps_us, (one.ttft_ns or 0) // 1000])
        for one in log
        if label.on_ns <= one.due_ns < label.off_ns
    ]
    assert max(held_up_us) >= 200_000
    assert result.on_s == pytest.approx(spec.phases.fault_at_s, abs=1.0)
    assert (tmp_path / result.name / "journal").stat().st_size > 0
    assert label.symptom.encode() not in (tmp_path / result.name / "server.log").read_bytes()
    assert result.verdicts
    assert (children(), os.sched_getaffinity(0)) == before


def test_only_a_model_file_can_be_broken(tmp_path: Path) -> None:
    """Random weights of a named shape have none; that is said before anything starts."""
    spec = EpisodeSpec(symptom="load_failure", model="dummy:tiny", out=tmp_path)

    with pytest.raises(ConfigError, match=r"\.gguf"):
        run_episode(spec, lambda line: None)
    assert children() == []
