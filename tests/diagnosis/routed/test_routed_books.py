"""Sequences that end without an account, engines that come back, and what is usual."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from diagnosis.routed.causes import router_herding
from diagnosis.routed.diagnoser import RoutedDiagnoser
from diagnosis.routed.engines import Engines
from diagnosis.routed.evidence import Routed
from diagnosis.routed.sequences import Sequence
from diagnosis.routed.steps import EngineSteps, wait_ns
from diagnosis.routed.symptoms import FleetFault, FleetSymptom
from diagnosis.routed.ticks import Cell, First, Past, Tick, summed
from diagnosis.routed.window import Window, relative
from telemetry.facts.engine_records import SequencesListed, StepCostSet
from telemetry.facts.fleet.routing_records import (
    EngineJoined,
    EngineLeft,
    LeaveReason,
    RequestRouted,
    RouterStarted,
    RoutingPolicy,
)
from telemetry.facts.fleet.sequence_records import RemoteAccounted, SequenceSent
from telemetry.facts.reasons import EndReason, FactSource
from telemetry.facts.records import Fact, FactsLost
from tests.diagnosis.routed.test_routed_parts import frame, report

MS = 1_000_000
SECOND = 1000 * MS
LOST_MS, FOUND_MS, STALE_MS, END_MS = 19_000, 19_600, 20_000, 30_000


def joined(engine: str, incarnation: int, at_ms: int = 0) -> EngineJoined:
    return EngineJoined(at_ms * MS, engine, incarnation, 16)


def sent(number: int, engine: str, at_ms: int) -> list[Fact]:
    """A request goes there as its own sequence."""
    at_ns = at_ms * MS
    return [
        RequestRouted(at_ns, f"r{number}", engine, 1, number, 100, 16, None, None, (), None, (), 0),
        SequenceSent(at_ns, number, engine, 1),
    ]


def answered(number: int, engine: str, at_ms: int) -> list[Fact]:
    """Its first token, and then its end."""
    token = replace(frame((at_ms + 50) * MS, number), engine=engine)
    end_ns = (at_ms + 90) * MS
    return [token, RemoteAccounted(end_ns, number, engine, 1, EndReason.STOP_TOKEN)]


def fleet(*found_out: Fact) -> list[Fact]:
    """Two engines with a request a half second each in turn. Of the one at LOST_MS neither a token
    nor the account is recorded. At STALE_MS reports end, so that waits since then are told."""
    facts: list[Fact] = [
        RouterStarted(0, RoutingPolicy.LEAST_FINISH, 1, 1.0, 1.25, 8), joined("a", 1),
        joined("b", 1), *found_out,
    ]  # fmt: skip
    for number, at_ms in enumerate(range(500, END_MS, 500), 1):
        engine = "ab"[number % 2]
        facts += sent(number, engine, at_ms)
        if at_ms != LOST_MS:
            facts += answered(number, engine, at_ms)
        if at_ms < STALE_MS:
            one = report((at_ms + 100) * MS, received=number)
            facts += [replace(one, engine=name) for name in "ab"]
    return sorted(facts, key=lambda fact: fact.at_ns)  # type: ignore[union-attr]


LOST_AT = "ab"[LOST_MS // 500 % 2]
AT_NS = FOUND_MS * MS


@pytest.mark.parametrize(
    "found_out",
    [
        [SequencesListed(AT_NS, (), LOST_MS // 500 + 1)],
        [FactsLost(AT_NS, FactSource.GATEWAY, 2)],
        [joined(LOST_AT, 2, FOUND_MS)],
        [EngineLeft(AT_NS, LOST_AT, LeaveReason.DIED, 0), joined(LOST_AT, 1, FOUND_MS)],
    ],
    ids=["list", "loss", "new incarnation", "link came back"],
)
def test_a_sequence_whose_account_was_lost_is_gone_and_adds_no_wait(found_out: list[Fact]) -> None:
    """After the next list of what is there, and with all that ends what was there."""
    diagnoser = RoutedDiagnoser()
    for fact in fleet(*found_out):
        diagnoser.on_fact(fact)
    assert diagnoser.verdict is not None
    (fault,) = diagnoser.verdict.faults

    assert fault.symptom is FleetSymptom.SIGNALS_STALE
    assert (fault.victims, fault.harm_ms) == ((), 0.0)
    assert diagnoser.live == 0


def test_a_sequence_that_is_listed_stays_in_the_books() -> None:
    """And one that was not received yet, when the list was made."""
    diagnoser = RoutedDiagnoser()
    for fact in [*fleet()[:3], *sent(7, "a", 10), *sent(8, "a", 20)]:
        diagnoser.on_fact(fact)

    diagnoser.on_fact(SequencesListed(30 * MS, (7,), 7))
    assert diagnoser.live == 2
    diagnoser.on_fact(FactsLost(40 * MS, FactSource.ENGINE, 1))
    assert diagnoser.live == 2
    diagnoser.on_fact(SequencesListed(50 * MS, (8,), 8))
    assert diagnoser.live == 1


def test_the_same_incarnation_that_joins_again_is_no_restart() -> None:
    """Its link was gone; another incarnation under its name is one."""
    engines = Engines()
    seen = []
    for incarnation in (1, 1, 2, 2, 1):
        seen.append(engines.joined(joined("a", incarnation)))
        engines.left("a")

    assert seen == [False, False, True, False, True]
    assert not engines.joined(joined("b", 2))


# What a prompt takes

COST = StepCostSet(0, 0, 10 * MS, 20_000, 1 * MS, 1000, pair_ns=2.0, mixed_ns=5 * MS)
TOKENS, BUDGET = 12_000, 2048


def work_ns(tokens: int, cached: int, budget: int | None) -> int:
    """Of a prompt beyond the steps of others, chunk by chunk."""
    total, begin = 0.0, cached
    while begin < tokens:
        end = min(tokens, begin + (budget or tokens))
        pairs = (end - begin) * (begin + (end - begin) / 2)
        total += COST.mixed_ns + COST.prefill_token_ns * (end - begin) + COST.pair_ns * pairs
        begin = end
    return round(total)


@pytest.mark.parametrize(("cached", "budget"), [(0, None), (0, BUDGET), (4000, BUDGET)])
def test_a_prompt_that_is_alone_has_waited_for_nothing(cached: int, budget: int | None) -> None:
    """Its attention is its own work, and so is each step that it is in."""
    prompt = Sequence(1, "r1", "a", 0, TOKENS, computed_tokens=TOKENS - cached)
    steps = -(-(TOKENS - cached) // budget) if budget else 1
    first_ns = steps * COST.base_ns + work_ns(TOKENS, cached, budget)

    assert wait_ns(prompt, first_ns, COST, budget) == 0
    assert wait_ns(prompt, first_ns + 7 * MS, COST, budget) == 7 * MS


def paced(prompt_tokens: int | None) -> Cell:
    """An engine with one sequence that decodes; with another's prompt in every second step."""
    steps, cell = EngineSteps(), Cell()
    live = {1: Sequence(1, "r1", "a", 0, 100)}
    at_ns, step_ns = 0, COST.base_ns + COST.decode_row_ns + 100 * COST.context_token_ns
    for number in range(2, 42):
        new = None
        if prompt_tokens and number % 2:
            new = live[number] = Sequence(
                number, f"r{number}", "a", at_ns, prompt_tokens, (), 0, at_ns, prompt_tokens
            )
            steps.admitted(new)
        begin_ns, at_ns = at_ns, at_ns + step_ns
        at_ns += 0 if new is None else work_ns(TOKENS, 0, None)
        step = steps.step(frame(at_ns, *([1] if new is None else [1, number])), live, COST, 0)
        if step is not None:
            cell.steps += step.steps
            cell.span_ns += at_ns - begin_ns
            cell.expected_ns += step.expected_ns
            if new is not None:
                cell.expected_ns += steps.prompt_ns(new, at_ns, COST)
    return cell


