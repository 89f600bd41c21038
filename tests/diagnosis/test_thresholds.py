"""Numbers that decide a verdict are in one table, each with unit, meaning and reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest

import diagnosis
from diagnosis.threshold_table import Threshold, modules, table, thresholds_of
from lab import replay

ROOT = Path(diagnosis.__file__).parent
PAGES = sorted(
    page
    for page in chain(ROOT.rglob("*.py"), Path(replay.__file__).parent.glob("*.py"))
    if not page.stem.endswith("thresholds")
)
# sizes of memory, of lists that are shown, quantiles that are shown, tokens: they decide nothing
NO_THRESHOLD = {
    "BUCKET_NS", "KEPT_NS", "_KEPT", "_KEPT_OPEN", "_KEPT_SEQUENCES", "_MOST_TENANTS",
    "_MOST_CULPRITS", "_MOST_VICTIMS", "_MOST_EXEMPLARS", "_NAMED", "QUANTILES",
    "END_TOKEN", "_NO_TOKEN",
    "_KEPT_PAUSES", "_KEPT_SAMPLES", "NEVER_NS", "_KEPT_LIVE", "_PARTS_TOLD",
    "_PUT_TRIES", "_COUNT_NS", "_MOST_KEPT", "_MOST_BYTES", "_STEPS",
    "_TRIED_KEPT", "MOST_CHARACTERS", "_MOST_DOUBLINGS", "_LEAST_TOLD_NS",
    "_SHOWN_QUANTILE", "_GIB", "_GROUP_TICKS", "_TTFT_QUANTILE", "_ITL_QUANTILE",
    # what a file of another tool can hold, and how it is read
    "MOST_VALUE", "MOST", "LATEST_S", "LATEST_MS", "LATEST_NS", "LONGEST_MS", "_LONGEST_S",
    "_APART_NS", "_SERVER_ERROR", "_LENGTH_BYTES", "MAX_LINE_BYTES", "MAX_WHOLE_BYTES",
    "MAX_BYTES", "MAX_KEPT", "MAX_SCRAPE_BYTES", "MAX_SCRAPES", "INTERVAL_NS", "_TIMEOUT_S",
    "_TELL_EVERY_LINES", "LONGEST_SAMPLE", "_HEAD_BYTES", "ALWAYS_NS",
}  # fmt: skip
# nothing, one, a half and a pair; units; a microsecond, so that no length is divided by 0
PLAIN = {0, 1, 2, 0.5, 1e3, 1e6, 1e9, 1e-9}


def numbers(page: Path) -> set[str]:
    """Names that a module gives to plain numbers without an annotation."""
    found: set[str] = set()
    for node in ast.parse(page.read_text()).body:
        if not isinstance(node, ast.Assign):
            continue
        values = [one for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
        is_plain = not any(isinstance(one, ast.Name | ast.Call) for one in ast.walk(node.value))
        if is_plain and values and all(isinstance(one.value, int | float) for one in values):
            targets = [leaf for target in node.targets for leaf in ast.walk(target)]
            found |= {leaf.id for leaf in targets if isinstance(leaf, ast.Name)}
    return found


def compared(tree: ast.AST) -> Iterator[tuple[int, float]]:
    """Line and value of every number that takes part in a comparison: beside a comparison sign, or
    in `min`, `max` and their like."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and _name(node.func) in _CHOOSING:
            parts = list(node.args)
        for leaf in chain.from_iterable(map(ast.walk, parts)):
            if isinstance(leaf, ast.Constant) and type(leaf.value) in (int, float):
                yield leaf.lineno, abs(leaf.value)


_CHOOSING = {"min", "max", "minimum", "maximum", "clip", "quantile", "quantile_sorted"}


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def names_of(module: ModuleType) -> set[str]:
    return {name for name in vars(module) if name.isupper()}


def test_every_number_of_a_module_of_thresholds_has_unit_meaning_and_reason() -> None:
    """One that is not annotated would be missing from the table; what lacks a part of it is refused
    by `thresholds_of`."""
    for module in modules():
        if module.__name__.endswith("thresholds"):
            assert names_of(module) == {row.name for row in thresholds_of(module)}


def test_the_table_has_every_room_that_decides() -> None:
    rooms = {row.room for row in table()}

    assert rooms >= {
        "diagnosis", "diagnosis.attribution", "diagnosis.root_cause", "lab.replay.noise",
        "lab.replay.stolen", "lab.replay.iteration_cost", "telemetry.costs.cost_model",
    }  # fmt: skip


def test_no_two_thresholds_have_the_same_name() -> None:
    """Under one name a reader expects one number, in tables and in code."""
    names = [row.name for row in table()]

    assert sorted(names) == sorted(set(names))


def test_a_number_without_a_reason_is_refused() -> None:
    module = ModuleType("some_thresholds")
    module.__annotations__ = {"LIMIT": Annotated[float, "s", "when it is over"]}
    vars(module)["LIMIT"] = 3.0

    with pytest.raises(ValueError, match="LIMIT: wants unit, meaning, reason"):
        thresholds_of(module)


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
def test_a_reason_says_more_than_that_the_value_was_chosen(row: Threshold) -> None:
    assert row.reason not in {"by hand", row.meaning}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_no_module_has_a_threshold_of_its_own(page: Path) -> None:
    """It would have no documented reason."""
    found = compared(ast.parse(page.read_text()))

    assert numbers(page) <= NO_THRESHOLD
    assert [(line, value) for line, value in found if value not in PLAIN] == []
