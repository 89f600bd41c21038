"""A gateway and nodes whose clocks are wrong, in virtual time on one event queue.

The gateway's clock is the true time. A node's clock is ahead or behind, drifts at a rate that
changes, and may be set. Frames of a connection keep their order, and take any time, each way its
own. What really happened is kept beside the facts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from telemetry.facts.fleet.sequence_records import (
    ClockSampled,
    ReceivedRow,
    RemoteAccount,
    RemoteAccounted,
    RemotePart,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)
from tests.support.worlds.facts import TRACE

SECOND = 1_000_000_000
MS = 1_000_000
PARTS = ("own_prefill", "co_prefill", "own_decode", "co_decode", "base", "gap")


@dataclass
class SkewedClock:
    """`begins` are (true time, what the clock shows then, its rate in ppm), in order."""

    begins: list[tuple[int, int, int]]

    def show(self, true_ns: int) -> int:
        since_ns, shown_ns, ppm = next(b for b in reversed(self.begins) if b[0] <= true_ns)
        age_ns = true_ns - since_ns
        return shown_ns + age_ns + age_ns * ppm // 1_000_000

    def go_on(self, true_ns: int, ppm: int, jump_ns: int = 0) -> None:
        """From here on at another rate, after a jump."""
        self.begins.append((true_ns, self.show(true_ns) + jump_ns, ppm))


@dataclass
class Truth:
    """When things happened to a sequence at a node, in the gateway's time."""

    received_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0


@dataclass
class _Node:
    name: str
    clock: SkewedClock
    out_until_ns: int = 0
    back_until_ns: int = 0


@dataclass(order=True)
class _Event:
    at_ns: int
    number: int
    act: Callable[[], None] = field(compare=False)


