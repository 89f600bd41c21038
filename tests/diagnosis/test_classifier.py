"""Diagnoses of servers in virtual time, with one fault each, or none."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.diagnosis.virtual.twins import judge_pair
from diagnosis.detection.window import Window, window_of
from diagnosis.evidence import Measurement
from diagnosis.symptoms import LATENCY, Symptom
from diagnosis.verdicts.alerts import finding_families
from diagnosis.verdicts.baseline_file import BaselineError, read_baseline, save_baseline
from diagnosis.verdicts.classifier import Diagnoser
from diagnosis.verdicts.mean_harm import MeanHarm
from diagnosis.verdicts.offline import diagnose_journal
from diagnosis.verdicts.rules import RULES
from lab.twins.registry import TWINS, build_gpu_twin
from lab.twins.twin import Twin
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.records import ExportFailed, fact_ns
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.worlds.twins.cases import (
    SECOND,
    baseline_of,
    during,
    first_found,
    judged,
    judged_once,
    top_of,
    twin,
    verdicts,
)

HEALTHY = tuple(name for name in TWINS if name.startswith("healthy"))
FAULTY = [name for name in TWINS if name not in HEALTHY]


@pytest.mark.parametrize("name", FAULTY)
def test_the_injected_fault_is_the_one_that_is_found(name: str) -> None:
    one, found = twin(name, TWINS[name][0]), judged_once(name, TWINS[name][0]).verdicts
    said = Counter(top_of(diagnosis) for diagnosis in during(one, found))
    said.pop("healthy", None)

    assert said.most_common(1)[0][0] == name, said


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_where_nothing_is_wrong(name: str) -> None:
    found = judged_once(name, TWINS[name][0]).verdicts

    assert {top_of(diagnosis) for _, diagnosis in found} == {"healthy"}


def test_every_measurement_that_rules_may_name_is_taken_somewhere() -> None:
    """Of windows of these faults; what nobody takes would be said as not measured forever."""
    taken: set[Measurement] = set()
    ones = [judged(build_gpu_twin(name, 5)) for name in ("slow_rank", "other_process")]
    ones += [
        judged_once(name, TWINS[name][0])
        for name in ("queue_overload", "unfairness", "memory_bandwidth", "kv_thrash",
                     "budget_too_small", "throttled", "adapter_churn")
    ]  # fmt: skip
    for one in ones:
        for charged in one.blames:
            assert set(charged.facts) == set(Measurement)
            taken |= {one for one, value in charged.facts.items() if value is not None}

    assert set(Measurement) - taken == set()


@pytest.mark.parametrize("symptom", RULES)
def test_the_measurement_that_decides_is_taken_where_its_symptom_is_found(symptom: Symptom) -> None:
    one = twin(symptom.value, TWINS[symptom.value][0])
    found = judged_once(symptom.value, TWINS[symptom.value][0]).verdicts
    said = [s for s in during(one, found) if top_of(s) == symptom.value]
    deciding = [s.findings[0] for s in said if not s.findings[0].blows][-1].evidence[0]

    assert deciding.name == RULES[symptom].evidence[0].value
    assert deciding.value is not None


def detection_delay_ns(one: Twin) -> int:
    """Time from the onset of the fault to its first finding."""
    found_ns, _ = first_found(one)
    return found_ns - (one.onset_ns or 0)


def test_a_clear_fault_is_found_before_its_alarm_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sooner in total, later in no case, and with the right symptom; an unclear one waits for the
    alarm."""
    names = ("prefix_cache_cold", "cpu_starvation", "heavy_sampling", "grammar_cost")
    twins = [twin(name, TWINS[name][0]) for name in names]

    with_pending = [detection_delay_ns(one) for one in twins]
    monkeypatch.setattr("diagnosis.verdicts.mean_harm.CLEAR_SHARE", 1.01)
    without = [detection_delay_ns(one) for one in twins]

    assert sum(with_pending) < sum(without)
    assert all(soon <= late for soon, late in zip(with_pending, without, strict=True))
    assert min(with_pending) > 0


def test_a_fault_that_is_clear_only_once_waits_for_the_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = twin("cpu_starvation", TWINS["cpu_starvation"][0])
    charge, calls = MeanHarm._charge, count()

    def every_other(self: MeanHarm, begin_ns: int, end_ns: int, onset_ns: int) -> Any:
        charged, found = charge(self, begin_ns, end_ns, onset_ns)
        is_pending = self._detector.onset_ns is None
        return charged, [] if is_pending and next(calls) % 2 else found

    soon = detection_delay_ns(one)
    monkeypatch.setattr(MeanHarm, "_charge", every_other)
    unsteady = detection_delay_ns(one)
    monkeypatch.setattr("diagnosis.verdicts.mean_harm.CLEAR_SHARE", 1.01)

    assert soon < unsteady <= detection_delay_ns(one)


