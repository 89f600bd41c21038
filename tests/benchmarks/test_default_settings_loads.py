"""The benchmark of the default setting: what it sends, and what it makes of the replies."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.default_settings import figures, loads
from benchmarks.default_settings.__main__ import arguments, choice_of, describe, server_named
from benchmarks.default_settings.loads import Run
from benchmarks.default_settings.plan import (
    DEFAULT,
    OLD,
    ONE_CLASS,
    Choice,
    Trial,
    Unknown,
    servers_of,
    trials_of,
)
from benchmarks.default_settings.rounds import GROUP, todo
from benchmarks.peers.layout import PeerError
from benchmarks.peers.recipes import setup_of
from benchmarks.peers.store import Store
from lab.load.result import BenchResult
from lab.load.run import run_bench
from lab.load.spec import BenchSpec, Fixed, Poisson, Users
from lab.load.workload.arrivals import due_times, streams_of
from tests.support.servers.scripted_llm import Pieces, ScriptedServer, status, whole


def cell(load: str, server: str, number: int = 1, **values: float | None) -> dict[str, Any]:
    where = {"group": GROUP, "load": load, "repetition": number, "server": server}
    return {**where, "figures": values, "checks": {"problems": []}, "at": "2026-11-25 10:00:00"}


def asked(*words: str) -> Choice:
    return choice_of(arguments().parse_args(words))


class Stopped(Exception):
    pass


class Recorder:
    """Takes the run and goes no further."""

    def run(self, run: Run, errors_count: bool = False) -> BenchResult:
        self.sent = run
        raise Stopped


def sent(trial: Trial, label: str, known: dict[tuple[str, str], float]) -> Run:
    client = Recorder()
    with pytest.raises(Stopped):
        trial.measure(client, label, lambda load, figure: known[load, figure])
    return client.sent


def test_the_rate_is_a_share_of_the_capacity_of_the_same_lengths() -> None:
    tests = {
        test.load: test
        for test in trials_of(asked("--loads", "goodput", "--shares", "0.3,0.5,0.7"))
    }
    known = {
        ("capacity sharegpt", "requests_per_s"): 2.0,
        ("capacity long-tail", "requests_per_s"): 5.0,
    }

    (one,) = sent(tests["goodput sharegpt 0.7"], OLD, known).classes
    (other,) = sent(tests["goodput long-tail 0.5"], OLD, known).classes

    assert one.arrivals == Poisson(pytest.approx(1.4))
    assert other.arrivals == Poisson(pytest.approx(2.5))
    assert (one.slo.ttft_ms, one.slo.itl_ms) == (500, 100)
    assert list(tests).index("capacity sharegpt") < list(tests).index("goodput sharegpt 0.3")


def test_every_server_of_a_round_gets_the_same_moments_and_another_round_others() -> None:
    run = loads.open_loop(Fixed(8, 8), 2.0, 1.0)

    def moments_ns(seed: int) -> list[int]:
        spec = BenchSpec(classes=run.classes, duration_s=1.0, seed=seed)
        (stream,) = streams_of(spec)
        return [due.offset_ns for due in itertools.islice(due_times(stream, spec), 20)]

    assert moments_ns(1) == moments_ns(1)
    assert moments_ns(1) != moments_ns(2)


def test_voice_and_batch_take_their_shares_and_are_told_apart_only_where_asked() -> None:
    """Two clients, each of which has the machine for 10 s in a cycle of 40 s: half of it."""
    (test,) = (test for test in trials_of(asked("--loads", "voice")) if test.load == "voice")
    known = {
        ("voice capacity", "requests_per_s"): 5.0,
        ("voice capacity", "batch_s"): 10.0,
    }

    voice, batch = sent(test, DEFAULT, known).classes
    plain = sent(test, ONE_CLASS, known).classes

    assert voice.arrivals == Poisson(1.0)
    assert isinstance(batch.arrivals, Users)
    reply_s = 10.0 / (1 - loads.VOICE_SHARE)
    assert batch.arrivals.users * 10.0 / (batch.arrivals.pause_s + reply_s) == pytest.approx(0.5)
    assert [one.headers for one in (voice, batch)] == [
        {"x-slo-class": "voice"},
        {"x-slo-class": "batch"},
    ]
    assert [one.headers for one in plain] == [{}, {}]
    assert [one.arrivals for one in plain] == [voice.arrivals, batch.arrivals]


def test_only_leaves_the_default_in_and_an_unknown_load_is_refused() -> None:
    """What all else is compared to is never left out."""
    tests = trials_of(asked("--loads", "mix", "--only", "phasescope@64,vllm"))

    assert servers_of(tests) == [DEFAULT, "phasescope@64", "vllm"]
    assert "mix: " in describe(tests, 5)
    with pytest.raises(PeerError, match="goodput"):
        asked("--loads", "mixx")


def test_a_round_with_a_cell_missing_is_measured_whole_and_what_is_once_is_once(
    tmp_path: Path,
) -> None:
    def nothing(*_: object) -> figures.Figures:
        return {}

    test = Trial("mix", (DEFAULT, "vllm"), 1.0, nothing)
    once = Trial("voice capacity", (DEFAULT,), 1.0, nothing, once=True)
    store = Store(tmp_path / "results.json", {}, {})
    for one in (cell("mix", DEFAULT), cell("voice capacity", DEFAULT)):
        store.add_cell(**{**one, "at": ""})

    assert todo(store, test, 1, 5, [DEFAULT, "vllm"]) == [DEFAULT, "vllm"]
    assert todo(store, test, 1, 5, [DEFAULT]) == []  # vllm did not start
    assert todo(store, test, 2, 5, [DEFAULT]) == [DEFAULT]
    assert todo(store, once, 2, 5, [DEFAULT, "vllm"]) == []


def test_a_cell_that_builds_on_nothing_says_so() -> None:
    (_, test, *_) = trials_of(asked("--loads", "goodput"))

    def known(load: str, figure: str) -> float:
        raise Unknown(f"{load} was not measured")

    with pytest.raises(Unknown, match="capacity sharegpt"):
        test.measure(Recorder(), DEFAULT, known)


def test_servers_are_the_peers_recipes_and_ours_with_their_flags(tmp_path: Path) -> None:
    """A budget below the usual batch takes a smaller batch with it."""
    setup = setup_of(tmp_path, 2, "float32", "--tracing full")

    commands = {
        label: " ".join(server_named(label, setup, "--order arrival").start.command)
        for label in (DEFAULT, "phasescope@16", "phasescope@64", OLD, "vllm@256")
    }

    assert "--max-batched-tokens" not in commands[DEFAULT]
    assert commands["phasescope@16"].endswith("--max-batched-tokens 16 --max-num-seqs 16")
    assert commands["phasescope@64"].endswith("--tracing full --max-batched-tokens 64")
    assert commands[OLD].endswith("--order arrival")
    assert commands["vllm@256"].endswith("--max-num-batched-tokens 256")
    with pytest.raises(PeerError, match="vllm"):
        server_named("vlm", setup, "")


def measured(run: Run, script: Any) -> BenchResult:
    """The run against a server whose every delay is written down."""
    with ScriptedServer(script) as server:
        return run_bench(
            BenchSpec(
                url=server.url, classes=run.classes, duration_s=run.seconds, requests=run.requests
            )
        )


def test_figures_of_the_mix_are_the_streams_gaps_and_the_prompts_wait() -> None:
    """A long prompt waits 300 ms, a stream has a token every 20 ms."""
    run = loads.mix(0.012, 6.0)  # 0.3 s, which no injection would reach
    streams, injected = run.classes
    injected = loads.ClassSpec(
        name=injected.name, lengths=injected.lengths, arrivals=loads.Interval(0.1)
    )

    def script(number: int, body: dict[str, Any]) -> Pieces:
        return [0.3, *whole(8)] if body["max_tokens"] == 8 else whole(10, gap_s=0.02)

    found = figures.mix(measured(Run((streams, injected), 0.3), script))

    assert found["itl_p50_ms"] == pytest.approx(20, abs=8)
    assert found["ttft_p50_ms"] == pytest.approx(300, abs=40)


def test_a_request_that_failed_is_counted_and_not_good() -> None:
    """Half are refused; capacity goes by the tokens that came."""
    run = Run(loads.open_loop(Fixed(8, 4), 50.0, 1.0).classes, 0.5)

    def script(number: int, body: dict[str, Any]) -> Pieces:
        return status(503, "full") if number % 2 else whole(4)

    result = measured(run, script)
    found = figures.goodput(result)

    assert found["counted"] == result.total.counted > 4
    assert found["good"] == result.total.ok < result.total.counted
    assert figures.problems(result, run.classes, errors_count=True) == []
    assert figures.problems(result, run.classes, errors_count=False) != []
    tokens_per_s = result.total.throughput.output_tokens_per_s
    assert figures.capacity(result, Fixed(8, 4))["requests_per_s"] == tokens_per_s / 4


def test_voice_is_in_time_by_its_first_token_and_good_by_its_gaps_too() -> None:
    """Every reply begins at once and has a gap of 200 ms; batch goes by the time of a cycle."""
    voice, batch = loads.voice(50.0, 0.05, True, 1.0).classes

    def script(number: int, body: dict[str, Any]) -> Pieces:
        return whole(3, gap_s=0.2)[1:] if body["max_tokens"] == 32 else whole(3)

    result = measured(Run((voice, batch), 0.4), script)
    found = figures.voice(result, 0.05)

    assert found["counted"] == found["in_time"]
    assert found["good"] == 0
    assert found["batch_e2e_mean_ms"] is not None
    cycle_s = found["batch_e2e_mean_ms"] / 1e3 + loads.batch_pause_s(0.05)
    assert found["batch_tokens_per_s"] == pytest.approx(2 * 4000 / cycle_s)


def test_mean_lengths_are_those_that_are_drawn() -> None:
    assert loads.mean_output_tokens(Fixed(9, 7)) == 7
    assert 100 < loads.mean_output_tokens(loads.LENGTHS["sharegpt"]) < 150
    assert 20 < loads.mean_output_tokens(loads.LENGTHS["long-tail"]) < 60
