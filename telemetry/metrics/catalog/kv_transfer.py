"""Metrics of prefill and decode apart: prompts that one engine computes and another decodes."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

TRANSFERS = Metric(
    "phasescope_kv_transfers",
    Kind.COUNTER,
    "Number of sequences that decode here whose prompt another engine was to compute, by result: "
    "admitted, or why the prompt was computed here after all.",
    ("result",),
)
PROMPTS = Metric(
    "phasescope_kv_prompts",
    Kind.COUNTER,
    "Number of prompts of other engines that were begun here, by result: computed, or why not.",
    ("result",),
)
BYTES = Metric(
    "phasescope_kv_transfer_bytes",
    Kind.COUNTER,
    "Size in bytes of the KV blocks that were sent to other engines and came from them, by "
    "direction.",
    ("direction",),
)
SECONDS = Metric(
    "phasescope_kv_transfer_seconds",
    Kind.COUNTER,
    "Seconds that sequences which decode here waited for KV of other engines, by part; "
    "kv.transfer is the exposed part, while nothing of the prompt was computed.",
    ("part",),
)
HIDDEN_SECONDS = Metric(
    "phasescope_kv_transfer_hidden_seconds",
    Kind.COUNTER,
    "Seconds that blocks of sequences which decode here were on their way while their prompt was "
    "computed.",
)
CORRUPT = Metric(
    "phasescope_kv_corrupt_blocks",
    Kind.COUNTER,
    "Number of blocks that differed from the digest of their seal; none of them was used.",
)
QUARANTINED = Metric(
    "phasescope_kv_blocks_quarantined",
    Kind.GAUGE,
    "Number of blocks that other engines may write now.",
)
HELD = Metric(
    "phasescope_kv_blocks_held",
    Kind.GAUGE,
    "Number of blocks of prompts computed for others that are kept until these have them.",
)
STAGING_FULL = Metric(
    "phasescope_kv_staging_full",
    Kind.COUNTER,
    "Number of chunks whose blocks had to wait, because as many bytes were on their way to other "
    "engines as may be.",
)
LINKS = Metric(
    "phasescope_kv_links",
    Kind.COUNTER,
    "Number of connections with other engines, by what happened: opened, or why they ended; and of "
    "those of an engine with --kv-transport: over_ and what carries their blocks.",
    ("event",),
)
SPLITS = Metric(
    "phasescope_kv_splits",
    Kind.COUNTER,
    "Number of sequences for which gateways could choose where the prompt is computed, by way: "
    "local (by the engine that decodes it) or remote.",
    ("way",),
)
REGRET_SECONDS = Metric(
    "phasescope_kv_split_regret_seconds",
    Kind.COUNTER,
    "Seconds by which first tokens took longer than the other way was predicted to take, by the "
    "way that was taken.",
    ("way",),
)
