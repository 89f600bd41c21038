"""`phasescope limits`: the limits of a running server, and other ones while it runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from service.cli.say import complain, say
from service.cli.source import DEFAULT_URL, add_debug_key
from service.config.settings import ConfigError

if TYPE_CHECKING:
    from telemetry.facts.limits import LimitsView, SetBy

_SHOWN_CHANGES = 5


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "limits", help="limits of a running server, and how to change them"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="URL | NAME=VALUE",
        help=f"the server (default {DEFAULT_URL}), then limits to change, as in max_num_seqs=16, "
        "max_batched_tokens=auto, itl_target_ms=none or tenant_weights=a:2,b:0.5 (a wrong name is "
        "answered with the list)",
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="the reason, which is recorded")
    parser.add_argument("--by", metavar="NAME", help="who changes them (default operator)")
    parser.add_argument("--json", action="store_true", help="print the server's answer as JSON")
    add_debug_key(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import msgspec

    from dashboards.monitor.client import Client, Unreachable

    url, changes = _split(args.words)
    if not changes and (args.why or args.by):
        raise ConfigError("--why and --by go with a change: give NAME=VALUE")
    client = Client(url, args.debug_key)
    try:
        view = client.set_limits(_body(changes, args.by, args.why)) if changes else client.limits()
    except Unreachable as error:
        complain(error)
        return 1
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(view)).decode())
    else:
        _say(view)
    return 0


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The URL, and the words NAME=VALUE. Raises ConfigError."""
    is_url = bool(words) and ("=" not in words[0] or "://" in words[0])
    url, changes = (words[0], words[1:]) if is_url else (DEFAULT_URL, words)
    for word in changes:
        if "=" not in word:
            raise ConfigError(f"{word!r} is no change: give NAME=VALUE, such as max_num_seqs=16")
    return url, changes


def _body(changes: list[str], by: str | None, why: str) -> dict[str, Any]:
    """The body of PUT /debug/limits. Raises ConfigError."""
    from dashboards.monitor.limit_values import limit_value

    body: dict[str, Any] = {"why": why} if by is None else {"why": why, "by": by}
    for word in changes:
        name, _, text = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        try:
            body[name] = limit_value(name, text)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return body


def _say(view: LimitsView) -> None:
    from dashboards.monitor.panels import limit_text

    rows = [("limit", "now", "at the start")]
    rows += [
        (name, limit_text(limit.value), limit_text(limit.at_start))
        for name, limit in view.limits.items()
    ]
    changed = [limit.changed for limit in view.limits.values()]
    last = ["changed", *("" if one is None else _signed(one) for one in changed)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, said in zip(rows, last, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        say("  ".join([*cells, said]).rstrip())
    if view.changes:
        say("", "last changes")
    for change in view.changes[-_SHOWN_CHANGES:]:
        words = " ".join(f"{name}={limit_text(value)}" for name, value in change.limits.items())
        say(f"  {words or 'nothing'}, {_signed(change.set)}")


def _signed(by: SetBy) -> str:
    """Who, when and why."""
    said = f"{_ago(by.ago_s)} ago by {by.by}"
    return f"{said}: {by.why}" if by.why else said


def _ago(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
