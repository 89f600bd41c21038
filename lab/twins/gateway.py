"""The twin's gateway on the way in: one event loop reads, parses, encodes and hands over.

What it does does not hang on the engine, so all of it is known before the engine runs.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from random import Random

from lab.twins.life import Life
from lab.twins.physics import MS
from lab.twins.traffic import Ask
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
_HELD_NS = 5 * MS
_ENCODING = "service.text.tokenizer.Tokenizer.encode_chat"
_FOREVER_NS = 1 << 62
OFF_CPU = "main thread"


class EventLoop:
    """One thread: what is asked of it while it is held happens afterwards. `held` are the
    stretches long enough to be noticed, in the order of time, and what held it: a function, or
    nothing of its own (`OFF_CPU`)."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int, str]] = []
        self._busy_until_ns = 0

    def take_away(self, begin_ns: int, end_ns: int) -> None:
        """Its process does not run in [begin, end)."""
        insort(self.held, (begin_ns, end_ns, OFF_CPU))

    def free_ns(self, at_ns: int) -> int:
        """The first moment from `at_ns` on in which it can do something small."""
        place = bisect_right(self.held, (at_ns, _FOREVER_NS, ""))
        for _, end_ns, _ in self.held[max(0, place - 2) : place]:
            if end_ns > at_ns:
                return self.free_ns(end_ns)
        return at_ns

    def turn(self, at_ns: int, takes_ns: int, detail: str = "") -> int:
        """Do the next thing, which is asked for then; returns when it is done. To be called in
        the order in which things happen."""
        begin_ns = self.free_ns(max(at_ns, self._busy_until_ns))
        self._busy_until_ns = begin_ns + takes_ns
        if takes_ns >= _HELD_NS:
            insort(self.held, (begin_ns, begin_ns + takes_ns, detail))
        return self._busy_until_ns


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and what became of it. Of the tokens of all choices, `first_ns` and `last_ns`
    are when they were committed, `last_token_ns` by sequence; `taken_ns` are when a slow reader
    takes each. It is over with `reason` at `over_ns`, when `detected_ns` if by the client."""

    ask: Ask
    read_ns: int
    parsed_ns: int
    tokenized_ns: int | None = None
    submitted_ns: int | None = None
    seq_ids: list[int] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    first_ns: int | None = None
    last_ns: int | None = None
    tokens: int = 0
    taken_ns: list[int] = field(default_factory=list)
    paused: bool = False
    reason: EndReason | None = None
    over_ns: int = 0
    detected_ns: int | None = None

    @property
    def request_id(self) -> str:
        return name_of(self.ask.number)

    @property
    def is_over(self) -> bool:
        return self.reason is not None

    def finish(self, reason: EndReason, at_ns: int, detected_ns: int | None = None) -> None:
        self.reason, self.over_ns, self.detected_ns = reason, at_ns, detected_ns


def name_of(number: int) -> str:
    """The id of a request."""
    return f"req-{number:05d}"


def take_in(life: Life, loop: EventLoop) -> list[Exchange]:
    """Every request as far as the gateway brings it, in the order in which they came."""
    draw = Random(f"{life.seed}/gateway")
    found: list[Exchange] = []
    worker_ns, next_seq_id = 0, 1
    for ask in sorted(life.asks, key=lambda ask: ask.at_ns):
        read_ns = loop.turn(ask.at_ns + draw.randrange(50_000, 200_000), _READ_NS)
        text_tokens = ask.prompt_tokens if ask.body_tokens is None else ask.body_tokens
        parsing_ns = int(_PARSE_NS * draw.uniform(0.8, 1.3)) + 20 * text_tokens
        parsed_ns = loop.turn(read_ns, parsing_ns)
        exchange = Exchange(ask, read_ns, parsed_ns)
        found.append(exchange)
        encoding_ns = int((40_000 + _TOKEN_NS * text_tokens) * draw.uniform(0.9, 1.2))
        if life.setting.one_tokenizer:
            worker_ns = max(worker_ns, parsed_ns) + encoding_ns
            tokenized_ns = loop.free_ns(worker_ns)
        else:
            tokenized_ns = loop.turn(parsed_ns, encoding_ns, _ENCODING)
        if ask.body_tokens is not None:
            exchange.finish(EndReason.INVALID, tokenized_ns + 100_000)
            continue
        exchange.tokenized_ns = tokenized_ns
        exchange.submitted_ns = tokenized_ns + draw.randrange(30_000, 60_000)
        exchange.seq_ids = list(range(next_seq_id, next_seq_id + ask.choices))
        next_seq_id += ask.choices
    return found


def facts_on_the_way_in(exchange: Exchange) -> list[Fact]:
    """What was recorded of a request before the engine had it."""
    ask, name = exchange.ask, exchange.request_id
    facts: list[Fact] = [
        RequestAccepted(
            request_id=name,
            at_ns=ask.at_ns,
            trace_id=f"{0x51A0 + ask.number:032x}",
            parent_span_id=None,
            trace_sampled=None,
            trace_state=None,
            route="/v1/chat/completions",
            operation="chat",
            tenant=ask.tenant,
            slo_class="",
            read_ns=exchange.read_ns,
        ),
        RequestParsed(
            request_id=name,
            at_ns=exchange.parsed_ns,
            model="virtual",
            stream=ask.stream,
            choices=ask.choices,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            top_p=ask.top_p,
            top_k=0,
            seed=None,
            output_type="text" if ask.constraint is None else "json",
        ),
    ]
    if exchange.tokenized_ns is not None:
        facts.append(RequestTokenized(name, exchange.tokenized_ns, ask.prompt_tokens))
    if exchange.submitted_ns is not None and exchange.seq_ids:
        at_ns = exchange.submitted_ns
        for choice, seq_id in enumerate(exchange.seq_ids):
            facts.append(SequenceSubmitted(name, at_ns + 5_000 * choice, seq_id, choice))
    return facts
