"""The steps of a symptom's runbook, read from its page.

Runbooks use little of Markdown: paragraphs, lists, indented code, tables, `code` and links. A link
is kept as its text, because a report is read where the repository is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from diagnosis.routed.symptoms import FleetSymptom
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.runbook import runbook_path

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ITEM = re.compile(r"^(?:(\d+)\.|-) +(.*)$")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_CODE = re.compile(r"(`[^`]+`)")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")  # a word that a shell takes as it is
_INDENT = 4


class Kind(StrEnum):
    """The kind of a block."""

    TEXT = "text"
    STEPS = "steps"
    POINTS = "points"
    CODE = "code"


class Piece(msgspec.Struct, frozen=True):
    """Words, or code, within a line."""

    text: str
    is_code: bool = False


class Block(msgspec.Struct, frozen=True):
    """A paragraph, a list, or a block of code; each entry of `lines` is a paragraph, an item or a
    line of code. `first` is the number of the first item."""

    kind: Kind
    lines: tuple[tuple[Piece, ...], ...]
    first: int = 1


Sections = dict[str, tuple[Block, ...]]


def runbook(symptom: Symptom | FleetSymptom, names: Mapping[str, str]) -> Sections:
    """The page's sections by heading. `names` replace words in capitals, such as URL or CULPRIT, in
    code; a name that a shell would not take as one word is left as it is. Empty without a page."""
    try:
        text = runbook_path(symptom).read_text(encoding="utf-8")
    except OSError:
        return {}
    safe = {word: name for word, name in names.items() if _SAFE.fullmatch(name)}
    parts = _HEADING.split(text)
    return {
        heading: blocks(body, safe) for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def blocks(body: str, names: Mapping[str, str]) -> tuple[Block, ...]:
    """The blocks of a section."""
    found: list[Block] = []
    for part in re.split(r"\n\s*\n", body.strip("\n")):
        lines = part.splitlines()
        if not part.strip():
            continue
        first = lines[0]
        if _ITEM.match(first):
            block = _list(lines, names)
        elif first.startswith(" " * _INDENT):
            block = Block(Kind.CODE, tuple(_code_lines(lines, names)))
        elif first.lstrip().startswith("|"):
            block = _table(lines, names)
        else:
            block = Block(Kind.TEXT, (_pieces(" ".join(map(str.strip, lines)), names),))
        found.append(block)
    return tuple(found)


def _list(lines: list[str], names: Mapping[str, str]) -> Block:
    items: list[list[str]] = []
    numbers: list[int] = []
    for line in lines:
        item = _ITEM.match(line)
        if item is None:
            items[-1].append(line.strip())
            continue
        items.append([item[2]])
        if item[1] is not None:
            numbers.append(int(item[1]))
    texts = tuple(_pieces(" ".join(item), names) for item in items)
    return Block(Kind.STEPS, texts, numbers[0]) if numbers else Block(Kind.POINTS, texts)


def _table(lines: list[str], names: Mapping[str, str]) -> Block:
    """A point for each row below the head: its cells with a dash between them."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[2:]]
    return Block(Kind.POINTS, tuple(_pieces(" - ".join(row), names) for row in rows))


def _code_lines(lines: list[str], names: Mapping[str, str]) -> list[tuple[Piece, ...]]:
    return [(Piece(_filled(line[_INDENT:], names), is_code=True),) for line in lines]


def _pieces(text: str, names: Mapping[str, str]) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    for part in _CODE.split(_LINK.sub(r"\1", text)):
        if part.startswith("`") and part.endswith("`") and len(part) > 1:
            pieces.append(Piece(_filled(part[1:-1], names), is_code=True))
        elif part:
            pieces.append(Piece(part))
    return tuple(pieces)


def _filled(code: str, names: Mapping[str, str]) -> str:
    for word, name in names.items():
        code = re.sub(rf"\b{word}\b", name, code)
    return code
