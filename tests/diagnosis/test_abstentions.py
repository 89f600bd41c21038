"""An attached engine: what is judged of it, what is not and why, and under which names."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import pytest

from diagnosis.needs import NEEDS, NO_ADAPTER_SEES, Need
from diagnosis.root_cause.root import root_cause
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from diagnosis.verdicts.engine_limits import LIMITS
from lab.replay.recorded import NotReplayable
from lab.simulation.attached import SETTINGS, attached
from lab.twins.registry import build_twin
from telemetry.facts.engine_flags import FLAGS
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.host_records import HostSampled
from telemetry.facts.records import Fact, fact_ns
from tests.support.worlds.incidents import journal_of_facts

S = Symptom


@cache
def healthy() -> list[Fact]:
    return build_twin("healthy_light", 1).facts


def judged(facts: list[Fact], until_ns: int | None = None) -> Diagnosis:
    diagnoser = Diagnoser()
    diagnoser.on_facts([f for f in facts if until_ns is None or fact_ns(f) < until_ns])
    return diagnoser.diagnosis()


def names(diagnosis: Diagnosis) -> set[Symptom]:
    return {one.symptom for one in diagnosis.abstained}


def test_each_symptom_states_its_needs_once() -> None:
    assert set(NEEDS) == set(Symptom)
    assert {need for needs in NEEDS.values() for need in needs.needs} == set(Need)
    for symptom, needs in NEEDS.items():
        assert symptom not in needs.seems, symptom
        assert not needs.seems or needs.needs, symptom


def test_of_our_own_engine_everything_is_judged() -> None:
    diagnosis = judged(healthy())
    assert diagnosis.abstained == ()
    assert diagnosis.engine == "phasescope"


def test_of_an_attached_engine_symptoms_abstain_by_name() -> None:
    diagnosis = judged(attached(healthy()))

    assert names(diagnosis) == {
        S.GRAMMAR_COST, S.ADAPTER_CHURN, S.INVALID_OUTPUT, S.SLOW_CLIENT, S.HEAVY_SAMPLING,
        S.OUT_OF_MEMORY, S.STEP_FAILURE, S.LOAD_FAILURE,
    }  # fmt: skip
    sampling = next(one for one in diagnosis.abstained if one.symptom is S.HEAVY_SAMPLING)
    assert sampling.text.startswith("heavy_sampling (needs the time of sampling")
    assert diagnosis.verdict == "healthy"
    assert diagnosis.reference == "history"


def test_without_a_front_end_and_without_the_host_more_abstain() -> None:
    facts = attached(healthy(), core_only=True)
    diagnosis = judged([fact for fact in facts if not isinstance(fact, HostSampled)])

    assert {
        S.CPU_STARVATION, S.INGEST_BACKLOG, S.CANCELLATION_LEAK, S.UNFAIRNESS, S.SLO_MISSED,
    } <= names(diagnosis)  # fmt: skip
    assert diagnosis.verdict == "healthy"


def test_until_the_costs_of_an_attached_engine_are_known_no_delay_is_judged() -> None:
    """It may compile, or fill its caches: twenty times slower than our SLO for ten seconds."""
    facts = attached(healthy())
    begin_ns = facts[0].at_ns if not isinstance(facts[0], StepRecorded) else facts[0].begin_ns
    slow: list[Fact] = []
    for fact in facts:
        if isinstance(fact, StepRecorded) and fact.committed_ns < begin_ns + 10_000_000_000:
            fact = msgspec.structs.replace(fact, begin_ns=max(begin_ns, fact.begin_ns - 2 * 10**9))
        slow.append(fact)
    diagnosis = judged(slow, begin_ns + 9_000_000_000)

    assert diagnosis.reference == "nothing"
    assert diagnosis.findings == ()
    assert diagnosis.verdict == "healthy"


def test_a_fault_is_found_from_what_is_seen_with_the_flags_of_the_engine() -> None:
    twin = build_twin("kv_exhaustion", 2)
    assert twin.before is not None
    learner = Diagnoser()
    learner.on_facts(attached(twin.before))
    diagnoser = Diagnoser(learner.baseline())
    worst: Diagnosis | None = None
    for fact in attached(twin.facts):
        diagnoser.on_facts((fact,))
        now = diagnoser.diagnosis()
        if now.findings and (worst is None or now.findings[0].harm_ms > worst.findings[0].harm_ms):
            worst = now
    assert worst is not None
    finding = worst.findings[0]
    assert finding.symptom is S.KV_EXHAUSTION
    assert {one.flag: one.value for one in finding.limits} == {
        "--gpu-memory-utilization": SETTINGS["gpu_memory_utilization"],
        "--kv-cache-dtype": None,
        "--max-num-seqs": SETTINGS["max_num_seqs"],
    }


def test_what_cannot_be_judged_is_not_ruled_out() -> None:
    twin = build_twin("memory_bandwidth", 1)
    diagnoser = Diagnoser()
    said: set[str] = set()
    for fact in attached(twin.facts):
        diagnoser.on_facts((fact,))
        for finding in diagnoser.diagnosis().findings:
            if finding.symptom in (S.MEMORY_BANDWIDTH, S.THROTTLED):
                said.add(finding.claim.rpartition("; ")[2])
            assert not {one.symptom for one in finding.excluded} & names(diagnoser.diagnosis())
    assert said == {"not told from grammar_cost and heavy_sampling, which cannot be judged here"}


def test_every_limit_that_bears_on_a_symptom_has_a_flag_of_vllm() -> None:
    for symptom, limits in LIMITS.items():
        assert set(limits) <= set(FLAGS["vllm"]), symptom
    for flags in FLAGS.values():
        assert all(one.flag.startswith("--") for one in flags.values())
    assert set(Need) >= NO_ADAPTER_SEES


def test_a_step_without_rows_and_the_time_without_work_are_no_stall() -> None:
    """Neither says that it idles; nothing of both becomes the length of a step."""
    facts = attached(healthy())
    longer: list[Fact] = []
    for fact in facts:
        longer.append(fact)
        if isinstance(fact, StepRecorded) and fact.step_id % 7 == 0:
            longer.append(
                msgspec.structs.replace(
                    fact,
                    step_id=fact.step_id,
                    rows=(),
                    begin_ns=fact.committed_ns,
                    planned_ns=fact.committed_ns,
                    forward_ns=fact.committed_ns,
                )
            )
    assert judged(longer).verdict == "healthy"


def test_root_cause_by_replay_abstains(tmp_path: Path) -> None:
    """Our replay would decide as our scheduler does."""
    journal = journal_of_facts(tmp_path, attached(healthy()))

    with pytest.raises(NotReplayable, match="vllm"):
        root_cause(journal)
