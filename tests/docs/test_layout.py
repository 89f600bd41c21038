"""The size of what a reader meets: folders, files and functions stay within a screen or two."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("service", "telemetry", "diagnosis", "dashboards", "lab")
NOT_SHIPPED = ("benchmarks", "docs")
FOLDER_MODULES, FILE_LINES, FUNCTION_LINES, TOP_LEVEL = 20, 350, 60, 20


def packages(*tops: str) -> list[Path]:
    """Folders with Python modules, hooks that are loaded from outside left out."""
    found = {path.parent for top in tops for path in (ROOT / top).rglob("*.py")}
    return sorted(folder for folder in found if folder.name != "hooks")


def files(*tops: str) -> list[Path]:
    return sorted(path for top in tops for path in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("top", [*PRODUCT, *NOT_SHIPPED, "tests"])
def test_no_folder_has_more_modules_than_fit_on_a_screen(top: str) -> None:
    counts = {
        str(folder.relative_to(ROOT)): sum(p.name != "__init__.py" for p in folder.glob("*.py"))
        for folder in packages(top)
    }
    assert {name: count for name, count in counts.items() if count > FOLDER_MODULES} == {}


def test_the_top_level_fits_on_a_screen() -> None:
    names = [path.name for path in ROOT.iterdir() if not path.name.startswith(".")]
    ignored = {"build", "dist", "__pycache__", "shared"}
    assert len(set(names) - ignored) <= TOP_LEVEL


@pytest.mark.parametrize("top", [*PRODUCT, *NOT_SHIPPED])
def test_files_are_short(top: str) -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files(top)}
    assert {name: n for name, n in lengths.items() if n > FILE_LINES} == {}


@pytest.mark.parametrize("top", [*PRODUCT, *NOT_SHIPPED])
def test_functions_are_short(top: str) -> None:
    found = {}
    for path in files(top):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert found == {}


@pytest.mark.parametrize("folder", packages(*PRODUCT), ids=lambda p: str(p.relative_to(ROOT)))
def test_each_package_says_what_is_in_it(folder: Path) -> None:
    text = (folder / "__init__.py").read_text()
    assert ast.get_docstring(ast.parse(text))
