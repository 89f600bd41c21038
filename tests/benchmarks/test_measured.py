"""Checks that find nothing because nothing was there do not pass."""

from __future__ import annotations

import http.server
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.diagnosis.cost.__main__ import LOADS, CostResult, figure
from benchmarks.diagnosis.cost.journal import FoldTiming
from benchmarks.diagnosis.cost.live import Block, LiveCost, require_load
from benchmarks.diagnosis.fleet.live import __main__ as live
from benchmarks.diagnosis.fleet.live.drills import ROUTED
from benchmarks.diagnosis.fleet.live.processes import Process
from benchmarks.diagnosis.fleet.live.watch import Said, Watch
from benchmarks.gateway_scale.figures import Sample, Watched, result_of
from benchmarks.gateway_scale.several import holds as scales
from benchmarks.gateway_scale.streams import Counts, Streams
from benchmarks.host.judging import Injected, holds, judge, summary, uninjected
from benchmarks.samples import NotMeasured
from lab.load.processes import free_port

MS = 1_000_000


def until(condition: Callable[[], object]) -> None:
    """The test's own limit ends it when that never comes."""
    while not condition():
        threading.Event().wait(0.01)


# --- a gateway of a fleet ---------------------------------------------------------------------


def row(calm: Said, trouble: Said, read: int = 50) -> dict[str, Any]:
    return live.row_of("nothing", ROUTED["nothing"], calm, trouble, "", read)


def test_a_gateway_that_never_answers_is_not_a_calm_one() -> None:
    """Nothing was said in the calm time and nothing in the trouble, since nobody said anything."""
    silent, calm = Said(), Said(first=Counter({"": 28}))

    assert ROUTED["nothing"].symptom == ""
    assert row(calm, calm)["right"]
    assert not row(silent, silent)["right"]
    assert not row(silent, calm)["right"]
    assert not row(calm, silent)["right"]
    assert not row(calm, calm, read=0)["right"]


def test_a_watch_counts_the_answers_that_did_not_come() -> None:
    """A gateway that refuses, and one that says what is no diagnosis."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as strange:
        threading.Thread(target=strange.serve_forever, daemon=True).start()
        for url in (f"http://127.0.0.1:{strange.server_port}", f"http://127.0.0.1:{free_port()}"):
            with Watch(Process(None, url)) as watch:  # type: ignore[arg-type]
                until(lambda one=watch: one.said.unanswered)
            assert not watch.said.first
        strange.shutdown()


def test_some_drills_alone_do_not_replace_the_results_of_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are written where it is said."""
    monkeypatch.setattr("sys.argv", ["live", "nothing"])
    with pytest.raises(SystemExit) as ended:
        live.main()

    assert ended.value.code == 2
    assert "--out" in capsys.readouterr().err


# --- the cost of the diagnosis -----------------------------------------------------------------


def block(facts: int) -> Block:
    return Block(is_on=True, seconds=60.0, fold_cpu_s=0.1, gateway_cpu_s=1.0, facts=facts)


def cost(steps_per_s: float, rows_per_step: float) -> CostResult:
    timing = FoldTiming(
        seconds=60.0, facts=900, steps_per_s=steps_per_s, rows_per_step=rows_per_step, cpu_s=0.1,
        share=0.001, us_per_row=1.0, worst_ms=1.0,
    )  # fmt: skip
    steady = block(900)
    found = LiveCost(
        streams=8, folds={}, fold=0.001, switch=0.0, switch_error=0.0, steady=steady, blocks=[]
    )
    return CostResult(live=found, journal=timing)


def test_a_cost_without_steps_is_not_measured() -> None:
    """Folds that get nothing cost nothing: less than any limit."""
    (load, _) = LOADS

    assert figure(load, cost(steps_per_s=12.0, rows_per_step=8.0)).holds
    assert figure(load, cost(steps_per_s=0.0, rows_per_step=0.0)).value is None
    assert not figure(load, cost(steps_per_s=12.0, rows_per_step=1.0)).holds


