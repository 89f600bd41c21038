"""The gateway's facts, and all facts in one union; the engine's are in
`telemetry.facts.engine_records`, `adapter_records` and `kv_transfer_records` there, the machine's
in `host_records`, those about engines on other machines in
`telemetry.facts.fleet`.

A fact is frozen, named in the past tense, and recorded only if it cannot be derived
from other facts. The engine writes `Engine*`, `Sequence*` and `Step*` facts, the
gateway writes `Request*` facts. All stamps are monotonic nanoseconds of one clock
(`telemetry.facts.clock`). No fact carries a prompt, an output or a token id.

A *request* is one HTTP exchange, named by `request_id`. A *sequence* is one generated
text inside the engine, named by the integer `seq_id`: a request with n choices owns n
sequences, tied together by `SequenceSubmitted`.
"""

from __future__ import annotations

from telemetry.facts.adapter_records import (
    AdapterAdded,
    AdapterClosed,
    AdapterEvicted,
    AdapterFailed,
    AdapterLoaded,
    AdapterRead,
    AdapterRefused,
    AdapterUnloaded,
)
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.base import FactStruct as _Fact
from telemetry.facts.engine_records import (
    CacheFlushed,
    EngineIdled,
    EngineStarted,
    GrammarCompiled,
    LimitsSet,
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
from telemetry.facts.fleet.kv_transfer_records import KvTransferFact
from telemetry.facts.fleet.routing_records import (
    EngineDrainBegan,
    EngineJoined,
    EngineLeft,
    EngineReported,
    RequestRouted,
    RouteChoiceEnded,
    RouteEnded,
    RouteRefused,
    RouterStarted,
)
from telemetry.facts.fleet.sequence_records import (
    ClockSampled,
    RemoteAccounted,
    RemoteAdmitted,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.host_records import GpuFound, GpuSampled, GpuXid, HostPaused, HostSampled
from telemetry.facts.reasons import EndReason, FactSource, HangKind, StackSource, StepFailure
from telemetry.facts.tool_records import ToolCallsMade, ToolResultsReturned

SCHEMA_VERSION = 3
UNKNOWN_ROUTE = "unknown"
"""The route of a request of which only the core of an attached engine is observed."""


class EngineDied(_Fact, frozen=True):
    """The engine process ended or was ended; `detail` is one line for people. `failure` is the
    reason that it gave if its device does not compute any more."""

    at_ns: int
    exit_code: int | None
    detail: str
    restart: int
    failure: StepFailure | None = None


class ExportFailed(_Fact, frozen=True):
    """An attempt to send spans failed; `error` is one line. There is at most one such fact a
    second; `attempts` are those that failed since the one before."""

    at_ns: int
    error: str
    attempts: int = 1


class StallDetected(_Fact, frozen=True):
    """The engine is alive and has `sequences` sequences to work on, but has committed no step since
    `since_ns`. `process_state` is the kernel's letter for its process (T: stopped);
    `loop_silent_ns` is the time since the gateway's event loop, which reads the engine's frames,
    last answered. None: not known."""

    at_ns: int
    since_ns: int
    last_step_id: int | None
    sequences: int
    engine_pid: int | None
    process_state: str | None = None
    loop_silent_ns: int | None = None


class EngineHung(_Fact, frozen=True):
    """The engine process is alive and has not responded since `since_ns`. New requests are refused;
    its `sequences` sequences are kept, or where an attached engine that was idle then cannot tell
    of any, the requests of its front ends. `process_state` is the kernel's letter (T: stopped).
    `stacks` are lines about its threads, from `stacks_source`: files, line numbers and functions,
    no values."""

    at_ns: int
    since_ns: int
    kind: HangKind
    sequences: int
    engine_pid: int
    process_state: str | None = None
    stacks_source: StackSource = StackSource.NOBODY
    stacks: tuple[str, ...] = ()


class EngineRecovered(_Fact, frozen=True):
    """The engine that had not responded since `since_ns` works again."""

    at_ns: int
    since_ns: int


class FactsLost(_Fact, frozen=True):
    """`count` facts of `source` are missing here: a lane was full, or the engine's backlog. `at_ns`
    is the stamp of the first of them."""

    at_ns: int
    source: FactSource
    count: int


class FoldDetached(_Fact, frozen=True):
    """The part `fold` of telemetry raised `error_type` and is not called any more."""

    at_ns: int
    fold: str
    error_type: str


class RequestsListed(_Fact, frozen=True):
    """Every request that the gateway serves at `at_ns`. A request that was read earlier and is not
    in the list has ended, even if its end was lost."""

    at_ns: int
    request_ids: tuple[str, ...]


class RequestAccepted(_Fact, frozen=True):
    """The request's head arrived at the host at `at_ns`, and the gateway read it at `read_ns`.
    `trace_id` is 32 hex digits; `parent_span_id` and `trace_sampled` come from an incoming
    `traceparent`, if there was one. Of several gateway processes, `gateway` is the number of the
    one that serves it. `attached`: it is of the front end of an engine that others wrote."""

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
    gateway: int = 0
    attached: bool = False

    @property
    def known_ns(self) -> int:
        """When the gateway knew of the request; where that is not recorded, when it arrived."""
        return self.at_ns if self.read_ns is None else self.read_ns

    def was_read_before(self, at_ns: int) -> bool:
        """Whether the gateway had read the request before `at_ns`."""
        return self.known_ns < at_ns


class RequestParsed(_Fact, frozen=True):
    """The body is valid; these are its parameters that traces show. `output_type` is `json` if the
    answer must be JSON, else `text`. After its last byte had arrived, the body waited `waited_ns`
    for an ingest worker. The sampling parameters of a request whose body is not observed are
    None."""

    request_id: str
    at_ns: int
    model: str
    stream: bool
    choices: int
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
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
    time spent in detokenizing all tokens. `detected_ns` is when a disconnect or timeout was
    detected. `output_valid` says whether a constrained output that ended by itself obeys its
    constraint; None without a constraint, or for an output that was cut. `received_ns` is when
    the front end of an attached engine received the last token; None: not known.
    `reasoning_tokens` of the output are reasoning before the answer, which its budget ended in
    `reasonings_cut` of the choices.
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
    received_ns: int | None = None
    reasoning_tokens: int = 0
    reasonings_cut: int = 0


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
    | AdapterAdded
    | AdapterRead
    | AdapterLoaded
    | AdapterEvicted
    | AdapterClosed
    | AdapterUnloaded
    | AdapterFailed
    | AdapterRefused
    | StepAborted
    | StepCostSet
    | LimitsSet
    | CacheFlushed
    | StepRecorded
    | RequestAccepted
    | RequestParsed
    | RequestTokenized
    | SequenceSubmitted
    | RequestEnded
    | ToolCallsMade
    | ToolResultsReturned
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
    | AutopilotDecided
    | SequenceSent
    | RemoteAdmitted
    | TokensReceived
    | RemoteAccounted
    | ClockSampled
    | RouterStarted
    | EngineJoined
    | EngineDrainBegan
    | EngineLeft
    | EngineReported
    | RequestRouted
    | RouteRefused
    | RouteChoiceEnded
    | RouteEnded
    | KvTransferFact
)


def fact_ns(fact: Fact) -> int:
    """The stamp at which a fact became true."""
    if isinstance(fact, StepRecorded):
        return fact.committed_ns
    return fact.at_ns


def order_ns(fact: Fact) -> int:
    """Facts are ordered by this stamp: when they became true, and a request when the gateway knew
    of it. It may have arrived before the end of another request with its id."""
    return fact.known_ns if isinstance(fact, RequestAccepted) else fact_ns(fact)