def test_of_two_equal_engines_the_one_with_long_prompts_is_no_slower() -> None:
    cells = {"long": paced(TOKENS), "none": paced(None)}

    assert relative("long", cells) == pytest.approx(1.0, abs=0.01)


# What is usual


def crowds(wait_ms: int) -> list[Tick]:
    """Ticks in which all requests go to one engine, and in the next to the other; each first token
    is waited for so long."""
    found: list[Tick] = []
    for number in range(16):
        tick = Tick(routed=8)
        for engine in "ab":
            busy = engine == "ab"[number % 2]
            firsts = [First(f"r{number}", wait_ms * MS)] * 8 if busy else []
            tick.cells[engine] = Cell(picks=8 * busy, firsts=firsts)
        found.append(tick)
    return found


def herding(past: list[Tick]) -> tuple[Window, FleetFault | None]:
    window = Window(crowds(300), Past(past, summed(past)), "ab")
    return window, router_herding.found(window)


def test_before_there_is_history_no_first_token_is_later_than_usual() -> None:
    """As after a restart of the gateway under load."""
    window, fault = herding([])

    assert window.late_ns(First("r", 10 * SECOND)) is None
    assert (window.late(), window.late_count([])) == ([], None)
    assert fault is None


@pytest.mark.parametrize(("usual_ms", "is_herd"), [(20, True), (280, False)])
def test_with_history_a_herd_is_named_where_more_is_waited_than_usual(
    usual_ms: int, is_herd: bool
) -> None:
    window, fault = herding(crowds(usual_ms))

    assert (fault is not None) == is_herd
    if fault is not None:
        late = {one.name: one.value for one in fault.evidence}[Routed.LATE_FIRSTS.value]
        assert late == len(window.late()) == 128
