"""Each setting is defined once, and has one meaning as flag, variable and key of a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.main import build_parser
from service.cli.serve import find_model
from service.config.hardware import Hardware
from service.config.resolve import Resolution, Source, resolve
from service.config.setting import ConfigError, Group, Setting
from service.config.settings import ModelKind, ModelRef, RecorderConfig, ServeConfig
from service.config.sizes import format_bytes, parse_bytes
from service.config.tree import all_settings, attach_settings, node_settings

SETTINGS = list(all_settings().values())
NUMBERS = [one for one in SETTINGS if one.kind in (int, float)]
MODEL = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="tiny")
MODEL_SETTINGS = ("model", "served_model_name", "reasoning_format", "tool_format")
LORA_MEMORY = ("--lora-memory", "1GiB")
NEEDED = {  # flags without which a setting's other value is refused, by the setting's key
    "max_num_seqs": ("--max-batched-tokens", "4096"),
    "max_batched_tokens": ("--max-num-seqs", "1"),
    "lora": LORA_MEMORY,
    "lora_root": LORA_MEMORY,
}
each = pytest.mark.parametrize("one", SETTINGS, ids=lambda one: one.key)


def flags_of(*words: str) -> dict[str, Any]:
    """Settings that `serve` parses from its command line."""
    found: dict[str, Any] = build_parser().parse_args(["serve", *words]).given
    return found


def on_a_cpu(device: str) -> Hardware:
    return Hardware()


def resolved(
    words: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    hardware: Hardware | None = None,
) -> Resolution:
    flags = flags_of(*words) | ({} if file is None else {"config": str(file)})
    return resolve(flags, environment or {}, lambda device: hardware or Hardware())


def other_value(one: Setting) -> Any:
    """Allowed, and not the default."""
    if one.choices:
        return next(choice for choice in reversed(one.choices) if choice != one.default)
    if one.kind is bool:
        return not one.default
    if one.is_list:
        return ("a=a.example", "b=b.example") if one.key == "lora" else ("a.example", "b.example")
    if one.is_size:
        return 3 << 20
    if one.kind is str:
        return "some/words=1"
    bounds = one.details.bounds
    if bounds.le is not None:
        value = bounds.le if bounds.le != one.default else bounds.le / 2
    else:
        value = (one.default or 0) + 7
    kind: type[int] | type[float] = one.kind
    return kind(value)


def as_arguments(one: Setting, value: Any) -> list[str]:
    if one.is_switch:
        return [one.flags[0] if value else one.flags[-1]]
    return [one.flags[0], *(value if one.is_list else [one.format(value)])]


def as_toml(one: Setting, value: Any) -> str:
    return f"{one.key} = {json.dumps(one.format(value) if one.is_size else value)}\n"


@each
def test_a_setting_has_help_a_unit_and_a_meaning_of_none(one: Setting) -> None:
    """Help for all, a unit for numbers, and what None means where there is no default."""
    details = one.details
    assert len(details.help) > 10
    assert not details.help.endswith(".")
    is_number = one.kind in (int, float) or any(isinstance(choice, int) for choice in one.choices)
    assert (details.unit is not None) == is_number
    assert one.choices or one.is_list or one.kind in (bool, int, float, str)
    assert (one.default is None) == bool(details.unset)
    if one.default is not None:
        assert one.check(one.default, "default") == one.default


def test_names_are_unique_and_follow_from_the_flag() -> None:
    flags = [flag for one in SETTINGS for flag in one.flags]
    assert len(flags) == len(set(flags))
    assert len(SETTINGS) > 60
    queue = all_settings()["queue_limit"]
    assert queue.flags == ("--queue-limit",)
    assert queue.variable == "PHASESCOPE_QUEUE_LIMIT"
    groups = {one.details.group for one in (*SETTINGS, *attach_settings().values())}
    assert groups == set(Group)


@each
def test_a_value_is_the_same_by_flag_variable_and_file(one: Setting, tmp_path: Path) -> None:
    value = other_value(one)
    path = tmp_path / "serve.toml"
    path.write_text(as_toml(one, value))

    by_flag = resolved(tuple(as_arguments(one, value))).settings[one.key]
    by_variable = resolved(environment={one.variable: one.format(value)}).settings[one.key]
    by_file = resolved(file=path).settings[one.key]
    assert (by_flag.value, by_flag.source) == (value, Source.FLAG)
    assert (by_variable.value, by_variable.source) == (value, Source.ENVIRONMENT)
    assert (by_file.value, by_file.source) == (value, Source.FILE)
    assert by_flag.origin in one.flags
    assert by_variable.origin == one.variable
    assert by_file.origin == str(path)


@each
def test_a_value_reaches_the_struct_that_holds_it(
    one: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engine and gateway get the given value; nothing is copied by hand in between."""
    value = other_value(one)
    words = [*as_arguments(one, value), *NEEDED.get(one.key, ())]
    if one.key == "lora_root":  # has to be there
        monkeypatch.chdir(tmp_path)
        Path(value).mkdir(parents=True)
    if one.key in ("ssl_certfile", "ssl_keyfile", "tenant_keys", "cors_origins"):
        with pytest.raises(ConfigError, match=one.details.flag):
            resolved(tuple(words)).config(MODEL)
        return
    if one.key in MODEL_SETTINGS:
        return  # the model is made of them; see below
    config = resolved(tuple(words)).config(MODEL)
    assert value in [getattr(part, one.field) for part in parts(config) if type(part) is one.owner]


