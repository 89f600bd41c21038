"""Fills the tables of docs/results/default_settings.md; without the page it begins one.

    python -m benchmarks.default_settings.page

A table stands between `<!-- table NAME -->` and `<!-- end -->`; the words around it are kept. Of
`gpu_NAME` the figures are those of a GPU, of `amx_NAME` those of a CPU with a matrix unit.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.default_settings.acceptance import RESULTS
from benchmarks.default_settings.tables import TABLES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "default_settings.md"
OTHERS = {name: RESULTS.with_name(f"{name}_default_settings.json") for name in ("gpu", "amx")}
NEW = Path(__file__).with_name("page.md")
_BLOCK = re.compile(r"<!-- table (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str, data: dict[str, Any], others: dict[str, dict[str, Any]]) -> str:
    """The page with each table made anew; `others` are results of other machines by their name.
    Raises KeyError for a table that does not exist."""

    def table(name: str) -> str:
        machine, _, kind = name.partition("_")
        return TABLES[kind](others[machine]) if machine in others else TABLES[name](data)

    return _BLOCK.sub(
        lambda found: f"<!-- table {found[1]} -->\n{table(found[1])}\n<!-- end -->", text
    )


def read() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The committed results, and those of other machines."""
    others = {name: json.loads(path.read_text()) for name, path in OTHERS.items()}
    return json.loads(RESULTS.read_text()), others


def main() -> int:
    PAGE.write_text(filled((PAGE if PAGE.exists() else NEW).read_text(), *read()))
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
