"""All folds that metrics are made of, fed with facts by hand on a manual clock."""

from __future__ import annotations

from collections.abc import Sequence

from telemetry.facts.clock import ManualClock, WallAnchor
from telemetry.facts.engine_records import EngineStarted, SequenceAdmitted
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from telemetry.metrics.exemplars import ExemplarStore, Kept
from telemetry.metrics.exposition import Metrics
from telemetry.metrics.gen_ai import GenAiFold
from telemetry.metrics.vllm_names import VllmFold
from telemetry.pump.pump import Pump
from telemetry.requests.classes import ClassBook
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo import SloFold
from telemetry.stats.window_fold import Suppliers, WindowFold
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    parsed,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    submitted,
    tokenized,
)

UNIX_NS = 1_800_000_000_000_000_000


def engine_started() -> EngineStarted:
    return EngineStarted(
        0, 77, "model", "torch-cpu", "float32", 10, 16, 512, 8, 64, True, 1, 100, 1000
    )


class MetricsWorld:
    """`world.feed(facts)`, then ask `world.metrics`."""

    def __init__(
        self,
        policy: SloPolicy = DEFAULT_POLICY,
        kept: Kept = lambda timeline: True,
        price_per_hour: float | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.lane = Lane()
        self.histograms = Histograms(ClassBook(policy))
        pump = Pump(self.clock)
        pump.add_lane(self.lane)
        slo = SloFold(policy, 0, price_per_hour)
        window = WindowFold(self.histograms, Suppliers(slo=slo.report))
        self.metrics = Metrics(
            model=lambda: "model",
            clock=self.clock,
            pump=pump,
            window=window,
            histograms=self.histograms,
            slo=slo,
            gen_ai=GenAiFold(),
            exemplars=ExemplarStore(self.histograms.book, kept, lambda: WallAnchor(0, UNIX_NS)),
            vllm=VllmFold(),
        )
        listeners = [window.on_timeline, *self.metrics.listeners]
        pump.add_fold("phases", PhaseFold(listeners, [self.histograms.on_measured]))
        pump.add_fold("window", window)

    def feed(self, facts: Sequence[Fact]) -> MetricsWorld:
        for fact in facts:
            self.lane.append(fact)
        self.metrics.pump.run_once()
        return self


def one_request(
    gap_ms: Sequence[int] = (10, 15),
    *,
    request_id: str = "r1",
    seq_id: int = 1,
    start_ms: int = 0,
    reason: EndReason = EndReason.MAX_TOKENS,
    prompt_tokens: int = 4,
    cached_tokens: int = 0,
    **fields: str,
) -> list[Fact]:
    """Accepted at `start_ms`, prefilled from +10 to +20, then a token after each gap."""
    at = start_ms
    known = SequenceAdmitted(seq_id, (at + 5) * MS, 0, prompt_tokens, cached_tokens, 0, 0)
    facts: list[Fact] = [
        accepted(request_id, at, **fields),
        parsed(request_id, at + 1),
        tokenized(request_id, at + 2, prompt_tokens),
        submitted(request_id, at + 2, seq_id),
        queued(seq_id, at + 3),
        known,
        step(0, at + 10, at + 20, [prefill(seq_id, prompt_tokens)]),
    ]
    end = at + 20
    for index, gap in enumerate(gap_ms, 1):
        facts.append(step(index, end, end + gap, [decode(seq_id)]))
        end += gap
    sent_ns = (at + 22) * MS
    return [
        *facts,
        sequence_ended(seq_id, end, reason),
        request_ended(
            request_id,
            end + 10,
            reason,
            first_sent_ns=sent_ns,
            output_tokens=len(gap_ms) + 1,
        ),
    ]