@pytest.mark.parametrize("key", MODEL_SETTINGS[1:])
def test_the_model_is_made_of_its_settings(key: str) -> None:
    """Name and formats reach the model that is served."""
    one = all_settings()[key]
    value = other_value(one)
    found = resolved(("--model", "dummy:tiny", *as_arguments(one, value)))
    model = find_model(found, RecorderConfig(), lambda line: None)
    field = "name" if key == "served_model_name" else key
    assert (model.path, getattr(model, field)) == ("tiny", value)


def parts(config: ServeConfig) -> list[msgspec.Struct]:
    return [config.engine, config.gateway, config.gateway.http, config.logs, config.tracing,
            config.peaks, config.recorder, config.metrics, config.autopilot,
            config.console, config.fleet]  # fmt: skip


@each
def test_without_any_source_the_default_is_in_force(one: Setting) -> None:
    found = resolved().settings[one.key]
    assert (found.value, found.source, found.origin) == (one.default, Source.DEFAULT, "")


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("queue_limit = 1\nport = 2\ndumps_kept = 3\nprefix_cache = false\n")
    environment = {"PHASESCOPE_QUEUE_LIMIT": "11", "PHASESCOPE_PORT": "12"}
    found = resolved(("--queue-limit", "21", "--prefix-cache"), environment, path)

    assert [found[key] for key in ("queue_limit", "port", "dumps_kept")] == [21, 12, 3]
    assert found["prefix_cache"] is True
    assert [str(found.settings[key]) for key in ("queue_limit", "port", "dumps_kept")] == [
        "flag --queue-limit",
        "environment PHASESCOPE_PORT",
        f"file {path}",
    ]


