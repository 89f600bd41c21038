"""The engine's time is charged to its causes, by known costs and by measurements."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from diagnosis.attribution.blame import blame
from diagnosis.attribution.charges import Charges, EngineTime
from diagnosis.attribution.engine_time import (
    _name_longer_prompts,
    engine_time,
    queue_contributors,
)
from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.host_time import NOT_SAMPLED, HostTime
from diagnosis.detection.reference import Reference, fit_baseline, slo_baseline
from diagnosis.detection.step_cost import fit_cost
from diagnosis.detection.steps import StepRow, Steps
from diagnosis.detection.window import Window
from diagnosis.symptoms import Symptom
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.reasons import WaitReason

S = Symptom
MS, SECOND = 1_000_000, 1_000_000_000
STARTED = EngineStarted(0, 1, "m", "b", "f32", 100, 16, 512, 8, 512, True, 1, 100, 1000)
PLACES = {name: place for place, name in enumerate(StepRow._fields)}


def decodes(rows: int, forward_ms: float, count: int, *, more_ms: float = 0.0) -> np.ndarray:
    """Consecutive steps with so many decode rows; `more_ms` are spent around each."""
    table = np.zeros((count, len(PLACES)))
    turn_ns = (forward_ms + more_ms) * MS
    columns = {
        "end_ns": np.arange(1, count + 1) * turn_ns, "turn_ns": turn_ns,
        "forward_ns": forward_ms * MS, "host_ns": more_ms * MS, "decode_tokens": rows,
        "decode_rows": rows, "sampled_rows": rows, "context_tokens": 100 * rows,
        "running": rows, "budget_tokens": 512,
    }  # fmt: skip
    for name, value in columns.items():
        table[:, PLACES[name]] = value
    return table


def prefills(tokens: int, count: int) -> np.ndarray:
    """The same two rows beside one prompt, a millisecond for each of its tokens."""
    table = decodes(2, 10 + tokens, count)
    for name, value in {
        "prompt_tokens": tokens,
        "prompt_rows": 1,
        "interaction": 2 * tokens,
    }.items():
        table[:, PLACES[name]] = value
    return table


def after(table: np.ndarray, begin_ns: float) -> np.ndarray:
    """The same steps later."""
    moved = table.copy()
    moved[:, PLACES["end_ns"]] += begin_ns
    return moved


def baseline() -> Reference:
    """One row or two, ten ms a step."""
    cost = fit_cost(Steps(np.vstack([decodes(1, 10, 500), decodes(2, 10, 500)])))
    return msgspec.structs.replace(
        slo_baseline(), seconds=30.0, cost=cost, parts_ns={"co_decode": 0.0}
    )


def slow_reference() -> Reference:
    """The same with steps of 50 ms."""
    cost = fit_cost(Steps(np.vstack([decodes(1, 50, 500), decodes(2, 50, 500)])))
    return msgspec.structs.replace(baseline(), cost=cost)


def charged(
    table: np.ndarray,
    counts: Counts | None = None,
    learnt: EngineStarted | None = None,
    started: EngineStarted | None = None,
    speed_spread: float = 0.0,
    reference: Reference | None = None,
    host: HostTime = NOT_SAMPLED,
) -> EngineTime:
    seconds = float(table[-1, PLACES["end_ns"]]) / SECOND
    counts = counts or Counts()
    window = Window(
        seconds=seconds, counts=counts, later_half=Counts(), steps=Steps(table), started=started,
        host=host,
    )  # fmt: skip
    reference = msgspec.structs.replace(
        reference or baseline(), started=learnt, speed_spread=speed_spread
    )
    assert reference.cost is not None
    return engine_time(window, reference, reference.cost)


def test_a_machine_that_is_no_longer_slow_is_not_a_cause() -> None:
    """A cause is named only if it has lasted and still lasts."""
    lasts = decodes(2, 14, 500)
    over = np.vstack([decodes(2, 18, 200), after(decodes(2, 10, 340), 3.6 * SECOND)])
    brief = decodes(2, 14, 200)

    assert (
        charged(lasts).decoding_ns[S.THROTTLED] + charged(lasts).decoding_ns[S.MEMORY_BANDWIDTH]
        > 2 * SECOND
    )
    for table in (over, brief):
        found = charged(table)
        assert found.slow > 1.12
        assert found.decoding_ns[S.THROTTLED] == found.decoding_ns[S.MEMORY_BANDWIDTH] == 0


def test_a_small_slowness_must_last_longer_than_a_large_one() -> None:
    """A shared machine is a little slower for some seconds by itself."""
    step_s, large, small = 0.010, 1.4, 1.2

    def lost_ns(factor: float, seconds: float) -> float:
        steps = round(seconds / (step_s * factor))
        found = charged(decodes(2, 1000 * step_s * factor, steps))
        return found.decoding_ns[S.THROTTLED] + found.decoding_ns[S.MEMORY_BANDWIDTH]

    assert lost_ns(large, 5.5) > 2 * SECOND
    assert lost_ns(small, 5.5) == lost_ns(small, 9.0) == 0
    assert lost_ns(small, 11.0) > 2 * SECOND


def test_another_process_of_the_engine_is_slow_only_by_half_or_more() -> None:
    """The speed of two processes differs without a fault."""
    again = msgspec.structs.replace(STARTED, pid=2, at_ns=SECOND)
    slow, slower = decodes(2, 14, 500), decodes(2, 16, 500)

    def lost_ns(table: np.ndarray, started: EngineStarted) -> float:
        found = charged(table, learnt=STARTED, started=started)
        return found.decoding_ns[S.THROTTLED] + found.decoding_ns[S.MEMORY_BANDWIDTH]

    assert lost_ns(slow, STARTED) > 2 * SECOND
    assert lost_ns(slow, again) == 0
    assert lost_ns(slower, again) > 2 * SECOND


def starving(seconds: float, throttled: float = 0.0) -> HostTime:
    """For nearly half of the time the engine's thread was runnable and did not run."""
    window_ns = seconds * SECOND
    return HostTime(
        window_ns=window_ns,
        busy_ns=window_ns,
        run_ns=0.55 * window_ns,
        wait_ns=0.45 * window_ns,
        throttled_ns=throttled * window_ns,
    )


