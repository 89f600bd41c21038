"""Root cause by replay, of simulated runs with one fault for a while."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from diagnosis.root_cause.counterfactual import (
    NOISE_BAND,
    _shapley,
    explain,
    finished_in_both,
    timelines_of,
)
from diagnosis.root_cause.interventions import Cause, Intervention, interventions
from diagnosis.root_cause.question import Question
from diagnosis.root_cause.root import REMEDIES
from diagnosis.spans import Span
from lab.replay.iteration_cost import fit_iterations
from lab.replay.recorded import read_runs
from lab.simulation.faults import Faults
from lab.simulation.scenarios import Scenario, small_limits
from lab.simulation.sim_executor import LinearCost
from lab.simulation.workload import Arrival
from lab.simulation.world import World
from lab.twins.registry import build_twin
from service.cli.main import main
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, RequestEnded, fact_ns
from telemetry.journal.journal import write_journal
from tests.support.worlds.ledger_world import gateway_facts

SECOND = 1_000_000_000
REFERENCE = Span(1 * SECOND, 11 * SECOND)
WINDOW = Span(12 * SECOND, 19 * SECOND)
HORIZON = Span(0, 21 * SECOND)
COST = LinearCost(
    base_ns=20_000_000, prefill_token_ns=300_000, decode_row_ns=1_500_000, context_token_ns=2_000
)
RATE = 4.0
LIMITS = small_limits(
    block_tokens=16, blocks_total=512, max_model_tokens=1024, max_seqs=8, budget_tokens=128
)


def traffic(
    draw: Random, rate: float, span: Span, prompt: tuple[int, int] = (16, 160), tenant: str = "a"
) -> list[Arrival]:
    """Poisson arrivals of one kind, within a span."""
    found: list[Arrival] = []
    at_ns = span.begin_ns
    while (at_ns := at_ns + int(draw.expovariate(rate) * SECOND)) < span.end_ns:
        tokens = draw.randint(*prompt)
        text = tuple(draw.randrange(100_000) for _ in range(tokens))
        found.append(
            Arrival(at_ns=at_ns, prompt=text, max_tokens=draw.randint(8, 40), tenant=tenant)
        )
    return found


@dataclasses.dataclass
class Twin:
    """A simulated run: the same traffic in each, and the fault of this one."""

    more: Callable[[Random], list[Arrival]] = lambda draw: []
    rate: float = RATE
    limits: dict[str, object] = dataclasses.field(default_factory=dict)
    faults: Faults = dataclasses.field(default_factory=Faults)
    disturb: Callable[[Arrival], Arrival] = lambda arrival: arrival

    def facts(self, seed: int) -> list[Fact]:
        draw = Random(seed)
        base = traffic(draw, self.rate, HORIZON)
        arrivals = sorted(
            (self.disturb(arrival) for arrival in [*base, *self.more(draw)]),
            key=lambda arrival: arrival.at_ns,
        )
        scenario = Scenario(
            name="twin",
            seed=seed,
            limits=dataclasses.replace(LIMITS, **self.limits),  # type: ignore[arg-type]
            arrivals=tuple(arrivals),
            cost=COST,
            faults=self.faults,
        )
        engine = list(World(scenario).run().facts)
        return sorted([*gateway_facts(engine, draw, 1_000), *engine], key=fact_ns)

    def question(self, seed: int) -> Question:
        (run,) = read_runs(self.facts(seed))
        return Question(run, fit_iterations([run]), REFERENCE, WINDOW)


def slow_reader(arrival: Arrival) -> Arrival:
    """Every second client that comes in the window stops reading for six seconds."""
    if not WINDOW.has(arrival.at_ns) or arrival.max_tokens % 2:
        return arrival
    return dataclasses.replace(arrival, pause_ns=SECOND // 5, resume_ns=6 * SECOND)


TWINS: dict[str, tuple[Twin, set[Cause]]] = {
    "overload": (
        Twin(more=lambda draw: traffic(draw, 2 * RATE, Span(12 * SECOND, 17 * SECOND))),
        {Cause.DEMAND},
    ),
    "one tenant floods": (
        Twin(
            more=lambda draw: traffic(draw, 3 * RATE, Span(12 * SECOND, 16 * SECOND), tenant="b"),
        ),
        {Cause.TENANT, Cause.DEMAND},
    ),
    "long prompts in one piece": (
        Twin(
            more=lambda draw: traffic(draw, 0.4, WINDOW, prompt=(700, 900)),
            limits={"chunked_prefill": False},
        ),
        {Cause.PROMPTS, Cause.CHUNKS},
    ),
    "the loop stalls": (
        Twin(faults=Faults(stalls=tuple((s * SECOND, 400_000_000) for s in range(12, 19)))),
        {Cause.STALLS},
    ),
    "steps are slow": (
        Twin(faults=Faults(slow_intervals=((WINDOW.begin_ns, WINDOW.end_ns, 2.0),))),
        {Cause.RESIDUAL},
    ),
    "slow readers hold slots": (
        Twin(disturb=slow_reader, limits={"max_seqs": 4}, rate=2.0),
        {Cause.PAUSES},
    ),
}


@pytest.mark.parametrize("name", sorted(TWINS))
def test_the_injected_cause_has_the_largest_gain(name: str) -> None:
    twin, causes = TWINS[name]
    found = explain(twin.question(7))
    assert found.top in causes, found
    assert found.gains[0].gain > 2 * NOISE_BAND
    others = [gain for gain in found.gains if gain.cause not in causes]
    assert all(gain.gain < found.gains[0].gain for gain in others), found


@pytest.mark.parametrize("rate", [1.5, RATE], ids=["light", "busy"])
def test_a_healthy_engine_has_no_cause(rate: float) -> None:
    """A busy engine has a queue now and then, which no difference from the reference causes."""
    found = explain(Twin(rate=rate).question(3))
    assert found.compared
    assert all(gain.gain < 0.15 for gain in found.gains), found


def test_two_causes_share_the_gain_of_undoing_both() -> None:
    """Stalls under overload: both are named, and their Shapley shares add up to the common gain."""
    stalled, _ = TWINS["the loop stalls"]
    loaded, _ = TWINS["overload"]
    found = explain(Twin(more=loaded.more, faults=stalled.faults).question(5))
    leading = {gain.cause for gain in found.gains[:3]}
    assert {Cause.DEMAND, Cause.STALLS} <= leading, found
    assert found.interaction is not None
    shares = [gain.shapley for gain in found.gains if gain.shapley is not None]
    assert all(NOISE_BAND < share <= 1 for share in shares)
    assert sum(shares) <= 1.0 + 1e-9


def test_only_differences_from_the_reference_are_tried() -> None:
    """A healthy run has no intervention on demand, prompts or stalls."""
    tried = set(interventions(Twin().question(3)))
    assert tried <= {Cause.KV, Cause.TENANT}


def test_the_demand_intervention_leaves_the_rate_of_the_reference() -> None:
    question = TWINS["overload"][0].question(7)
    edit = interventions(question)[Cause.DEMAND]
    came = [s for s in question.run.sequences.values() if WINDOW.has(s.entry.at_ns)]
    left = [s for s in came if s.seq_id not in edit.without]
    before = [s for s in question.run.sequences.values() if REFERENCE.has(s.entry.at_ns)]
    assert len(left) / WINDOW.seconds == pytest.approx(len(before) / REFERENCE.seconds, rel=0.25)


def longer(arrival: Arrival) -> Arrival:
    """Of those in the window, all in the same proportion."""
    if not WINDOW.has(arrival.at_ns):
        return arrival
    return dataclasses.replace(arrival, max_tokens=4 * arrival.max_tokens)


def test_longer_outputs_are_a_cause_of_their_own() -> None:
    """No more requests than before, but each holds its slot four times as long."""
    found = explain(Twin(disturb=longer).question(7))
    assert found.top is Cause.OUTPUTS, found


def test_choices_beyond_the_reference_end_with_their_first_token() -> None:
    """Each request keeps as many choices as requests of the reference had, at least one."""
    one = build_twin("heavy_sampling", 5, "choices")
    assert one.onset_ns is not None
    assert one.end_ns is not None
    (run,) = read_runs(one.facts)
    before = Span(one.onset_ns - 18 * SECOND, one.onset_ns)
    question = Question(run, fit_iterations([run]), before, Span(one.onset_ns, one.end_ns))
    choices = Counter(run.owners.values())
    edit = interventions(question)[Cause.SAMPLES]
    cut = Counter(run.owners[seq_id] for seq_id in edit.outputs)

    assert set(edit.outputs.values()) == {1}
    assert len(cut) >= 3
    assert all(choices[request_id] - number in (1, 2) for request_id, number in cut.items())


def test_outputs_are_restored_to_their_lengths_in_the_reference() -> None:
    """Not only the longest: where all grew, all are shortened, and the gain is what the same
    requests with the outputs of the reference save."""
    question = Twin(disturb=longer).question(7)
    edit = interventions(question)[Cause.OUTPUTS]
    grown = [one for one in question.run.sequences.values() if WINDOW.has(one.entry.at_ns)]
    asked = sum(one.entry.max_tokens for one in grown)
    left = sum(edit.outputs.get(one.seq_id, one.entry.max_tokens) for one in grown)

    assert left == pytest.approx(asked / 4, rel=0.2)
    assert not edit.outputs.keys() - {one.seq_id for one in grown}


def test_lengths_that_vary_as_in_the_reference_are_not_changed() -> None:
    assert Cause.OUTPUTS not in interventions(Twin().question(3))
    assert Cause.PROMPTS not in interventions(Twin().question(3))


def test_only_requests_that_finish_in_both_replays_are_compared() -> None:
    """A request that the intervention ends early counts as no gain."""
    was = TWINS["overload"][0].facts(7)
    ended = [f for f in was if isinstance(f, RequestEnded) and f.reason is not EndReason.INVALID]
    gone, cancelled = ended[0], ended[1]
    cut = replace(cancelled, reason=EndReason.DISCONNECT)
    now = [cut if fact is cancelled else fact for fact in was if fact is not gone]

    for lives in ((was, now), (now, was)):
        one, other = finished_in_both(*map(timelines_of, lives))
        names = [[timeline.accepted.request_id for timeline in run] for run in (one, other)]
        assert names[0] == names[1]
        assert set(names[0]) == {fact.request_id for fact in ended[2:]}


def test_interventions_can_be_combined() -> None:
    one = Intervention(limits={"max_seqs": 9}, without=frozenset({1}), prompts={3: 50, 4: 10, 5: 1})
    two = Intervention(
        limits={"blocks_total": 99}, without=frozenset({2}), prompts={3: 40, 4: 20}, pauses=False
    )
    both = one | two
    assert both.limits == {"max_seqs": 9, "blocks_total": 99}
    assert both.without == {1, 2}
    assert (both.prompts, both.pauses, both.flushes) == ({3: 40, 4: 10, 5: 1}, False, True)


def test_shapley_values_are_efficient_symmetric_and_give_a_dummy_nothing() -> None:
    a, b, c = Cause.DEMAND, Cause.STALLS, Cause.KV
    worth = {
        frozenset(group): value
        for group, value in (
            ((), 0.0), ((a,), 0.2), ((b,), 0.2), ((c,), 0.0),
            ((a, b), 0.7), ((a, c), 0.2), ((b, c), 0.2), ((a, b, c), 0.7),
        )
    }  # fmt: skip
    whole = frozenset({a, b, c})
    values = {cause: _shapley(cause, whole, worth) for cause in whole}
    assert sum(values.values()) == pytest.approx(worth[whole])
    assert values[a] == pytest.approx(values[b]) == pytest.approx(0.35)
    assert values[c] == pytest.approx(0.0)


def test_a_window_without_requests_has_no_explanation() -> None:
    question = dataclasses.replace(
        Twin(rate=1.0).question(2), window=Span(500 * SECOND, 600 * SECOND)
    )
    found = explain(question)
    assert (found.requests, found.compared) == (0, False)
    assert found.reference_requests
    assert (found.moved, found.gains, found.tried, found.top) == ({}, (), (), None)


def test_a_baseline_with_the_same_limits_leaves_nothing_moved() -> None:
    """Prompts are not chunked: neither here nor there."""
    twin, _ = TWINS["long prompts in one piece"]
    question = twin.question(7)
    same = dataclasses.replace(question, reference=None, baseline=question.run.started)
    found = explain(same)
    assert found.compared
    assert found.requests == found.reference_requests
    assert found.moved == {}

    chunked = replace(question.run.started, chunked_prefill=True)
    other = explain(dataclasses.replace(same, baseline=chunked))
    assert "worst_gap_mean" in other.moved
    assert other.top is Cause.CHUNKS, other


def test_a_baseline_without_limits_is_compared_with_nothing() -> None:
    found = explain(dataclasses.replace(Twin(rate=1.0).question(2), reference=None))
    assert (found.compared, found.reference_requests) == (False, None)


# --- the command ---


def journal_with(twin: Twin, path: Path) -> int:
    """Write the run's journal; returns the last time stamp in it."""
    facts = twin.facts(7)
    write_journal(path, facts, MonotonicClock(), "test")
    return max(map(fact_ns, facts))


