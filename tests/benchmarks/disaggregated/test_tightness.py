"""The sweep of targets: resumable, and ratios only of what serves something."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.disaggregated import tightness
from benchmarks.disaggregated.goodput import Layout, Mix, Setting
from benchmarks.disaggregated.tightness import GPU_LINK, MACHINES, SEEDS, TIMES
from lab.fleet.disaggregated.node import _VERIFY_NS
from service.engine.inbox import SetStepCost

COST = SetStepCost(base_ns=20_000_000, prefill_token_ns=1_000_000, decode_row_ns=1_000_000)
RATES = {
    "whole": 0.5,
    "fixed": 0.5,
    "tuned": 0.6,
    "paced": 0.8,
    "cautious": 0.7,
    "apart": 1.0,
    "by_rule": 1.2,
}


def piece(**changed: float) -> dict[str, Any]:
    return {
        "requests_per_s": RATES | changed,
        "tuned_budget_tokens": 256,
        "ratios": {"apart": "3+1", "by_rule": "3+1"},
        "sent_away_by_rule": 0.9,
    }


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """The k of each point that was computed, none for real."""
    found: list[float] = []

    def point(setting: Setting) -> dict[str, Any]:
        found.append(setting.mix.tpot_times)
        return piece()

    monkeypatch.setattr(tightness, "PIECES", tmp_path / "pieces")
    monkeypatch.setattr(tightness, "point", point)
    monkeypatch.setattr(tightness, "MACHINES", {"h200": MACHINES["h200"]})
    return found


def test_a_point_is_computed_once_and_again_with_other_costs_or_layouts(
    computed: list[float],
) -> None:
    tightness.run(["h200"], [2.0, 3.0])
    tightness.run(["h200"], [2.0, 6.0])

    assert computed == [2.0, 3.0] * len(SEEDS) + [6.0] * len(SEEDS)

    path, other = (tightness.path_of("h200", 2.0, seed) for seed in SEEDS)
    kept = json.loads(path.read_text())
    kept["of"]["step_cost"]["base_ns"] += 1
    path.write_text(json.dumps(kept))
    kept = json.loads(other.read_text())
    del kept["requests_per_s"]["whole"]
    other.write_text(json.dumps(kept))
    computed.clear()
    tightness.run(["h200"], [2.0, 3.0])

    assert computed == [2.0] * 2


def test_what_is_there_is_written_and_it_is_said_whether_that_is_all(
    computed: list[float], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    tightness.run(["h200"], [2.0])

    assert not tightness.write(out)
    (point,) = json.loads(out.read_text())["machines"]["h200"]["points"]
    assert point["requests_per_s"]["paced"] == [RATES["paced"]] * len(SEEDS)
    assert point["over_together"]["by_rule"] == [1.5] * len(SEEDS)

    tightness.run(["h200"], TIMES)
    assert tightness.write(out)


def test_a_machine_that_was_not_measured_yet_is_missing(
    computed: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    none_yet = replace(MACHINES["cpu"], costs=tmp_path / "none.json")
    monkeypatch.setitem(tightness.MACHINES, "cpu", none_yet)
    tightness.run(["h200"], TIMES)

    assert not tightness.write(tmp_path / "out.json")
    assert list(json.loads((tmp_path / "out.json").read_text())["machines"]) == ["h200"]


def test_nothing_is_so_many_times_what_serves_nothing() -> None:
    together = dict.fromkeys(("whole", "fixed", "tuned", "paced", "cautious"), 0.0)
    found = tightness.gains([piece(), piece(**together)])

    assert found["over_together"]["apart"] == [1.25, None]
    assert found["over_whole"]["apart"] == [2.0, None]


@pytest.mark.parametrize("way", ["whole", "fixed", "tuned", "paced", "cautious"])
def test_a_gain_is_over_the_best_of_the_ways_to_be_together_that_were_tried(way: str) -> None:
    """Whichever it is: what serves 2 a second leaves half of that to 1 a second."""
    found = tightness.gains([piece(**{way: 2.0})])

    assert found["over_together"] == {"apart": [0.5], "by_rule": [0.6]}


def test_a_point_says_what_each_layout_serves() -> None:
    """And, where engines apart serve anything, in which ratio."""
    mix = Mix("short", (40, 120), (4, 12), 4.0, 2.0)
    found = tightness.point(Setting(mix, COST, requests=16))
    rates = found["requests_per_s"]

    assert list(rates) == list(tightness.LAYOUTS) == list(RATES)
    assert rates["tuned"] >= rates["fixed"]
    assert all(rate >= 0.0 for rate in rates.values())
    assert found["ratios"]["apart"] in ("1+3", "2+2", "3+1")


def test_the_best_of_layouts_is_found_in_any_order() -> None:
    setting = Setting(Mix("short", (40, 120), (4, 12), 4.0, 3.0), COST, requests=16)
    layouts = [Layout(n) for n in (1, 2, 3)]
    (one, best), (other, same) = (
        tightness.best_of(setting, each) for each in (layouts, layouts[::-1])
    )

    assert best == same
    assert one == pytest.approx(other, rel=0.08)


def test_the_rule_is_told_what_digests_take_in_a_simulated_engine() -> None:
    """Of a middle prompt; and a block takes the time of its bytes on the link."""
    middle = sum(MACHINES["h200"].setting(2.0, 7).mix.prompt_tokens) // 2

    assert GPU_LINK.digest_byte_ns * GPU_LINK.token_bytes * middle == pytest.approx(_VERIFY_NS)
    assert MACHINES["h200"].block_ns == round(16 * 131_072 / 25)
