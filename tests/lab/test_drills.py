"""Drills inject their fault, keep its label where no server reads it, and clean up."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.diagnosis.episodes import CLEAN, RESULTS, Kept, capacity_of_twin, series
from diagnosis.symptoms import Symptom
from lab.drills.client import Sent
from lab.drills.collector import Collector
from lab.drills.episode import run_episode
from lab.drills.mechanism import DEV, TEST, Mechanism, Need
from lab.drills.outcome.labels import Label, seal, unseal
from lab.drills.registry import MECHANISMS, find, of_split, symptoms
from lab.drills.spec import Capacity, EpisodeSpec, Phase, Phases
from lab.drills.traffic import PlannedRequest, Scene
from service.cli.main import main
from service.config.settings import ConfigError
from tests.support.children import children, forget_children
from tests.support.servers.server import eventually

_earlier_children = pytest.fixture(autouse=True)(forget_children)

PHASES = Phases(warm_up_s=10, reference_s=10, fault_s=10, recovery_s=10)
HELD_OUT = {
    "queue_overload", "prefill_interference", "prefix_cache_cold", "memory_bandwidth",
    "host_stall", "cpu_starvation", "grammar_cost", "slow_client", "cancellation_leak",
    "load_failure", "adapter_churn",
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


# --- twins without the fault ---------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: f"{one.symptom}-{one.name}")
def test_a_clean_twin_has_the_same_requests_before_the_fault_and_no_culprits_in_it(
    mechanism: Mechanism,
) -> None:
    """So that only the fault differs; requests that are not a culprit's are in both."""
    scene, twin = scene_of(mechanism.symptom, mechanism.name), mechanism.without_fault()
    until_s = scene.phases.fault_at_s

    def before(asks: list[PlannedRequest]) -> list[PlannedRequest]:
        return [replace(ask, is_culprit=False) for ask in asks if ask.at_s < until_s]

    clean = twin.traffic(scene)

    assert before(clean) == before(mechanism.traffic(scene))
    assert not twin.is_fault
    if mechanism.clean is not None:
        assert not any(ask.is_culprit for ask in clean)


# --- the registry --------------------------------------------------------------------------


def test_every_symptom_and_health_have_a_drill() -> None:
    """A class without a drill would be a claim without a proof."""
    expected = {symptom.value for symptom in Symptom} | {"healthy_light", "healthy_busy"}

    assert expected == set(symptoms())


def test_every_mechanism_has_a_description_and_levels() -> None:
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


def test_a_series_runs_every_class_once_before_any_twice() -> None:
    """Whatever part of a series has been run is balanced, and seeds of splits are apart."""
    count = len(symptoms())
    dev, test = list(series(DEV, 3)), list(series(TEST, 3))

    assert [one.mechanism.symptom for one in dev[:count]] == symptoms()
    assert len({one.name for one in dev}) == 3 * count
    assert not {one.seed for one in dev} & {one.seed for one in test}


def test_a_clean_twin_gets_the_requests_of_its_episode() -> None:
    """Its traffic goes by the capacity that was measured for the episode, not by today's."""
    clean = next(series(CLEAN, 1))
    faulty = next(one for one in series(TEST, 1) if one.mechanism == clean.mechanism)
    kept = msgspec.json.decode((RESULTS / f"{faulty.name}.json").read_bytes(), type=Kept)

    assert kept.episode.capacity is not None
    assert capacity_of_twin(clean, RESULTS) == kept.episode.capacity
    assert capacity_of_twin(faulty, RESULTS) is None
    with pytest.raises(ConfigError, match="--split test"):
        capacity_of_twin(clean, RESULTS / "nowhere")


