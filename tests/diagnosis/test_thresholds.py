"""Numbers that decide a verdict are in one table, each with its unit and its origin."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import diagnosis
from diagnosis import thresholds
from diagnosis.promises import thresholds as of_promises
from diagnosis.root_cause import thresholds as of_root_cause
from diagnosis.settings_search import thresholds as of_settings_search
from diagnosis.thresholds import BY_HAND, Threshold, table, thresholds_of

ROOMS = ("detection", "attribution", "promises", "verdicts", "root_cause", "settings_search")
PAGES = sorted(
    page for room in ROOMS for page in (Path(diagnosis.__file__).parent / room).glob("*.py")
)
# sizes of memory, units, and what is fitted (confidence) or asked of a user (capacity, root)
NO_THRESHOLD = {
    "BUCKET_NS", "KEPT_NS", "_KEPT", "_KEPT_OPEN", "_KEPT_SEQUENCES", "_MOST_TENANTS",
    "_MOST_CULPRITS", "_MOST_VICTIMS", "_MOST_EXEMPLARS", "_NAMED", "_REFERENCE_NS", "RESERVE",
    "QUANTILES", "FITTED", "_LEAST_SHARE", "_LEAST_SECONDS", "_MOST", "_KEPT_LIVE", "_PARTS_TOLD",
}  # fmt: skip


def numbers(page: Path) -> set[str]:
    """Names that a module gives to plain numbers."""
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


MODULES = (thresholds, of_root_cause, of_settings_search, of_promises)
ROWS = [row for module in MODULES for row in thresholds_of(module)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_threshold_has_a_unit_a_meaning_and_an_origin(row: Threshold) -> None:
    assert row.unit
    assert row.meaning
    assert row.reason


def test_every_number_of_the_tables_is_annotated() -> None:
    """One that is not would be missing from `table()`."""
    for module in MODULES:
        named = {name for name in vars(module) if name.isupper()} - {"BY_HAND"}
        assert named == {row.name for row in thresholds_of(module)}
    assert any(row.reason == BY_HAND for row in table())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_no_module_has_a_threshold_of_its_own(page: Path) -> None:
    """It would have no documented reason. Annotated numbers are in the table of their package."""
    assert numbers(page) <= NO_THRESHOLD
