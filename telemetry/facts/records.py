"""The gateway's facts, and all facts in one union; the engine's are in
`telemetry.facts.engine_records`, the machine's in `telemetry.facts.host_records`.

A fact is frozen, named in the past tense, and recorded only if it cannot be derived
from other facts. The engine writes `Engine*`, `Sequence*` and `Step*` facts, the
gateway writes `Request*` facts. All stamps are monotonic nanoseconds of one clock
(`telemetry.facts.clock`). No fact carries a prompt, an output or a token id.

A *request* is one HTTP exchange, named by `request_id`. A *sequence* is one generated
text inside the engine, named by the integer `seq_id`: a request with n choices owns n
sequences, tied together by `SequenceSubmitted`.
"""

from __future__ import annotations

from telemetry.facts.base import FactStruct as _Fact
from telemetry.facts.engine_records import (
    CacheFlushed,
    EngineIdled,
    EngineStarted,
    GrammarCompiled,
    ProfileTaken,
    RecordingSet,
    SequenceAdmitted,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceRefused,
    SequenceResumed,
    SequencesListed,
    StepAborted,
    StepCostSet,
    StepRecorded,
)
from telemetry.facts.host_records import GpuFound, GpuSampled, GpuXid, HostPaused, HostSampled
from telemetry.facts.reasons import EndReason, FactSource, HangKind, StackSource, StepFailure

SCHEMA_VERSION = 3


class EngineDied(_Fact, frozen=True):
    """The engine process ended or was ended; `detail` is one line for people. `failure` is what it
    said of a device that does not compute any more."""

    at_ns: int
    exit_code: int | None
    detail: str
    restart: int
    failure: StepFailure | None = None


class ExportFailed(_Fact, frozen=True):
    """Spans were sent, and their receiver did not take them this time; `error` is one line."""

    at_ns: int
    error: str


class StallDetected(_Fact, frozen=True):
    """The engine lives and has `sequences` to work on, but has committed no step since
    `since_ns`. `process_state` is the kernel's letter for its process (T: stopped);
    `loop_silent_ns` is for how long the gateway's own event loop, which reads the engine's
    news, has not answered. None: not known."""

    at_ns: int
    since_ns: int
    last_step_id: int | None
    sequences: int
    engine_pid: int | None
    process_state: str | None = None
    loop_silent_ns: int | None = None


class EngineHung(_Fact, frozen=True):
    """The engine's process lives and has given no sign of life since `since_ns`; requests that come
    are refused, and `sequences` that it has are kept. `process_state` is the kernel's letter (T:
    stopped). `stacks` are lines about its threads, told by `stacks_source`: files, line numbers
    and functions, no values."""

    at_ns: int
    since_ns: int
    kind: HangKind
    sequences: int
    engine_pid: int
    process_state: str | None = None
    stacks_source: StackSource = StackSource.NOBODY
    stacks: tuple[str, ...] = ()


class EngineRecovered(_Fact, frozen=True):
    """The engine that gave no sign of life since `since_ns` works again."""

    at_ns: int
    since_ns: int


class FactsLost(_Fact, frozen=True):
    """Here `count` facts are missing: a lane was full, or the engine's backlog was. `at_ns` is the
    stamp of the first of them; `source` says whose they are."""

    at_ns: int
    source: FactSource
    count: int


class FoldDetached(_Fact, frozen=True):
    """The part `fold` of telemetry raised `error_type` and is not fed any more."""

    at_ns: int
    fold: str
    error_type: str


class RequestsListed(_Fact, frozen=True):
    """Every request that the gateway serves at `at_ns`. One that it read earlier and that is not
    in the list is over, whatever else is recorded of it."""

    at_ns: int
    request_ids: tuple[str, ...]


class RequestAccepted(_Fact, frozen=True):
    """The request's head had come to the host at `at_ns`; the gateway got to reading it at
    `read_ns`. `trace_id` is 32 hex digits; `parent_span_id` and `trace_sampled` come from an
    incoming `traceparent`, if there was one."""

    request_id: str
    at_ns: int
    trace_id: str
    parent_span_id: str | None
    trace_sampled: bool | None
    trace_state: str | None
    route: str
    operation: str
    tenant: str
    slo_class: str
    read_ns: int | None = None

    def was_read_before(self, at_ns: int) -> bool:
        """Whether the gateway had got to reading it by then."""
        return (self.at_ns if self.read_ns is None else self.read_ns) < at_ns


class RequestParsed(_Fact, frozen=True):
    """The body is valid; what follows are the parameters worth tracing. `output_type` is
    `json` when the answer must be JSON, else `text`. Of the time since it had come whole, it waited
    `waited_ns` for somebody to read it."""

    request_id: str
    at_ns: int
    model: str
    stream: bool
    choices: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    output_type: str = "text"
    waited_ns: int = 0


class RequestTokenized(_Fact, frozen=True):
    """Template rendered, prompt encoded."""

    request_id: str
    at_ns: int
    prompt_tokens: int


class SequenceSubmitted(_Fact, frozen=True):
    """The gateway handed choice `choice` of the request to the engine as `seq_id`."""

    request_id: str
    at_ns: int
    seq_id: int
    choice: int


class RequestEnded(_Fact, frozen=True):
    """The terminal fact of a request: written once, after the last byte was handed to
    the socket (or could no longer be).

    `first_sent_ns` is when the first content was sent, None if none was;
    `detokenized_ns` is when the last token had become text; `detokenize_busy_ns` is the
    time spent in detokenising, all tokens together. `detected_ns` is when a disconnect
    or timeout was noticed. `output_valid` says whether a constrained output that ended by
    itself obeys its constraint; None when there is none, or it was cut.
    """

    request_id: str
    at_ns: int
    reason: EndReason
    status: int
    error_type: str | None
    output_tokens: int
    first_sent_ns: int | None
    detokenized_ns: int | None
    detokenize_busy_ns: int
    bytes_sent: int
    detected_ns: int | None
    output_valid: bool | None = None


Fact = (
    EngineStarted
    | EngineDied
    | EngineIdled
    | SequenceQueued
    | SequenceRefused
    | SequenceAdmitted
    | SequencePaused
    | SequenceResumed
    | SequenceEnded
    | GrammarCompiled
    | StepAborted
    | StepCostSet
    | CacheFlushed
    | StepRecorded
    | RequestAccepted
    | RequestParsed
    | RequestTokenized
    | SequenceSubmitted
    | RequestEnded
    | HostPaused
    | HostSampled
    | GpuFound
    | GpuSampled
    | GpuXid
    | StallDetected
    | RecordingSet
    | ExportFailed
    | ProfileTaken
    | EngineHung
    | EngineRecovered
    | FactsLost
    | FoldDetached
    | RequestsListed
    | SequencesListed
)


def fact_ns(fact: Fact) -> int:
    """The stamp at which a fact became true; facts are ordered by it."""
    if isinstance(fact, StepRecorded):
        return fact.committed_ns
    return fact.at_ns
