"""The fold of facts about nodes into where each sequence's time lies in the gateway's.

It keeps a few bounds a node, and of each sequence at a node what was known when it was sent. Both
are bounded in number; the oldest are dropped first, and then say `clock_unbounded` or nothing at
all, never something wrong. A sequence is placed by bounds that begin at most HORIZON_NS before it,
so that a step that nobody could see misplaces none that begins later than that.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import NamedTuple

from telemetry.clocks.boundaries import Bounds, ClockFinding, RemoteSpan, exchange_of, placed
from telemetry.clocks.offset import DRIFT_PPM, ClockStep, Exchange, OffsetTracker
from telemetry.facts.fleet.sequence_records import ClockSampled, RemoteAccounted, SequenceSent

_NODES_KEPT = 4096
_SEQUENCES_KEPT = 65_536
_STEPS_KEPT = 256
_HEARD_NS = 60_000_000_000

Node = tuple[str, int]
"""An engine's name and incarnation."""


class NodeStep(NamedTuple):
    """A step between the gateway's clock and that of a node."""

    engine: str
    incarnation: int
    step: ClockStep


class _Sent(NamedTuple):
    fact: SequenceSent
    tracker: OffsetTracker
    known: Bounds


class FleetClocks:
    """`steps` are the last of the `steps_found`, `findings` how many of each kind there were."""

    def __init__(self, drift_ppm: int = DRIFT_PPM) -> None:
        self.drift_ppm = drift_ppm
        self.findings: Counter[ClockFinding] = Counter()
        self.steps: deque[NodeStep] = deque(maxlen=_STEPS_KEPT)
        self.steps_found = 0
        self._trackers: OrderedDict[Node, OffsetTracker] = OrderedDict()
        self._sent: OrderedDict[int, _Sent] = OrderedDict()

    @property
    def live(self) -> int:
        """Nodes and sequences for which state is kept."""
        return len(self._trackers) + len(self._sent)

    def epsilons_ns(self) -> dict[str, int]:
        """How far the offset of each node's clock may be wrong, in ns, if the middle of its bounds
        is taken, as of the last word of any node; by engine, of nodes that were heard of in the
        minute before."""
        found: dict[str, int] = {}
        at_ns = max((tracker.heard_ns for tracker in self._trackers.values()), default=0)
        for (engine, _), tracker in self._trackers.items():
            bounds = tracker.at(at_ns)
            if bounds is not None and at_ns - tracker.heard_ns <= _HEARD_NS:
                found[engine] = -((bounds.low_ns - bounds.high_ns) // 2)
        return found

    def sent(self, fact: SequenceSent) -> None:
        tracker = self._tracker((fact.engine, fact.incarnation))
        self._sent[fact.seq_id] = _Sent(fact, tracker, _bounds(tracker, fact.at_ns))
        if len(self._sent) > _SEQUENCES_KEPT:
            self._sent.popitem(last=False)

    def sampled(self, fact: ClockSampled) -> None:
        if fact.sent_ns > fact.at_ns or fact.node_received_ns > fact.node_sent_ns:
            self.findings[ClockFinding.STAMPS_DISORDERED] += 1
            return
        node = (fact.engine, fact.incarnation)
        stamps = (fact.sent_ns, fact.node_received_ns, fact.node_sent_ns, fact.at_ns)
        self._add(node, Exchange(*stamps))

    def accounted(self, fact: RemoteAccounted) -> RemoteSpan | None:
        """The sequence's time; None if the fact that it was sent is not known."""
        sent = self._sent.pop(fact.seq_id, None)
        if sent is None:
            return None
        node = (sent.fact.engine, sent.fact.incarnation)
        tracker = self._tracker(node)
        is_same = sent.tracker is tracker and sent.known.epoch == tracker.epoch
        known = sent.known.joined(_bounds(tracker, sent.fact.at_ns)) if is_same else None
        exchange = exchange_of(sent.fact, fact)
        if exchange is not None and self._add(node, exchange):
            known = None
        span = placed(sent.fact, fact, known, tracker.epoch, self.drift_ppm)
        self.findings.update(span.findings)
        return span

    def forget(self, seq_id: int) -> None:
        """Nobody waits for the sequence's account any more."""
        self._sent.pop(seq_id, None)

    def _tracker(self, node: Node) -> OffsetTracker:
        found = self._trackers.get(node)
        if found is None:
            found = self._trackers[node] = OffsetTracker(self.drift_ppm)
            if len(self._trackers) > _NODES_KEPT:
                self._trackers.popitem(last=False)
        self._trackers.move_to_end(node)
        return found

    def _add(self, node: Node, exchange: Exchange) -> bool:
        """Whether it shows a step."""
        step = self._tracker(node).add(exchange)
        if step is not None:
            self.steps_found += 1
            self.steps.append(NodeStep(*node, step))
        return step is not None


def _bounds(tracker: OffsetTracker, sent_ns: int) -> Bounds:
    """What is known, but for what is too old for a sequence that was sent then."""
    since_ns = sent_ns - tracker.horizon_ns
    uppers, lowers = (
        tuple(one for one in bounds if one.begin_ns >= since_ns)
        for bounds in (tracker.uppers, tracker.lowers)
    )
    return Bounds(tracker.epoch, uppers, lowers)