def test_cpu_starvation_is_found_also_for_batch_sizes_of_unknown_cost() -> None:
    """Their cost is unknown, but the kernel reports how long the thread waited for a CPU."""
    table = decodes(8, 30, 200)
    found = charged(table, host=starving(6.0))

    assert 0.4 * 6 * SECOND < found.taken_ns[S.CPU_STARVATION] < 0.5 * 6 * SECOND
    assert charged(table).taken_ns[S.CPU_STARVATION] == 0
    by_quota = charged(table, host=starving(6.0, throttled=0.4))
    assert by_quota.taken_ns[S.CPU_STARVATION] == 0
    assert by_quota.taken_ns[S.THROTTLED] > 0.4 * 6 * SECOND


def test_waits_for_a_cpu_cost_nothing_where_steps_take_their_fitted_cost() -> None:
    """The thread waited now and then, but the steps took no longer than before."""
    found = charged(decodes(2, 10, 600), host=starving(6.0))

    assert found.taken_ns[S.CPU_STARVATION] == 0


def collecting(collected_ms: float) -> Counts:
    counts = Counts()
    counts.pauses["engine", "gc"] += int(collected_ms * MS)
    return counts


def test_garbage_collection_in_a_forward_pass_is_a_stall_and_the_rest_a_slow_machine() -> None:
    """A pause makes a forward pass look slow; the time of collections is measured."""
    table = decodes(2, 20, 300)  # three seconds more than baseline
    all_of_it, half = charged(table, collecting(3000)), charged(table, collecting(1600))

    assert all_of_it.decoding_ns[S.HOST_STALL] > 5 * SECOND
    assert all_of_it.decoding_ns[S.MEMORY_BANDWIDTH] + all_of_it.decoding_ns[S.THROTTLED] == 0
    slow = Charges({s: half.decoding_ns[s] for s in (S.MEMORY_BANDWIDTH, S.THROTTLED)})
    assert sum(slow.values()) > 2 * SECOND
    assert half.decoding_ns[S.HOST_STALL] > 2 * SECOND


