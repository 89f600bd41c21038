"""Grammars in GBNF, the notation of llama.cpp, written in that of the grammar library, Lark.

The library has a converter, in Python, whose time grows with the square of the text in two places:
in its guess at the notation, one regular expression that keeps the interpreter lock to its end (70
s for the longest text of empty lines), and in its search for the rules that are terminals (8 s for
the longest chain of rules). A client sizes the text, and the lock is the engine's. So the guess is
made line by line here, and the converter gets each rule behind those that it leads to, for which
one pass suffices: of the longest texts none that was tried took much more than a second to compile.
"""

from __future__ import annotations

import re
from collections import defaultdict

from llguidance.gbnf_to_lark import ASTNode, GrammarParser, RuleNode, RuleRefNode, resolve

# no line is read twice, and no run of white space
_LARK = re.compile(r"(?m)^[^\S\n]*+(?:%llguidance\b|start\s*+:)")


def as_lark(text: str) -> str:
    """A grammar in Lark as it is, one in GBNF in Lark. Raises what Python happens to raise."""
    return text if is_lark(text) else _lark_of(text)


def is_lark(text: str) -> bool:
    """Whether it is Lark already, by the library's own rule."""
    return _LARK.search(text) is not None


def _lark_of(gbnf: str) -> str:
    rules = GrammarParser().parse(gbnf)
    written = list(rules.values())
    resolve(_used_first(rules))
    return "\n".join(["%llguidance {}\n", *map(str, written), ""])


def _used_first(rules: dict[str, RuleNode]) -> dict[str, RuleNode]:
    """The same rules, each behind those that it leads to. Those that lead back to themselves, which
    are no terminals, come last with all that lead to them."""
    users: dict[str, list[str]] = defaultdict(list)
    left: dict[str, int] = {}
    for name, rule in rules.items():
        used = _names_in(rule)
        left[name] = len(used)
        for one in used:
            users[one].append(name)
    ordered = [name for name, count in left.items() if not count]
    for name in ordered:  # it grows meanwhile
        for user in users[name]:
            left[user] -= 1
            if not left[user]:
                ordered.append(user)
    return {name: rules[name] for name in dict.fromkeys([*ordered, *rules])}


def _names_in(rule: RuleNode) -> set[str]:
    """Of the rules that it leads to."""
    names: set[str] = set()
    nodes: list[ASTNode] = [rule]
    while nodes:
        node = nodes.pop()
        if isinstance(node, RuleRefNode):
            names.add(node.name)
        nodes.extend(node.children())
    return names
