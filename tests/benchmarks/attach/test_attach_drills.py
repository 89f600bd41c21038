"""Drills on an attached vLLM: its metrics as gauges, the series, faults of the adapter."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attach.drills.__main__ import FIRST_SEED, figures, joined, series
from benchmarks.attach.drills.gauges import Page, gauges_of, quantile_of, row_between
from benchmarks.attach.drills.mechanisms import ABSTAINED, MECHANISMS, judged, of_split, symptoms
from benchmarks.attach.injected import FAULTS, HOOKS, Faults
from benchmarks.contract.client import NotSupported
from benchmarks.diagnosis.baselines import BASELINES
from benchmarks.diagnosis.gauges import GAUGES, SECOND
from diagnosis.needs import NEEDS, NO_ADAPTER_SEES
from lab.drills.mechanism import DEV, TEST
from service.attach.inside.vllm_core.start import UNOBSERVED

PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="model"} {running}
vllm:generation_tokens_total{engine="0",model_name="model"} {tokens}
vllm:request_success_total{engine="0",finished_reason="stop",model_name="model"} {ends}
vllm:request_success_total{engine="0",finished_reason="length",model_name="model"} {ends}
vllm:iteration_tokens_total_count{engine="0",model_name="model"} {tokens}
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.02",model_name="model"} {low}
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.04",model_name="model"} {tokens}
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="model"} {tokens}
"""


def page(**values: float) -> Page:
    text = PAGE
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return Page(text)


def test_a_page_of_metrics_becomes_a_row_of_gauges() -> None:
    """Counters as differences, sums over labels, latencies from the buckets."""
    before = page(running=2.0, tokens=100.0, ends=1.0, low=50.0)
    row = row_between(before, page(running=4.0, tokens=140.0, ends=2.0, low=70.0), 2.0)

    assert (row["running"], row["output_tokens"], row["requests"]) == (4.0, 40.0, 2.0)
    assert row["step_ms"] == 50.0
    assert row["itl_p50"] == pytest.approx(20.0)
    assert "ttft_p50" not in row


def test_quantiles_of_buckets_are_those_of_prometheus() -> None:
    """Linear within a bucket, its lower bound in the last one, None of nothing."""
    after = {0.1: 0.0, 0.2: 10.0, float("inf"): 20.0}

    assert quantile_of({}, after, 0.25) == pytest.approx(0.15)
    assert quantile_of({}, after, 0.9) == 0.2
    assert quantile_of(after, after, 0.5) is None


def test_a_second_without_a_page_repeats_the_one_before() -> None:
    """And latencies stay as they were while nothing ends."""
    full = page(running=2.0, tokens=100.0, ends=1.0, low=50.0)
    more = page(running=2.0, tokens=140.0, ends=2.0, low=70.0)
    pages = [(5 * SECOND, full), (6 * SECOND, more), (8 * SECOND, more)]
    found = gauges_of(pages)
    itl = GAUGES.index("itl_p50")

    assert found.begin_ns == 5 * SECOND
    assert [row[itl] for row in found.rows] == [20.0, 20.0]
    for namer in BASELINES.values():
        assert isinstance(namer(found.rows, found.rows), str)


def test_the_causes_suffice_and_each_split_has_all_of_them() -> None:
    """At least twelve classes of causes; where a class has two mechanisms the test has another one
    than the development."""
    causes = [one for one in judged() if not one.startswith("healthy")]
    dev, test = of_split(DEV, judged()), of_split(TEST, judged())
    two = [one for one in causes if sum(m.symptom == one for m in MECHANISMS) > 1]

    assert len(causes) >= 12
    assert [one.symptom for one in dev] == [one.symptom for one in test] == judged()
    assert {m.symptom for m in dev if m in test}.isdisjoint(two)


def test_no_seed_of_the_test_is_one_of_the_development(tmp_path: Path) -> None:
    """Rounds have every class once, and healthy minutes are half an hour."""
    plans = {split: list(series(split, range(4), None, tmp_path, ())) for split in FIRST_SEED}
    seeds = {split: {one.seed for one in mine} for split, mine in plans.items()}
    healthy_s = sum(one.phases.end_s - one.phases.reference_at_s for one in plans["healthy"])

    assert seeds[DEV].isdisjoint(seeds[TEST])
    assert len(plans[TEST]) == 4 * len(judged())
    assert healthy_s >= 1_740


def test_later_rounds_are_those_of_the_whole_series(tmp_path: Path) -> None:
    """The seeds and intensities do not depend on where a series begins."""
    whole = list(series(TEST, range(4), None, tmp_path, ()))

    assert list(series(TEST, range(1, 4), None, tmp_path, ())) == whole[len(judged()) :]