def test_a_window_records_whether_a_finding_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is active a second cause needs less confidence; before and afterwards it needs all
    of it."""
    recorded: list[bool] = []

    def recording(*args: Any, **more: Any) -> Window:
        recorded.append(more["has_finding"])
        return window_of(*args, **more)

    monkeypatch.setattr("diagnosis.verdicts.mean_harm.window_of", recording)
    verdicts(twin("cpu_starvation", TWINS["cpu_starvation"][0]))

    first = recorded.index(True)
    assert first > 0
    assert all(recorded[first : first + 4])


def test_a_finding_has_evidence_exclusions_culprits_victims_and_a_runbook() -> None:
    """Its culprits are injected ones, and its onset is that of the fault."""
    one = twin("prefill_interference", "unchunked")
    found = judged_once("prefill_interference", "unchunked").verdicts
    said = [s for s in during(one, found) if top_of(s) == one.name][-1]
    finding = said.findings[0]
    evidence = {entry.name: entry for entry in finding.evidence}

    assert evidence["co_prefill"].unit == "ms"
    assert evidence["prompt_tokens_each"].value > 1.3 * evidence["usual_prompt_tokens_each"].value
    assert {other.symptom for other in finding.excluded} >= {Symptom.HOST_STALL}
    assert set(finding.culprits) <= one.culprits
    assert finding.culprits
    assert finding.victims
    assert all(len(trace_id) == 32 for trace_id in finding.exemplars)
    assert finding.runbook == "runbooks/prefill_interference.md"
    assert 0 < finding.share <= 1
    assert finding.onset_ns is not None
    assert one.onset_ns is not None
    assert abs(finding.onset_ns - one.onset_ns) < 5 * SECOND


def test_unfairness_names_the_flooding_tenant_as_culprit_and_the_others_as_victims() -> None:
    one, found = twin("unfairness", "flood"), judged_once("unfairness", "flood").verdicts
    finding = next(s.findings[0] for s in during(one, found) if top_of(s) == one.name)
    assert set(finding.culprits) <= one.culprits
    assert not set(finding.victims) & set(finding.culprits)


def test_a_record_with_lost_facts_gives_no_other_finding() -> None:
    """Missing steps would look like pauses of the engine."""
    one = twin("telemetry_degraded", "steps_lost")
    said = [s for s in during(one, verdicts(one)) if s.findings]

    assert {s.verdict for s in said} == {"indeterminate"}
    assert {f.symptom for s in said for f in s.findings} == {Symptom.TELEMETRY_DEGRADED}
    assert all(s.why for s in said)


def test_lost_spans_do_not_hide_other_findings() -> None:
    """The loss is a finding, and so is every other fault."""
    one = twin("host_stall", "collections")
    assert one.onset_ns is not None
    facts = [fact for fact in one.facts if fact_ns(fact) < one.onset_ns + 10 * SECOND]
    failed = ExportFailed(at_ns=one.onset_ns + 9 * SECOND, error="no answer within 5 s")
    diagnoser = Diagnoser()
    diagnoser.on_facts(sorted([*facts, failed], key=fact_ns))
    said = diagnoser.diagnosis()

    assert said.verdict == "fault"
    assert [f.symptom for f in said.findings] == [Symptom.HOST_STALL, Symptom.TELEMETRY_DEGRADED]


def test_a_slow_reader_is_not_diagnosed_as_a_slow_server() -> None:
    one, found = twin("slow_client", "readers"), judged_once("slow_client", "readers").verdicts
    named = {f.symptom for s in during(one, found) for f in s.findings}

    assert not named & {Symptom.MEMORY_BANDWIDTH, Symptom.THROTTLED, Symptom.CPU_STARVATION}


@pytest.mark.parametrize("name", ["queue_overload", "host_stall"])
def test_the_verdict_does_not_depend_on_how_facts_are_batched(name: str, tmp_path: Path) -> None:
    """One by one, in batches, or read back from a journal in the middle of the fault."""
    one = twin(name, TWINS[name][0])
    assert one.onset_ns is not None
    facts = [fact for fact in one.facts if fact_ns(fact) < one.onset_ns + 12 * SECOND]
    live, batched = Diagnoser(policy=one.policy), Diagnoser(policy=one.policy)
    for fact in facts:
        live.on_facts([fact])
    for at in range(0, len(facts), 97):
        batched.on_facts(facts[at : at + 97])
    write_journal(tmp_path / "dump.journal", facts, MonotonicClock(), "test", one.policy)

    assert top_of(live.diagnosis()) == name
    assert batched.diagnosis() == live.diagnosis()
    assert diagnose_journal(open_journal(tmp_path / "dump.journal")) == live.diagnosis()


def test_attributed_time_is_at_most_the_lost_time() -> None:
    one = twin("queue_overload", "requests")
    diagnoser = Diagnoser()
    assert one.onset_ns is not None
    diagnoser.on_facts([f for f in one.facts if fact_ns(f) < one.onset_ns + 10 * SECOND])
    charged = diagnoser.blame()

    assert charged is not None
    assert 0 < sum(charged.harm_ns.values()) <= charged.excess_ns * (1 + 1e-9)
    assert all(spent >= 0 for spent in charged.harm_ns.values())


def test_a_saved_baseline_is_read_back_unchanged(tmp_path: Path) -> None:
    baseline = baseline_of(twin("oversized_batch", "max_seqs"))
    assert baseline is not None
    assert baseline.speed_spread > 0  # another run knows nothing of its machine yet
    save_baseline(baseline, tmp_path / "baseline.json")

    assert read_baseline(tmp_path / "baseline.json") == baseline
    (tmp_path / "wrong.json").write_text('{"seconds": 3}')
    with pytest.raises(BaselineError, match="no baseline of this version"):
        read_baseline(tmp_path / "wrong.json")
    with pytest.raises(BaselineError, match="No such file"):
        read_baseline(tmp_path / "absent.json")
    with pytest.raises(BaselineError, match="No such file"):
        save_baseline(baseline, tmp_path / "absent" / "baseline.json")


def test_a_configuration_that_is_bad_from_the_start_is_found_only_with_a_baseline() -> None:
    """A server alone cannot know how it would be with another configuration."""
    one = twin("oversized_batch", "max_seqs")
    diagnoser = Diagnoser()
    diagnoser.on_facts(one.facts)

    assert top_of(diagnoser.diagnosis()) != "oversized_batch"


def test_findings_are_metrics_while_they_are_active() -> None:
    one = twin("host_stall", "collections")
    said = during(one, judged_once("host_stall", "collections").verdicts)[-8]
    families = {metric.name: samples for metric, samples in finding_families(said)}

    assert families["phasescope_finding"] == [({"symptom": "host_stall"}, 1.0)]
    ((labels, seconds),) = families["phasescope_finding_harm_seconds"]
    assert labels == {"symptom": "host_stall"}
    assert seconds > 0.1
    assert families["phasescope_diagnosis_indeterminate"] == [({}, 0.0)]


def test_spans_have_an_event_for_each_finding_during_their_request() -> None:
    """Spans of requests at other times have none."""
    one = twin("host_stall", "collections")
    assert one.onset_ns is not None
    assert one.end_ns is not None
    diagnoser = Diagnoser()
    diagnoser.on_facts(one.facts)
    (event,) = diagnoser.log.between(one.onset_ns + 5 * SECOND, one.onset_ns + 6 * SECOND)

    assert event.name == "phasescope.finding"
    assert event.at_ns == one.onset_ns + 5 * SECOND
    assert event.attributes["phasescope.finding.symptom"] == "host_stall"
    assert diagnoser.log.between(0, one.onset_ns - 10 * SECOND) == []


def test_every_latency_class_has_a_rule_with_neighbours() -> None:
    assert set(RULES) == set(LATENCY)
    assert all(rule.apart and rule.evidence for rule in RULES.values())


@pytest.mark.parametrize(
    ("names", "seed"),
    [
        (("kv_exhaustion", "queue_overload"), 1001),
        (("kv_exhaustion", "queue_overload"), 1011),
        (("cpu_starvation", "queue_overload"), 1000),
        (("prefill_interference", "unfairness"), 1000),
    ],
)
def test_of_two_faults_at_once_neither_hides_the_other(names: tuple[str, str], seed: int) -> None:
    """Waits for blocks are shared with demand beyond the baseline; a full batch does not hide a
    starved engine, and a flood does not hide long prompts."""
    found = judge_pair((names, seed))

    assert found.is_right, found