def spans(end_ns: int) -> list[str]:
    """Window and reference as flags of the command."""

    def relative(span: Span) -> str:
        return f"{(end_ns - span.begin_ns) / SECOND}:{(end_ns - span.end_ns) / SECOND}"

    return ["--window", relative(WINDOW), "--reference", relative(REFERENCE)]


def test_the_command_names_the_root_cause_and_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stalled.journal"
    end_ns = journal_with(TWINS["the loop stalls"][0], path)
    assert main(["diagnose", str(path), "--root", *spans(end_ns)]) == 0
    said = capsys.readouterr().out
    assert "1. stalls: without it" in said
    assert REMEDIES[Cause.STALLS] in said
    assert main(["diagnose", str(path), "--root", "--json", *spans(end_ns)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["explanation"]["gains"][0]["cause"] == "stalls"


def left_at_once(arrival: Arrival) -> Arrival:
    """Those in the window are cancelled before their first token."""
    return dataclasses.replace(arrival, cancel_ns=1) if WINDOW.has(arrival.at_ns) else arrival


def test_a_window_of_cancelled_requests_is_not_said_to_be_like_its_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cancelled.journal"
    end_ns = journal_with(Twin(disturb=left_at_once), path)
    assert main(["diagnose", str(path), "--root", *spans(end_ns)]) == 0
    said = capsys.readouterr().out
    assert "no latency has changed" not in said
    assert "too few finished requests to compare: 0, and" in said
    assert "in the reference" in said


def test_a_reference_before_the_engine_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "short.journal"
    journal_with(Twin(rate=2.0), path)
    assert main(["diagnose", str(path), "--root", "--reference", "5000:20"]) == 1
    assert "give --reference" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["20", "5:20", "a:b", "20:-1", ":"])
def test_an_invalid_window_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["diagnose", "x", "--root", "--window", text])
    assert "FROM:UNTIL" in capsys.readouterr().err


def test_every_cause_has_a_remedy() -> None:
    assert set(REMEDIES) == set(Cause)
