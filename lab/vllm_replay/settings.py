"""vLLM's limits for a replay: as its start was recorded, and with changes, by vLLM's own names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from lab.replay.recorded import NotReplayable
from lab.vllm_replay.protocol import Build
from service.config.settings import ConfigError
from telemetry.facts.engine_records import EngineStarted

ENGINE = "vllm"
Value = bool | int | float | str | None
_WORDS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def _switch(text: str) -> bool:
    return _WORDS[text.lower()]


def _least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise ValueError(text)
        return value

    return read


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError(text)
    return value


def _policy(text: str) -> str:
    return {"fcfs": "fcfs", "priority": "priority"}[text]


@dataclass(frozen=True, slots=True)
class _Setting:
    """How a field of vLLM's configuration is read from text, and what it may be."""

    read: Callable[[str], Value]
    meaning: str


_COUNT = _Setting(_least(1), "a number from 1 on")
_SWITCH = _Setting(_switch, "true or false")
# fields of vLLM's SchedulerConfig; enable_prefix_caching is of its CacheConfig
_FIELDS: Mapping[str, _Setting] = {
    "max_num_batched_tokens": _COUNT,
    "max_num_seqs": _COUNT,
    "long_prefill_token_threshold": _Setting(_least(0), "a number of tokens, 0: no threshold"),
    "enable_prefix_caching": _SWITCH,
    "enable_chunked_prefill": _SWITCH,
    "scheduler_reserve_full_isl": _SWITCH,
    "watermark": _Setting(_share, "a share of the blocks, from 0 to below 1"),
    "policy": _Setting(_policy, "fcfs or priority"),
    "max_num_scheduled_tokens": _COUNT,
    "max_num_active_seqs": _COUNT,
    "long_prefill_token_threshold_adaptive": _SWITCH,
}
BLOCKS = "num_gpu_blocks_override"
CHANGEABLE = (*_FIELDS, BLOCKS)
_ABSENT = frozenset({"", "None"})


def build_of(started: EngineStarted) -> Build:
    """The recorded scheduler. Raises NotReplayable, with the reason in one line."""
    settings = started.settings
    if started.engine != ENGINE:
        raise NotReplayable(f"the journal is of {started.engine}, not of {ENGINE}")
    _refuse_unknown(settings)
    values: dict[str, Value] = {
        "max_num_batched_tokens": started.budget_tokens,
        "max_num_seqs": started.max_seqs,
        "enable_chunked_prefill": started.chunked_prefill,
        "enable_prefix_caching": started.prefix_cache,
    }
    for name, field in _FIELDS.items():
        text = settings.get(name, "None")
        if text in _ABSENT:
            continue
        try:
            values[name] = field.read(text)
        except (ValueError, KeyError):
            raise NotReplayable(f"{name}={text} in the record: wanted {field.meaning}") from None
    blocks = settings.get("num_gpu_blocks", "None")
    return Build(
        is_async=settings.get("async_scheduling") == "True",
        blocks_total=started.blocks_total if blocks in _ABSENT else int(blocks),
        block_tokens=started.block_tokens,
        max_model_tokens=started.max_model_tokens,
        values=values,
    )


def _refuse_unknown(settings: Mapping[str, str]) -> None:
    """What the replay has no part for. A setting that is not recorded counts as vLLM's default."""
    none = _ABSENT | {"0", "1", "False"}
    for name, what in (
        ("speculative.num_speculative_tokens", "speculative tokens"),
        ("parallel.pipeline_parallel_size", "pipeline stages"),
        ("parallel.decode_context_parallel_size", "a cache divided among ranks"),
        ("kv_transfer.kv_connector", "KV blocks from other machines"),
        ("kv_offloading_size", "KV blocks in the memory of the host"),
        ("sliding_window", "a sliding window"),
    ):
        if settings.get(name, "None") not in none:
            raise NotReplayable(f"{name}={settings[name]}: {what} cannot be replayed yet")


def changed(build: Build, words: Iterable[str]) -> Build:
    """The scheduler with each `name=value` of `words` in place. Raises ConfigError."""
    values, blocks_total = dict(build.values), build.blocks_total
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or name not in CHANGEABLE:
            raise ConfigError(
                f"--set {word}: give NAME=VALUE, where NAME is one of {', '.join(CHANGEABLE)}"
            )
        field = _COUNT if name == BLOCKS else _FIELDS[name]
        try:
            value = field.read(text.strip())
        except (ValueError, KeyError):
            raise ConfigError(f"--set {word}: wanted {field.meaning}") from None
        if name == BLOCKS:
            blocks_total = int(value or 0)
        else:
            values[name] = value
    found = replace(build, values=values, blocks_total=blocks_total)
    _check(found)
    return found


def _check(build: Build) -> None:
    """What vLLM itself would refuse at its start. Raises ConfigError."""
    budget, seqs = build.values["max_num_batched_tokens"], build.values["max_num_seqs"]
    assert isinstance(budget, int), "read as a number"
    assert isinstance(seqs, int), "read as a number"
    if budget < seqs:
        raise ConfigError(f"max_num_batched_tokens={budget} is below max_num_seqs={seqs}")
    if not build.values["enable_chunked_prefill"] and budget < build.max_model_tokens:
        raise ConfigError(
            f"max_num_batched_tokens={budget} is below the longest prompt of "
            f"{build.max_model_tokens} tokens, and enable_chunked_prefill is off"
        )
    needed = -(-build.max_model_tokens // build.block_tokens) + 1  # vLLM keeps one for itself
    if build.blocks_total < needed:
        raise ConfigError(f"{build.blocks_total} blocks: the longest request needs {needed}")