def test_an_earlier_score_adds_its_episodes_once() -> None:
    """An episode that is in both would count twice."""
    before = {"episodes": [{"name": "a"}, {"name": "b"}]}

    assert [one["name"] for one in joined([{"name": "c"}], before)] == ["a", "b", "c"]
    assert joined([{"name": "c"}], None) == [{"name": "c"}]
    with pytest.raises(NotSupported, match="b: here, and in the earlier score"):
        joined([{"name": "b"}], before)


def test_what_is_not_judged_on_vllm_is_what_the_diagnosis_says() -> None:
    """A class that abstains cannot be named; one that does not must have its drill."""
    unseen = {*NO_ADAPTER_SEES, *UNOBSERVED}
    abstained = {one.value for one, needs in NEEDS.items() if unseen.intersection(needs.needs)}

    assert set(symptoms()) & abstained == set(ABSTAINED)


def test_flags_of_mechanisms_are_those_of_vllm() -> None:
    """None of ours is left over."""
    ours = {"--kv-memory", "--max-batched-tokens", "--no-chunked-prefill", "--fairness",
            "--stream-buffer"}  # fmt: skip

    assert not any(ours & set(one.flags) for one in MECHANISMS)


def test_the_score_holds_only_if_all_of_it_does() -> None:
    """One false alarm, or a class that is never named, and it does not."""
    good = {f"class{n}": {"recall": 1.0} for n in range(12)} | {"healthy": {"recall": 1.0}}
    pairs = [(name, name) for name in good]

    assert all(one.holds for one in figures(pairs, good, 0, 1_800))
    assert not all(one.holds for one in figures(pairs, good, 1, 1_800))
    assert not all(one.holds for one in figures(pairs, good | {"a": {"recall": 0.2}}, 0, 1_800))


# --- faults of the adapter ---------------------------------------------------------------------


def faults_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As Python loads it where no fault is asked for: it does nothing."""
    monkeypatch.delenv("PHASESCOPE_ATTACH_FAULTS", raising=False)
    spec = importlib.util.spec_from_file_location("faults", FAULTS / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def guarded(method: Any) -> Any:
    @wraps(method)
    def call(*args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:
            return type(error).__name__

    return call


class Watch:
    """As the adapter's: one method behind a guard, one without."""

    @guarded
    def planned(self) -> str:
        return "planned"

    def sent(self) -> str:
        return "sent"


def test_an_injected_error_is_raised_within_the_guard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As often as asked; the guard of the product has to deal with it."""
    faults, module = faults_module(monkeypatch), types.ModuleType("m")
    watch = type("Watch", (), dict(Watch.__dict__))
    module.Watch = watch  # type: ignore[attr-defined]
    orders = Faults(tmp_path, ["m:Watch.planned", "m:Watch.sent"])
    for target in ("m:Watch.planned", "m:Watch.sent"):
        faults.replace(tmp_path, target, module)
    before = watch().planned()
    orders.arm("m:Watch.planned", 2)

    assert before == "planned"
    assert [watch().planned() for _ in range(3)] == ["Injected", "Injected", "planned"]
    assert orders.left("m:Watch.planned") == 0
    orders.arm("m:Watch.sent", -1)
    with pytest.raises(faults.Injected):
        watch().sent()


def test_every_hook_that_is_to_raise_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A renamed hook must not make the benchmark test nothing."""
    for target in HOOKS:
        name, _, path = target.partition(":")
        owner: Any = importlib.import_module(name)
        *parents, last = path.split(".")
        for part in parents:
            owner = getattr(owner, part)
        assert callable(owner.__dict__[last]), target


def test_faults_change_a_module_of_the_adapter_as_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bounds of the product change only where it was asked for; other modules are not found."""
    faults = faults_module(monkeypatch)
    names = ("service.attach.inside.guard", "service.attach.inside.transport")
    modules = {}
    for name in names:
        finder = faults.Finder(tmp_path, {"targets": [], "bytes": 77, "errors": 9})
        spec = finder.find_spec(name, importlib.import_module("service.attach.inside").__path__)
        modules[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, modules[name])  # dataclasses look it up
        spec.loader.exec_module(modules[name])

    assert modules[names[0]]._MOST_ERRORS == 9
    assert modules[names[1]].Bounds().waiting_bytes == 77
    assert faults.Finder(tmp_path, {"targets": []}).find_spec("json", None) is None