@pytest.mark.parametrize("rows", [2, 9], ids=["in range", "out of range"])
def test_a_loop_that_stands_still_each_second_is_no_slow_memory(rows: int) -> None:
    """However long its steps are, and so how many of them stand still: between the stalls they
    take their predicted length, in batches that the baseline had and in larger ones. One that is
    stopped several times a second runs less."""
    usual, plain = slow_reference(), decodes(2, 50, 9)
    seconds = [
        np.vstack([plain, after(decodes(size, 550, 1), 0.45 * SECOND)]) for size in (2, rows)
    ]
    stalls = np.vstack([after(seconds[number % 2], number * SECOND) for number in range(12)])
    short = np.vstack([decodes(2, 50, 1), after(decodes(2, 250, 1), 0.05 * SECOND)])
    stops = np.vstack([after(short, number * 0.3 * SECOND) for number in range(40)])

    stalled, stopped = charged(stalls, reference=usual), charged(stops, reference=usual)

    assert stalled.taken_ns[S.HOST_STALL] > 12 * 0.45 * SECOND
    assert stalled.taken_ns[S.MEMORY_BANDWIDTH] == stalled.taken_ns[S.THROTTLED] == 0
    assert stopped.taken_ns[S.HOST_STALL] == 0


def test_a_quota_that_stops_two_of_six_long_steps_a_second_is_no_stall() -> None:
    """Every third step stands still for longer than a stall must, but the others are slow too: the
    process runs for less than half of the time."""
    lengths_ms, usual = (260, 100, 150), slow_reference()
    places_s = (0.0, 0.26, 0.36)
    steps = [
        after(decodes(2, length_ms, 1), (0.51 * number + place_s) * SECOND)
        for number in range(24)
        for length_ms, place_s in zip(lengths_ms, places_s, strict=True)
    ]
    seconds = int(24 * 0.51 * SECOND)
    host = HostTime(window_ns=seconds, busy_ns=seconds, run_ns=0.3 * seconds)

    found = charged(np.vstack(steps), host=host, reference=usual)

    assert found.taken_ns[S.HOST_STALL] == 0
    assert found.taken_ns[S.THROTTLED] > 24 * 0.3 * SECOND


def test_a_cause_with_almost_no_engine_time_is_not_charged_for_queues() -> None:
    """A quarter of a millisecond of a slow machine is not the cause of the wait for a full
    batch."""
    found = EngineTime(busy_ns=100.0, taken_ns=Charges({S.THROTTLED: 2.0, S.HOST_STALL: -5.0}))
    assert queue_contributors(found) == {}

    found.taken_ns[S.QUEUE_OVERLOAD] = 2.0
    assert queue_contributors(found) == {S.THROTTLED: 2.0, S.QUEUE_OVERLOAD: 2.0}


@pytest.mark.parametrize(
    ("co_ns", "own_ns", "name"),
    [(9.0, 5.0, S.PREFILL_INTERFERENCE), (5.0, 9.0, S.LONG_PROMPTS), (-3.0, 1.0, S.LONG_PROMPTS)],
)
def test_longer_prompts_are_named_by_the_requests_that_lose_more(
    co_ns: float, own_ns: float, name: Symptom
) -> None:
    """Interference if the decoding requests do, long prompts if their own requests do; other
    computed time keeps its cause."""
    wanted = Charges({S.PREFILL_INTERFERENCE: 100.0, S.PREFIX_CACHE_COLD: 7.0})

    assert _name_longer_prompts(wanted, co_ns, own_ns) == {name: 100.0, S.PREFIX_CACHE_COLD: 7.0}
    assert wanted[S.PREFILL_INTERFERENCE] == 100.0


@pytest.mark.parametrize(("count", "is_named"), [(2, False), (6, True)])
def test_two_prompts_at_once_are_not_larger_steps(count: int, is_named: bool) -> None:
    """On a server with a light load no step had two prompts before, so this one is the largest so
    far."""
    seen = Steps(np.vstack([decodes(2, 10, 500), prefills(40, 50), prefills(20, 50)]))
    cost = fit_cost(seen)
    assert cost is not None
    reference = msgspec.structs.replace(slo_baseline(), seconds=30.0, cost=cost)
    steps = Steps(np.vstack([decodes(2, 10, 200), prefills(80, count)]))
    window = Window(seconds=3.0, counts=Counts(), later_half=Counts(), steps=steps, started=None)

    found = engine_time(window, reference, cost)
    assert (found.decoding_ns[S.PREFILL_INTERFERENCE] > 0) is is_named


