"""What the diagnoser says of servers in virtual time, each with one thing wrong, or nothing."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.diagnosis.twins import judge_pair
from diagnosis.detection.reference import BaselineError, read_baseline, save_baseline
from diagnosis.detection.window import Window
from diagnosis.symptoms import LATENCY, Symptom
from diagnosis.verdicts.alerts import finding_families
from diagnosis.verdicts.classifier import Diagnoser
from diagnosis.verdicts.offline import diagnose_journal
from diagnosis.verdicts.rules import RULES
from lab.twins.registry import TWINS
from lab.twins.twin import Twin
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.records import ExportFailed, fact_ns
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.worlds.twin_cases import SECOND, baseline_of, during, top_of, twin, verdicts

HEALTHY = ("healthy_light", "healthy_busy")
FAULTY = [name for name in TWINS if name not in HEALTHY]


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_that_was_put_in_is_the_one_that_is_found(name: str) -> None:
    one = twin(name, TWINS[name][0])
    said = Counter(top_of(diagnosis) for diagnosis in during(one, verdicts(one)))
    said.pop("healthy", None)

    assert said.most_common(1)[0][0] == name, said


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_where_nothing_is_wrong(name: str) -> None:
    said = Counter(top_of(diagnosis) for _, diagnosis in verdicts(twin(name, TWINS[name][0])))

    assert set(said) == {"healthy"}


def first_said_ns(one: Twin) -> int:
    """How long after its onset the fault was first said."""
    said_ns = next(at_ns for at_ns, said in verdicts(one) if said.findings)
    return said_ns - (one.onset_ns or 0)


def test_what_is_clear_is_said_before_it_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sooner in all, later in none, and still the right thing; what is unclear has to wait."""
    names = ("prefix_cache_cold", "cpu_starvation", "heavy_sampling", "grammar_cost")
    twins = [twin(name, TWINS[name][0]) for name in names]

    with_pending = [first_said_ns(one) for one in twins]
    monkeypatch.setattr("diagnosis.verdicts.classifier.CLEAR_SHARE", 1.01)
    without = [first_said_ns(one) for one in twins]

    assert sum(with_pending) < sum(without)
    assert all(soon <= late for soon, late in zip(with_pending, without, strict=True))
    assert min(with_pending) > 0


def test_what_is_clear_once_and_not_again_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    one = twin("cpu_starvation", TWINS["cpu_starvation"][0])
    charge, looks = Diagnoser._charge, count()

    def every_other(self: Diagnoser, begin_ns: int, end_ns: int, onset_ns: int) -> Any:
        charged, found = charge(self, begin_ns, end_ns, onset_ns)
        is_pending = self._detector.onset_ns is None
        return charged, [] if is_pending and next(looks) % 2 else found

    soon = first_said_ns(one)
    monkeypatch.setattr(Diagnoser, "_charge", every_other)
    wavering = first_said_ns(one)
    monkeypatch.setattr("diagnosis.verdicts.classifier.CLEAR_SHARE", 1.01)

    assert soon < wavering == first_said_ns(one)


