"""Time that other guests of the machine took: it is known, so a replay draws all noise but that."""

from __future__ import annotations

from statistics import mean

import pytest
from msgspec.structs import replace
from replayed import CLASS, facts_at, run_of

from diagnosis.outcomes import outcomes_of
from service.sim.noise import Disturbance, DrawnNoise
from service.sim.replay_modelled import Change, replay_modelled
from service.sim.stolen import StolenNoise, StolenTime, stolen_from
from service.sim.turn_cost import fit_turns
from telemetry.host_records import HostSampled
from telemetry.records import Fact, fact_ns

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


def turns(*ratios: float) -> list[Disturbance]:
    """In each second as many as end within it, all with the same ratio."""
    return [
        Disturbance(second * S + number * COST_NS, COST_NS, ratio, 5)
        for second, ratio in enumerate(ratios)
        for number in range(95)
    ]


def ratios_at(noise: StolenNoise, second: int) -> list[float]:
    met = [noise.at(second * S + number * COST_NS, COST_NS // 2) for number in range(90)]
    return [one.ratio for one in met if one is not None]


def test_a_span_meets_the_windows_that_it_touches() -> None:
    stolen = StolenTime(sampled(0.0, 0.5, 1.0))
    assert stolen.share(S // 4, S // 2) == 0.0
    assert stolen.share(S + 1, 2 * S - 1) == 0.5
    assert stolen.share(S + S // 2, 2 * S + 1) == 0.75
    assert stolen.share(0, 9 * S) == 0.5


def test_nothing_is_stolen_where_nothing_was_sampled() -> None:
    stolen = StolenTime(sampled(0.5, None))
    assert stolen.share(S + 1, 2 * S) == stolen.share(7 * S, 8 * S) == 0.0
    assert StolenTime([]).share(0, S) == 0.0


def test_what_was_stolen_is_put_back_where_it_was_and_nowhere_else() -> None:
    """Turns took 1.5 times as long while half a CPU was stolen; now another second has that."""
    learnt = StolenTime(sampled(0.0, 0.5, 0.0, 0.5))
    replayed = StolenTime(sampled(0.5, 0.0, 0.25))
    noise = StolenNoise(turns(1.0, 1.5, 1.0, 1.5), learnt, replayed, 1)
    assert noise.per_share == pytest.approx(1.0, abs=0.02)
    assert ratios_at(noise, 0) == pytest.approx([1.5] * 90, rel=0.02)
    assert ratios_at(noise, 1) == pytest.approx([1.0] * 90, rel=0.02)
    assert ratios_at(noise, 2) == pytest.approx([1.25] * 90, rel=0.02)


def test_on_the_record_itself_the_mean_stays_what_it_was() -> None:
    """The cost was fitted with what was stolen in it."""
    stolen = StolenTime(sampled(0.0, 0.4, 0.1, 0.3))
    known = turns(0.9, 1.2, 0.95, 1.15)
    noise = StolenNoise(known, stolen, stolen, 2)
    drawn = [ratio for second in range(4) for ratio in ratios_at(noise, second)]
    assert mean(drawn) == pytest.approx(mean(one.ratio for one in known), rel=0.02)


def test_without_samples_all_noise_is_drawn() -> None:
    known = turns(0.9, 1.3, 1.0)
    nothing = StolenTime([])
    noise, drawn = StolenNoise(known, nothing, nothing, 3), DrawnNoise(known, 3)
    assert noise.per_share == 0.0
    assert [noise.at(at, COST_NS) for at in range(500)] == [
        drawn.at(at, COST_NS) for at in range(500)
    ]
    assert StolenNoise([], nothing, nothing, 1).at(0, COST_NS) is None


def test_stalls_tell_nothing_of_what_stealing_does() -> None:
    stolen = StolenTime(sampled(0.0, 0.2))
    known = turns(1.0, 1.2)
    known[150] = known[150]._replace(ratio=40.0)
    assert StolenNoise(known, stolen, stolen, 1).per_share == pytest.approx(1.0, abs=0.02)


def test_a_machine_that_got_faster_while_robbed_was_not_made_so_by_that() -> None:
    stolen = StolenTime(sampled(0.0, 0.2))
    assert StolenNoise(turns(1.0, 0.9), stolen, stolen, 1).per_share == 0.0


def test_requests_are_slower_in_a_replay_whose_machine_was_robbed() -> None:
    facts: list[Fact] = facts_at(2.0)
    run = run_of(facts)
    cost = fit_turns([run])
    seconds = fact_ns(facts[-1]) // S + 2
    half = [0.0 if second % 2 else 0.5 for second in range(seconds)]
    learnt = StolenTime(sampled(*half))
    slowed = [o._replace(ratio=1 + learnt.share(o.begin_ns, o.begin_ns)) for o in cost.disturbances]

    def e2e_ms(share: float) -> float:
        samples = [replace(one, steal_ns=int(share * S)) for one in sampled(*half)]
        met = stolen_from([run_of(sorted([*facts, *samples], key=fact_ns))])
        noise = StolenNoise(slowed, learnt, met, 1)
        replayed = outcomes_of(replay_modelled(run, cost, Change(noise=noise)))
        return replayed.classes[CLASS].latency["e2e"].p50_ms

    assert e2e_ms(0.5) > 1.3 * e2e_ms(0.0)