class SkewedFleet:
    """Runs on construction. `facts` are the gateway's in the order of time; `truths` by sequence;
    `jumps_ns` the true times at which a node's clock was set, by node."""

    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        requests: int = 100,
        drift_ppm: int = 200,
        wire_ns: int = 300_000,
        with_jumps: bool = False,
        jump_range_ns: tuple[int, int] = (2 * SECOND, 100 * SECOND),
    ) -> None:
        self.random = Random(seed)
        self.facts: list[Fact] = []
        self.truths: dict[int, Truth] = {}
        self.jumps_ns: dict[str, list[int]] = {}
        self._drift_ppm, self._wire_ns = drift_ppm, wire_ns
        self._jump_range_ns = jump_range_ns
        self._events: list[_Event] = []
        self._number = self._now_ns = 0
        self._nodes = [self._node(number) for number in range(nodes)]
        self.end_ns = requests * 20 * MS
        for node in self._nodes:
            self._ping(node, self.random.randrange(SECOND))
            self._rates(node, with_jumps)
        for seq_id in range(requests):
            self._at(self.random.randrange(self.end_ns), lambda s=seq_id: self._arrive(s))
        while self._events:
            self._now_ns = self._events[0].at_ns
            heapq.heappop(self._events).act()

    def _at(self, at_ns: int, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, _Event(at_ns, self._number, act))

    def _node(self, number: int) -> _Node:
        ahead_ns = self.random.randrange(-100 * SECOND, 100 * SECOND)
        return _Node(f"n{number}", SkewedClock([(0, ahead_ns, self._rate())]))

    def _rate(self) -> int:
        return self.random.randint(-self._drift_ppm, self._drift_ppm)

    def _rates(self, node: _Node, with_jumps: bool) -> None:
        """The rate changes every few seconds; a jump goes either way."""
        at_ns = 0
        while at_ns < self.end_ns:
            at_ns += self.random.randrange(SECOND, 5 * SECOND)
            jump_ns = 0
            if with_jumps and self.random.random() < 0.3:
                jump_ns = self.random.randrange(*self._jump_range_ns)
                jump_ns *= self.random.choice((-1, 1))
                self.jumps_ns.setdefault(node.name, []).append(at_ns)
            node.clock.go_on(at_ns, self._rate(), jump_ns)

    def _out(self, node: _Node, at_ns: int) -> int:
        """When a frame that is sent now is read at the node."""
        node.out_until_ns = max(node.out_until_ns, at_ns + self._delay_ns())
        return node.out_until_ns

    def _back(self, node: _Node, at_ns: int) -> int:
        node.back_until_ns = max(node.back_until_ns, at_ns + self._delay_ns())
        return node.back_until_ns

    def _delay_ns(self) -> int:
        """Mostly short, now and then very long."""
        return 1 + int(self._wire_ns * self.random.paretovariate(1.3) * self.random.random())

    def _ping(self, node: _Node, at_ns: int) -> None:
        def ask() -> None:
            read_ns = self._out(node, at_ns)
            self._at(read_ns, lambda: answer(read_ns))

        def answer(read_ns: int) -> None:
            written_ns = read_ns + self.random.randrange(50_000)
            back_ns = self._back(node, written_ns)
            stamps = (at_ns, node.clock.show(read_ns), node.clock.show(written_ns))
            fact = ClockSampled(back_ns, node.name, 1, *stamps)
            self._at(back_ns, lambda: self.facts.append(fact))

        self._at(at_ns, ask)
        if at_ns < self.end_ns + 3 * SECOND:
            self._at(at_ns, lambda: self._ping(node, at_ns + SECOND))

    def _arrive(self, seq_id: int) -> None:
        at_ns, random = self._now_ns, self.random
        request_id = f"r{seq_id}"
        read_ns, parsed_ns, tokenized_ns, sent_ns = sorted(
            at_ns + random.randrange(3 * MS) for _ in range(4)
        )
        node = random.choice(self._nodes)
        self.facts.append(
            RequestAccepted(request_id, at_ns, TRACE, None, None, None, "/v1/completions",
                            "text_completion", "", "chat", read_ns)
        )  # fmt: skip
        sampling = (16, 1.0, 1.0, 0, None)
        self._fact(RequestParsed(request_id, parsed_ns, "model", True, 1, *sampling))
        self._fact(RequestTokenized(request_id, tokenized_ns, 8))
        self._fact(SequenceSubmitted(request_id, sent_ns, seq_id, 0))
        self._fact(SequenceSent(sent_ns, seq_id, node.name, 1))
        self._at(sent_ns, lambda: self._send(node, seq_id, sent_ns))

    def _fact(self, fact: Fact) -> None:
        at_ns = fact.at_ns  # type: ignore[union-attr]
        self._at(at_ns, lambda: self.facts.append(fact))

    def _send(self, node: _Node, seq_id: int, sent_ns: int) -> None:
        read_ns = self._out(node, sent_ns)
        self._at(read_ns, lambda: self._work(node, seq_id, read_ns))

    def _work(self, node: _Node, seq_id: int, read_ns: int) -> None:
        """The node does its parts one after the other, by its own clock."""
        random = self.random
        cuts = [read_ns]
        for _ in PARTS:
            cuts.append(cuts[-1] + int(random.expovariate(1 / (100 * MS))))
        truth = Truth(read_ns, cuts[2], cuts[-1])
        self.truths[seq_id] = truth
        self._at(truth.first_ns, lambda: self._emit(node, seq_id, cuts))

    def _emit(self, node: _Node, seq_id: int, cuts: list[int]) -> None:
        first_ns = self._back(node, cuts[2])
        self._fact(TokensReceived(first_ns, node.name, (ReceivedRow(seq_id, 1),)))
        self._at(cuts[-1], lambda: self._finish(node, seq_id, cuts, first_ns))

    def _finish(self, node: _Node, seq_id: int, cuts: list[int], first_ns: int) -> None:
        shown = [node.clock.show(cut_ns) for cut_ns in cuts]
        pairs = zip(PARTS, shown, shown[1:], strict=False)
        parts = tuple(RemotePart(part, end - begin) for part, begin, end in pairs)
        account = RemoteAccount(shown[0], shown[-1], parts, shown[2])
        back_ns = self._back(node, cuts[-1])
        self._fact(TokensReceived(back_ns, node.name, (ReceivedRow(seq_id, 4),)))
        reason = EndReason.MAX_TOKENS
        accounted = RemoteAccounted(back_ns, seq_id, node.name, 1, reason, account, first_ns)
        told_ns = back_ns + self.random.randrange(5 * MS)  # the account comes after the last output
        self._at(told_ns, lambda: self.facts.append(accounted))
        text_ns = back_ns + self.random.randrange(MS)
        end_ns = text_ns + self.random.randrange(MS)
        self._fact(
            RequestEnded(f"r{seq_id}", end_ns, reason, 200, None, 5, first_ns, text_ns, 1, 10, None)
        )
