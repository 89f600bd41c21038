"""What a start reports of itself: every stage, and a sum that is the whole."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from typing import cast

import pytest
import torch

from service.composition.serving import end_engine
from service.device.cache.zero_pages import zeros
from service.gateway.engine_client.supervisor import Supervisor
from telemetry.facts.clock import ManualClock
from telemetry.facts.reasons import StartStage
from telemetry.facts.stages import Stages, start_report
from tests.support.servers.server import Server, eventually

CRITICAL = ["launch", "imports", "weights", "cache", "warm-up", "engine", "announce"]


def test_stages_tile_their_time() -> None:
    """Each begins where the one before ended; the report's sum is its total to the ns."""
    clock = ManualClock(1000)
    gateway = Stages(clock, 400)
    gateway.end(StartStage.LAUNCH)
    engine = Stages(clock, clock.now_ns())
    for count, stage in enumerate((StartStage.IMPORTS, StartStage.WEIGHTS, StartStage.CACHE), 1):
        clock.advance(count * 7)
        engine.end(stage)
    gateway.end(StartStage.GATEWAY_IMPORTS)
    clock.advance(5)

    report = start_report(gateway.done, engine.done, clock.now_ns())
    assert report.total_ns == clock.now_ns() - 400
    assert sum(stage.end_ns - stage.begin_ns for stage in report.stages) == report.total_ns
    assert [stage.name for stage in report.beside] == [StartStage.GATEWAY_IMPORTS]


def test_a_server_says_how_long_its_start_took_by_stage() -> None:
    """On the line that says that it is ready, and in `/debug/startup`, with the same numbers."""
    with Server("--model", "dummy:tiny") as server:
        line = eventually(lambda: re.search(r"ready in (.*) s \((.*)\)", server.log()), "the line")
        report = server.client.get("/debug/startup").json()

    spans_ns = {stage["name"]: stage["ns"] for stage in report["stages"]}
    assert list(spans_ns) == CRITICAL
    assert all(ns >= 0 for ns in spans_ns.values())
    assert sum(spans_ns.values()) == report["total_ns"] > 0
    assert [stage["name"] for stage in report["beside"]] == ["gateway imports", "tokenizer"]
    told = dict(part.rsplit(" ", 1) for part in line[2].split(", "))
    assert {name: float(s) for name, s in told.items()} == pytest.approx(
        {name: ns / 1e9 for name, ns in spans_ns.items()}, abs=0.006
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_pages_of_zeros_are_zeros_and_keep_what_is_written(dtype: torch.dtype) -> None:
    """They are a tensor like any other, also when only a view of them is left."""
    whole = zeros((3, 5, 1000), dtype, torch.device("cpu"))
    assert whole.shape == (3, 5, 1000)
    assert whole.dtype is dtype
    assert not whole.any()

    whole[1, 2] = 7
    part = whole[1]
    del whole
    assert part[2].eq(7).all()
    assert not part[3].any()


def test_the_supervisor_sees_the_engine_s_end_for_itself() -> None:
    """Cancelled as soon as the process is gone, it made an orderly stop exit with code 1."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])

    class Stopped:
        async def stop(self) -> None:
            await asyncio.to_thread(child.wait)

    async def scenario() -> int:
        async def supervise() -> None:
            await asyncio.to_thread(child.wait)
            for _ in range(100):  # turns of the loop; a cancellation comes in the next one
                await asyncio.sleep(0)

        task = asyncio.create_task(supervise())
        await end_engine(cast(Supervisor, Stopped()), task)
        await task
        return child.returncode

    assert asyncio.run(scenario()) == 0
