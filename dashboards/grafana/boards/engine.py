"""The engine: steps, tokens, the KV cache, and what keeps sequences from running."""

from __future__ import annotations

from dashboards.grafana.queries import highest, rate, share, total
from dashboards.grafana.spec import Board, Needs, Panel, Query, Row
from telemetry.metrics.catalog import engine, machine, recording
from telemetry.metrics.metric import Metric

_T = engine.TOTALS


def _rates(title: str, *metrics: tuple[Metric, str], unit: str = "short") -> Panel:
    """Counters a second in one panel, by the words given for each."""
    return Panel(
        title=title,
        queries=tuple(Query(rate(metric), legend) for metric, legend in metrics),
        unit=unit,
        about=" ".join(metric.help for metric, _ in metrics),
    )


def _lines(title: str, *metrics: tuple[Metric, str], unit: str = "short") -> Panel:
    """Gauges by replica in one panel, by the words given for each."""
    return Panel(
        title=title,
        queries=tuple(
            Query(total(metric, "instance"), f"{{{{instance}}}} {legend}")
            for metric, legend in metrics
        ),
        unit=unit,
        about=" ".join(metric.help for metric, _ in metrics),
    )


_BATCH = Row(
    title="Batch",
    panels=(
        Panel(
            title="Running and waiting by replica",
            queries=(
                Query(total(engine.RUNNING, "instance"), "{{instance}} running"),
                Query(total(engine.WAITING, "instance"), "{{instance}} waiting"),
            ),
            about=f"{engine.RUNNING.help} {engine.WAITING.help}",
        ),
        Panel(
            title="Tokens that wait to be prefilled",
            queries=(Query(total(engine.WAITING_TOKENS, "instance"), "{{instance}}"),),
            about=engine.WAITING_TOKENS.help,
        ),
        _rates(
            "Tokens a second",
            (engine.PROMPT_TOKENS, "prompt, computed"),
            (engine.OUTPUT_TOKENS, "output"),
            (_T["admitted_tokens"], "admitted"),
        ),
    ),
)

_STEPS = Row(
    title="Steps",
    panels=(
        Panel(
            title="Time of a step",
            queries=(
                Query(
                    share(rate(machine.STEP_SECONDS, "instance"), rate(engine.STEPS, "instance")),
                    "{{instance}}",
                ),
            ),
            unit="s",
            about="Mean time from the end of one step to the end of the next.",
        ),
        Panel(
            title="Time in steps by kind",
            queries=(
                Query(rate(machine.STEP_SECONDS, "kind"), "{{kind}} step"),
                Query(rate(machine.FORWARD_SECONDS, "kind"), "{{kind}} forward pass"),
            ),
            unit="percentunit",
            about=f"{machine.STEP_SECONDS.help} {machine.FORWARD_SECONDS.help} "
            "Seconds a second, over all replicas.",
        ),
        _rates(
            "Steps a second",
            (engine.STEPS, "all"),
            (engine.STEPS_TARGET_UNREACHABLE, "beyond the target, whatever the budget"),
        ),
        Panel(
            title="Device busy and idle",
            queries=(
                Query(rate(engine.DEVICE_BUSY, "instance"), "{{instance}} busy"),
                Query(rate(engine.DEVICE_BUBBLE, "instance"), "{{instance}} idle with work to do"),
            ),
            unit="percentunit",
            about=f"{engine.DEVICE_BUSY.help} {engine.DEVICE_BUBBLE.help}",
            needs=Needs.GPU,
        ),
        Panel(
            title="Device time of sampled decode steps",
            queries=(Query(rate(engine.DEVICE_PHASE, "phase"), "{{phase}}"),),
            unit="percentunit",
            about=engine.DEVICE_PHASE.help,
            stacked=True,
            needs=Needs.GPU,
        ),
        Panel(
            title="Ranks waiting for the slowest",
            queries=(Query(rate(engine.RANK_SKEW, "instance"), "{{instance}}"),),
            unit="percentunit",
            about=engine.RANK_SKEW.help,
            needs=Needs.RANKS,
        ),
    ),
)

_CACHE = Row(
    title="KV cache",
    panels=(
        Panel(
            title="Blocks of the KV cache",
            queries=(
                Query(total(engine.BLOCKS_USED), "held by sequences"),
                Query(total(engine.BLOCKS_CACHED), "kept by the prefix cache"),
                Query(total(engine.BLOCKS_TOTAL), "all"),
            ),
            about=f"{engine.BLOCKS_USED.help} {engine.BLOCKS_CACHED.help}",
        ),
        Panel(
            title="KV cache in use by replica",
            queries=(
                Query(
                    share(
                        total(engine.BLOCKS_USED, "instance"),
                        total(engine.BLOCKS_TOTAL, "instance"),
                    ),
                    "{{instance}}",
                ),
            ),
            unit="percentunit",
            about=engine.BLOCKS_USED.help,
            warn_above=0.95,
            max_value=1,
        ),
        Panel(
            title="Preemptions a second",
            queries=(Query(rate(engine.PREEMPTIONS, "instance"), "{{instance}}"),),
            about=engine.PREEMPTIONS.help,
        ),
        Panel(
            title="Prompt tokens found in the prefix cache",
            queries=(
                Query(
                    share(rate(_T["prefix_hit_tokens"]), rate(_T["admitted_tokens"])),
                    "in the cache",
                ),
                Query(
                    share(rate(_T["host_hit_tokens"]), rate(_T["admitted_tokens"])),
                    "loaded back from the CPU offload",
                ),
                Query(
                    share(rate(_T["ghost_hit_tokens"]), rate(_T["admitted_tokens"])),
                    "a larger cache would have had",
                ),
            ),
            unit="percentunit",
            about="Of all admitted tokens.",
            max_value=1,
        ),
        _rates(
            "Blocks copied to or from the CPU offload", (_T["blocks_copied"], "blocks a second")
        ),
        _rates("Pauses for slow readers", (_T["pauses"], "pauses a second")),
    ),
)

