"""Words of a journal or a server may hold anything; on a terminal they are words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dashboards.printable import printable
from dashboards.terminal import Plain, terminal
from diagnosis.verdicts.classifier import Diagnosis
from service.cli.diagnose import _print_diagnosis
from service.cli.main import main
from telemetry.facts.clock import ManualClock
from telemetry.facts.records import EngineDied
from telemetry.journal.journal import write_journal

TITLE = "\x1b]0;all is well\x07"
"""As terminals take it: the title of the window."""


def printed(drawn: RenderableType, width: int = 60) -> str:
    console = terminal(width)
    with console.capture() as capture:
        console.print(Plain(drawn))
    return capture.get()


@given(st.text())
def test_a_printable_text_has_the_same_characters_but_for_those_that_are_not(text: str) -> None:
    said = printable(text)
    assert said.isprintable()
    assert len(said) == len(text)
    assert all(was == now or not was.isprintable() for was, now in zip(text, said, strict=True))


@given(st.text())
def test_a_screen_steers_no_terminal_whatever_is_drawn(text: str) -> None:
    table = Table("name", "value")
    table.add_row(text, "1")
    said = printed(Group(Panel(Text(text)), table))
    assert all(line.isprintable() for line in said.split("\n"))


def test_a_screen_shows_names_as_they_are() -> None:
    """No part of them is a colour, the end of one, or an emoji; styles of ours are drawn."""
    table = Table("name", box=None)
    table.add_row("[red]one[/blue] :x:")
    assert "[red]one[/blue] :x:" in printed(table)
    assert printed(Text("one", style="red")) == "one\n"


def test_diagnose_prints_no_control_character_of_a_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "died.journal"
    died = EngineDied(at_ns=5, exit_code=None, detail=f"{TITLE}no such model", restart=0)
    write_journal(path, [died], ManualClock(), "rolling")
    assert main(["diagnose", str(path)]) == 0
    said = capsys.readouterr().out

    assert "]0;all is well" in said
    assert all(line.isprintable() for line in said.split("\n"))


def test_what_cannot_be_told_is_not_called_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    why = "requests are delayed, and nothing recorded explains it"
    _print_diagnosis(Diagnosis((), 10**10, 90, True, verdict="indeterminate", why=why))
    assert capsys.readouterr().out == f"indeterminate: {why}\n"


def test_an_error_about_a_journal_is_one_line_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{TITLE}\n.journal"
    path.write_bytes(b"no journal")

    assert main(["diagnose", "--root", str(path)]) == 1
    (line, end) = capsys.readouterr().err.split("\n")
    assert line.isprintable()
    assert end == ""
