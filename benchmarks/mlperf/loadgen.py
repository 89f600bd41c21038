"""LoadGen's process: MLPerf's load generator, and our server as its system under test.

    python -m benchmarks.mlperf.loadgen TASK.json

It is a process of its own, so that nothing shares an interpreter with the stamps. LoadGen
issues queries from its own thread; the main thread's event loop sends them and tells LoadGen
of first and last tokens as they arrive. At the end the client's own stamps are in
`stamps.json`, beside LoadGen's logs.
"""

from __future__ import annotations

import array
import asyncio
import gc
import importlib
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.mlperf.samples import Sample
from benchmarks.mlperf.streams import (
    Connections,
    Stamps,
    StreamFailed,
    Watcher,
    now_ns,
    request_bytes,
)

STAMPS_FILE = "stamps.json"
PROGRESS_S = 5.0
INSTALL = "pip install mlcommons-loadgen (it is part of the [dev] extra)"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told. LoadGen calls a result valid within `ttft_ms` and `tpot_ms`."""

    port: int
    samples: list[Sample]
    rate_per_s: float
    min_duration_s: float
    min_queries: int
    ttft_ms: float
    tpot_ms: float
    seed: int
    folder: str


def loadgen_module() -> Any:
    """Raises SystemExit with what to do when it is not installed."""
    try:
        return importlib.import_module("mlperf_loadgen")
    except ImportError as error:
        raise SystemExit(f"MLPerf's LoadGen is missing: {INSTALL}") from error


class SystemUnderTest:
    """Sends LoadGen's queries to the server, and its tokens' arrival to LoadGen."""

    def __init__(self, task: Task, loop: asyncio.AbstractEventLoop) -> None:
        self.lg = loadgen_module()
        self.stamps: list[Stamps] = []
        self.finished = 0
        self.failure: asyncio.Future[None] = loop.create_future()
        self._task, self._loop = task, loop
        self._bodies: dict[int, bytes] = {}
        self._connections = Connections(task.port)
        # what a sample answered is not looked at; LoadGen still wants a place where it lies
        self._answer = array.array("B", bytes(4))

    async def prepare(self) -> None:
        await self._connections.open()

    # --- LoadGen's thread ---

    def load(self, indices: list[int]) -> None:
        """Bodies are made before the clock starts."""
        for index in indices:
            sample = self._task.samples[index]
            self._bodies[index] = request_bytes(sample.prompt, sample.output_tokens)

    def unload(self, indices: list[int]) -> None:
        for index in indices:
            self._bodies.pop(index, None)

    def issue(self, queries: list[Any]) -> None:
        issued_ns = now_ns()
        for query in queries:
            self._loop.call_soon_threadsafe(self._start, query.id, query.index, issued_ns)

    def flush(self) -> None:
        """Nothing is held back."""

    # --- the event loop's thread ---

    def _start(self, query_id: int, index: int, issued_ns: int) -> None:
        stamps = Stamps(f"mlperf-{len(self.stamps)}", issued_ns)
        self.stamps.append(stamps)
        connection = self._connections.take()
        if connection is None:
            self._fail(StreamFailed("no open connection is left; lower the rate"))
            return
        connection.send(self._bodies[index], stamps, self._watcher(query_id, index, stamps))

    def _watcher(self, query_id: int, index: int, stamps: Stamps) -> Watcher:
        wanted = self._task.samples[index].output_tokens
        address, size = self._answer.buffer_info()
        response = self.lg.QuerySampleResponse(query_id, address, size, wanted)

        def ended() -> None:
            self.finished += 1
            if stamps.tokens != wanted:
                self._fail(
                    StreamFailed(
                        f"request {stamps.request_id}: {stamps.tokens} tokens, not {wanted}"
                    )
                )

        return Watcher(
            first=lambda: self.lg.FirstTokenComplete([response]),
            last=lambda: self.lg.QuerySamplesComplete([response]),
            ended=ended,
            failed=self._fail,
        )

    def _fail(self, error: StreamFailed) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)


def settings_of(task: Task, lg: Any) -> Any:
    """LoadGen's settings of the Server scenario with token metrics."""
    settings = lg.TestSettings()
    settings.scenario = lg.TestScenario.Server
    settings.mode = lg.TestMode.PerformanceOnly
    settings.use_token_latencies = True
    settings.server_target_qps = task.rate_per_s
    settings.min_duration_ms = int(1000 * task.min_duration_s)
    settings.min_query_count = task.min_queries
    settings.ttft_latency = int(1e6 * task.ttft_ms)
    settings.tpot_latency = int(1e6 * task.tpot_ms)
    settings.qsl_rng_seed = task.seed
    settings.sample_index_rng_seed = task.seed + 1
    settings.schedule_rng_seed = task.seed + 2
    return settings


def start_test(task: Task, sut: SystemUnderTest) -> None:
    """LoadGen from beginning to end; returns when its last query is complete."""
    lg = sut.lg
    logs = lg.LogSettings()
    logs.log_output.outdir = task.folder
    logs.enable_trace = True
    handle = lg.ConstructSUT(sut.issue, sut.flush)
    library = lg.ConstructQSL(len(task.samples), len(task.samples), sut.load, sut.unload)
    lg.StartTestWithLogSettings(handle, library, settings_of(task, lg), logs, "")
    lg.DestroyQSL(library)
    lg.DestroySUT(handle)


async def progress(sut: SystemUnderTest) -> None:
    begin_ns = now_ns()
    while True:
        await asyncio.sleep(PROGRESS_S)
        seconds = (now_ns() - begin_ns) / 1e9
        print(f"  {seconds:.0f} s: {len(sut.stamps)} queries, {sut.finished} finished", flush=True)


async def until(done: asyncio.Future[None], failure: asyncio.Future[None]) -> None:
    """Wait for `done`. Raises what `failure` holds as soon as it holds something."""
    await asyncio.wait({done, failure}, return_when=asyncio.FIRST_COMPLETED)
    if failure.done():
        failure.result()


async def run(task: Task) -> None:
    """Raises StreamFailed as soon as one request does not give what it should."""
    loop = asyncio.get_running_loop()
    sut = SystemUnderTest(task, loop)
    await sut.prepare()
    # garbage collections would stop the stamps; this process is short and leaks nothing large
    gc.freeze()
    gc.disable()
    done: asyncio.Future[None] = loop.create_future()

    def test() -> None:
        start_test(task, sut)
        loop.call_soon_threadsafe(done.set_result, None)

    # a daemon: LoadGen waits for ever for a query that failed
    threading.Thread(target=test, daemon=True).start()
    ticker = asyncio.create_task(progress(sut))
    try:
        await until(done, sut.failure)
        while sut.finished < len(sut.stamps):  # usage and [DONE] follow the last token
            await until(asyncio.ensure_future(asyncio.sleep(0.01)), sut.failure)
    finally:
        ticker.cancel()
    stamps = msgspec.json.encode([asdict(stamps) for stamps in sut.stamps])
    (Path(task.folder) / STAMPS_FILE).write_bytes(stamps)


def main() -> int:
    task = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Task)
    loadgen_module()
    try:
        asyncio.run(run(task))
    except StreamFailed as failed:
        print(f"mlperf: {failed}", file=sys.stderr, flush=True)
        # LoadGen's threads still wait for a query that failed, and would crash a tidy exit
        os._exit(1)
    except ConnectionError as error:
        print(f"mlperf: no server answers on port {task.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