def test_the_file_wins_over_the_hardware_s_default(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("max_num_seqs = 100\n")
    found = resolved(file=path, hardware=Hardware("Big GPU", 80 << 30))

    assert (found["max_num_seqs"], found["max_auto_tokens"]) == (100, 8192)
    assert found.settings["max_auto_tokens"].source is Source.HARDWARE


def test_one_file_can_be_for_all_commands(tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    path.write_text('listen = "127.0.0.1:9100"\nkey_file = "fleet.key"\nrole = "prefill"\n')
    flags = {"config": str(path)}
    node = resolve(flags, {}, known=node_settings())
    assert (node["listen"], node["role"]) == ("127.0.0.1:9100", "prefill")
    assert "listen" not in resolve(flags, {}).settings


def test_an_environment_variable_can_name_the_config_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("port = 2\n")
    found = resolve({}, {"PHASESCOPE_CONFIG": str(path)}, on_a_cpu)
    assert (found["port"], found.config_file) == (2, str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_seqs = 4", "unknown key max_seqs; did you mean max_num_seqs?"),
        ("max-num-seqs = 4", "unknown key max-num-seqs; did you mean max_num_seqs?"),
        ("no_prefix_cache = true", "did you mean prefix_cache?"),
        ("colour = 1", "unknown key colour; `phasescope config` lists all keys"),
        ("[scheduler]\nmax_num_seqs = 4", r"\[scheduler\]: no tables"),
        ("max_num_seqs = 0", "max_num_seqs must be at least 1, not 0"),
        ('max_num_seqs = "4"', "max_num_seqs '4': give a whole number, at least 1"),
        ("max_num_seqs = 4.5", "max_num_seqs 4.5: give a whole number"),
        ("max_num_seqs = true", "max_num_seqs True: give a whole number"),
        ("trace_rate = nan", "trace_rate nan: give a number, from 0 to 1"),
        ('fairness = "lottery"', "fairness lottery: choose one of vtc, fcfs"),
        ('prefix_cache = "on"', "prefix_cache 'on': choose one of true, false"),
        ('max_body = "8Mx"', "max_body '8Mx': give a size such as 512MiB"),
        ("pipeline_depth = 3", "pipeline_depth 3: choose one of 1, 2"),
        ("cors_origins = 1", "cors_origins 1: give a list of texts"),
        ("api_key = 12345678", r"api_key \(not shown\): give a text"),
        ("port = ", "not TOML"),
    ],
)
def test_an_invalid_file_is_refused_with_its_name_and_key(
    text: str, said: str, tmp_path: Path
) -> None:
    """One line: the file, the key, and what is allowed."""
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        resolved(file=path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "12345678" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config .*none\.toml: No such file"):
        resolved(file=tmp_path / "none.toml")


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one.key)
def test_a_number_out_of_bounds_is_refused_from_every_source(one: Setting, tmp_path: Path) -> None:
    """The message differs only in the name of the source; every number has a bound."""
    path = tmp_path / "serve.toml"
    path.write_text(f"{one.key} = -101\n")
    flag, variable = one.flags[0], one.variable
    for found, where in (
        (lambda: resolved((f"{flag}=-101",)), flag),
        (lambda: resolved(environment={variable: "-101"}), variable),
        (lambda: resolved(file=path), f"{path}: {one.key}"),
    ):
        with pytest.raises(ConfigError) as caught:
            found()
        assert str(caught.value).startswith(where)


def test_an_error_of_contradicting_values_names_their_sources(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("max_batched_tokens = 100\n")
    with pytest.raises(ConfigError) as caught:
        resolved(file=path, hardware=Hardware("Big GPU", 80 << 30)).config(MODEL)

    assert "--max-batched-tokens 100 is below --max-num-seqs 256" in str(caught.value)
    assert f"--max-batched-tokens is from file {path}" in str(caught.value)
    assert "--max-num-seqs is from hardware Big GPU" in str(caught.value)


def test_the_journal_and_dumps_are_not_written_to_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removes the oldest files of its folder, whoever wrote them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = str(tmp_path / "phasescope" / "dumps")
    same = ("--journal-dir", folder, "--dump-dir", f"{folder}/../dumps/")
    for words in (same, same[:2]):
        with pytest.raises(ConfigError, match=r"give two folders .*--dump-dir"):
            resolved(words).config(MODEL)
    resolved(("--journal-dir", folder, "--dump-dir", str(tmp_path))).config(MODEL)


@pytest.mark.parametrize("name", ["api_key", "debug_key"])
@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_key_does_not_open_the_server(name: str, text: str) -> None:
    environment = {f"PHASESCOPE_{name.upper()}": text}
    with pytest.raises(ConfigError, match="is empty"):
        resolved(environment=environment).config(MODEL)


def test_a_parser_keeps_no_state_between_two_command_lines() -> None:
    parser: argparse.ArgumentParser = build_parser()
    assert parser.parse_args(["serve", "--port", "1"]).given == {"port": 1}
    assert parser.parse_args(["serve", "--tracing", "off"]).given == {"tracing": "off"}


@given(st.integers(0, 1 << 50))
def test_a_size_is_read_as_it_is_written(count_bytes: int) -> None:
    assert parse_bytes(format_bytes(count_bytes)) == count_bytes
