"""The autopilot's drills compare two servers that differ by the limits only."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from benchmarks.autopilot.__main__ import measured
from benchmarks.autopilot.drills import DRILLS, Drill
from benchmarks.autopilot.running import requests_of, slo_file
from benchmarks.autopilot.scoring import Got, WorkloadResult
from benchmarks.promised import Slo
from telemetry.requests.slo_policy import read_policy

CAPACITY = dict.fromkeys(("chat", "long", "shared", "essay", "stream", "dice"), 1.0)
PROMISE = Slo(ttft_ms=500, itl_ms=100, objective=0.95)


@pytest.mark.parametrize("drill", DRILLS, ids=lambda one: one.name)
def test_the_server_by_hand_steps_alike_whatever_is_promised(drill: Drill) -> None:
    """An automatic budget fills steps up to the promise, and that is what the server by hand keeps:
    with another promise it would have been another server."""
    by_hand = drill.best.get("max_batched_tokens", drill.flags[1])

    assert drill.flags[0] == "--max-batched-tokens"
    assert by_hand != "auto"


def test_what_a_culprit_asks_for_is_promised_nothing(tmp_path: Path) -> None:
    """Else a cap for it would be a loss for the class that it is in."""
    path = tmp_path / "slo.toml"
    path.write_text(slo_file(PROMISE))
    policy = read_policy(str(path))
    flood = next(one for one in DRILLS if one.name == "flood_without_caps")
    asked = requests_of(1, [(0.0, 60.0, flood.streams)], CAPACITY)
    targets = {one.is_culprit: policy.of(one.slo_class or "").ttft_ns / 1e6 for one in asked}

    assert targets[False] == PROMISE.ttft_ms
    assert targets[True] > 60_000


def test_a_report_goes_on_with_what_is_missing_and_is_of_one_machine(tmp_path: Path) -> None:
    """What it has is not run again, unless that is asked for or it is of another processor."""
    out, ran = tmp_path / "report.json", list[str]()
    nothing = Got(requests=0, good=0, good_per_s=0, ttft_p95_ms=None, gap_p99_ms=None)

    async def run(name: str) -> WorkloadResult:
        ran.append(name)
        return WorkloadResult(
            name=name, date="", slo=PROMISE, whole=nothing, decisions=[], harms=[],
            search_cpu_s=0, searches=0,
        )  # fmt: skip

    def run_all(*only: str, fresh: bool = False) -> list[str]:
        ran.clear()
        planned = {name: partial(run, name) for name in ("first", "second")}
        measured(planned, WorkloadResult, list(only), out, bool, fresh=fresh)
        return list(ran)

    assert run_all("second") == ["second"]
    assert run_all() == ["first"]
    assert run_all() == []
    assert run_all("first", fresh=True) == ["first"]
    report = msgspec.json.decode(out.read_bytes())
    assert [one["name"] for one in report["results"]] == ["first", "second"]
    report["machine"]["cpu"] = "another"
    out.write_bytes(msgspec.json.encode(report))
    assert run_all("first") == ["first"]
    assert len(msgspec.json.decode(out.read_bytes())["results"]) == 1
