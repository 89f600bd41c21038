"""The benchmark of the default setting: how it judges, and its page."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from benchmarks.default_settings.acceptance import RESULTS, Results
from benchmarks.default_settings.acceptance import figures as judged
from benchmarks.default_settings.page import NEW, PAGE, filled, read
from benchmarks.default_settings.plan import (
    DEFAULT,
    OLD,
    ONE_CLASS,
)
from benchmarks.default_settings.rounds import GROUP
from benchmarks.default_settings.tables import TABLES
from benchmarks.peers.span_counter import Counter


def cell(load: str, server: str, number: int = 1, **values: Any) -> dict[str, Any]:
    where = {"group": GROUP, "load": load, "repetition": number, "server": server}
    return {**where, "figures": values, "checks": {"problems": []}, "at": "2026-11-25 10:00:00"}


def lines(cells: list[dict[str, Any]]) -> dict[str, bool]:
    return lines_of({"cells": cells})


def lines_of(data: dict[str, Any]) -> dict[str, bool]:
    return {figure.name: figure.holds for figure in judged(data)}


def mixed(server: str, itl_ms: float, ttft_ms: float, rate: float = 100.0) -> dict[str, Any]:
    return cell("mix", server, itl_p99_ms=itl_ms, ttft_p50_ms=ttft_ms, tokens_per_s=rate)


def test_the_mix_is_judged_against_the_best_budget_of_each_figure() -> None:
    """Of one the prompts are quickest, of another the streams."""
    cells = [
        mixed(DEFAULT, 110.0, 3000.0, 97.0),
        mixed("phasescope@64", 200.0, 4000.0, 100.0),
        mixed("phasescope@512", 900.0, 2800.0, 80.0),
        mixed("vllm", 4000.0, 3500.0),
    ]

    assert lines(cells) == {
        "mix: ITL p99, ms": True,
        "mix: injected TTFT to that of phasescope@512": True,  # 1.07
        "mix: streams' tokens/s to those of phasescope@64": True,  # 0.97
        "mix: injected TTFT to that of vllm": True,
        "mix: servers ahead of the default by more than 5 % in ITL p99 and in TTFT": True,
    }
    cells[0] = mixed(DEFAULT, 230.0, 4300.0, 90.0)
    assert not any(lines(cells).values())


def test_a_peer_at_a_budget_of_ours_choosing_does_not_bound_the_wait_but_may_be_ahead() -> None:
    """Only a peer's own default is a promise of its own."""
    cells = [mixed(DEFAULT, 100.0, 3000.0), mixed("vllm@256", 90.0, 2000.0)]

    assert lines(cells) == {
        "mix: ITL p99, ms": True,
        "mix: servers ahead of the default by more than 5 % in ITL p99 and in TTFT": False,
    }


def test_ratios_are_of_rounds_so_that_a_slow_minute_harms_nobody() -> None:
    """Twice as slow in round 2, both of them; a cell that does not count has no ratio."""
    cells = [
        cell("c8", DEFAULT, 1, tokens_per_s=200.0, ttft_p50_ms=100.0),
        cell("c8", OLD, 1, tokens_per_s=200.0, ttft_p50_ms=100.0),
        cell("c8", DEFAULT, 2, tokens_per_s=99.0, ttft_p50_ms=202.0),
        cell("c8", OLD, 2, tokens_per_s=100.0, ttft_p50_ms=200.0),
        cell("c8", DEFAULT, 3, tokens_per_s=1.0, ttft_p50_ms=9000.0),
        cell("c8", OLD, 3, tokens_per_s=100.0, ttft_p50_ms=200.0),
    ]
    cells[4]["checks"]["problems"].append("c8: 1 x status")

    assert Results({"cells": cells}).ratio("c8", DEFAULT, OLD, "tokens_per_s") == 0.995
    assert all(lines(cells).values())
    cells[4]["checks"]["problems"].clear()
    cells[3]["figures"] |= {"tokens_per_s": 120.0}
    assert not all(lines(cells).values())


def test_goodput_is_of_all_rounds_together_that_both_servers_have() -> None:
    """The default's third round, in which nobody else was measured, does not count for it."""
    load = "goodput sharegpt 0.7"
    cells = [
        cell(load, DEFAULT, 1, counted=10, good=10),
        cell(load, DEFAULT, 2, counted=30, good=24),
        cell(load, DEFAULT, 3, counted=100, good=0),
        cell(load, OLD, 1, counted=10, good=6),
        cell(load, OLD, 2, counted=30, good=10),
        cell(load, "phasescope@64", 1, counted=10, good=10),
        cell(load, "phasescope@64", 2, counted=30, good=25),
        cell(load, "vllm@256", 1, counted=10, good=9),
        cell(load, "vllm@256", 2, counted=30, good=25),
    ]

    found = {figure.name: figure for figure in judged({"cells": cells})}

    factor = found[f"{load}: good requests to {OLD}'s"]
    assert factor.value == pytest.approx(34 / 16)
    assert factor.holds
    assert found[f"{load}: share of good requests, phasescope@64 has 0.875"].holds  # 0.85
    assert not found[f"{load}: share of good requests, vllm@256 has 0.850"].holds  # not higher


