"""What the observer of vLLM's engine core says of sessions, pauses, and loads of KV blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from service.attach.inside.vllm_core.start import settings
from telemetry.facts.engine_records import EngineIdled, SequenceQueued, StepRecorded
from telemetry.facts.reasons import WaitReason
from telemetry.requests.sequence_fold import SequenceFold
from tests.attach.sidecar import Connection, Sidecar
from tests.attach.vllm_core_world import PAUSED_ALL, ObservedCore, Status, request

T = TypeVar("T")


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    found = Sidecar(tmp_path / "attach.sock")
    yield found
    found.close()


@pytest.fixture
def core(tmp_path: Path, sidecar: Sidecar) -> Iterator[ObservedCore]:
    found = ObservedCore(tmp_path / "attach.sock")
    yield found
    found.shutdown()


def of(said: Connection, kind: type[T]) -> list[T]:
    return [fact for fact in said.facts if isinstance(fact, kind)]


def session(core: ObservedCore, chunks: int) -> None:
    """A client that says so much, and hears a token after each chunk."""
    for _ in range(chunks):
        core.add_request(request("s", resumable=True))
        core.turn()


def test_the_end_of_a_session_ends_its_only_sequence(core: ObservedCore, sidecar: Sidecar) -> None:
    """The end of the input comes as a request of the same name, which is no new sequence."""
    session(core, 2)
    core.add_request(request("s"))
    listed, names = core.observer.listing()
    said = core.told(sidecar)

    assert (listed.seq_ids, names) == ((), [])
    assert len(of(said, SequenceQueued)) == 1
    assert of(said, EngineIdled)[-1].running == 0
    assert said.batches[-1].turn_ns is None


def test_what_a_client_adds_to_a_session_is_prompt(core: ObservedCore, sidecar: Sidecar) -> None:
    """The second chunk is computed as the first was, after all that is there."""
    session(core, 2)
    rows = [row for step in of(core.told(sidecar), StepRecorded) for row in step.rows]

    assert [(row.is_prefill, row.tokens, row.context_tokens) for row in rows] == [
        (True, 10, 0),
        (True, 10, 10),
    ]
    assert [row.sampled for row in rows] == [1, 1]


def test_a_session_that_waits_for_its_client_does_not_stand_still(
    core: ObservedCore, sidecar: Sidecar
) -> None:
    """The loop waits with it, and has no turn that would grow old."""
    session(core, 1)
    assert core.observer.listing()[0].seq_ids == (1,)
    assert core.told(sidecar).batches[-1].turn_ns is None


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_paused_engine_does_not_stand_still(
    core: ObservedCore, sidecar: Sidecar, is_paused: bool
) -> None:
    """Its loop rests although there are sequences; otherwise its last turn is said."""
    core.add_request(request("a"))
    core.turn()
    core.pause_state = PAUSED_ALL if is_paused else 0
    core.add_request(request("b"))
    core.turn()
    said = core.told(sidecar)

    assert len(of(said, SequenceQueued)) == 2
    assert (said.batches[-1].turn_ns is None) == is_paused


def test_a_sequence_that_waits_alone_for_its_blocks_waits_for_remote_kv(
    core: ObservedCore, sidecar: Sidecar
) -> None:
    """The loop turns a thousand times in a second meanwhile: there is one step without rows."""
    loaded = request("r")
    core.add_request(loaded)
    core.load(loaded)
    for _ in range(5):
        core.turn()
    loaded.status = Status.WAITING
    core.turn()
    said = core.told(sidecar)
    fold = SequenceFold(lambda sequence, gap_ns, at_ns: None)
    for fact in said.facts:
        if isinstance(fact, SequenceQueued):
            fold.queued(fact)
        elif isinstance(fact, StepRecorded):
            fold.step(fact)
    alone, computed = of(said, StepRecorded)

    assert ([len(alone.rows), len(computed.rows)], computed.skips) == ([0, 1], ())
    waits = [one for one in fold.get(1).waits if one.reason is WaitReason.REMOTE_KV]
    assert [(one.start_ns, one.end_ns) for one in waits] == [(alone.begin_ns, computed.begin_ns)]


def test_an_engine_with_nothing_but_loads_says_once_that_it_is_idle(
    core: ObservedCore, sidecar: Sidecar
) -> None:
    """The time until a load has come is not that of the step after it; an abort is seen then."""
    loaded = request("r")
    core.add_request(loaded)
    core.load(loaded)
    for _ in range(5):
        core.turn()
    core.finish_requests("r", Status.FINISHED_ABORTED)
    idled = of(core.told(sidecar), EngineIdled)

    assert [(one.running, one.waiting) for one in idled] == [(0, 1), (0, 0)]


def test_prompts_that_are_throttled_wait_for_no_blocks(
    core: ObservedCore, sidecar: Sidecar
) -> None:
    """vLLM says so in the call that plans a step."""
    core.add_request(request("a"))
    core.turn()
    core.is_full = True
    core.add_request(request("b"))
    core.turn(True)
    core.turn()
    steps = of(core.told(sidecar), StepRecorded)

    reasons = [[skip.reason for skip in step.skips] for step in steps]
    assert reasons == [[], [], [WaitReason.KV]]


def test_the_size_of_the_cache_in_tokens_is_a_setting() -> None:
    """vLLM knows it once it has measured its memory."""
    config = SimpleNamespace(cache_config=SimpleNamespace(kv_cache_size_tokens=512))

    assert dict(settings(config)) == {"kv_cache_size_tokens": "512"}