@pytest.mark.parametrize(
    ("got", "status", "facts"),
    [
        (Counts(tokens=0), None, 900),
        (Counts(tokens=5000), 1, 900),
        (Counts(tokens=5000, errors=1), None, 900),
        (Counts(tokens=5000), None, 0),
    ],
    ids=["no tokens", "clients that ended", "streams that failed", "no facts"],
)
def test_a_cost_without_its_load_is_not_measured(
    got: Counts, status: int | None, facts: int
) -> None:
    (load, _) = LOADS
    require_load(load, Counts(tokens=5000), None, block(900))

    with pytest.raises(NotMeasured):
        require_load(load, got, status, block(facts))


def test_streams_of_a_server_that_is_not_there_say_so(tmp_path: Path) -> None:
    """Their process ends with an error, and is not left behind."""
    with Streams(free_port(), 2, 8, 30.0, tmp_path) as streams:
        until(lambda: streams.status is not None)

        assert streams.status == 1
        assert streams.counts == Counts()


# --- the gateway at a rate ----------------------------------------------------------------------


def sample(at_s: float, tokens: int) -> Sample:
    return Sample(at_s, tokens, 0, Counter(), Counter(), {}, 100.0, 100.0)


def test_a_gateway_that_gives_no_tokens_has_no_cost_of_one(tmp_path: Path) -> None:
    """And one that nobody looked at twice has no figures."""
    silent = Watched(256, 50.0, 0.0, [sample(5.0, 0), sample(10.0, 0)], ["refused"])

    with pytest.raises(NotMeasured, match="refused"):
        result_of(silent, tmp_path / "lag")
    with pytest.raises(NotMeasured):
        result_of(Watched(256, 50.0, 0.0, [sample(5.0, 90)]), tmp_path / "lag")


def test_several_gateways_hold_when_they_scale_and_no_stream_failed() -> None:
    """What the machine has no cores for is not judged."""
    found = {
        "1": {"errors": 0, "limit": None, "times": 1.0},
        "2": {"errors": 0, "limit": 1.8, "times": 1.9},
        "4": {"errors": 0, "limit": 3.0, "times": "not measured: 7 cores are needed, there are 2"},
    }

    assert scales(found, [1, 2, 4])
    assert not scales(found | {"2": found["2"] | {"times": 1.2}}, [1, 2, 4])
    assert not scales(found | {"1": found["1"] | {"errors": 3}}, [1, 2, 4])


# --- pauses of the host -------------------------------------------------------------------------


def pause(begin_ms: int, end_ms: int, cause: str = "gc", process: str = "gateway") -> Any:
    victims = [{"request_id": "a", "lost_ns": (end_ms - begin_ms) * MS}]
    return {
        "process": process, "cause": cause, "detail": "", "begin_ns": begin_ms * MS,
        "end_ns": end_ms * MS, "lost_ns": (end_ms - begin_ms) * MS, "victims": victims,
    }  # fmt: skip


def injected(begin_ms: int, end_ms: int, kind: str = "gc") -> Injected:
    gaps = {"a": (end_ms - begin_ms) * MS}
    return Injected("gateway", kind, begin_ms * MS, end_ms * MS, gaps)


def test_a_pause_that_nobody_injected_is_counted() -> None:
    """Not one that met what was done, nor one of the start; a pause of the other process is none of
    what was done to this one."""
    reported = [
        pause(10, 40), pause(100, 200), pause(300, 350), pause(300, 350, process="engine"),
        pause(400, 450),
    ]  # fmt: skip
    found = uninjected([injected(100, 200), injected(420, 430, "heap")], reported, 50 * MS)

    assert found == [reported[2], reported[3]]


def test_pauses_hold_when_they_are_found_and_their_victims_are_and_few_are_false() -> None:
    """Others that take the machine's cores are not the telemetry's fault."""
    done = [injected(100 * n, 100 * n + 50) for n in range(1, 21)]
    said = [pause(100 * n, 100 * n + 50) for n in range(1, 21)]
    overall = summary(judge(done, said))["all"]

    assert holds(overall, Counter())
    assert holds(overall, Counter(gc=1, off_cpu=30))
    assert not holds(overall, Counter(gc=1, loop_blocked=1))
    assert not holds(summary(judge(done, said[2:]))["all"], Counter())
    unnamed = [one | {"victims": []} for one in said]
    assert not holds(summary(judge(done, unnamed))["all"], Counter())
    idle = [Injected(one.process, one.kind, one.begin_ns, one.end_ns) for one in done]
    assert not holds(summary(judge(idle, said))["all"], Counter())
    assert summary(judge(done, []))["all"]["error_median_pct"] is None
