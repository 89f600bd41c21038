"""`--console`: what it needs, and how its process is started and ended."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from service.cli.console import require_console
from service.cli.serve import register
from service.cli.settings_flags import checked, resolved
from service.composition.console import ConsoleProcess
from service.config.settings import ConfigError, ServeConfig

KEY = "never-in-arguments"


def config_of(*words: str) -> ServeConfig:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    return checked(resolved(parser.parse_args(["serve", "--model", "dummy:tiny", *words])))


def test_the_console_is_off_unless_it_is_asked_for() -> None:
    assert not config_of().console.enabled
    assert config_of("--console", "--console-port", "9000").console.port == 9000


def test_a_console_beside_a_server_without_plain_http_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="phasescope console URL"):
        config_of("--console", "--uds", str(tmp_path / "s"))


def test_without_its_library_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"pip install 'phasescope\[console\]'"):
        require_console()


@pytest.mark.parametrize("flag", ["--debug-key", "--api-key"])
def test_the_process_gets_the_key_in_its_environment_and_ends_with_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    """The interpreter is replaced by one that writes down what it was given."""
    stand_in, seen = tmp_path / "python", tmp_path / "seen"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s|" "$@" "$PHASESCOPE_DEBUG_KEY" > {seen}\ncat\n')
    stand_in.chmod(0o700)
    monkeypatch.setattr(sys, "executable", os.fspath(stand_in))
    console = ConsoleProcess(config_of("--console", flag, KEY, "--host", "0.0.0.0"), 8123)

    console.start()
    console.stop()

    *words, key, _ = seen.read_text().split("|")
    assert key == KEY
    assert KEY not in words
    assert words[2:] == ["console", "http://127.0.0.1:8123", "--port", "8090", "--with-parent"]


def test_nothing_is_started_without_the_flag() -> None:
    console = ConsoleProcess(config_of(), 8123)
    console.start()
    console.stop()