def test_an_unknown_name_is_refused_with_the_known_ones(
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
    """One line each; without a name or a simulation it is an error."""
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


def test_a_mechanism_does_not_change_the_baseline_requests() -> None:
    """So an episode can be compared with its healthy twin, request by request."""
    scene = scene_of("queue_overload")
    harmed = find("queue_overload").traffic(scene)

    assert [ask for ask in harmed if not ask.is_culprit] == scene.baseline()
    begin_s, end_s = scene.fault_span_s
    assert all(begin_s <= ask.at_s < end_s for ask in harmed if ask.is_culprit)


def test_a_pool_that_is_too_small_still_holds_one_request() -> None:
    """A server that does not start would be another drill."""
    bad_flags = find("kv_exhaustion").bad_flags
    assert bad_flags is not None
    block_bytes = 1000
    need = Need(blocks_total=(256 << 20) // block_bytes)

    assert int(bad_flags(need, 1.25)[1]) // block_bytes == 20
    assert int(bad_flags(need, 0.01)[1]) // block_bytes == 16


# --- labels --------------------------------------------------------------------------------


LABEL = Label(
    symptom="host_stall", mechanism="gc", intensity=300.0, unit="ms", seed=1, on_ns=5, off_ns=9,
    victims=("1a-0001",), culprits=(),
)  # fmt: skip


def test_a_label_is_readable_by_its_owner_only_and_identified_by_its_hash(tmp_path: Path) -> None:
    """In a folder of its own; a later change is detected."""
    sealed = seal(LABEL, tmp_path, "episode")
    path = Path(sealed.path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sealed.sha256
    assert unseal(path, sealed.sha256) == LABEL
    path.write_bytes(path.read_bytes().replace(b"host_stall", b"kv_thrash!"))
    with pytest.raises(ValueError, match="changed"):
        unseal(path, sealed.sha256)


def test_a_seal_is_not_replaced(tmp_path: Path) -> None:
    """An episode that is run again has a label of its own beside the first."""
    other = msgspec.structs.replace(LABEL, intensity=200.0)
    first, again = seal(LABEL, tmp_path, "episode"), seal(other, tmp_path, "episode")

    assert unseal(Path(first.path), first.sha256) == LABEL
    assert unseal(Path(again.path), again.sha256) == other
    assert stat.S_IMODE(Path(again.path).stat().st_mode) == 0o600


def test_waves_come_at_regular_intervals() -> None:
    """So many at once, and the same time between any two waves."""
    scene = scene_of("oversized_batch")
    asks = scene.requests("usual", 4.0, (0.0, 10.0), burst=8, regular=True)

    assert [ask.at_s for ask in asks] == [2.0] * 8 + [4.0] * 8 + [6.0] * 8 + [8.0] * 8


def test_a_hanging_collector_does_not_answer_until_it_is_released() -> None:
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


# --- a real one ----------------------------------------------------------------------------


def test_a_stall_of_a_real_engine_is_measured_by_its_clients(tmp_path: Path) -> None:
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
    log = msgspec.json.decode(
        b"["
        + b",".join((tmp_path / result.name / "clients.jsonl").read_bytes().splitlines())
        + b"]",
        type=list[Sent],
    )
    phases = spec.phases
    due_s = [(one.due_ns - result.begin_ns) / 1e9 for one in log]
    assert result.clients["fault"].requests == sum(
        phases.fault_at_s <= at_s < phases.recovery_at_s for at_s in due_s
    )
    held_up_us = [
        max([*one.gaps_us, (one.ttft_ns or 0) // 1000])
        for one in log
        if label.on_ns - 1_000_000_000 <= one.due_ns < label.off_ns
    ]
    # who comes in the middle of it waits for the rest, who came before has a gap
    assert max(held_up_us) >= 100_000
    assert result.on_s is not None
    assert result.off_s is not None
    # it begins when its phase has begun, on a busy machine later, and ends when that has ended
    assert phases.fault_at_s <= result.on_s < phases.recovery_at_s <= result.off_s
    assert (tmp_path / result.name / "journal").stat().st_size > 0
    assert label.symptom.encode() not in (tmp_path / result.name / "server.log").read_bytes()
    assert result.verdicts
    assert list(result.conditions) == [phase.value for phase in Phase]
    assert (children(), os.sched_getaffinity(0)) == before


def test_a_drill_that_is_terminated_leaves_no_server_behind(tmp_path: Path) -> None:
    """The server is in a session of its own, so that only the drill ends it."""
    command = [sys.executable, "-m", "service.cli.main", "drill", "queue_overload"]
    drill = subprocess.Popen([*command, "--model", "dummy:tiny", "--out", str(tmp_path)])
    try:
        server = eventually(lambda: servers_of(tmp_path), "the drill's server is there")
    finally:
        drill.terminate()

    assert drill.wait(timeout=60) == 128 + signal.SIGTERM
    assert drill.pid not in server
    assert servers_of(tmp_path) == []


def servers_of(out: Path) -> list[int]:
    """Processes that serve and write below `out`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = path.read_bytes().decode().split("\0")
            if "serve" in words and any(word.startswith(str(out)) for word in words):
                found.append(int(path.parent.name))
    return found


def test_only_a_model_file_can_be_broken(tmp_path: Path) -> None:
    """Random weights of a named shape have none; that is said before anything starts."""
    spec = EpisodeSpec(symptom="load_failure", model="dummy:tiny", out=tmp_path)

    with pytest.raises(ConfigError, match=r"\.gguf"):
        run_episode(spec, lambda line: None)
    assert children() == []
