"""Profiles of the production loop on real executors, without a server around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.replay.recorded import read_runs
from lab.replay.replay_exact import replay_exactly
from lab.simulation.scenarios import build_scenario
from lab.simulation.world import World
from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.loader import load_executor
from service.engine.admission import Limits
from service.engine.inbox import Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import SamplingParams
from service.engine.scheduler import Scheduler
from service.process import frames
from service.process.profiling import Profiles
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import ProfileTaken
from telemetry.facts.recorder import Lane
from tests.support.servers.chrome_trace import KernelTrace

DUMMY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")


class Engine:
    """What the engine process has for profiles, driven by hand."""

    def __init__(self, executor: str = "torch", depth: int = 1) -> None:
        clock = MonotonicClock()
        config = EngineConfig(
            model=DUMMY, dtype="float32", executor=executor, device="cpu", pipeline_depth=depth
        )
        self.loaded = load_executor(config, clock, lambda stage: None)
        limits = Limits(
            block_tokens=self.loaded.executor.block_tokens,
            blocks_total=self.loaded.executor.blocks_total,
            max_model_tokens=256,
            max_seqs=4,
            budget_tokens=16,
            chunked_prefill=True,
            queue_limit_requests=9,
            queue_limit_tokens=999,
        )
        self.inbox, self.lane = Inbox(), Lane()
        self.loop = EngineLoop(
            Scheduler(limits), self.loaded.executor, self.inbox, self.lane, clock, depth=depth
        )
        self.answers: list[frames.ProfileEnded] = []
        self.profiles = Profiles(self.loop, self.loaded, self.lane, clock, self.answers.append)
        self._next_seq_id = 0

    def submit(self, tokens: int) -> None:
        sampling = SamplingParams(temperature=0.0)
        prompt = [20, 21, 22, 23]
        self.inbox.put(
            Submit(seq_id=self._next_seq_id, prompt=prompt, max_tokens=tokens, sampling=sampling)
        )
        self._next_seq_id += 1

    def turn(self) -> list[int]:
        """The new tokens, in the order of their sequences."""
        emissions = self.loop.step()
        self.profiles.end_full()
        return [emission.sample.token_id for emission in emissions if emission.sample is not None]

    def rest(self) -> list[int]:
        """Turns until there is nothing more to do."""
        tokens: list[int] = []
        while len(self.inbox) or self.loop.has_work:
            tokens += self.turn()
        return tokens

    def taken(self) -> list[ProfileTaken]:
        return [fact for fact in self.lane.drain() if isinstance(fact, ProfileTaken)]


def read(path: Path) -> KernelTrace:
    return KernelTrace(json.loads(path.read_bytes()))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_profile_holds_the_steps_that_were_asked_for(depth: int, tmp_path: Path) -> None:
    """Begun in the middle of a sequence, at depth 2 with a step in flight; the operators of a
    step are on the thread that computes it, and the loop has its own executor back."""
    engine, path = Engine(depth=depth), tmp_path / "trace.json"
    engine.submit(tokens=20)
    for _ in range(4):
        engine.turn()
    engine.profiles.handle(frames.StartProfile(5, str(path)))
    engine.rest()
    (ended,) = engine.answers
    trace = read(path)
    launched, computed = trace.spans("launch"), trace.spans("compute")

    assert (ended.steps, ended.error) == (5, None)
    assert sorted(launched) == list(range(min(launched), min(launched) + 5))
    assert set(trace.spans("collect")) == set(launched) <= set(computed)
    assert all(trace.within(computed[step_id]) for step_id in launched)
    assert trace.about["steps"] == trace.about["steps_asked"] == 5
    assert trace.about["first_step_id"] == min(launched)
    assert trace.about["last_step_id"] == max(launched)
    assert engine.loop.executor is engine.loaded.executor
    assert engine.profiles.open is None
    engine.loaded.executor.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_profile_changes_no_token_and_is_recorded(depth: int, tmp_path: Path) -> None:
    engine = Engine(depth=depth)
    engine.submit(tokens=12)
    wanted = engine.rest()
    engine.lane.drain()
    engine.profiles.handle(frames.StartProfile(5, str(tmp_path / "trace.json")))
    engine.submit(tokens=12)

    assert engine.rest() == wanted
    (fact,) = engine.taken()
    assert fact.steps == 5
    assert fact.begin_ns < fact.end_ns == fact.at_ns
    engine.loaded.executor.close()


def test_one_after_the_other_each_has_its_own_steps(tmp_path: Path) -> None:
    engine = Engine()
    paths = [tmp_path / f"{number}.json" for number in range(2)]
    for path in paths:
        engine.profiles.handle(frames.StartProfile(3, str(path)))
        engine.submit(tokens=6)
        engine.rest()
    first, second = (set(read(path).spans("launch")) for path in paths)

    assert len(first) == len(second) == 3
    assert max(first) < min(second)


def test_a_profile_of_nothing_is_a_trace_without_steps(tmp_path: Path) -> None:
    engine, path = Engine(), tmp_path / "trace.json"
    engine.profiles.handle(frames.StartProfile(5, str(path)))
    engine.turn()
    engine.profiles.handle(frames.StopProfile(keep=True))
    trace = read(path)

    assert [ended.steps for ended in engine.answers] == [0]
    assert not trace.spans("launch")
    assert trace.about["first_step_id"] is None


@pytest.mark.parametrize("depth", [1, 2])
def test_a_profile_whose_client_left_leaves_no_file_and_is_recorded(
    depth: int, tmp_path: Path
) -> None:
    """Dropped while a step is in flight; a second word changes nothing."""
    engine, path = Engine(depth=depth), tmp_path / "trace.json"
    engine.submit(tokens=9)
    engine.profiles.handle(frames.StartProfile(50, str(path)))
    for _ in range(4):
        engine.turn()
    engine.profiles.handle(frames.StopProfile(keep=False))
    engine.profiles.handle(frames.StopProfile(keep=False))
    (ended,) = engine.answers

    assert len(engine.rest()) > 0
    assert 0 < ended.steps <= 4
    assert ended.error is None
    assert not path.exists()
    assert [fact.steps for fact in engine.taken()] == [ended.steps]
    engine.loaded.executor.close()


def test_an_unwritable_profile_is_reported_and_the_engine_goes_on(tmp_path: Path) -> None:
    engine = Engine()
    engine.profiles.handle(frames.StartProfile(2, str(tmp_path / "missing" / "trace.json")))
    engine.submit(tokens=6)

    assert len(engine.rest()) == 6
    (ended,) = engine.answers
    assert ended.error is not None
    assert "\n" not in ended.error
    engine.profiles.handle(frames.StartProfile(2, str(tmp_path / "trace.json")))
    engine.submit(tokens=6)
    engine.rest()
    assert len(read(tmp_path / "trace.json").spans("launch")) == 2


def test_a_profiler_that_cannot_start_is_reported_and_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(profile: object) -> None:
        raise RuntimeError("the device is being profiled already\nby another tool")

    monkeypatch.setattr("torch.autograd.profiler.profile.__enter__", refused)
    engine = Engine()
    engine.profiles.handle(frames.StartProfile(2, str(tmp_path / "trace.json")))
    engine.submit(tokens=4)

    assert len(engine.rest()) == 4
    (ended,) = engine.answers
    assert ended == frames.ProfileEnded(0, "", "RuntimeError: the device is being profiled already")
    assert engine.profiles.open is None


def test_a_profile_of_an_executor_without_torch_has_only_spans_and_reports_it(
    tmp_path: Path,
) -> None:
    """Our C++ decoder: steps, and the operators of sampling."""
    engine, path = Engine(executor="native"), tmp_path / "trace.json"
    engine.profiles.handle(frames.StartProfile(3, str(path)))
    engine.submit(tokens=6)
    engine.rest()
    (ended,) = engine.answers
    trace = read(path)

    assert len(trace.spans("launch")) == len(trace.spans("compute")) == ended.steps == 3
    assert "torch operators of sampling only" in ended.contents
    assert trace.about["contents"] == ended.contents
    assert trace.about["backend"].startswith("native")


def test_a_profile_changes_no_replay() -> None:
    facts = list(World(build_scenario("poisson", 0)).run().facts)
    (plain,) = (replay_exactly(run) for run in read_runs(facts))
    middle = len(facts) // 2
    facts.insert(middle, ProfileTaken(2, 1, 2, 20))
    (run,) = read_runs(facts)

    assert replay_exactly(run) == plain
    assert plain.holds
    assert ProfileTaken(2, 1, 2, 20) in run.others