def test_an_old_default_that_kept_its_promise_or_never_did_is_compared_as_can_be() -> None:
    """There is no factor to nothing, and none is asked of what was good."""
    load = "goodput long-tail 0.3"
    ours = cell(load, DEFAULT, counted=10, good=10)

    assert lines([ours, cell(load, OLD, counted=20, good=19)]) == {}
    (name, holds), *_ = lines([ours, cell(load, OLD, counted=20, good=0)]).items()
    assert name.endswith("is 0")
    assert holds


def test_tenants_and_voice_have_their_lines() -> None:
    cells = [
        cell("tenants", DEFAULT, ttft_ms=[240.0] * 20, alone_ttft_ms=[100.0] * 20),
        cell("voice", DEFAULT, counted=40, in_time=39, good=39, batch_tokens_per_s=350.0),
        cell("voice", ONE_CLASS, counted=40, in_time=20, good=20, batch_tokens_per_s=400.0),
    ]

    assert list(lines(cells).values()) == [True, True, False]


def test_a_p95_of_nine_requests_is_not_a_figure() -> None:
    """It is their longest. Those of all rounds together are enough, and what a round of before
    says of its nine is shown as what it is."""
    nine = [100.0] * 8 + [900.0]
    rounds = [cell("tenants", DEFAULT, n, ttft_ms=nine, alone_ttft_ms=nine[:8]) for n in (1, 2, 3)]
    old = cell(
        "tenants", DEFAULT, requests=9, ttft_p95_ms=900.0, alone_requests=8, alone_ttft_p95_ms=100.0
    )

    (alone,) = judged({"cells": rounds[:1]})
    (pooled,) = judged({"cells": rounds})
    (before,) = judged({"cells": [old]})

    assert (alone.value, alone.holds) == (None, False)
    assert (pooled.value, pooled.holds) == (9.0, False)
    assert (before.value, before.holds) == (None, False)
    assert "900 (900 to 900), longest of 9 a round" in TABLES["tenants"]({"cells": [old]})
    assert "900, p95 of 27" in TABLES["tenants"]({"cells": rounds})


def test_traces_of_other_requests_are_not_those_of_the_replies() -> None:
    """Probes and warm-ups have traces too: each reply is looked for by its own id."""
    counter, export = Counter(), ExportTraceServiceRequest()
    spans = export.resource_spans.add().scope_spans.add().spans
    for name, parent in (("probe", b""), ("warm-up", b""), ("a", b""), ("b", b"12345678")):
        value = AnyValue(string_value=name)
        spans.add(
            parent_span_id=parent, attributes=[KeyValue(key="gen_ai.request.id", value=value)]
        )
    counter.Export(export, None)

    assert counter.counts()["traces"] == 3
    assert counter.missing(["a", "b"]) == ["b"]


def test_a_reply_without_its_trace_does_not_hold() -> None:
    """Files of before only counted traces, which cannot be judged."""
    known = {"cells": [], "traces": {"1": {"replies": 5, "missing": 0}}}

    assert lines_of(known) == {"replies of ours without their trace": True}
    known["traces"] = {"1": {"replies": 5, "missing": 1}}
    assert lines_of(known) == {"replies of ours without their trace": False}
    known["traces"] = {"1": {"replies": 105, "traces": 173}}
    assert lines_of(known) == {}


def example() -> dict[str, Any]:
    about = {"cpu": "CPU", "cores": 2, "instructions": ["avx2"], "memory_gib": 8}
    cells = [
        mixed(DEFAULT, 130.0, 3000.0),
        mixed("phasescope@64", 200.0, 4000.0),
        cell("alone", DEFAULT, itl_p50_ms=25.0),
        cell("goodput sharegpt 0.3", DEFAULT, counted=4, good=3),
        cell("tenants", DEFAULT, ttft_p95_ms=240.0, alone_ttft_p95_ms=100.0),
    ]
    return {"about": {"machine": about}, "cells": cells, "failed": {"vllm": "no memory"}}


def test_the_page_is_filled_and_its_words_are_kept() -> None:
    """All that does not hold is said, and filling it again changes nothing."""
    text = NEW.read_text()
    on_gpu = example() | {"about": {**example()["about"], "gpu": "Some GPU"}}
    on_amx = example() | {"about": {"machine": example()["about"]["machine"] | {"cpu": "Other"}}}
    others = {"gpu": on_gpu, "amx": on_amx}
    page = filled(text + "\nWords of people.\n", example(), others)

    assert [name for name in TABLES if f"<!-- table {name} -->" not in text] == []
    assert "| fixed, 64 |" in page
    assert "- mix: ITL p99, ms: 130, limit <= 120: does not hold." in page
    assert "- Machine: Some GPU, with " in page
    assert page.count(" Other (avx2)") == 1
    assert "- vLLM did not take part: no memory." in page
    assert "0.75 (0.75 to 0.75)" in page
    assert page.endswith("\nWords of people.\n")
    assert filled(page, example(), others) == page


def test_the_committed_page_has_the_tables_of_the_committed_results() -> None:
    """Neither is there without the other."""
    assert PAGE.exists() == RESULTS.exists()
    if PAGE.exists():
        assert filled(PAGE.read_text(), *read()) == PAGE.read_text()
