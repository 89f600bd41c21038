"""The utilisation by which a class that misses its promise is judged."""

from __future__ import annotations

from diagnosis.detection.counts import Counts
from diagnosis.promises.class_book import ClassBook
from diagnosis.promises.form import Recent, Situation
from telemetry.facts.engine_records import EngineStarted, StepCostSet
from telemetry.requests.slo_policy import SloClass

COST = StepCostSet(
    0, 0, base_ns=10_000_000, prefill_token_ns=10_000, decode_row_ns=10_000, context_token_ns=0
)


def utilised(blocks: int, **settings: str) -> float:
    """Of an engine that is asked for a hundred answers in ten seconds, with so many blocks."""
    started = EngineStarted(
        0, 1, "m", "b", "f32", blocks, 16, 1024, 64, 512, True, 2, 100, 1000, settings=settings
    )
    counts = Counts(prompt_lengths=[100] * 100, output_lengths=[100] * 100)
    book = ClassBook(SloClass(name="chat", ttft_ns=10**9, itl_ns=10**8), 0)
    found = Situation(Recent(10.0, counts, started), COST, {}, 0).utilisation(book, "")
    assert found is not None
    return found


def test_the_cache_is_as_large_as_the_engine_says_it_is() -> None:
    """A sequence has blocks of each kind of layer, so all blocks hold less than they seem to."""
    assert utilised(64) < utilised(32)
    assert utilised(64, kv_cache_size_tokens="512") == utilised(32)
    assert utilised(64, kv_cache_size_tokens="unknown") == utilised(64)
