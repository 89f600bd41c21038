"""Ingest of a twin's gateway: one event loop reads, parses, tokenizes and submits requests.

Ingest does not depend on the engine, so all of it is computed before the engine runs.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from random import Random

from lab.twins.physics import MS
from lab.twins.simulated_run import SimulatedRun
from lab.twins.traffic import RequestSpec
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)

_TOKEN_NS = 5_000
_PARSE_NS = 300_000
_READ_NS = 100_000
_LEAST_BLOCKED_NS = 5 * MS
_ENCODING = "service.text.tokenizer.Tokenizer.encode_chat"
_FOREVER_NS = 1 << 62
OFF_CPU = "main thread"


class EventLoop:
    """One thread: what becomes due while it is blocked runs afterwards. `blocked` lists begin, end
    and cause of the intervals of 5 ms and more, in the order of time; the cause is a function,
    or time off the CPU (`OFF_CPU`)."""

    def __init__(self) -> None:
        self.blocked: list[tuple[int, int, str]] = []
        self._busy_until_ns = 0

    def add_off_cpu(self, begin_ns: int, end_ns: int) -> None:
        """The process does not run in [begin, end)."""
        insort(self.blocked, (begin_ns, end_ns, OFF_CPU))

    def free_ns(self, at_ns: int) -> int:
        """The first moment from `at_ns` on at which the loop is not blocked."""
        index = bisect_right(self.blocked, (at_ns, _FOREVER_NS, ""))
        for _, end_ns, _ in self.blocked[max(0, index - 2) : index]:
            if end_ns > at_ns:
                return self.free_ns(end_ns)
        return at_ns

    def run_task(self, at_ns: int, takes_ns: int, detail: str = "") -> int:
        """Run a task that is due at `at_ns`; returns when it is done. Calls come in the order of
        time."""
        begin_ns = self.free_ns(max(at_ns, self._busy_until_ns))
        self._busy_until_ns = begin_ns + takes_ns
        if takes_ns >= _LEAST_BLOCKED_NS:
            insort(self.blocked, (begin_ns, begin_ns + takes_ns, detail))
        return self._busy_until_ns


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """State of one request. `first_token_ns` and `last_ns` are when the first and last token of all
    choices were committed; `token_read_ns` is when a slow reader reads each token. It ended with
    `reason` at `ended_ns`; `detected_ns` is when the gateway noticed a disconnect."""

    spec: RequestSpec
    read_ns: int
    parsed_ns: int
    tokenized_ns: int | None = None
    submitted_ns: int | None = None
    seq_ids: list[int] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    first_token_ns: int | None = None
    last_ns: int | None = None
    tokens: int = 0
    token_read_ns: list[int] = field(default_factory=list)
    paused: bool = False
    reason: EndReason | None = None
    ended_ns: int = 0
    detected_ns: int | None = None

    @property
    def request_id(self) -> str:
        return request_id_of(self.spec.number)

    @property
    def is_over(self) -> bool:
        return self.reason is not None

    def finish(self, reason: EndReason, at_ns: int, detected_ns: int | None = None) -> None:
        self.reason, self.ended_ns, self.detected_ns = reason, at_ns, detected_ns


def request_id_of(number: int) -> str:
    """The id of a request."""
    return f"req-{number:05d}"


def ingest_requests(run: SimulatedRun, loop: EventLoop) -> list[SimulatedRequest]:
    """Every request with its ingest stamps, in the order of arrival."""
    draw = Random(f"{run.seed}/gateway")
    found: list[SimulatedRequest] = []
    worker_ns, next_seq_id = 0, 1
    for spec in sorted(run.specs, key=lambda spec: spec.at_ns):
        read_ns = loop.run_task(spec.at_ns + draw.randrange(50_000, 200_000), _READ_NS)
        text_tokens = spec.prompt_tokens if spec.body_tokens is None else spec.body_tokens
        parsing_ns = int(_PARSE_NS * draw.uniform(0.8, 1.3)) + 20 * text_tokens
        parsed_ns = loop.run_task(read_ns, parsing_ns)
        request = SimulatedRequest(spec, read_ns, parsed_ns)
        found.append(request)
        encoding_ns = int((40_000 + _TOKEN_NS * text_tokens) * draw.uniform(0.9, 1.2))
        if run.setting.one_tokenizer:
            worker_ns = max(worker_ns, parsed_ns) + encoding_ns
            tokenized_ns = loop.free_ns(worker_ns)
        else:
            tokenized_ns = loop.run_task(parsed_ns, encoding_ns, _ENCODING)
        if spec.body_tokens is not None:
            request.finish(EndReason.INVALID, tokenized_ns + 100_000)
            continue
        request.tokenized_ns = tokenized_ns
        request.submitted_ns = tokenized_ns + draw.randrange(30_000, 60_000)
        request.seq_ids = list(range(next_seq_id, next_seq_id + spec.choices))
        next_seq_id += spec.choices
    return found


def ingest_facts(request: SimulatedRequest) -> list[Fact]:
    """Facts of a request up to its submission."""
    spec, name = request.spec, request.request_id
    facts: list[Fact] = [
        RequestAccepted(
            request_id=name,
            at_ns=spec.at_ns,
            trace_id=f"{0x51A0 + spec.number:032x}",
            parent_span_id=None,
            trace_sampled=None,
            trace_state=None,
            route="/v1/chat/completions",
            operation="chat",
            tenant=spec.tenant,
            slo_class=spec.slo_class,
            read_ns=request.read_ns,
        ),
        RequestParsed(
            request_id=name,
            at_ns=request.parsed_ns,
            model="virtual",
            stream=spec.stream,
            choices=spec.choices,
            max_tokens=spec.max_tokens,
            temperature=spec.temperature,
            top_p=spec.top_p,
            top_k=0,
            seed=None,
            output_type="text" if spec.constraint is None else "json",
        ),
    ]
    if request.tokenized_ns is not None:
        facts.append(RequestTokenized(name, request.tokenized_ns, spec.prompt_tokens))
    if request.submitted_ns is not None and request.seq_ids:
        at_ns = request.submitted_ns
        for choice, seq_id in enumerate(request.seq_ids):
            facts.append(SequenceSubmitted(name, at_ns + 5_000 * choice, seq_id, choice))
    return facts
