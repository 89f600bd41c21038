"""Counters since the start of prefix reuse, drafts, constrained output, adapters, cache copies."""

from __future__ import annotations

import msgspec

from telemetry.facts.adapter_records import AdapterEvicted, AdapterFailed, AdapterLoaded
from telemetry.facts.engine_records import (
    GrammarCompiled,
    SequenceAdmitted,
    SequencePaused,
    StepAborted,
    StepRecorded,
)
from telemetry.facts.reasons import StepFailure
from telemetry.facts.records import Fact, RequestEnded
from telemetry.facts.step_parts import DeviceTimes
from telemetry.facts.tool_records import CallOutcome, ToolCallsMade, ToolResultsReturned


class Totals(msgspec.Struct):
    """Counts of tokens, if the name does not say otherwise.

    Of `admitted_tokens`, `prefix_hit_tokens` were found in the prefix cache and not computed
    (`host_hit_tokens` of them in the CPU offload), and `ghost_hit_tokens` more would have been
    found in a larger cache. Of `drafted_tokens`, `accepted_tokens` were right. `mask_ns` went into
    the masks of `masked_tokens` constrained tokens, `score_ns` into the scores of `scored_tokens`
    prompt tokens. `device_*_ns` are sums over the `device_steps`
    with device times; attention, matrices and sampling over those of them that have these.
    `rank_skew_ns` is the sum over the `rank_steps` that several ranks computed. `steps_failed` is
    keyed by failure, `tool_calls` by what became of them.
    """

    admitted_tokens: int = 0
    prefix_hit_tokens: int = 0
    host_hit_tokens: int = 0
    ghost_hit_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    masked_tokens: int = 0
    mask_ns: int = 0
    scored_tokens: int = 0
    score_ns: int = 0
    grammars_compiled: int = 0
    grammars_cached: int = 0
    grammars_refused: int = 0
    adapter_loads: int = 0
    adapter_evictions: int = 0
    adapter_failures: int = 0
    outputs_valid: int = 0
    outputs_invalid: int = 0
    reasoning_tokens: int = 0
    reasonings_cut: int = 0
    tool_calls: dict[CallOutcome, int] = msgspec.field(default_factory=dict)
    tool_calls_malformed: int = 0
    tool_calls_forgotten: int = 0
    tool_results: int = 0
    tool_results_unknown: int = 0
    pauses: int = 0
    blocks_copied: int = 0
    device_steps: int = 0
    device_busy_ns: int = 0
    device_bubble_ns: int = 0
    device_attention_ns: int = 0
    device_matrices_ns: int = 0
    device_sampling_ns: int = 0
    rank_steps: int = 0
    rank_skew_ns: int = 0
    steps_failed: dict[StepFailure, int] = msgspec.field(default_factory=dict)

    def take(self, fact: Fact) -> None:
        """Count one fact."""
        match fact:
            case StepRecorded():
                self._step(fact)
            case SequenceAdmitted():
                self.admitted_tokens += fact.known_tokens
                self.prefix_hit_tokens += fact.hit_tokens
                self.host_hit_tokens += fact.host_tokens
                self.ghost_hit_tokens += fact.ghost_tokens
            case GrammarCompiled():
                self.grammars_refused += fact.refused
                self.grammars_cached += fact.cached and not fact.refused
                self.grammars_compiled += not fact.cached and not fact.refused
            case AdapterLoaded():
                self.adapter_loads += 1
            case AdapterEvicted():
                self.adapter_evictions += 1
            case AdapterFailed():
                self.adapter_failures += 1
            case StepAborted():
                self.steps_failed[fact.failure] = self.steps_failed.get(fact.failure, 0) + 1
            case SequencePaused():
                self.pauses += 1
            case RequestEnded():
                self.outputs_valid += fact.output_valid is True
                self.outputs_invalid += fact.output_valid is False
                self.reasoning_tokens += fact.reasoning_tokens
                self.reasonings_cut += fact.reasonings_cut
            case ToolCallsMade():
                for outcome, count in fact.outcomes.items():
                    self.tool_calls[outcome] = self.tool_calls.get(outcome, 0) + count
                self.tool_calls_malformed += fact.malformed
                self.tool_calls_forgotten += fact.forgotten
            case ToolResultsReturned():
                self.tool_results += sum(one.results for one in fact.calls)
                self.tool_results_unknown += fact.unknown
            case _:
                pass

    def _step(self, step: StepRecorded) -> None:
        self.mask_ns += step.mask_ns
        self.masked_tokens += step.masked_rows
        if step.score_ns:
            self.score_ns += step.score_ns
            self.scored_tokens += sum(row.scored for row in step.rows)
        self.blocks_copied += step.copied_blocks
        if step.device is not None:
            self._device(step.device)
        if step.rank_skew_ns is not None:
            self.rank_steps += 1
            self.rank_skew_ns += step.rank_skew_ns
        for row in step.rows:
            if not row.is_prefill and row.tokens > 1:
                self.drafted_tokens += row.tokens - 1
                self.accepted_tokens += row.sampled - 1

    def _device(self, times: DeviceTimes) -> None:
        self.device_steps += 1
        self.device_busy_ns += times.busy_ns
        self.device_bubble_ns += times.bubble_ns or 0
        self.device_attention_ns += times.attention_ns or 0
        self.device_matrices_ns += times.matrices_ns or 0
        self.device_sampling_ns += times.sampling_ns or 0
