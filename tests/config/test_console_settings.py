"""`--console`: what it needs, and how its process is started and ended."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from service.cli.console import allowed_hosts, require_console, token_of
from service.cli.serve import register
from service.cli.settings_flags import checked, resolved
from service.composition.console import ConsoleProcess
from service.config.console_settings import CONSOLE_TOKEN
from service.config.hardware import Hardware
from service.config.resolve import resolve
from service.config.settings import ConfigError, ServeConfig

KEY, TOKEN = "never-in-arguments", "a-token-of-some-length"


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
def test_the_process_gets_key_and_token_in_its_environment_and_ends_with_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    """The interpreter is replaced by one that writes down what it was given."""
    stand_in, seen = tmp_path / "python", tmp_path / "seen"
    secrets = f'"${CONSOLE_TOKEN}" "$PHASESCOPE_DEBUG_KEY"'
    stand_in.write_text(f'#!/bin/sh\nprintf "%s|" "$@" {secrets} > {seen}\ncat\n')
    monkeypatch.setenv(CONSOLE_TOKEN, TOKEN)
    stand_in.chmod(0o700)
    monkeypatch.setattr(sys, "executable", os.fspath(stand_in))
    console = ConsoleProcess(config_of("--console", flag, KEY, "--host", "0.0.0.0"), 8123)

    console.start()
    console.stop()

    *words, token, key, _ = seen.read_text().split("|")
    assert (token, key) == (TOKEN, KEY)
    assert not {KEY, TOKEN} & set(words)
    assert words[2:] == ["console", "http://127.0.0.1:8123", "--port", "8090", "--with-parent"]


def test_nothing_is_started_without_the_flag() -> None:
    console = ConsoleProcess(config_of(), 8123)
    console.start()
    console.stop()


def test_a_token_that_is_made_is_shown_on_a_terminal_and_nowhere_else() -> None:
    """What is no terminal is a log, a journal or a pipe."""
    token, shown = token_of({}, is_terminal=True)
    another, _ = token_of({CONSOLE_TOKEN: ""}, is_terminal=True)

    assert shown == token
    assert len({token, another}) == 2
    assert all(len(one) >= 43 for one in (token, another))  # 32 bytes
    with pytest.raises(ConfigError, match=f"no terminal.*set {CONSOLE_TOKEN} to 16 characters"):
        token_of({}, is_terminal=False)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_token_that_is_given_is_named_and_not_shown(is_terminal: bool) -> None:
    """It may end as a file does."""
    assert token_of({CONSOLE_TOKEN: f" {TOKEN}\n"}, is_terminal) == (TOKEN, f"${CONSOLE_TOKEN}")


@pytest.mark.parametrize("given", ["short", "with a blank in it", "a+b/c=d+e/f=g+h/i=", "é" * 20])
def test_a_token_that_is_guessed_or_means_another_thing_in_an_address_is_refused(
    given: str,
) -> None:
    with pytest.raises(ConfigError, match=CONSOLE_TOKEN) as caught:
        token_of({CONSOLE_TOKEN: given}, is_terminal=True)

    assert given not in str(caught.value)


def test_names_of_a_proxy_are_names() -> None:
    assert allowed_hosts(["Console.example", "b.example:8443"]) == (
        "console.example", "b.example:8443",
    )  # fmt: skip
    for name in ("", "*", "https://console.example", "console.example/x"):
        with pytest.raises(ConfigError, match="--allowed-hosts"):
            allowed_hosts([name])


def test_the_server_knows_the_variable_of_its_console() -> None:
    found = resolve({}, {CONSOLE_TOKEN: TOKEN}, lambda device: Hardware())

    assert found.unknown_variables == ()
