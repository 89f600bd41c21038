"""Which modules a pattern of compressed-tensors names: what stands after `re:` in its lists.

Regular expressions of a checkpoint are never run, since some take for ever. What checkpoints have
is names with `.*` between their parts (`re:.*lm_head`, `re:model.visual.*`, `re:.*mlp\\.gate$`);
these are compared from left to right, and all others are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_STEP = re.compile(r"(?P<any>\.\*)|\\(?P<escaped>[.\-])|(?P<plain>[\w.\-])", re.ASCII)
_ANY_CHARACTER = "."  # a dot that is not escaped; an escaped one is _DOT
_DOT = "\\."


@dataclass(frozen=True, slots=True)
class NamePattern:
    """`parts` are the characters between `.*`; after the last of them a name ends where `to_end`
    says so. It fits from the beginning of a name, as `re.match` does."""

    parts: tuple[tuple[str, ...], ...]
    to_end: bool

    def fits(self, name: str) -> bool:
        first, *others = self.parts
        if not _is_at(first, name, 0):
            return False
        at = len(first)
        if not others:
            return not self.to_end or at == len(name)
        for part in others[:-1]:
            at = _first_from(part, name, at) + len(part)
            if at > len(name):
                return False
        last = others[-1]
        if self.to_end:
            return len(name) - len(last) >= at and _is_at(last, name, len(name) - len(last))
        return _first_from(last, name, at) + len(last) <= len(name)


def name_pattern(expression: str) -> NamePattern | None:
    """None for an expression that is more than names with `.*` between them."""
    inner = expression.removeprefix("^")
    to_end = inner.endswith("$") and not inner.endswith("\\$")
    inner = inner.removesuffix("$")
    parts: list[list[str]] = [[]]
    at = 0
    while at < len(inner):
        step = _STEP.match(inner, at)
        if step is None:
            return None
        at = step.end()
        if step["any"]:
            parts.append([])
        elif step["escaped"]:
            parts[-1].append(_DOT if step["escaped"] == "." else step["escaped"])
        else:
            parts[-1].append(step["plain"])
    return NamePattern(tuple(map(tuple, parts)), to_end)


def _is_at(part: tuple[str, ...], name: str, at: int) -> bool:
    """Whether the part is in the name from there on."""
    found = name[at : at + len(part)]
    return len(found) == len(part) and all(map(_is_one, part, found))


def _is_one(wanted: str, found: str) -> bool:
    return wanted in (_ANY_CHARACTER, found) or (wanted == _DOT and found == ".")


def _first_from(part: tuple[str, ...], name: str, begin: int) -> int:
    """The first place from `begin` on where the part is; behind the name where it is nowhere."""
    places = range(begin, len(name) - len(part) + 1)
    return next((at for at in places if _is_at(part, name, at)), len(name) + 1)
