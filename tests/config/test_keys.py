"""Keys: blanks around them are no part of them, what no header can carry is refused, and no message
has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.agents.reader import DebugReader, ErrorKind, ToolFailed
from dashboards.monitor.client import Client, Unreachable
from dashboards.source import download
from lab.load.run import run_bench
from lab.load.spec import BenchSpec, ClassSpec, Fixed, Users
from service.cli.main import build_parser, main
from service.config.config_file import read_config_file
from service.config.hardware import Hardware
from service.config.resolve import Resolution, resolve
from service.config.setting import ConfigError
from service.config.settings import ModelKind, ModelRef
from service.config.tenant_keys import read_tenant_keys
from telemetry.facts.credentials import bearer
from tests.support.asked import answering
from tests.support.servers.scripted_llm import ScriptedServer, whole

MODEL = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="tiny")
SECRET, TYPED = "never-shown", "never-shown\n"
UNUSABLE = ("never\nshown", "never\tshown", "never\x7fshown", "never\u20acshown")
KEYS = ("api_key", "debug_key")
ASKING = (
    ["diagnose", "URL"], ["timeline", "URL"], ["profile", "URL"], ["explain", "some-id", "URL"],
    ["limits", "URL"], ["top", "URL", "--once"],
)  # fmt: skip


def on_a_cpu(device: str) -> Hardware:
    return Hardware()


def stated(name: str, key: str, how: str, folder: Path) -> Resolution:
    """The settings of `serve` with a key from a flag, a variable or a file."""
    if how == "variable":
        return resolve({}, {f"PHASESCOPE_{name.upper()}": key}, on_a_cpu)
    if how == "file":
        path = folder / "serve.toml"
        path.write_text(f'{name} = """{key}"""\n')
        return resolve({"config": str(path)}, {}, on_a_cpu)
    words = ["serve", f"--{name.replace('_', '-')}", key]
    return resolve(build_parser().parse_args(words).given, {}, on_a_cpu)


@pytest.mark.parametrize("how", ["flag", "variable", "file"])
@pytest.mark.parametrize("name", KEYS)
def test_a_server_s_key_is_one_that_a_client_can_send(name: str, how: str, tmp_path: Path) -> None:
    """A variable that was filled from a file ends in a line end."""
    config = stated(name, f" {TYPED}", how, tmp_path).config(MODEL)

    assert getattr(config.gateway, name) == SECRET


@pytest.mark.parametrize("key", UNUSABLE, ids=repr)
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("how", ["flag", "variable"])
def test_a_server_refuses_a_key_that_no_header_can_carry(
    how: str, name: str, key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="which no header can carry") as caught:
        stated(name, key, how, tmp_path)

    assert name in str(caught.value).lower().replace("-", "_")
    assert "never" not in str(caught.value)


def test_a_config_file_says_which_key_it_is(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text('debug_key = "never\\tshown"\n')
    with pytest.raises(ConfigError, match=r"serve\.toml: debug_key: the key \(not shown\)"):
        read_config_file(str(path), "--config")


def test_a_tenant_s_key_is_one_that_a_client_can_send(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text("team-a usable\nteam-b never\x01shown\n")
    with pytest.raises(ConfigError, match=r"keys\.txt:2: .*no header can carry") as caught:
        read_tenant_keys(str(path))

    assert "never" not in str(caught.value)


@pytest.mark.parametrize("words", ASKING, ids=lambda words: words[0])
def test_a_client_s_variable_may_end_in_a_line_end(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PHASESCOPE_DEBUG_KEY", TYPED)
    with answering() as asked:
        main([asked.url if word == "URL" else word for word in words])

    assert set(asked.keys) == {f"Bearer {SECRET}"}
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err


@pytest.mark.parametrize("words", [*ASKING, ["mcp", "URL"]], ids=lambda words: words[0])
def test_a_client_s_key_that_cannot_be_sent_is_one_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other commands do not mind it."""
    monkeypatch.setenv("PHASESCOPE_DEBUG_KEY", UNUSABLE[0])
    assert main(["http://127.0.0.1:1" if word == "URL" else word for word in words]) == 2

    said = capsys.readouterr().err
    assert "PHASESCOPE_DEBUG_KEY" in said
    assert said.count("\n") == 1
    assert "never" not in said
    assert build_parser().parse_args(["config"]).command == "config"


@pytest.mark.parametrize("key", UNUSABLE, ids=repr)
def test_no_view_quotes_a_key_that_was_given_to_it(key: str, tmp_path: Path) -> None:
    """As in the console's page, which has no key of its own, and in the answers to an agent."""
    with answering() as asked:
        with pytest.raises(Unreachable, match="no header can carry") as page:
            Client(asked.url, key).snapshot()
        with pytest.raises(Unreachable, match="no header can carry") as recorder:
            download(asked.url, tmp_path / "x.journal", key)
        with pytest.raises(ToolFailed, match="no header can carry") as agent:
            DebugReader(asked.url, key).get("/debug/slo")

    assert asked.paths == []
    assert page.value.status == 401
    assert agent.value.kind is ErrorKind.UNAUTHORIZED
    for caught in (page, recorder, agent):
        assert "never" not in str(caught.value)


def test_an_agent_s_key_may_end_in_a_line_end() -> None:
    with answering() as asked:
        DebugReader(asked.url, TYPED).get("/debug/slo")

    assert asked.keys == [f"Bearer {SECRET}"]


def test_the_load_generator_sends_a_key_as_others_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line end in it would begin another header."""
    monkeypatch.setenv("PHASESCOPE_API_KEY", TYPED)
    words = ("--users", "1", "--requests", "1", "--lengths", "8/3")
    with ScriptedServer(lambda number, body: whole()) as server:
        assert main(["bench", server.url, *words]) == 0

    assert all(f"authorization: Bearer {SECRET}\r\n" in head for head in server.heads)
    spec = BenchSpec(
        classes=(ClassSpec(lengths=Fixed(8, 3)),), arrivals=Users(1), requests=1,
        api_key=UNUSABLE[0],
    )  # fmt: skip
    with pytest.raises(ConfigError, match="--api-key: the key") as caught:
        run_bench(spec)
    assert "never" not in str(caught.value)


def test_without_a_key_there_is_no_header() -> None:
    assert bearer(None) == bearer("") == bearer(" \n") == {}
