"""Fills the tables of docs/results/default_settings.md; without the page it begins one.

    python -m benchmarks.default_settings.page

A table stands between `<!-- table NAME -->` and `<!-- end -->`; the words around it are kept.
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
NEW = Path(__file__).with_name("page.md")
_BLOCK = re.compile(r"<!-- table (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str, data: dict[str, Any]) -> str:
    """The page with each table made anew. Raises KeyError for a table that does not exist."""
    return _BLOCK.sub(
        lambda found: f"<!-- table {found[1]} -->\n{TABLES[found[1]](data)}\n<!-- end -->", text
    )


def main() -> int:
    data = json.loads(RESULTS.read_text())
    PAGE.write_text(filled((PAGE if PAGE.exists() else NEW).read_text(), data))
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
