"""A run of our own engine as an adapter in another engine would have written it.

What such an adapter cannot see is gone: the parts of a step inside the model's process, masks,
pauses, failed steps, device times, whether outputs are valid. What passes between the processes
takes its time unseen. With `core_only` nothing observes the front end either. Because a run of a
twin has a true fault, this tells what the diagnosis finds of it from less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import msgspec

from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    StepAborted,
    StepCostSet,
    StepRecorded,
)
from telemetry.facts.host_records import GpuFound, GpuSampled, GpuXid, HostPaused, HostSampled
from telemetry.facts.reasons import StackSource, WaitReason
from telemetry.facts.records import (
    UNKNOWN_ROUTE,
    EngineHung,
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)

ENGINE = "vllm"
UNOBSERVED = ("launch", "sampling", "masks", "device")
SETTINGS = {
    "max_num_batched_tokens": "2048",
    "max_num_seqs": "16",
    "gpu_memory_utilization": "0.9",
    "enable_chunked_prefill": "True",
}
_NEVER = (
    *(HostPaused, GpuFound, GpuSampled, GpuXid, StepCostSet, StepAborted, EngineIdled),
    *(SequencePaused, SequenceResumed),
)
_MOST_UNSEEN_NS = 1_000_000


def attached(facts: Iterable[Fact], *, seed: int = 0, core_only: bool = False) -> list[Fact]:
    """The facts as the sidecar has them, in the order of time. `seed` draws how long messages
    between the processes take."""
    known: list[Fact] = [fact for fact in facts if not isinstance(fact, _NEVER)]
    if core_only:
        known = _without_front_end(known)
    adapter = _Adapter(known, Random(f"{seed}/attached"), core_only=core_only)
    return sorted((adapter.seen(fact) for fact in known), key=fact_ns)


class _Adapter:
    """Rewrites facts one by one."""

    def __init__(self, facts: Sequence[Fact], draw: Random, *, core_only: bool) -> None:
        self._draw = draw
        self._core_only = core_only
        self._submitted: dict[int, int] = {}
        owners: dict[int, str] = {}
        self._last_ns: dict[str, int] = {}  # the last token of each request
        for fact in facts:
            if isinstance(fact, SequenceSubmitted):
                self._submitted[fact.seq_id] = fact.at_ns
                owners[fact.seq_id] = fact.request_id
            elif isinstance(fact, StepRecorded):
                for row in fact.rows:
                    if row.sampled and not row.wasted and row.seq_id in owners:
                        self._last_ns[owners[row.seq_id]] = fact.committed_ns

    def seen(self, fact: Fact) -> Fact:
        match fact:
            case EngineStarted():
                return _started(fact)
            case RequestAccepted() if not self._core_only:
                return msgspec.structs.replace(fact, attached=True)
            case StepRecorded():
                return _step(fact)
            case SequenceQueued():
                since_ns = self._submitted.get(fact.seq_id, fact.at_ns)
                received_ns = since_ns if self._core_only else self._later(since_ns, fact.at_ns)
                return msgspec.structs.replace(fact, received_ns=received_ns)
            case RequestEnded() if not self._core_only:
                return self._ended(fact)
            case HostSampled():
                return fact  # of the process of the engine, from outside
            case EngineHung():  # its adapter gives no sign of life
                return msgspec.structs.replace(fact, stacks_source=StackSource.NOBODY, stacks=())
            case _:
                return fact

    def _ended(self, fact: RequestEnded) -> RequestEnded:
        last_ns = self._last_ns.get(fact.request_id)
        received_ns = None
        if last_ns is not None:
            text_ns = fact.at_ns if fact.detokenized_ns is None else fact.detokenized_ns
            received_ns = self._later(last_ns, text_ns)
        return msgspec.structs.replace(fact, received_ns=received_ns, output_valid=None)

    def _later(self, since_ns: int, until_ns: int) -> int:
        """A moment after `since_ns`, before `until_ns`."""
        most_ns = min(_MOST_UNSEEN_NS, max(0, until_ns - since_ns))
        return since_ns + self._draw.randint(0, most_ns)


def _started(fact: EngineStarted) -> EngineStarted:
    return msgspec.structs.replace(
        fact,
        engine=ENGINE,
        engine_version="0.32.0",
        settings=SETTINGS,
        unobserved=UNOBSERVED,
        stages=(),
        warm_up=(),
        shape=None,
        auto_budget=False,
    )


def _step(step: StepRecorded) -> StepRecorded:
    """From the plan to the tokens is one piece, and nobody says that a client does not read."""
    return msgspec.structs.replace(
        step,
        launched_ns=step.planned_ns,
        forward_ns=step.planned_ns,
        sample_ns=step.collected_ns,
        skips=tuple(s for s in step.skips if s.reason is not WaitReason.CLIENT_PAUSE),
        mask_ns=0,
        masked_rows=0,
        copied_blocks=0,
        device=None,
        rank_skew_ns=None,
        slowest_rank=None,
        target_ns=None,
    )


def _without_front_end(facts: Sequence[Fact]) -> list[Fact]:
    """Requests begin when the core has them and end with their sequences; those that it never had
    are not known."""
    began = {f.request_id: f.at_ns for f in facts if isinstance(f, SequenceSubmitted)}
    owner = {f.seq_id: f.request_id for f in facts if isinstance(f, SequenceSubmitted)}
    ends = {
        owner[f.seq_id]: f.at_ns
        for f in facts
        if isinstance(f, SequenceEnded) and f.seq_id in owner
    }
    rewrite: dict[type, Callable[[Fact], Fact | None]] = {
        RequestAccepted: lambda fact: _core_accepted(fact, began),
        RequestParsed: lambda fact: _at_begin(fact, began),
        RequestTokenized: lambda fact: _at_begin(fact, began),
        RequestEnded: lambda fact: _core_ended(fact, ends),
    }
    found = [rewrite[type(fact)](fact) if type(fact) in rewrite else fact for fact in facts]
    return sorted((fact for fact in found if fact is not None), key=fact_ns)


def _core_accepted(fact: Fact, began: dict[str, int]) -> Fact | None:
    assert isinstance(fact, RequestAccepted)
    at_ns = began.get(fact.request_id)
    if at_ns is None:
        return None
    return msgspec.structs.replace(fact, at_ns=at_ns, read_ns=None, route=UNKNOWN_ROUTE, tenant="")


def _at_begin(fact: Fact, began: dict[str, int]) -> Fact | None:
    assert isinstance(fact, RequestParsed | RequestTokenized)
    at_ns = began.get(fact.request_id)
    return None if at_ns is None else msgspec.structs.replace(fact, at_ns=at_ns)


def _core_ended(fact: Fact, ends: dict[str, int]) -> Fact | None:
    assert isinstance(fact, RequestEnded)
    at_ns = ends.get(fact.request_id)
    if at_ns is None:
        return None
    return msgspec.structs.replace(
        fact, at_ns=at_ns, detokenized_ns=None, first_sent_ns=None, detected_ns=None,
        output_valid=None,
    )  # fmt: skip
