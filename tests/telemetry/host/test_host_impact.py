"""Pauses: one cause a nanosecond, and in ms of whose latency."""

from __future__ import annotations

from typing import Any

import msgspec

from telemetry.facts.engine_records import (
    GrammarCompiled,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    StepRecorded,
)
from telemetry.facts.records import EngineDied, Fact
from telemetry.host.host_impact import HostImpact
from telemetry.host.pauses import PauseLog
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
from tests.support.worlds.pause_facts import (
    BLOCKED,
    GATEWAY,
    OFF_CPU,
    by_ms,
    impacts,
    later,
    paused,
)


def begun(name: str, seq_id: int, at: int = 0, stream: bool = True) -> list[Fact]:
    return [
        accepted(name, at), parsed(name, at + 1, stream), tokenized(name, at + 1),
        submitted(name, at + 2, seq_id), queued(seq_id, at + 3),
    ]  # fmt: skip


def test_a_pause_of_the_engine_costs_every_request_in_it() -> None:
    """r2 came in the middle of it and lost half; r3 had ended."""
    (found,) = impacts(
        *begun("r1", 1), *begun("r3", 3), step(0, 5, 90, [prefill(1), prefill(3)]),
        sequence_ended(3, 90), request_ended("r3", 91),
        *begun("r2", 2, at=148)[:4], paused(100, 200), step(1, 93, 210, [decode(1)]),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 100, "r2": 50}
    assert (found.victims_total, found.victims_ns) == (2, 150 * MS)
    assert (found.process, found.cause, found.detail) == ("engine", "gc", "detail")
    assert found.step_ids == (1,)


def test_a_request_that_waits_for_its_grammar_or_its_reader_loses_nothing() -> None:
    """One for its grammar, one for its reader, until 150; a pause from 100 to 200."""
    grammar = SequenceQueued(2, 13 * MS, 0, 4, 16, "", constrained=True)
    (found,) = impacts(
        *begun("r1", 1), *begun("r2", 2, at=10)[:4], grammar, SequencePaused(1, 50 * MS, 0),
        paused(100, 200),
        SequenceResumed(1, 150 * MS, 0), GrammarCompiled(2, 160 * MS, 1, 9, False, False),
        step(1, 201, 210, [decode(1), prefill(2)]),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 50, "r2": 40}


def test_a_pause_of_the_gateway_costs_what_could_not_be_delivered() -> None:
    """r1's token came at 130, r2's at 170; r3 is in its prompt and lost nothing."""
    (found,) = impacts(
        *begun("r1", 1), *begun("r2", 2), *begun("r3", 3), step(0, 5, 90, [prefill(1)]),
        step(1, 91, 130, [decode(1)]),
        step(2, 130, 170, [decode(1), prefill(2), prefill(3, sampled=False)]),
        paused(100, 200, GATEWAY, BLOCKED), step(3, 170, 215, [decode(1)]),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 70, "r2": 30}
    assert found.step_ids == (1, 2, 3)


def test_a_request_that_the_gateway_works_on_loses_all_of_its_pause() -> None:
    """Not submitted before the pause, or ended in the engine and not yet delivered."""
    (found,) = impacts(
        *begun("done", 1), step(0, 5, 90, [prefill(1)]), sequence_ended(1, 90),
        accepted("new", 95), parsed("new", 96), paused(100, 200, GATEWAY),
        submitted("new", 202, 9), request_ended("done", 205),
    )  # fmt: skip

    assert by_ms(found) == {"done": 100, "new": 100}


def test_a_request_without_streaming_loses_only_after_its_last_token() -> None:
    """Earlier tokens are not sent anyway."""
    (found,) = impacts(
        *begun("r1", 1, stream=False), step(0, 5, 120, [prefill(1)]),
        step(1, 120, 180, [decode(1)]), sequence_ended(1, 180),
        paused(100, 200, GATEWAY), request_ended("r1", 201),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 20}


def test_a_request_with_several_choices_loses_what_the_worst_of_them_loses() -> None:
    (found,) = impacts(
        *begun("r1", 1), submitted("r1", 2, 2), queued(2, 3), sequence_ended(2, 120),
        paused(100, 200), step(0, 201, 210, [decode(1)]),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 100}


def test_a_pause_without_live_requests_has_no_victims() -> None:
    (found,) = impacts(
        *begun("r1", 1), sequence_ended(1, 50), request_ended("r1", 60), paused(100, 200)
    )

    assert (found.victims_total, found.victims_ns, found.victims) == (0, 0, ())


def test_a_dead_engine_has_no_live_requests() -> None:
    (found,) = impacts(*begun("r1", 1), EngineDied(150 * MS, 1, "gone", 0), paused(100, 200))

    assert by_ms(found) == {"r1": 50}


def test_a_reused_request_id_is_another_request() -> None:
    (found,) = impacts(
        *begun("r1", 1), sequence_ended(1, 50), request_ended("r1", 60),
        *begun("r1", 2, at=150), paused(100, 200),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 48}


def test_totals_are_of_all_pauses_and_the_list_is_bounded() -> None:
    impact = HostImpact()
    log = PauseLog(impact.on_pause)
    facts: list[Fact] = [paused(number * 10, number * 10 + 2) for number in range(600)]
    for batch in (facts, [later(20_000)]):
        impact.on_facts(batch)
        log.on_facts(batch)

    (totals,) = impact.totals.values()
    assert (totals.pauses, totals.lost_ns) == (600, 1200 * MS)
    assert len(impact.impacts) == 512


def test_the_same_facts_in_other_batches_give_the_same_impacts() -> None:
    """A journal that is read back comes in batches of its own."""
    facts: list[Fact] = [
        *begun("r1", 1), step(0, 5, 90, [prefill(1)]), paused(100, 200),
        step(1, 93, 210, [decode(1)]), step(2, 310, 320, [decode(1)]), later(2000), later(3000),
    ]  # fmt: skip
    found: list[Any] = []
    for size in (1, 3, len(facts)):
        impact = HostImpact()
        log = PauseLog(impact.on_pause)
        for start in range(0, len(facts), size):
            impact.on_facts(facts[start : start + size])
            log.on_facts(facts[start : start + size])
        found.append(msgspec.json.encode(impact.as_dict({})))

    assert found[0] == found[1] == found[2]
    assert len(impact.impacts) == 2


def test_a_pause_is_unchanged_by_encoding_and_decoding() -> None:
    """As it goes from the engine to the gateway and into a journal."""
    fact = paused(1, 2, cause=OFF_CPU, lost=1)
    again = msgspec.msgpack.Decoder(Fact).decode(msgspec.msgpack.encode(fact))

    assert again == fact


def test_steps_are_kept_for_a_while_only() -> None:
    impact = HostImpact()
    many: list[Fact] = [step(number, number, number + 1, [decode()]) for number in range(3000)]
    impact.on_facts(many)

    kept = [fact for fact in impact._steps if isinstance(fact, StepRecorded)]
    assert len(kept) == 2048


def test_the_steps_that_are_kept_are_bounded_by_their_rows() -> None:
    """Full batches of 256 rows took 70 MB."""
    impact = HostImpact()
    rows = [decode(seq_id) for seq_id in range(256)]
    impact.on_facts([step(number, number, number + 1, rows) for number in range(1000)])
    assert impact.rows_kept <= 131_072
