"""Every column of the files that `phasescope export` writes."""

from __future__ import annotations

from dashboards.export.columns import TABLES
from docs.generate.markdown import code, table

_HEAD = """# Columns of exported files

Written from `dashboards/export/columns.py` by `make docs`. [Export](../operate/export.md) says how
to make the files, and has example queries.

A column is added at the end of its table; names and kinds stay as they are. Null means: not
measured, or there is none. Columns in `ns` that are stamps are of one monotonic clock, the same in
all three files. Each column of a file carries its unit and its meaning as metadata.
"""


def document() -> str:
    """The whole page."""
    lines = [_HEAD]
    for one in TABLES:
        rows = [
            [code(column.name), column.kind.value, column.unit.value, column.meaning]
            for column in one.columns
        ]
        lines += [f"## {one.file_name}", "", one.meaning, ""]
        lines += [*table(["column", "kind", "unit", "meaning"], rows), ""]
    return "\n".join(lines)
