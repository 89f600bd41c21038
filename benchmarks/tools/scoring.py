"""Whether calls are those that the test expects, by the rules of its own checker.

A call is right if its function is, if each parameter that was given has an accepted value, and if
none is missing that may not be. Texts are compared without case, spaces and punctuation. Calls of
one answer may come in any order. The rules are written anew from the test's description.
"""

from __future__ import annotations

import re
from typing import Any

_IGNORED_IN_TEXT = re.compile(r"[ ,./\-_*^'\"]")
MISSING_ALLOWED = ""
"""Among the accepted values: the parameter may be left out."""


def all_right(
    calls: list[tuple[str, dict[str, Any]]], expected: list[dict[str, dict[str, list[Any]]]]
) -> bool:
    """Whether each expected call is there, and no other."""
    if len(calls) != len(expected):
        return False
    open_calls = list(calls)
    for wanted in expected:
        ((name, accepted),) = wanted.items()
        found = next((call for call in open_calls if is_right(*call, name, accepted)), None)
        if found is None:
            return False
        open_calls.remove(found)
    return True


def is_right(
    function: str, arguments: dict[str, Any], name: str, accepted: dict[str, list[Any]]
) -> bool:
    """Whether one call is the expected one."""
    if function != name or not arguments.keys() <= accepted.keys():
        return False
    for parameter, values in accepted.items():
        if parameter not in arguments:
            if MISSING_ALLOWED not in values:
                return False
        elif not any(_same(arguments[parameter], value) for value in values):
            return False
    return True


def _same(given: Any, accepted: Any) -> bool:
    if isinstance(given, str) and isinstance(accepted, str):
        return _plain(given) == _plain(accepted)
    if isinstance(given, bool) or isinstance(accepted, bool):
        return given is accepted
    if isinstance(given, list) and isinstance(accepted, list):
        pairs = zip(given, accepted, strict=False)
        return len(given) == len(accepted) and all(_same(a, b) for a, b in pairs)
    if isinstance(given, dict) and isinstance(accepted, dict):
        listed = {key: v if isinstance(v, list) else [v] for key, v in accepted.items()}
        return is_right("", given, "", listed)
    return bool(given == accepted)


def _plain(text: str) -> str:
    return _IGNORED_IN_TEXT.sub("", text).lower()
