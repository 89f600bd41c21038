"""The batch: rows are requests, columns steps."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from dashboards.console.markup.charts import legend, step_cells
from dashboards.console.markup.html import link, request_href, table, tag
from dashboards.console.markup.words import NOTHING, count
from telemetry.stats.snapshot import Batch, GridRow, Snapshot


def render(batch: Batch | None, snapshot: Snapshot) -> Markup:
    """The page; before the first answer of `/debug/batch` it shows the rows of the snapshot."""
    rows = snapshot.grid if batch is None else batch.rows
    steps = snapshot.grid_step_ids if batch is None else batch.step_ids
    hidden = 0 if batch is None else batch.total - len(rows)
    return tag(
        "div",
        tag("p", _summary(snapshot, batch), class_="lead"),
        legend(),
        tag("div", grid(rows, steps), class_="card"),
        tag("p", f"{hidden} more sequences are not shown.") if hidden > 0 else None,
    )


def _summary(snapshot: Snapshot, batch: Batch | None) -> str:
    slots = f" of {snapshot.max_seqs}" if snapshot.max_seqs is not None else ""
    line = f"{snapshot.running}{slots} run, {snapshot.waiting} wait."
    if batch is not None and batch.step_tokens is not None:
        line += f" The last step computed {count(batch.step_tokens)}"
        line += f" of {count(batch.step_budget_tokens)} tokens."
    return line


def grid(rows: Sequence[GridRow], steps: tuple[int, int] | None) -> Markup:
    """The grid itself."""
    if not rows or steps is None:
        return tag("p", "Nothing has run yet.", class_="quiet")
    shown = [
        (
            link(request_href(row.request_id), row.request_id) if row.request_id else NOTHING,
            row.state,
            count(row.prompt_tokens),
            count(row.output_tokens),
            step_cells(row.cells),
        )
        for row in rows
    ]
    caption = f"Sequences in steps {steps[0]:,} to {steps[1]:,}, oldest step on the left"
    heads = ("request", "state", "prompt", "output", "steps")
    return table(caption, heads, shown, numbers={2, 3}, wide={1, 2}, class_="grid")