def chunked(count: int, *, budget: int, timed: bool) -> np.ndarray:
    """Prompts in chunks of 16 tokens, each as large as its step allowed."""
    table = prefills(16, count)
    table[:, PLACES["budget_tokens"]] = budget
    table[:, PLACES["timed"]] = timed
    return table


def judged(table: np.ndarray, **limits: object) -> float:
    """Time charged to a budget that is too small, where the baseline's was 512."""
    started = msgspec.structs.replace(STARTED, **limits)  # type: ignore[type-var]
    window = Window(
        seconds=10.0, counts=Counts(), later_half=Counts(), steps=Steps(table), started=started
    )
    reference = msgspec.structs.replace(baseline(), budget_tokens=512.0)
    assert reference.cost is not None
    return engine_time(window, reference, reference.cost).taken_ns[S.BUDGET_TOO_SMALL]


def test_a_budget_is_too_small_only_where_it_was_configured() -> None:
    """An automatic one follows the decodes: where they leave no time, no flag makes it larger."""
    small = chunked(300, budget=18, timed=True)

    assert judged(chunked(300, budget=18, timed=False)) > SECOND
    assert judged(small, auto_budget=True) == 0
    assert judged(small, auto_budget=True, itl_target_ns=5 * MS) > SECOND
    mixed = np.vstack([small, chunked(300, budget=512, timed=False)])
    assert judged(mixed, auto_budget=True) == 0


def test_the_usual_budget_is_the_configured_one_however_little_time_steps_had() -> None:
    steps = Steps(
        np.vstack([chunked(100, budget=18, timed=True), chunked(100, budget=512, timed=False)])
    )
    auto = msgspec.structs.replace(STARTED, auto_budget=True, budget_tokens=256)

    assert fit_baseline(10.0, Counts(), steps, auto).budget_tokens == 512
    timed = Steps(chunked(100, budget=18, timed=True))
    assert fit_baseline(10.0, Counts(), timed, auto).budget_tokens == 256
    strict = msgspec.structs.replace(auto, itl_target_ns=5 * MS)
    assert fit_baseline(10.0, Counts(), timed, strict).budget_tokens == 18


@pytest.mark.parametrize(("held_up_ns", "first"), [(SECOND, S.INGEST_BACKLOG), (0, S.HOST_STALL)])
def test_a_wave_is_due_to_what_held_it_up_also_where_steps_are_slower(
    held_up_ns: int, first: Symptom
) -> None:
    """Four requests wait for three seconds each while steps have a pause. They came at once, after
    a second in the gateway; or each in its time."""
    steps = decodes(1, 10, 250, more_ms=6)
    came = [(0, held_up_ns, held_up_ns + 3 * SECOND)] * 4
    counts = Counts(
        requests=4, first_tokens=4, admitted=4, admissions=came,
        live_ns=Counter({Stage.FIRST: 12 * SECOND}),
        waited_ns=Counter({WaitReason.BUDGET: 12 * SECOND}),
    )  # fmt: skip
    window = Window(
        seconds=4.0, counts=counts, later_half=Counts(), steps=Steps(steps), started=STARTED
    )
    found = blame(window, baseline())

    assert found.harm_ns.ranked()[0][0] is first
    assert found.through[first, S.QUEUE_OVERLOAD] > 9 * SECOND


def test_prompts_that_come_together_in_a_step_are_no_larger_parts_of_prompts() -> None:
    """A baseline with prompts of 60 tokens, each alone in its step, of a budget of 512. Then two
    come at once, one is three times as long, or a larger budget takes more of them."""
    usual = np.vstack([decodes(2, 10, 300), prefills(60, 100), decodes(1, 10, 100)])
    learnt = msgspec.structs.replace(
        baseline(), cost=fit_cost(Steps(usual)), budget_tokens=512.0, prompt_tokens=60.0,
        longest_prompt=60,
    )  # fmt: skip
    longer, together = prefills(180, 30), prefills(180, 30)
    together[:, PLACES["prompt_rows"]] = 3
    larger = together.copy()
    larger[:, PLACES["budget_tokens"]] = 2_048

    def harm_ns(table: np.ndarray) -> float:
        return charged(table, reference=learnt).decoding_ns[S.PREFILL_INTERFERENCE]

    assert harm_ns(together) == 0
    assert harm_ns(longer) > SECOND
    assert harm_ns(larger) > SECOND
