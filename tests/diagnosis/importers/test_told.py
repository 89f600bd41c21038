"""What each kind can tell of faults that are written into its documented format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from diagnosis.importers.kinds import KINDS, Certainty, Kind
from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.records import Span
from diagnosis.importers.registry import diagnose_files
from diagnosis.importers.ways import NEVER, ON_DEVICE, ON_HOST, WAYS, told_by_kind
from diagnosis.symptoms import Symptom as Cause
from tests.diagnosis.importers.written import (
    Line,
    diagnose,
    dynamo_request,
    forward_pass,
    llama_answer,
    read,
    sglang_request,
    silent,
    trt_iteration,
    write,
)

REQUESTS, LATE_FROM, LATE_UNTIL = 120, 60, 100


def is_late(number: int) -> bool:
    return LATE_FROM <= number < LATE_UNTIL


def requests_of(make: Callable[[int], Line]) -> list[Line]:
    return [make(number) for number in range(REQUESTS)]


def named(kind: Kind, lines: list[Line], path: Path) -> dict[Cause, Certainty]:
    found = diagnose(kind, write(path / "record.jsonl", lines))
    return {one.symptom: one.certainty for one in found.findings}


def passes(make: Callable[[int, bool], Line]) -> list[Line]:
    """Six hundred forward passes, of which two hundred are late."""
    return [make(number, 300 <= number < 500) for number in range(600)]


def test_steps_with_others_prompts_are_interference(tmp_path: Path) -> None:
    """Measured: the passes without prompts are as long as before."""

    def one(number: int, late: bool) -> Line:
        prompt = 512 if late and number % 2 else 0
        return forward_pass(number, 100 * number, 120 if prompt else 20, prompt=prompt)

    assert named(Kind.DYNAMO_FPM, passes(one), tmp_path) == {
        Cause.PREFILL_INTERFERENCE: Certainty.MEASURED
    }


def test_slower_steps_of_the_same_content_are_undecided(tmp_path: Path) -> None:
    lines = passes(lambda number, late: forward_pass(number, 100 * number, 60 if late else 20))

    found = diagnose(Kind.DYNAMO_FPM, write(tmp_path / "fpm.jsonl", lines))

    assert (found.verdict, found.findings) == ("undecided", ())
    assert {Cause.THROTTLED, Cause.CPU_STARVATION} <= {*found.undecided[0].causes}


def test_fuller_batches_are_told_from_slower_steps(tmp_path: Path) -> None:
    """Their length goes with their rows, as it always did."""

    def one(number: int, late: bool) -> Line:
        rows = (40 if late else 8) + number % 8
        return forward_pass(number, 100 * number, 5 + 2 * rows, rows=rows)

    assert Cause.OVERSIZED_BATCH in named(Kind.DYNAMO_FPM, passes(one), tmp_path)


def test_passes_that_are_missing_are_counted(tmp_path: Path) -> None:
    lines = [forward_pass(number, 100 * number, 20) for number in range(600) if number % 20]

    assert named(Kind.DYNAMO_FPM, lines, tmp_path) == {Cause.TELEMETRY_DEGRADED: Certainty.COUNTED}


def test_passes_that_are_missing_before_the_stretch_are_not_counted_in_it(tmp_path: Path) -> None:
    """Half of those of the first 35 s; of the 60 s the last 20 are judged."""
    numbers = [number for number in range(600) if number >= 350 or number % 100 < 50]
    lines = [forward_pass(number, 100 * number, 20) for number in numbers]
    path = write(tmp_path / "fpm.jsonl", lines)

    def named(now: tuple[float, float], usual: tuple[float, float]) -> list[Cause]:
        found = diagnose_files(Kind.DYNAMO_FPM, [path], silent, (now, usual))
        return [one.symptom for one in found.findings]

    assert named((20, 0), (59, 30)) == []
    assert named((59, 30), (20, 0)) == [Cause.TELEMETRY_DEGRADED]


def test_a_sampled_record_misses_nothing(tmp_path: Path) -> None:
    lines = [forward_pass(50 * number, 5000 * number, 20, mode="sampled") for number in range(99)]

    assert named(Kind.DYNAMO_FPM, lines, tmp_path) == {}


@pytest.mark.parametrize(
    ("host_ms", "device_ms", "causes"), [(60, 10, ON_HOST), (60, 55, ON_DEVICE)]
)
def test_the_side_of_a_slow_step_is_told_where_the_device_is_timed(
    host_ms: float, device_ms: float, causes: tuple[Cause, ...], tmp_path: Path
) -> None:
    lines = passes(
        lambda number, late: trt_iteration(host_ms, device_ms) if late else trt_iteration(12, 10)
    )

    found = diagnose(Kind.TRTLLM_METRICS, write(tmp_path / "m.jsonl", lines))

    assert [one.causes for one in found.undecided] == [causes]


def test_a_full_cache_is_told_from_full_slots(tmp_path: Path) -> None:
    """Requests wait with nine tenths of the blocks in use, and fewer run than before."""

    def one(number: int, late: bool) -> Line:
        if late:
            return trt_iteration(60, 50, rows=4, queued=9, used=97)
        return trt_iteration(60, 50)

    assert Cause.KV_EXHAUSTION in named(Kind.TRTLLM_METRICS, passes(one), tmp_path)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda late: {"queue_s": 3.0 if late else 0.001}, Cause.QUEUE_OVERLOAD),
        (lambda late: {"front_s": 3.0 if late else 0.002}, Cause.INGEST_BACKLOG),
        (
            lambda late: (
                {"prompt": 4000, "cached": 0, "prefill_s": 0.5}
                if late
                else {"prompt": 4000, "cached": 3600}
            ),
            Cause.PREFIX_CACHE_COLD,
        ),
        (
            lambda late: {"prompt": 4000, "cached": 3000, "prefill_s": 0.5} if late else {},
            Cause.LONG_PROMPTS,
        ),
        (lambda late: {"retractions": 2 * late}, Cause.KV_THRASH),
        (lambda late: {"status": 500 if late else None}, Cause.STEP_FAILURE),
    ],
)  # fmt: skip
def test_requests_of_sglang_tell_what_delays_them(
    make: Callable[[bool], dict[str, float]], expected: Cause, tmp_path: Path
) -> None:
    """Twice as many come while they are late, as in an overload."""
    at_s, lines = 0.0, []
    for number in range(REQUESTS):
        at_s += 0.25 if is_late(number) else 0.5
        lines.append(sglang_request(at_s, **make(is_late(number))))  # type: ignore[arg-type]

    assert [*named(Kind.SGLANG_REQUESTS, lines, tmp_path)] == [expected]


def test_a_queue_without_more_demand_is_not_called_an_overload(tmp_path: Path) -> None:
    """The same requests wait: an engine that became slower looks like that."""
    lines = requests_of(
        lambda number: dynamo_request(500 * number, wait_ms=2000 if is_late(number) else 2)
    )

    found = diagnose(Kind.DYNAMO_TRACE, write(tmp_path / "trace.jsonl", lines))

    assert found.verdict == "undecided"
    assert Cause.QUEUE_OVERLOAD in found.undecided[0].causes


@pytest.mark.parametrize("apart_ms", [1, 0])
def test_no_more_requests_wait_or_run_than_there_are(apart_ms: int, tmp_path: Path) -> None:
    """Of ten that come within 9 ms, or at one instant, and take about a second."""
    lines = [dynamo_request(apart_ms * number, wait_ms=60) for number in range(10)]
    record = read(Kind.DYNAMO_TRACE, write(tmp_path / "trace.jsonl", lines))

    whole, moment = record.measure([record.span]), record.measure([Span(0, 1 << 62)])

    for measured in (whole, moment):
        assert 0 < measured[Q.WAITING] < measured[Q.RUNNING] <= 10
    assert whole[Q.RUNNING] == pytest.approx(10 * 1050 / (9 * apart_ms + 1110), rel=0.01)


def test_no_more_requests_wait_in_a_stretch_than_came_in_it(tmp_path: Path) -> None:
    """Each of the twenty waits for longer than the stretch of the first four lasts."""
    lines = [dynamo_request(500 * number, wait_ms=60_000) for number in range(20)]
    record = read(Kind.DYNAMO_TRACE, write(tmp_path / "trace.jsonl", lines))
    begin_ns = record.span.begin_ns

    measured = record.measure([Span(begin_ns, begin_ns + 2_000_000_000)])

    assert measured[Q.WAITING] == 4


@pytest.mark.parametrize("apart_ms", [0, 1, 100])
def test_a_short_burst_is_no_overload_throughout(apart_ms: int, tmp_path: Path) -> None:
    lines = [dynamo_request(apart_ms * number, wait_ms=60) for number in range(10)]

    found = diagnose(Kind.DYNAMO_TRACE, write(tmp_path / "trace.jsonl", lines))

    assert (found.verdict, found.findings) == ("abstains", ())


def test_a_queue_that_is_there_all_the_time_is_an_overload(tmp_path: Path) -> None:
    lines = [dynamo_request(500 * number, wait_ms=2000) for number in range(60)]

    assert [*named(Kind.DYNAMO_TRACE, lines, tmp_path)] == [Cause.QUEUE_OVERLOAD]


def test_requests_of_dynamo_that_end_in_an_error_are_counted(tmp_path: Path) -> None:
    lines = requests_of(
        lambda number: dynamo_request(500 * number, finish="error" if is_late(number) else "stop")
    )

    assert named(Kind.DYNAMO_TRACE, lines, tmp_path) == {Cause.STEP_FAILURE: Certainty.LIKELY}


def test_a_cold_cache_of_llama_is_told_by_its_answers(tmp_path: Path) -> None:
    """They have no times: they are compared in their order."""
    lines = requests_of(
        lambda number: (
            llama_answer(computed=400, cached=0, prompt_ms=300)
            if is_late(number)
            else llama_answer()
        )
    )

    found = diagnose(Kind.LLAMACPP_TIMINGS, write(tmp_path / "answers.jsonl", lines))

    assert [one.symptom for one in found.findings] == [Cause.PREFIX_CACHE_COLD]
    assert found.unit == "answers"
    assert found.now[0][0] == pytest.approx(LATE_FROM, abs=4)


def test_slow_answers_of_llama_are_undecided(tmp_path: Path) -> None:
    """What ran beside them is not known, so that may be it as well."""
    lines = requests_of(lambda number: llama_answer(token_ms=50 if is_late(number) else 10))

    found = diagnose(Kind.LLAMACPP_TIMINGS, write(tmp_path / "answers.jsonl", lines))

    assert found.verdict == "undecided"
    assert {Cause.PREFILL_INTERFERENCE, Cause.OVERSIZED_BATCH} <= {*found.undecided[0].causes}


def test_too_few_requests_say_nothing(tmp_path: Path) -> None:
    lines = [sglang_request(number, retractions=5, queue_s=9) for number in range(5)]

    found = diagnose(Kind.SGLANG_REQUESTS, write(tmp_path / "r.log", lines))

    assert (found.verdict, found.findings) == ("abstains", ())
    assert "too few" in found.why


def test_every_cause_is_told_by_some_kind_or_says_what_it_needs() -> None:
    """A way that no kind has would promise nothing."""
    assert {*WAYS} | {*NEVER} == {*Cause}
    assert not {*WAYS} & {*NEVER}
    told = {one.symptom for kind in Kind for one in told_by_kind(kind) if one.way is not None}
    assert told == {*WAYS}
    for symptom, ways in WAYS.items():
        for way in ways:
            assert any(way.needs <= facts.seen for facts in KINDS.values()), (symptom, way)


@pytest.mark.parametrize("kind", list(Kind))
def test_what_a_kind_cannot_tell_has_its_reason(kind: Kind) -> None:
    assert all(one.missing for one in told_by_kind(kind) if one.way is None)
