"""The row of prefill and decode apart, on the overview."""

from __future__ import annotations

from dashboards.grafana.queries import rate, share, total
from dashboards.grafana.spec import Needs, Panel, Query, Row
from telemetry.metrics.catalog import kv_transfer as kv

KV_ROW = Row(
    title="Prefill and decode apart",
    panels=(
        Panel(
            title="Prompts that another engine was to compute",
            queries=(
                Query(rate(kv.TRANSFERS, "result"), "{{result}}"),
                Query(rate(kv.PROMPTS, "result"), "there: {{result}}"),
            ),
            unit="cps",
            about=f"{kv.TRANSFERS.help} {kv.PROMPTS.help}",
            needs=Needs.FLEET,
        ),
        Panel(
            title="Waits for KV of other engines, by part",
            queries=(
                Query(rate(kv.SECONDS, "part"), "{{part}}"),
                Query(rate(kv.HIDDEN_SECONDS), "hidden (no wait)"),
            ),
            unit="percentunit",
            about=f"{kv.SECONDS.help} {kv.HIDDEN_SECONDS.help}",
            needs=Needs.FLEET,
        ),
        Panel(
            title="KV between engines",
            queries=(Query(rate(kv.BYTES, "direction"), "{{direction}}"),),
            unit="Bps",
            about=kv.BYTES.help,
            needs=Needs.FLEET,
        ),
        Panel(
            title="Blocks for other engines",
            queries=(
                Query(total(kv.QUARANTINED, "instance"), "quarantined: {{instance}}"),
                Query(total(kv.HELD, "instance"), "held: {{instance}}"),
                Query(rate(kv.CORRUPT), "corrupt a second"),
                Query(rate(kv.STAGING_FULL), "chunks that waited a second"),
            ),
            about=f"{kv.QUARANTINED.help} {kv.HELD.help} {kv.CORRUPT.help} {kv.STAGING_FULL.help}",
            needs=Needs.FLEET,
        ),
        Panel(
            title="Connections between engines",
            queries=(Query(rate(kv.LINKS, "event"), "{{event}}"),),
            unit="cps",
            about=kv.LINKS.help,
            needs=Needs.FLEET,
        ),
        Panel(
            title="Regret of the choice where a prompt is computed, mean",
            queries=(
                Query(share(rate(kv.REGRET_SECONDS, "way"), rate(kv.SPLITS, "way")), "{{way}}"),
            ),
            unit="s",
            about=f"{kv.REGRET_SECONDS.help} {kv.SPLITS.help}",
            needs=Needs.FLEET,
        ),
    ),
)
