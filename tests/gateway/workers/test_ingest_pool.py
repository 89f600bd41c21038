"""The processes that read bodies: bounded, replaced when they end, and the same as in place."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from service.config.settings import Compat, ModelKind, ModelRef, SamplingDefaults
from service.engine.plan import Grammar, GrammarKind
from service.gateway.errors import ApiError
from service.gateway.ingest.pool import IN_PLACE_BYTES, IngestPool
from service.gateway.ingest.prompting import BodyReader
from service.gateway.ingest.schemas import Operation
from service.gateway.ingest.worker_process import WorkerDied, WorkerProcess
from service.text.tokenizer import Tokenizer, load_tokenizer
from telemetry.facts.clock import MonotonicClock
from telemetry.metrics.ingest_counts import IngestCounts, WorkerEnd
from tests.support.servers.server import eventually

MODEL = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
CONTEXT_TOKENS = 1 << 20
READER = BodyReader(load_tokenizer(MODEL), MODEL.name, SamplingDefaults(), MonotonicClock())
EXPONENTIAL = {
    "$ref": "#/$defs/d0",
    "$defs": {
        **{f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)},
        "d60": {"type": "string"},
    },
}


def body(**fields: Any) -> bytes:
    return json.dumps({"prompt": "hello", "max_tokens": 4, **fields}).encode()


LONG = body(prompt="hello " * 1000)
SLOW = body(prompt=["a" * 30_000] * 250)


@asynccontextmanager
async def pool(workers: int = 1, **limits: Any) -> AsyncIterator[IngestPool]:
    running = IngestPool(READER, MODEL, workers, **limits)
    try:
        yield running
    finally:
        await running.close()


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def until_one_computes(running: IngestPool) -> None:
    """A worker has used its CPU for a while since it was seen to be ready."""
    before: dict[int, int] = {}
    async with asyncio.timeout(20):
        while not any(cpu_ticks(pid) > before[pid] + 2 for pid in before):
            await asyncio.sleep(0.01)
            for pid in running.worker_pids:
                before.setdefault(pid, cpu_ticks(pid))


@pytest.mark.parametrize(
    ("operation", "whole"),
    [
        (Operation.TEXT, LONG),
        (Operation.TEXT, body(prompt=[[1, 2], list(range(200)) * 10], n=3, stop="x", seed=-5)),
        (Operation.TEXT, body(guided_json={"type": "null"}, logit_bias={"7": 1.5}, top_p=0.5)),
        (Operation.TEXT, body(prompt=[1000] * 2000)),
        (Operation.TEXT, b'{"prompt": "' + b"x" * IN_PLACE_BYTES),
        (Operation.TEXT, body(model="other", prompt="x" * IN_PLACE_BYTES)),
        (Operation.CHAT, json.dumps(
            {"messages": [{"role": "user", "content": "h\u00e9llo" * 2000},
                          {"role": "assistant", "content": "a", "reasoning_content": "b"}],
             "continue_final_message": True, "chat_template_kwargs": {"x": None}}).encode()),
        (Operation.RESPONSES, json.dumps(
            {"input": "hello " * 1000, "metadata": {"a": "b"}, "text": {"format": {
                "type": "json_schema", "name": "n", "schema": {"type": "null"}}}}).encode()),
    ],
)  # fmt: skip
def test_a_worker_reads_a_body_as_it_is_read_in_place(operation: Operation, whole: bytes) -> None:
    async def scenario() -> None:
        async with pool() as running:
            there = await running.read(operation, whole, CONTEXT_TOKENS)
        here = READER.read(operation, whole, CONTEXT_TOKENS)

        assert there.request == here.request
        assert there.refusal == here.refusal
        assert [(p.tokens, bytes(p.ids)) for p in there.prompts] == [
            (p.tokens, bytes(p.ids)) for p in here.prompts
        ]
        assert all(len(msgspec.msgpack.decode(p.ids)) == p.tokens for p in here.prompts)

    asyncio.run(scenario())


def test_a_full_ingest_queue_is_refused_with_retry_after() -> None:
    counts = IngestCounts()

    async def scenario() -> list[Any]:
        async with pool(waiting_jobs=2, counts=counts) as running:
            reads = [running.read(Operation.TEXT, LONG, CONTEXT_TOKENS) for _ in range(4)]
            return await asyncio.gather(*reads, return_exceptions=True)

    answers = asyncio.run(scenario())
    refused = [answer for answer in answers if isinstance(answer, ApiError)]

    assert len(refused) == 2
    assert [(e.status, e.code, e.headers) for e in refused] == [
        (429, "queue_full", {"retry-after": "2"})
    ] * 2
    assert (counts.refused, counts.waiting_jobs, counts.waiting_bytes) == (2, 0, 0)


def test_too_many_queued_bytes_are_refused_but_one_body_is_always_accepted() -> None:
    async def scenario() -> list[Any]:
        async with pool(waiting_bytes=1000) as running:
            reads = [running.read(Operation.TEXT, LONG, CONTEXT_TOKENS) for _ in range(2)]
            return await asyncio.gather(*reads, return_exceptions=True)

    first, second = asyncio.run(scenario())
    assert first.refusal is None
    assert isinstance(second, ApiError)


def test_a_running_job_whose_request_is_cancelled_ends_with_its_worker() -> None:
    counts = IngestCounts()

    async def scenario() -> None:
        async with pool(counts=counts) as running:
            await running.read(Operation.TEXT, LONG, CONTEXT_TOKENS)
            (before,) = running.worker_pids
            slow = asyncio.create_task(running.read(Operation.TEXT, SLOW, CONTEXT_TOKENS))
            queued = asyncio.create_task(running.read(Operation.TEXT, SLOW, CONTEXT_TOKENS))
            await until_one_computes(running)
            slow.cancel()
            queued.cancel()
            result = await running.read(Operation.TEXT, LONG, CONTEXT_TOKENS)

            assert result.refusal is None
            assert running.worker_pids != [before]
            with pytest.raises(ProcessLookupError):
                os.kill(before, 0)

    asyncio.run(scenario())
    assert counts.worker_ends[WorkerEnd.CLIENT_LEFT] == 1


def test_a_worker_that_dies_fails_its_job_alone_and_is_replaced() -> None:
    counts = IngestCounts()

    async def scenario() -> None:
        async with pool(counts=counts) as running:
            await running.read(Operation.TEXT, LONG, CONTEXT_TOKENS)
            slow = asyncio.create_task(running.read(Operation.TEXT, SLOW, CONTEXT_TOKENS))
            await until_one_computes(running)
            os.kill(running.worker_pids[0], signal.SIGKILL)
            with pytest.raises(ApiError) as caught:
                await slow

            assert caught.value.status == 500
            assert (await running.read(Operation.TEXT, LONG, CONTEXT_TOKENS)).refusal is None

    asyncio.run(scenario())
    assert counts.worker_ends[WorkerEnd.DIED] == 1


def test_a_worker_that_does_not_get_ready_in_time_is_ended() -> None:
    with pytest.raises(WorkerDied):
        WorkerProcess.start(MODEL, within_s=0.001)

    assert all("gateway.ingest.worker" not in one for one in _command_lines_of_children())


def _command_lines_of_children() -> list[str]:
    found: list[str] = []
    for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_text())
    return found


def test_the_bound_on_the_length_of_tokens_is_computed_before_the_first_body() -> None:
    """It takes tenths of a second, for which a small body would block the event loop."""

    class Watched(Tokenizer):
        asked: ClassVar[list[str]] = []

        def least_tokens(self, text: str) -> int:
            self.asked.append(text)
            return 0

    plain = load_tokenizer(MODEL)
    watched = Watched.__new__(Watched)
    watched.__dict__.update(plain.__dict__)
    BodyReader(watched, MODEL.name, MODEL.defaults, MonotonicClock())

    assert Watched.asked == [""]


def test_small_bodies_do_not_wait_for_large_ones() -> None:
    async def scenario() -> None:
        async with pool(workers=2) as running:
            slow = [
                asyncio.create_task(running.read(Operation.TEXT, SLOW, CONTEXT_TOKENS))
                for _ in range(3)
            ]
            await until_one_computes(running)
            assert (await running.read(Operation.TEXT, LONG, CONTEXT_TOKENS)).refusal is None
            assert not any(task.done() for task in slow)
            for task in slow:
                task.cancel()

    asyncio.run(scenario())


def test_a_schema_that_takes_for_ever_to_validate_is_given_up_and_its_worker_ends() -> None:
    """Each level has two ways to the next: 2 ** 60 paths, without any pattern."""

    async def scenario() -> None:
        async with pool() as running:
            grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(EXPONENTIAL))
            assert await running.validate_output(Grammar(GrammarKind.REGEX, "a+"), ["aa"]) is True
            (before,) = running.worker_pids
            assert await running.validate_output(grammar, ["1"]) is None
            other = await running.validate_output(Grammar(GrammarKind.REGEX, "a+"), ["ab"])
            assert other in (False, None)
            assert (await running.read(Operation.TEXT, LONG, CONTEXT_TOKENS)).refusal is None
            assert running.worker_pids != [before]

    asyncio.run(scenario())


def test_every_body_with_a_schema_is_parsed_by_a_worker() -> None:
    async def scenario() -> None:
        async with pool() as running:
            plain = body(guided_json={"type": "null"})
            spelt = plain.replace(b"guided_json", b"\\u0067uided_json")
            for whole in (plain, spelt):
                assert not running.reads_in_place(whole)
                result = await running.read(Operation.TEXT, whole, CONTEXT_TOKENS)
                assert result.request is not None
                assert result.request.grammar is not None
            assert running.reads_in_place(body())

    asyncio.run(scenario())


class OneThatFails:
    """Starts workers; the third only when it `may_fail`, and then it fails."""

    def __init__(self) -> None:
        self.may_fail = threading.Event()
        self._numbers = itertools.count(1)

    def __call__(self, model: ModelRef, *, compat: Compat) -> WorkerProcess:
        if next(self._numbers) == 3:
            self.may_fail.wait(60)
            raise WorkerDied
        return WorkerProcess.start(model, compat=compat)


def test_a_worker_that_does_not_start_fails_no_body_that_another_takes() -> None:
    counts, launch = IngestCounts(), OneThatFails()

    async def scenario() -> None:
        async with pool(workers=3, counts=counts, launch=launch) as running:
            running.warm_up()
            async with asyncio.timeout(60):
                while len(running.worker_pids) < 2:
                    await asyncio.sleep(0.01)
            slow = [
                asyncio.create_task(running.read(Operation.TEXT, SLOW, CONTEXT_TOKENS))
                for _ in range(4)
            ]
            await until_one_computes(running)
            launch.may_fail.set()
            async with asyncio.timeout(20):
                while not counts.worker_ends[WorkerEnd.NOT_STARTED]:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            failed = [task for task in slow if task.done() and task.exception() is not None]
            for task in slow:
                task.cancel()
            assert failed == []
            assert (await running.read(Operation.TEXT, LONG, CONTEXT_TOKENS)).refusal is None

    asyncio.run(scenario())


class SlowToEnd(WorkerProcess):
    """Its end takes until the event loop says so; `was_told` if that came."""

    may_end: ClassVar[threading.Event]
    was_told: ClassVar[list[bool]]

    def end(self) -> None:
        self.was_told.append(self.may_end.wait(20))
        super().end()


def test_the_event_loop_does_not_wait_for_the_end_of_a_worker() -> None:
    """A killed process may take long to end, for instance when the disk hangs."""
    SlowToEnd.may_end, SlowToEnd.was_told = threading.Event(), []
    counts = IngestCounts()

    async def scenario() -> None:
        async with pool(counts=counts, launch=SlowToEnd.start) as running:
            assert (await running.read(Operation.TEXT, LONG, CONTEXT_TOKENS)).refusal is None
            (pid,) = running.worker_pids
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(ApiError):
                await running.read(Operation.TEXT, LONG, CONTEXT_TOKENS)
            async with asyncio.timeout(20):
                while running.worker_pids:
                    await asyncio.sleep(0.01)
            SlowToEnd.may_end.set()

    asyncio.run(scenario())
    assert eventually(lambda: SlowToEnd.was_told, "the end of the worker")[0]
