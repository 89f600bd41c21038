"""The settings of the autopilot: what a bounds file may say, and what cannot work together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diagnosis.autopilot.bounds import DEFAULT_BOUNDS, KNOWN, BoundsError, LimitBounds, bounds_of
from service.cli.main import build_parser
from service.composition.autopilot_wiring import search_arguments
from service.config.hardware import Hardware
from service.config.resolve import resolve
from service.config.settings import (
    AutopilotConfig,
    ConfigError,
    ModelKind,
    ModelRef,
    ServeConfig,
)
from service.engine.limits_record import runtime_of
from telemetry.facts.limits import named
from tests.support.worlds.promised import GOOD

MODEL = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="tiny")


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "bounds.toml"
    path.write_text(text)
    return str(path)


def test_its_search_leaves_out_what_it_may_not_touch() -> None:
    """All that the bounds do not name, by names that the command knows."""
    arguments = search_arguments(DEFAULT_BOUNDS, "slo.toml")
    found = build_parser().parse_args(["diagnose", *arguments])

    assert found.without == set(KNOWN) - set(DEFAULT_BOUNDS)
    assert "refuse_late" in found.without
    assert found.slo_file == "slo.toml"
    all_of_them = {name: LimitBounds(least=1, most=2) for name in KNOWN}
    assert "--without" not in search_arguments(all_of_them, None)


def test_a_setting_that_is_left_out_has_a_known_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["diagnose", "--settings", "--without", "order,speed"])

    assert "no speed: choose from chunked_prefill" in capsys.readouterr().err


def test_a_file_replaces_the_bounds_that_are_built_in(tmp_path: Path) -> None:
    path = written(
        tmp_path, '[max_batched_tokens]\nleast = 64\nmost = 512\nvalues = ["auto"]\n[order]\n'
        'values = ["slo"]\n'
    )  # fmt: skip
    found = bounds_of(path)

    assert set(found) == {"max_batched_tokens", "order"}
    budget = found["max_batched_tokens"]
    assert [budget.allows(value) for value in (63, 64, 512, 513, "auto", None)] == [
        False, True, True, False, True, False,
    ]  # fmt: skip
    assert not found["order"].allows("arrival")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[nothing]\nleast = 1\nmost = 2", "no such limit"),
        ("[max_num_seqs]\nleast = 1", "go together"),
        ("[max_num_seqs]\nleast = 3\nmost = 2", "from 0 to most"),
        ("[max_num_seqs]", "give least and most"),
        ("[max_num_seqs]\nleast = 1\nmost = 2\nmiddle = 1", "middle"),
        ("[order]\nleast = 1\nmost = 2", "no number"),
        ('[order]\nvalues = ["fastest"]', '"slo", "arrival"'),
        ("[prefix_cache]\nvalues = [\"true\"]", "cannot be"),
        ("[max_num_seqs", "bounds.toml: .+"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(BoundsError, match=said) as caught:
        bounds_of(written(tmp_path, text))

    assert "\n" not in str(caught.value)
    assert "bounds.toml" in str(caught.value)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(BoundsError, match="No such file"):
        bounds_of("/not/there.toml")


def test_bounds_are_of_limits_that_exist() -> None:
    assert set(DEFAULT_BOUNDS) <= set(named(runtime_of(GOOD)))


def test_the_autopilot_advises_by_default() -> None:
    assert AutopilotConfig().mode == "advise"


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="--autopilot"):
        AutopilotConfig(mode="fly").validate()  # type: ignore[arg-type]


def test_to_act_it_needs_the_flight_recorder() -> None:
    with pytest.raises(ConfigError, match=r"--autopilot act .* --journal-memory is 0"):
        config_of("--autopilot", "act", "--journal-memory", "0")
    assert config_of("--journal-memory", "0").autopilot.mode == "advise"  # it says so and is off


def test_a_bounds_file_is_read_before_anything_starts(tmp_path: Path) -> None:
    said = subprocess.run(
        [
            sys.executable, "-m", "service.cli.main", "config", "--model", "dummy:tiny",
            "--autopilot-bounds", str(tmp_path / "none.toml"),
        ],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert said.returncode == 2
    assert "--autopilot-bounds" in said.stderr
    assert len(said.stderr.strip().splitlines()) == 1


def config_of(*words: str) -> ServeConfig:
    flags = build_parser().parse_args(["serve", *words]).given
    return resolve(flags, {}, lambda device: Hardware()).config(MODEL)
