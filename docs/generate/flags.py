"""Every command and flag, from the parsers that read them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from docs.generate.markdown import code, one_line, table
from service.cli.main import build_parser
from service.cli.settings_flags import NAMES, SettingAction, ShownDefault
from service.config.setting import Group
from service.config.tree import all_settings

_HEAD = """# Commands and flags

Written from the argument parsers by `make docs`. `phasescope COMMAND --help` says the same.
"""
_INTERNAL = "(internal)"
_OURS = "PHASESCOPE_"  # variables that give flags their defaults
_STATED = re.compile(r" \(default:? ([^)]+)\)")
_WORDS: dict[object, str] = {int: "N", float: "X"}
_SERVE, _ATTACH, _NODE = "serve", "attach", "engine"


def document() -> str:
    """The whole page."""
    with _no_variables():
        parser = build_parser()
        lines = [_HEAD, *_index(parser)]
        for name, helped, command in _commands(parser):
            lines += _command(name, helped, command)
    return "\n".join([*lines, ""])


def _index(parser: argparse.ArgumentParser) -> list[str]:
    rows = [[f"[{code(name)}](#phasescope-{name})", told] for name, told, _ in _commands(parser)]
    return table(["command", "what it does"], rows)


def _commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Name, one line and parser of each that people call."""
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for shown in action._choices_actions:
        helped = one_line(shown.help)
        if not helped.startswith(_INTERNAL):
            yield shown.dest, helped, action.choices[shown.dest]


def _command(name: str, helped: str, parser: argparse.ArgumentParser) -> list[str]:
    lines = [
        "",
        f"## phasescope {name}",
        "",
        one_line(parser.description) or f"{_sentence(helped)}.",
    ]
    own, titled = parser._action_groups[:2], parser._action_groups[2:]
    mine = [action for group in own for action in group._group_actions]
    parts = [one for one in mine if isinstance(one, argparse._SubParsersAction)]
    lines += _arguments([one for one in mine if one not in parts], parser)
    for part in parts:
        for told in part._choices_actions:
            inner = part.choices[told.dest]
            lines += ["", f"### {name} {told.dest}", "", f"{_sentence(told.help)}."]
            lines += _arguments(inner._actions, inner)
    if any(isinstance(action, SettingAction) for action in parser._actions):
        lines += ["", NAMES]
        if name not in (_SERVE, _ATTACH, _NODE):  # it has the same ones as serve
            return lines
    special = {_ATTACH: Group.ATTACH, _NODE: Group.FLEET}.get(name)
    if special is not None:
        lines += ["", _shared(titled)]
        titled = [group for group in titled if group.title == special.value]
    for group in titled:
        shown = _arguments(group._group_actions, parser)
        lines += ["", f"### {name}: {group.title}", *shown] if shown else []
    return lines


def _sentence(text: str | None) -> str:
    found = one_line(text)
    return f"{found[0].upper()}{found[1:]}"


def _shared(groups: Sequence[argparse._ArgumentGroup]) -> str:
    """The flags that a command has from `serve`; a default that differs is said."""
    serve, found = all_settings(), list[str]()
    for group in groups:
        for action in group._group_actions:
            one = action.setting if isinstance(action, SettingAction) else None
            known = None if one is None else serve.get(one.key)
            if one is not None and known is not None:
                differs = f" (default {one.default})" if one.default != known.default else ""
                found.append(code(one.details.flag) + differs)
    return f"Of the flags of `serve` it has {', '.join(found)}."


def _arguments(actions: list[argparse.Action], parser: argparse.ArgumentParser) -> list[str]:
    """A table of them after an empty line; nothing when there are none to show."""
    shown = [
        one
        for one in actions
        if not isinstance(one, argparse._HelpAction) and one.help != argparse.SUPPRESS
    ]
    rows = [[_name(one), _default(one), _meaning(one, parser)] for one in shown]
    return ["", *table(["argument", "default", "meaning"], rows)] if rows else []


def _name(action: argparse.Action) -> str:
    """The name as it is typed: the flag and what follows it."""
    value = _placeholder(action)
    if not action.option_strings:
        return code(value if action.metavar else action.dest)
    return code(" ".join([", ".join(action.option_strings), value]).strip())


def _placeholder(action: argparse.Action) -> str:
    """What stands for the value: the parser's own word, the choices, or one for its type."""
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        value = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        value = "{" + ",".join(str(one) for one in action.choices) + "}"
    else:
        value = _WORDS.get(action.type, "TEXT")
    return f"{value} ..." if action.nargs == "+" else value


def _default(action: argparse.Action) -> str:
    """What it is without the flag, where that is a value of its own."""
    value = action.default
    if isinstance(value, ShownDefault):
        return code(value.text) if value.is_value else value.text
    if value is None or value is False or value in ("", argparse.SUPPRESS, []):
        return ""
    return code(str(value))


def _meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Its help text with values put in, but without what only repeats the default."""
    text = argparse.HelpFormatter(prog=parser.prog)._expand_help(action) if action.help else ""
    found = _STATED.search(text)
    if found is None or action.default is None:
        return text
    stated = found.group(1).lower()
    shown = str(action.default).lower()
    return _STATED.sub("", text) if stated in (shown, shown.removesuffix(".0")) else text


@contextmanager
def _no_variables() -> Iterator[None]:
    """The page is the same whatever the environment of whoever writes it."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_OURS)}
    try:
        yield
    finally:
        os.environ.update(kept)
