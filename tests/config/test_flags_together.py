"""Flags that would be ignored beside others are refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.main import main

REFUSED = (
    ("diagnose --root --settings --only-runtime", "--only-runtime"),
    ("diagnose --root --settings --without order", "--without"),
    ("diagnose --only-runtime", "--only-runtime"),
    ("diagnose --without order", "--without"),
    ("diagnose --root --slo-file classes.toml", "--slo-file"),
    ("diagnose --window 60:20", "--window"),
    ("diagnose --reference 120:60", "--reference"),
    ("diagnose --settings --window 60:20 --reference 120:60", "--window, --reference"),
    ("diagnose --settings --baseline well.baseline", "--baseline"),
    ("diagnose --save-baseline new.baseline --root", "--root"),
    ("diagnose --save-baseline new.baseline --settings --json", "--settings, --json"),
    ("diagnose --save-baseline new.baseline --baseline well.baseline", "--baseline"),
    ("replay --exact --set max_num_seqs=4", "--set"),
    ("replay --exact -o new.journal", "--output"),
    ("replay --exact --noise none", "--noise"),
    ("replay --exact --seed 0", "--seed"),
    ("replay --exact --cost-from other.journal", "--cost-from"),
    ("replay --exact --slo-file classes.toml", "--slo-file"),
    ("replay --exact --set kv_blocks=9 -o new.journal --noise none", "--set, --noise, --output"),
)
TAKEN = (
    "diagnose --settings --only-runtime --without order",
    "diagnose --root --settings --slo-file classes.toml",
    "diagnose --root --settings --window 60:20 --reference 120:60",
    "diagnose --root --settings --baseline well.baseline",
    "diagnose --slo-file classes.toml --baseline well.baseline --json",
    "diagnose --save-baseline new.baseline",
    "replay --exact --json --python python3",
    "replay --set max_num_seqs=4 --noise drawn --seed 3 -o new.journal",
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(words: str) -> int:
    """Of a record that is not there."""
    command, *flags = words.split()
    return main([command, "missing.journal", *flags])


@pytest.mark.parametrize(("words", "flags"), REFUSED, ids=[words for words, _ in REFUSED])
def test_a_flag_that_would_be_ignored_is_named(
    words: str, flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2

    said = capsys.readouterr().err
    assert said.startswith(f"phasescope: {flags} goes with")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", TAKEN)
def test_flags_that_go_together_are_taken(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The record, or a file that is named, is looked for."""
    assert run(words) in (1, 2)

    said = capsys.readouterr().err
    assert "No such file" in said
    assert "goes with" not in said