_EXTRAS = Row(
    title="Grammars, drafts and scores",
    panels=(
        Panel(
            title="Time in token masks",
            queries=(Query(rate(engine.GRAMMAR_MASK_SECONDS, "instance"), "{{instance}}"),),
            unit="percentunit",
            about=engine.GRAMMAR_MASK_SECONDS.help,
        ),
        _rates(
            "Grammars a second",
            (_T["grammars_compiled"], "compiled"),
            (_T["grammars_cached"], "found in the cache"),
            (_T["grammars_refused"], "refused"),
        ),
        _rates(
            "Constrained outputs a second",
            (_T["outputs_valid"], "obey"),
            (_T["outputs_invalid"], "do not obey"),
        ),
        _rates(
            "Reasoning",
            (_T["reasoning_tokens"], "tokens a second"),
            (_T["reasonings_cut"], "ended by their budget a second"),
        ),
        Panel(
            title="Function calls a second",
            queries=(Query(rate(engine.TOOL_CALLS, "outcome"), "{{outcome}}"),),
            about=engine.TOOL_CALLS.help,
        ),
        _rates(
            "Function calls without a way back",
            (_T["tool_calls_malformed"], "became text"),
            (_T["tool_calls_forgotten"], "forgotten"),
        ),
        _rates(
            "Results of function calls",
            (_T["tool_results"], "of known calls"),
            (_T["tool_results_unknown"], "of unknown calls"),
        ),
        _rates("Tokens sampled under a mask", (_T["masked_tokens"], "tokens a second")),
        _rates(
            "Draft tokens a second",
            (_T["drafted_tokens"], "drafted"),
            (_T["accepted_tokens"], "accepted"),
        ),
        Panel(
            title="Time in scores of prompts",
            queries=(Query(rate(engine.PROMPT_SCORE_SECONDS, "instance"), "{{instance}}"),),
            unit="percentunit",
            about=engine.PROMPT_SCORE_SECONDS.help,
        ),
        _rates("Prompt tokens scored", (_T["scored_tokens"], "tokens a second")),
    ),
)

_ADAPTERS = Row(
    title="LoRA adapters",
    panels=(
        _lines(
            "Adapters",
            (engine.ADAPTERS_KNOWN, "known"),
            (engine.ADAPTERS_PLACED, "placed"),
        ),
        _lines(
            "Memory of adapters",
            (engine.ADAPTERS_PLACED_BYTES, "placed"),
            (engine.ADAPTERS_MEMORY_BYTES, "allowed"),
            unit="bytes",
        ),
        _rates(
            "Loads and evictions a second",
            (_T["adapter_loads"], "loads"),
            (_T["adapter_evictions"], "evictions"),
            (_T["adapter_failures"], "failures"),
        ),
    ),
)

_LIFE = Row(
    title="Life of the engine",
    panels=(
        Panel(
            title="Age of the last heartbeat",
            queries=(Query(highest(engine.ENGINE_HEARTBEAT_AGE, "instance"), "{{instance}}"),),
            unit="s",
            about=engine.ENGINE_HEARTBEAT_AGE.help,
            warn_above=2,
        ),
        Panel(
            title="Deaths, hangs and stalls since the start",
            queries=(
                Query(total(engine.ENGINE_RESTARTS, "instance"), "{{instance}} died"),
                Query(total(engine.ENGINE_HUNG, "instance"), "{{instance}} hung"),
                Query(total(recording.STALLS, "instance"), "{{instance}} stalled"),
            ),
            about=" ".join(
                metric.help
                for metric in (engine.ENGINE_RESTARTS, engine.ENGINE_HUNG, recording.STALLS)
            ),
        ),
        Panel(
            title="Steps that could not be computed",
            queries=(Query(rate(engine.STEPS_FAILED, "failure"), "{{failure}}"),),
            about=engine.STEPS_FAILED.help,
        ),
    ),
)

BOARD = Board(
    name="engine",
    title="phasescope / Engine and KV cache",
    about="Steps, tokens and the KV cache, and what keeps sequences from running.",
    rows=(_BATCH, _STEPS, _CACHE, _EXTRAS, _ADAPTERS, _LIFE),
)