def test_once_something_is_found_the_window_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a second cause needs to be less sure; before, and when all is over, it does not."""
    told: list[bool] = []

    def seen(*args: Any, **more: Any) -> Window:
        told.append(more["has_finding"])
        return Window(*args, **more)

    monkeypatch.setattr("diagnosis.verdicts.classifier.Window", seen)
    first_said_ns(twin("cpu_starvation", TWINS["cpu_starvation"][0]))

    assert not told[0]
    assert told.index(True) > 0
    assert all(told[told.index(True) : told.index(True) + 4])


def test_a_finding_carries_its_proof() -> None:
    """Evidence in units, the neighbours that it is not, who suffered, who did it, where to read."""
    one = twin("prefill_interference", "unchunked")
    said = [s for s in during(one, verdicts(one)) if top_of(s) == one.name][-1]
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


def test_a_flood_names_its_tenant_and_the_others_as_victims() -> None:
    one = twin("unfairness", "flood")
    finding = next(s.findings[0] for s in during(one, verdicts(one)) if top_of(s) == one.name)
    assert set(finding.culprits) <= one.culprits
    assert not set(finding.victims) & set(finding.culprits)


def test_a_record_with_holes_is_no_ground_for_accusations() -> None:
    """Steps that are missing look like pauses of the engine."""
    one = twin("telemetry_degraded", "steps_lost")
    said = [s for s in during(one, verdicts(one)) if s.findings]

    assert {s.verdict for s in said} == {"indeterminate"}
    assert {f.symptom for s in said for f in s.findings} == {Symptom.TELEMETRY_DEGRADED}
    assert all(s.why for s in said)


def test_spans_that_do_not_arrive_take_nothing_from_the_record() -> None:
    """It is said, and what else is wrong is said as well."""
    one = twin("host_stall", "collections")
    assert one.onset_ns is not None
    facts = [fact for fact in one.facts if fact_ns(fact) < one.onset_ns + 10 * SECOND]
    failed = ExportFailed(at_ns=one.onset_ns + 9 * SECOND, error="no answer within 5 s")
    diagnoser = Diagnoser()
    diagnoser.on_facts(sorted([*facts, failed], key=fact_ns))
    said = diagnoser.diagnosis()

    assert said.verdict == "fault"
    assert [f.symptom for f in said.findings] == [Symptom.HOST_STALL, Symptom.TELEMETRY_DEGRADED]


def test_a_slow_reader_is_never_a_slow_server() -> None:
    one = twin("slow_client", "readers")
    named = {f.symptom for s in during(one, verdicts(one)) for f in s.findings}

    assert not named & {Symptom.MEMORY_BANDWIDTH, Symptom.THROTTLED, Symptom.CPU_STARVATION}


@pytest.mark.parametrize("name", ["queue_overload", "host_stall"])
def test_the_verdict_depends_on_the_facts_and_not_on_how_they_come(
    name: str, tmp_path: Path
) -> None:
    """One by one, in batches, or read back from a journal in the middle of the fault."""
    one = twin(name, TWINS[name][0])
    assert one.onset_ns is not None
    facts = [fact for fact in one.facts if fact_ns(fact) < one.onset_ns + 12 * SECOND]
    live, batched = Diagnoser(), Diagnoser()
    for fact in facts:
        live.on_facts([fact])
    for at in range(0, len(facts), 97):
        batched.on_facts(facts[at : at + 97])
    write_journal(tmp_path / "dump.journal", facts, MonotonicClock(), "test")

    assert top_of(live.diagnosis()) == name
    assert batched.diagnosis() == live.diagnosis()
    assert diagnose_journal(open_journal(tmp_path / "dump.journal")) == live.diagnosis()


def test_what_is_charged_is_no_more_than_what_was_lost() -> None:
    one = twin("queue_overload", "requests")
    diagnoser = Diagnoser()
    assert one.onset_ns is not None
    diagnoser.on_facts([f for f in one.facts if fact_ns(f) < one.onset_ns + 10 * SECOND])
    charged = diagnoser.blame()

    assert charged is not None
    assert 0 < sum(charged.harm_ns.values()) <= charged.excess_ns * (1 + 1e-9)
    assert all(spent >= 0 for spent in charged.harm_ns.values())


def test_a_baseline_is_saved_and_read_back_as_it_was(tmp_path: Path) -> None:
    baseline = baseline_of(twin("oversized_batch", "max_seqs"))
    assert baseline is not None
    save_baseline(baseline, tmp_path / "baseline.json")

    assert read_baseline(tmp_path / "baseline.json") == baseline
    (tmp_path / "wrong.json").write_text('{"seconds": 3}')
    with pytest.raises(BaselineError, match="no baseline of this version"):
        read_baseline(tmp_path / "wrong.json")
    with pytest.raises(BaselineError, match="No such file"):
        read_baseline(tmp_path / "absent.json")


def test_without_a_baseline_a_configuration_that_is_bad_from_the_start_is_not_found() -> None:
    """That is why there are baselines: a server does not know how it would have been."""
    one = twin("oversized_batch", "max_seqs")
    diagnoser = Diagnoser()
    diagnoser.on_facts(one.facts)

    assert top_of(diagnoser.diagnosis()) != "oversized_batch"


def test_findings_become_metrics_while_they_last() -> None:
    one = twin("host_stall", "collections")
    said = during(one, verdicts(one))[-8]
    families = {metric.name: samples for metric, samples in finding_families(said)}

    assert families["phasescope_finding"] == [({"symptom": "host_stall"}, 1.0)]
    ((labels, seconds),) = families["phasescope_finding_harm_seconds"]
    assert labels == {"symptom": "host_stall"}
    assert seconds > 0.1
    assert families["phasescope_diagnosis_indeterminate"] == [({}, 0.0)]


def test_a_request_that_lived_through_a_finding_says_so() -> None:
    """The log gives events to the spans of those who were there, and to nobody else's."""
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
    """Waits for blocks are shared with those who came beyond the usual, a full batch does not
    hide that its engine starves, and a flood not that long prompts are in it."""
    found = judge_pair((names, seed))

    assert found.is_right, found
