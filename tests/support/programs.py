"""The command lines of our own programs, read by their own parsers and not carried out."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest


class CommandRead(BaseException):
    """The program has read its command line and would begin."""


def program(name: str) -> ModuleType:
    """What `python -m NAME` runs."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    return importlib.import_module(f"{name}.__main__" if spec.submodule_search_locations else name)


def read_command(name: str, words: list[str]) -> None:
    """Raises SystemExit when the program refuses these words."""
    module = program(name)
    read = argparse.ArgumentParser.parse_args

    def parse_args(parser: argparse.ArgumentParser, *given: Any) -> None:
        read(parser, *given)
        raise CommandRead

    if not hasattr(module, "argparse"):
        assert not words, (name, words)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *words])
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        with pytest.raises(CommandRead):
            module.main()
