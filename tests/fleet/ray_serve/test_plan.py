"""The file of a fleet on Ray Serve, and the commands that come of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from service.cli.main import build_parser, main
from service.config.setting import ConfigError
from service.fleet.ray_serve.plan import Plan, engine_command, gateway_command, read_plan

FILE = """
key_file = "fleet.key"
model = "dummy:tiny"
drain_timeout_s = 7.5
[gateways]
port = 8123
flags = ["--routing", "round_robin"]
[engines.main]
number = 2
flags = ["--max-num-seqs", "4"]
"""


def plan_of(folder: Path, text: str = FILE) -> Plan:
    path = folder / "fleet.toml"
    path.write_text(text)
    return read_plan(str(path))


def test_its_commands_are_commands_of_ours(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert plan.key_file == str(tmp_path / "fleet.key")
    parser = build_parser()
    engine = engine_command(plan, "main", "main-x1", "10.0.0.1:9000", 9001)
    gateway = gateway_command(plan, "/tmp/engines.toml")
    assert engine[1:3] == gateway[1:3] == ["-m", "service.cli.main"]
    found = parser.parse_args(engine[3:]).given
    assert (found["listen"], found["role"]) == ("10.0.0.1:9000", "any")
    assert (found["port"], found["drain_timeout"], found["max_num_seqs"]) == (9001, 7.5, 4)
    found = parser.parse_args(gateway[3:]).given
    assert (found["port"], found["engines"]) == (8123, "/tmp/engines.toml")
    assert (found["routing"], found["model"]) == ("round_robin", "dummy:tiny")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "key_file"),
        ('key_file = "k"', "engines"),
        ('key_file = "k"\n[engines.A]', "pattern|regex"),
        ('key_file = "k"\n[engines.a]\nnumbr = 2', "numbr"),
        ('key_file = "k"\n[engines.a]\nrole = "king"', "king"),
        ('key_file = "k"\n[engines.a]\nnumber = 1000\n[engines.b]\nnumber = 1000', "2000"),
        ('key_file = "k"\n[gateways]\nport = 0\n[engines.a]', "port"),
        ("key_file =", "Invalid"),
    ],
)
def test_a_file_that_cannot_work_is_refused_in_words(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan_of(tmp_path, text)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ('"--listen", "1.2.3.4:5"', "flags of [engines.main]: --listen is given by the deployment"),
        ('"--model", "x"', "--model is given by the deployment"),
        ('"--max-num-seqs", "none"', "--max-num-seqs none"),
    ],
)
def test_flags_are_checked_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, why: str
) -> None:
    (tmp_path / "fleet.key").write_text("0" * 64)
    path = tmp_path / "fleet.toml"
    path.write_text(FILE.replace('"--max-num-seqs", "4"', flags))
    assert main(["fleet", "deploy", str(path)]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.skipif(find_spec("ray") is not None, reason="it is installed here")
def test_without_ray_the_command_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.key").write_text("0" * 64)
    plan_of(tmp_path)
    assert main(["fleet", "deploy", str(tmp_path / "fleet.toml")]) == 2
    assert "pip install 'phasescope[fleet]'" in capsys.readouterr().err
