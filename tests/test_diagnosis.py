"""Each condition, made by the production engine in virtual time, gets its own finding."""

from __future__ import annotations

import pytest
from engine_world import World

from diagnosis.classifier import Diagnoser, Diagnosis
from diagnosis.runbook import HEADINGS, runbook_path
from diagnosis.symptoms import Symptom
from telemetry.records import SequenceSubmitted

SECOND = 1_000_000_000


def drive(world: World, arrivals: list[tuple[float, int, int]]) -> Diagnosis:
    """Submit (second, prompt tokens, output tokens) at their times; ask at the end."""
    diagnoser = Diagnoser()
    todo = sorted(arrivals)
    while todo or world.loop.has_work:
        arrived = False
        while todo and todo[0][0] * SECOND <= world.clock.now_ns():
            _, prompt, outputs = todo.pop(0)
            seq_id = world.submit(prompt, outputs)
            submitted = SequenceSubmitted(f"req-{seq_id}", world.clock.now_ns(), seq_id, 0)
            diagnoser.on_facts([submitted])
            arrived = True
        if not arrived and not world.loop.has_work:
            world.clock.advance(int(todo[0][0] * SECOND) - world.clock.now_ns())
        else:
            world.step()
    diagnoser.on_facts(world.facts)
    return diagnoser.diagnosis(world.clock.now_ns())


def large(**settings: object) -> World:
    """About 8 requests/s of 40 in, 20 out at best; blocks for everybody."""
    defaults: dict[str, object] = {
        "blocks_total": 2000,
        "block_tokens": 16,
        "max_model_tokens": 4000,
        "max_seqs": 16,
        "budget_tokens": 256,
    }
    return World(**{**defaults, **settings})  # type: ignore[arg-type]


def every(seconds: float, until: float, prompt: int, outputs: int) -> list[tuple[float, int, int]]:
    return [(i * seconds, prompt, outputs) for i in range(int(until / seconds))]


def test_light_traffic_is_healthy() -> None:
    """One request at a time."""
    diagnosis = drive(large(), every(2.0, 30, prompt=40, outputs=20))

    assert diagnosis.healthy
    assert diagnosis.findings == ()
    assert diagnosis.steps > 100


def test_busy_traffic_with_short_queues_is_healthy() -> None:
    """Bursts that wait a little and drain are what batching is for."""
    burst = [(float(t), 40, 20) for t in range(0, 30, 4) for _ in range(20)]
    diagnosis = drive(large(), burst)

    assert diagnosis.healthy


def test_more_work_than_capacity_is_queue_overload() -> None:
    """Slots are the limit, memory is plenty."""
    diagnosis = drive(large(max_seqs=4), every(0.1, 20, prompt=40, outputs=40))
    top = diagnosis.findings[0]

    assert top.symptom is Symptom.QUEUE_OVERLOAD
    assert top.confidence > 0.8
    assert all(finding.symptom is Symptom.QUEUE_OVERLOAD for finding in diagnosis.findings)


def test_long_prompts_in_one_piece_are_prefill_interference_with_their_culprits() -> None:
    """Steady streams, and every few seconds a prompt that stops them all."""
    steady = [(0.0, 40, 1200) for _ in range(6)]
    injected = [(3.0 + 3 * i, 3000, 2) for i in range(6)]
    world = large(chunked_prefill=False)
    diagnosis = drive(world, steady + injected)
    (finding,) = diagnosis.findings

    assert finding.symptom is Symptom.PREFILL_INTERFERENCE
    assert set(finding.culprits[:5]) <= {f"req-{seq_id}" for seq_id in range(6, 12)}
    evidence = {entry.name: entry.value for entry in finding.evidence}
    assert evidence["worst_token"] > 500


def test_the_same_prompts_in_small_chunks_are_healthy() -> None:
    """A bounded step bounds the harm to each token."""
    steady = [(0.0, 40, 1200) for _ in range(6)]
    injected = [(3.0 + 3 * i, 3000, 2) for i in range(6)]
    diagnosis = drive(large(budget_tokens=128), steady + injected)

    assert diagnosis.healthy


def test_a_small_cache_is_kv_exhaustion_and_not_overload() -> None:
    """Slots and budget are free; blocks are not."""
    world = large(blocks_total=250, max_model_tokens=400)
    diagnosis = drive(world, every(0.15, 20, prompt=300, outputs=90))
    top = diagnosis.findings[0]

    assert top.symptom is Symptom.KV_EXHAUSTION
    assert Symptom.QUEUE_OVERLOAD not in {f.symptom for f in diagnosis.findings}
    assert top.harm_ms > 1000


@pytest.mark.parametrize("symptom", Symptom)
def test_every_symptom_has_a_runbook_with_all_headings(symptom: Symptom) -> None:
    """A finding without a page to act on is half a finding."""
    text = runbook_path(symptom).read_text()
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]

    assert headings == list(HEADINGS)


@pytest.mark.parametrize("symptom", Symptom)
def test_runbooks_name_only_metrics_and_flags_that_exist(symptom: Symptom) -> None:
    """What is not in the catalog or the command line cannot be looked up in an incident."""
    import re

    from service.cli.main import build_parser
    from telemetry import catalog
    from telemetry.metric import Metric

    text = runbook_path(symptom).read_text()
    metrics = {m.name for m in vars(catalog).values() if isinstance(m, Metric)}
    metrics |= {m.name for m in catalog.HISTOGRAMS}
    known = metrics | {f"{name}_total" for name in metrics}
    for name in re.findall(r"\bphasescope_[a-z_]+", text):
        assert name in known, name
    parser = build_parser()
    choices = next(a.choices for a in parser._actions if a.dest == "command")
    assert choices is not None
    flags = set(choices["serve"]._option_string_actions)  # type: ignore[call-overload]
    for flag in re.findall(r"`(--[a-z-]+)", text):
        assert flag in flags, flag
