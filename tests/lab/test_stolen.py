"""Steal time is measured, so a replay with drawn noise keeps it at its recorded times."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest
from msgspec.structs import replace

from diagnosis.root_cause.outcomes import outcomes_of
from diagnosis.root_cause.whatif import NoiseKind, replay_journal
from lab.replay.noise import Disturbance, DrawnNoise
from lab.replay.stolen import StolenNoise, StolenTime
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.host_records import HostSampled
from telemetry.facts.records import Fact, fact_ns
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import Journal, open_journal
from tests.support.worlds.replayed import CLASS, facts_at

S = 1_000_000_000
COST_NS = 10_000_000


def sampled(*shares: float | None) -> list[HostSampled]:
    """A second each, the first one ending at 1 s."""
    return [
        HostSampled(
            at_ns=(place + 1) * S, window_ns=S, steal_ns=None if one is None else int(one * S)
        )
        for place, one in enumerate(shares)
    ]


def intervals(*shares: float) -> list[HostSampled]:
    """Of nine seconds each, so that the one in the middle has nothing else around it."""
    return sampled(*(share for share in shares for _ in range(9)))


def iterations(*ratios: float) -> list[Disturbance]:
    """Iterations in the middle of each interval, all with the same ratio."""
    return [
        Disturbance((9 * interval + 4) * S + number * COST_NS, COST_NS, ratio, 5)
        for interval, ratio in enumerate(ratios)
        for number in range(95)
    ]


def ratios_in(noise: StolenNoise, interval: int) -> list[float]:
    begin_ns = (9 * interval + 4) * S
    met = [noise.at(begin_ns + number * COST_NS, COST_NS // 2) for number in range(90)]
    return [one.ratio for one in met if one is not None]


def test_a_moment_has_the_root_of_what_was_stolen_in_the_seconds_around_it() -> None:
    stolen = StolenTime(sampled(0.0, 0.0, 0.0, 0.2, 0.0, 0.6, 1.0))
    windows = [stolen.window(second * S + S // 2) for second in range(7)]
    assert windows == list(range(7))
    assert stolen.roots == pytest.approx(
        [0.0, 0.05**0.5, 0.04**0.5, 0.16**0.5, 0.36**0.5, 0.45**0.5, (1.6 / 3) ** 0.5]
    )
    assert stolen.mean_share == pytest.approx(1.8 / 7)


def test_times_without_samples_have_no_stolen_time() -> None:
    stolen = StolenTime([*sampled(None), *sampled(0.0, 0.5)[1:]])
    assert stolen.window(S - 1) is stolen.window(2 * S + 1) is None
    assert stolen.window(S) == stolen.window(2 * S) == 0
    assert StolenTime([]).window(S) is None
    assert StolenTime([]).mean_share == 0.0


def test_stolen_time_is_replayed_at_its_recorded_times_only() -> None:
    """Iterations took 1.5 times as long while a quarter of a CPU was stolen."""
    learnt = StolenTime(intervals(0.0, 0.25, 0.0, 0.25))
    replayed = StolenTime(intervals(0.25, 0.0, 0.01, 1.0))
    noise = StolenNoise(iterations(1.0, 1.5, 1.0, 1.5), learnt, replayed, 1)
    assert noise.slowed == pytest.approx(1.0)
    for interval, ratio in enumerate((1.5, 1.0, 1.1, 2.0)):
        assert ratios_in(noise, interval) == pytest.approx([ratio] * 90)


def test_on_the_record_itself_the_mean_stays_what_it_was() -> None:
    """The cost was fitted with what was stolen in it."""
    stolen = StolenTime(intervals(0.0, 0.16, 0.01, 0.09))
    known = iterations(0.9, 1.2, 0.95, 1.15)
    noise = StolenNoise(known, stolen, stolen, 2)
    drawn = [ratio for interval in range(4) for ratio in ratios_in(noise, interval)]
    assert mean(drawn) == pytest.approx(mean(one.ratio for one in known), rel=0.02)


def test_times_without_samples_have_the_mean_of_stolen_time() -> None:
    learnt = StolenTime(intervals(0.0, 0.25))
    noise = StolenNoise(iterations(1.0, 1.5), learnt, StolenTime([]), 1)
    assert ratios_in(noise, 0) == pytest.approx([1.25] * 90)


def test_without_samples_all_noise_is_drawn() -> None:
    known = iterations(0.9, 1.3, 1.0)
    nothing = StolenTime([])
    noise, drawn = StolenNoise(known, nothing, nothing, 3), DrawnNoise(known, 3)
    assert noise.slowed == 0.0
    assert [noise.at(at, COST_NS) for at in range(500)] == [
        drawn.at(at, COST_NS) for at in range(500)
    ]
    assert StolenNoise([], nothing, nothing, 1).at(0, COST_NS) is None


def test_stalls_are_left_out_of_the_fit_of_stolen_time() -> None:
    stolen = StolenTime(intervals(0.0, 0.04))
    known = iterations(1.0, 1.2)
    known[150] = known[150]._replace(ratio=40.0)
    assert StolenNoise(known, stolen, stolen, 1).slowed == pytest.approx(1.0)


def test_a_negative_effect_of_stolen_time_is_fitted_as_none() -> None:
    stolen = StolenTime(intervals(0.0, 0.04))
    assert StolenNoise(iterations(1.0, 0.9), stolen, stolen, 1).slowed == 0.0


def slowed_by_steal_time(facts: list[Fact], samples: list[HostSampled]) -> list[Fact]:
    """Steps took longer by the root of what was stolen."""
    stolen, found = StolenTime(samples), list[Fact]()
    for fact in facts:
        if isinstance(fact, StepRecorded):
            window = stolen.window((fact.begin_ns + fact.committed_ns) // 2)
            span_ns = fact.committed_ns - fact.begin_ns
            more_ns = 0 if window is None else int(stolen.roots[window] * span_ns)
            fact = replace(fact, begin_ns=fact.begin_ns - more_ns)
        found.append(fact)
    return sorted([*found, *samples], key=fact_ns)


def test_a_replay_is_slow_where_its_own_machine_was_under_steal_not_the_one_learnt_from(
    tmp_path: Path,
) -> None:
    facts: list[Fact] = facts_at(2.0)
    known = sampled(*([0.0] * 9 + [0.25] * 9) * (fact_ns(facts[-1]) // (18 * S) + 1))
    clock = MonotonicClock()

    def kept(name: str, facts: list[Fact]) -> Journal:
        write_journal(tmp_path / name, facts, clock, "test")
        return open_journal(tmp_path / name)

    learnt = kept("learnt", slowed_by_steal_time(facts, known))

    def e2e_ms(share: float) -> float:
        samples = [replace(one, steal_ns=int(share * S)) for one in known]
        own = kept(f"own-{share}", sorted([*facts, *samples], key=fact_ns))
        report, _ = replay_journal(own, clock, cost_from=learnt, noise=NoiseKind.DRAWN)
        return report.replayed.classes[CLASS].latency["e2e"].p50_ms

    ununder_steal_ms = outcomes_of(facts).classes[CLASS].latency["e2e"].p50_ms
    assert e2e_ms(0.0) == pytest.approx(ununder_steal_ms, rel=0.1)
    assert e2e_ms(0.25) > 1.35 * ununder_steal_ms
