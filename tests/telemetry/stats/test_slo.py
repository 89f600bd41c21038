"""SLO classes from a file, verdicts, goodput, burn and cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloClass, SloFileError, read_policy
from telemetry.stats.slo import SloFold, judge
from telemetry.stats.slo_report import SloStatus, Verdict
from tests.support.worlds.facts import MS, accepted, parsed, request_ended
from tests.support.worlds.metrics_world import MetricsWorld, one_request

TARGET = SloClass(name="x", ttft_ns=30 * MS, itl_ns=20 * MS)
MINUTE_NS = 60_000_000_000


def ended(facts: list[Fact]) -> RequestTimeline:
    timelines: list[RequestTimeline] = []
    PhaseFold([timelines.append]).on_facts(facts)
    (timeline,) = timelines
    return timeline


def refused(reason: EndReason) -> list[Fact]:
    return [accepted(), parsed(), request_ended(at=5, reason=reason, output_tokens=0)]


def test_the_default_slo_classes() -> None:
    ttft_ms = {name: one.ttft_ns // MS for name, one in DEFAULT_POLICY.classes.items()}

    assert ttft_ms == {"voice": 150, "code": 200, "chat": 500, "batch": 2000}
    assert {one.itl_ns for one in DEFAULT_POLICY.classes.values()} == {100 * MS}
    assert DEFAULT_POLICY.of("no such class").name == DEFAULT_POLICY.of("").name == "chat"
    assert DEFAULT_POLICY.is_unknown("no such class")
    assert not DEFAULT_POLICY.is_unknown("")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "slo.toml",
            "[classes.live]\nttft_ms = 80.5\nobjective = 0.999\n[classes.slow]\nttft_ms=9e3",
        ),
        (
            "slo.json",
            '{"classes": {"live": {"ttft_ms": 80.5, "objective": 0.999},'
            ' "slow": {"ttft_ms": 9000}}}',
        ),
    ],
)
def test_a_file_defines_other_classes(tmp_path: Path, name: str, text: str) -> None:
    """The first is the default unless the file says so."""
    (tmp_path / name).write_text(text)
    policy = read_policy(str(tmp_path / name))

    assert list(policy.classes) == ["live", "slow"]
    live = policy.of("voice")
    assert (live.name, live.ttft_ns, live.itl_ns) == ("live", 80_500_000, 100 * MS)
    assert live.objective == 0.999


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[classes.a]\nttft_ms = 0", "must be positive"),
        ("[classes.a]\nttft_ms = 1\nobjective = 1.0", "no error budget"),
        ("[classes.a]\nttft_ms = 1\nttft = 2", "unknown field"),
        ("[classes]", "name 1 to 16 classes"),
        ('default = "b"\n[classes.a]\nttft_ms = 1', "'b' is none of the classes"),
        ("classes = 3", "classes"),
        ("[classes.a", "slo.toml"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "slo.toml"
    path.write_text(text)

    with pytest.raises(SloFileError, match=says):
        read_policy(str(path))
    with pytest.raises(SloFileError, match="No such file"):
        read_policy(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (one_request([20, 20]), Verdict.GOOD),
        (one_request([20, 21]), Verdict.SLOW_TOKENS),
        (one_request([20] * 100 + [500]), Verdict.GOOD),
        (one_request([20] * 98 + [500]), Verdict.SLOW_TOKENS),
        (one_request([20] * 99 + [500, 500]), Verdict.SLOW_TOKENS),
        (one_request([5], reason=EndReason.DISCONNECT), Verdict.CLIENT_CANCELLED),
        (one_request([5], reason=EndReason.SLOW_CLIENT), Verdict.CLIENT_CANCELLED),
        (one_request([5], reason=EndReason.DEADLINE), Verdict.EXPIRED),
        (one_request([5], reason=EndReason.SHUTDOWN), Verdict.SHUTDOWN),
        (one_request([5], reason=EndReason.ENGINE_DIED), Verdict.FAILED),
        (refused(EndReason.QUEUE_FULL), Verdict.REJECTED),
        (refused(EndReason.INVALID), Verdict.INVALID),
        (refused(EndReason.MAX_TOKENS), Verdict.UNMEASURED),
    ],
)
def test_each_end_of_a_request_has_its_slo_verdict(facts: list[Fact], verdict: Verdict) -> None:
    """One gap in a hundred may be late; what the caller causes is not a miss."""
    assert judge(ended(facts), TARGET) is verdict


def test_a_late_first_token_is_a_miss_whatever_follows() -> None:
    late = SloClass(name="x", ttft_ns=21 * MS, itl_ns=20 * MS)

    assert judge(ended(one_request([5])), late) is Verdict.LATE_FIRST_TOKEN


def status(world: MetricsWorld, now_ns: int, name: str = "chat") -> SloStatus:
    (found,) = (s for s in world.metrics.slo.report(now_ns).classes if s.name == name)
    return found


def test_goodput_counts_requests_and_tokens_that_were_good() -> None:
    """3 good of 10 tokens each, 1 slow one of 5, 1 cancelled that counts neither way."""
    world = MetricsWorld()
    for number in range(3):
        world.feed(one_request([10] * 9, request_id=f"g{number}", seq_id=number, slo_class="chat"))
    world.feed(one_request([10, 10, 10, 300], request_id="s", seq_id=7))
    world.feed(one_request([10] * 4, request_id="c", seq_id=8, reason=EndReason.DISCONNECT))
    found = status(world, 10 * 1_000_000_000)
    minute = found.windows[0]

    assert {name: n for name, n in found.requests.items() if n} == {
        "good": 3, "slow_tokens": 1, "client_cancelled": 1,
    }  # fmt: skip
    assert (minute.attempted, minute.good, minute.tokens, minute.good_tokens) == (4, 3, 35, 30)
    assert minute.covered_s == pytest.approx(10)
    assert minute.good_tokens_per_s == pytest.approx(3.0)
    assert minute.burn == pytest.approx(0.25 / 0.01)


def test_burn_is_of_its_window_and_nothing_without_requests() -> None:
    """A bad minute has left the short windows first."""
    world = MetricsWorld().feed(one_request([300]))
    burns = {
        minutes: [window.burn for window in status(world, minutes * MINUTE_NS).windows]
        for minutes in (0, 3, 30, 90)
    }

    assert burns[0] == pytest.approx([100.0] * 3)
    assert burns[3] == [None, pytest.approx(100.0), pytest.approx(100.0)]
    assert burns[30] == [None, None, pytest.approx(100.0)]
    assert burns[90] == [None, None, None]


def test_an_unknown_class_gets_the_default_one_and_is_counted() -> None:
    world = MetricsWorld().feed(one_request([10], slo_class="gold"))
    report = world.metrics.slo.report(MINUTE_NS)

    assert report.unknown_class_requests == 1
    assert status(world, MINUTE_NS).requests["good"] == 1


def test_cost_is_the_price_of_the_time_over_the_tokens() -> None:
    """36 an hour is 0.3 in half a minute; 2 tokens, one request good and one not."""
    world = MetricsWorld(price_per_hour=36.0)
    world.feed(one_request([10], request_id="a"))
    world.feed(one_request([300], request_id="b", seq_id=2))
    cost = world.metrics.slo.report(MINUTE_NS // 2).cost[0]

    assert (cost.tokens, cost.good_tokens) == (4, 2)
    assert cost.per_million_tokens == pytest.approx(0.3 / 4 * 1e6)
    assert cost.per_million_good_tokens == pytest.approx(0.3 / 2 * 1e6)
    assert MetricsWorld().metrics.slo.report(MINUTE_NS).cost == ()
    assert SloFold(DEFAULT_POLICY, 0, 1.0).report(1).cost[0].per_million_tokens is None
