"""The tape of steps: bounded by bytes, trimmed to the oldest live request, and exact shares."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.ledger.builder import LedgerBuilder
from telemetry.ledger.tape import Share, Tape, apportion
from telemetry.requests.phase_fold import PhaseFold
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    request_ended,
    sequence_ended,
    step,
    submitted,
)


def test_the_tape_of_full_batches_is_bounded_by_bytes_and_not_only_by_steps() -> None:
    """256 rows a step, each with a mask of its own: names are what takes the memory."""
    tape = Tape(capacity_bytes=1 << 20)
    rows = [decode(seq_id) for seq_id in range(256)]
    for number in range(2000):
        fact = msgspec.structs.replace(
            step(number, 10 * number, 10 * number + 10, rows, mask_ns=MS),
            sample_ns=(10 * number + 5) * MS,
        )
        tape.append(fact, set(range(256)))
        assert tape.bytes <= (1 << 20) + 20_000
    assert 0 < tape.first < tape.stop == 2000
    assert tape.sum(Share.MASK, tape.first, tape.stop) == (tape.stop - tape.first) * MS


@pytest.mark.parametrize("accepted_s", [None, 3])
def test_the_tape_reaches_back_to_the_oldest_live_request(
    accepted_s: int | None,
) -> None:
    """Ten thousand steps of 10 ms: with nobody to account for, some 20 s of them are kept; a
    request that came after 3 s keeps all since then."""
    ledger_builder = LedgerBuilder(lambda slo_class: 100 * MS)
    if accepted_s is not None:
        ledger_builder.take(accepted(at=accepted_s * 1000))
    for number in range(10_000):
        ledger_builder.take(step(number, 10 * number, 10 * number + 10, [decode(1)]))

    kept_ms = 10 * (ledger_builder.tape.stop - ledger_builder.tape.first)
    assert kept_ms <= (100_000 - 3_000 if accepted_s else 0) + 10_000 + 10 * 1024
    assert kept_ms >= (100_000 - 3_000 if accepted_s else 0)


def test_request_names_are_dropped_with_the_last_step_of_the_request() -> None:
    """Two thousand requests a minute, each over after 30 ms: of the last seconds some are known."""
    ledger_builder = LedgerBuilder(lambda slo_class: 100 * MS)
    fold = PhaseFold(ledger_builder=ledger_builder)
    for number in range(4_000):
        at, seq_id = 30 * number, number + 1
        fold.on_facts(
            [
                accepted(f"r{number}", at),
                submitted(f"r{number}", at, seq_id),
                step(number, at, at + 20, [decode(seq_id)]),
                sequence_ended(seq_id, at + 20),
                request_ended(f"r{number}", at + 25),
            ]
        )

    assert ledger_builder.live == 0
    assert ledger_builder.owned_sequences < 1_500


def test_a_step_without_prompts_or_masks_keeps_no_row_on_the_tape() -> None:
    sizes = []
    for count in (1, 256):
        tape = Tape()
        for number in range(100):
            rows = [decode(seq_id) for seq_id in range(count)]
            tape.append(step(number, 10 * number, 10 * number + 10, rows), set())
        sizes.append(tape.bytes)
    assert sizes[0] == sizes[1]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.integers(0, 10**9))
def test_apportioned_parts_sum_to_the_total_and_keep_their_order(
    parts: list[int], total: int
) -> None:
    scaled = apportion(parts, total)
    assert sum(scaled) == total
    assert all(part >= 0 for part in scaled)
    if sum(parts):
        for part, share in zip(parts, scaled, strict=True):
            assert abs(share - part * total / sum(parts)) <= 1
