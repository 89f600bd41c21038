"""What other engines call the limits that we name: their flag, and its name in their settings.

One table for every view of an attached engine. A limit that an engine does not have is absent.
`EngineStarted.settings` has the values, under the settings' names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from telemetry.facts.engine_records import EngineStarted


class Flag(NamedTuple):
    """`flag` of the command line, `setting` in the engine's own configuration."""

    flag: str
    setting: str


class EngineLimit(msgspec.Struct, frozen=True):
    """One limit of an attached engine: our name, its flag, and the value in force (None: not
    known)."""

    name: str
    flag: str
    value: str | None

    @property
    def text(self) -> str:
        """In one line."""
        return f"{self.flag} = {self.value if self.value is not None else 'not known'}"


_VLLM = {
    "max_batched_tokens": Flag("--max-num-batched-tokens", "max_num_batched_tokens"),
    "max_num_seqs": Flag("--max-num-seqs", "max_num_seqs"),
    "chunked_prefill": Flag("--enable-chunked-prefill", "enable_chunked_prefill"),
    "prompt_part": Flag("--long-prefill-token-threshold", "long_prefill_token_threshold"),
    "kv_memory": Flag("--gpu-memory-utilization", "gpu_memory_utilization"),
    "kv_format": Flag("--kv-cache-dtype", "cache_dtype"),
    "prefix_cache": Flag("--enable-prefix-caching", "enable_prefix_caching"),
    "queue_limit": Flag("--max-num-queued-reqs", "max_num_queued_reqs"),
    "queue_limit_tokens": Flag("--max-num-queued-tokens", "max_num_queued_tokens"),
    "fairness": Flag("--scheduling-policy", "policy"),
    "speculative_tokens": Flag("--speculative-config", "speculative.num_speculative_tokens"),
}
_SGLANG = {
    "max_batched_tokens": Flag("--chunked-prefill-size", "chunked_prefill_size"),
    "max_num_seqs": Flag("--max-running-requests", "max_running_requests"),
    "kv_memory": Flag("--mem-fraction-static", "mem_fraction_static"),
    "kv_format": Flag("--kv-cache-dtype", "kv_cache_dtype"),
    "prefix_cache": Flag("--disable-radix-cache", "disable_radix_cache"),
    "queue_limit": Flag("--max-queued-requests", "max_queued_requests"),
    "fairness": Flag("--schedule-policy", "schedule_policy"),
    "speculative_tokens": Flag("--speculative-num-draft-tokens", "speculative_num_draft_tokens"),
}
FLAGS: Mapping[str, Mapping[str, Flag]] = {"vllm": _VLLM, "sglang": _SGLANG}
"""Flags of other engines, by engine, then by our name: that of `telemetry.facts.limits`, or of a
flag of `serve`; `prompt_part` bounds the tokens of one prompt in a step."""


def limit_of(started: EngineStarted, name: str) -> EngineLimit | None:
    """The limit that we call `name`, under the names of an attached engine; None where it is our
    own, or has no such limit."""
    flag = FLAGS.get(started.engine, {}).get(name)
    return (
        None if flag is None else EngineLimit(name, flag.flag, started.settings.get(flag.setting))
    )
