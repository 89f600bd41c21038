"""Every column of the exported tables, in their order: the schema, and its documentation.

Names and kinds are stable. A column is added at the end of its table, and none changes its meaning.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """How a value is stored. A time is UTC in microseconds; the monotonic stamps beside it are
    exact and tie the tables together."""

    TEXT = "text"
    INT = "int64"
    FLOAT = "float64"
    BOOL = "bool"
    TIME = "timestamp"


class Unit(StrEnum):
    """What a number counts; NONE for words, ids and stamps."""

    NONE = ""
    NS = "ns"
    TOKENS = "tokens"
    ROWS = "rows"
    SEQUENCES = "sequences"
    BLOCKS = "blocks"
    COUNT = "count"


class Column(NamedTuple):
    """One column. Null in a column means: not measured, or there is none."""

    name: str
    kind: Kind
    unit: Unit
    meaning: str


class Table(NamedTuple):
    """One file."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def file_name(self) -> str:
        return f"{self.name}.parquet"


_T, _I, _B, _S = Kind.TEXT, Kind.INT, Kind.BOOL, Kind.TIME
_NONE, _NS, _TOKENS, _ROWS = Unit.NONE, Unit.NS, Unit.TOKENS, Unit.ROWS
_SEQS, _BLOCKS, _COUNT = Unit.SEQUENCES, Unit.BLOCKS, Unit.COUNT

REQUESTS = Table(
    "requests",
    "One row for each request that ended, in the order in which they ended.",
    (
        Column("request_id", _T, _NONE, "its id, as in the `x-request-id` of its response"),
        Column("trace_id", _T, _NONE, "its trace, 32 hex digits"),
        Column("tenant", _T, _NONE, "whose it is; empty without tenants"),
        Column("slo_class", _T, _NONE, "the SLO class that it was judged by"),
        Column("route", _T, _NONE, "the path of its route"),
        Column("is_stream", _B, _NONE, "whether its response was streamed"),
        Column("outcome", _T, _NONE, "finished, rejected, cancelled, failed or lost"),
        Column("reason", _T, _NONE, "why it ended"),
        Column("status", _I, _NONE, "the HTTP status"),
        Column("verdict", _T, _NONE, "whether it met its SLO: good, or what was missed"),
        Column("accepted_at", _S, _NONE, "when its head arrived"),
        Column("accepted_ns", _I, _NS, "the same, monotonic"),
        Column("ended_ns", _I, _NS, "when it ended, monotonic"),
        Column("e2e_ns", _I, _NS, "from its arrival to its end"),
        Column("ttft_ns", _I, _NS, "from its arrival to its first token"),
        Column("tpot_ns", _I, _NS, "mean time of a token after the first"),
        Column("itl_max_ns", _I, _NS, "the longest gap between two of its tokens"),
        Column("ttft_target_ns", _I, _NS, "what its class allows"),
        Column("itl_target_ns", _I, _NS, "what its class allows"),
        Column("accept_ns", _I, _NS, "phase: in the socket, not yet read"),
        Column("parse_ns", _I, _NS, "phase: its body is read and parsed"),
        Column("tokenize_ns", _I, _NS, "phase: template and tokenizer"),
        Column("queue_ns", _I, _NS, "phase: it waits for the first step with it"),
        Column("prefill_ns", _I, _NS, "phase: to the first token of its last sequence"),
        Column("decode_ns", _I, _NS, "phase: to its last token"),
        Column("detokenize_ns", _I, _NS, "phase: the last token becomes text"),
        Column("deliver_ns", _I, _NS, "phase: the last bytes are handed to the socket"),
        Column("prompt_tokens", _I, _TOKENS, "of its prompt"),
        Column("cached_tokens", _I, _TOKENS, "of these, in the prefix cache"),
        Column("output_tokens", _I, _TOKENS, "of all its choices"),
        Column("max_tokens", _I, _TOKENS, "what it asked for at most"),
        Column("choices", _I, _SEQS, "sequences that were generated for it"),
        Column("prefill_chunks", _I, _COUNT, "pieces in which its prompt was computed"),
        Column("preemptions", _I, _COUNT, "times that it lost its blocks"),
        Column("late_tokens", _I, _COUNT, "gaps longer than its class allows"),
        Column("is_whole", _B, _NONE, "no fact of it is missing from the record"),
    ),
)

STEPS = Table(
    "steps",
    "One row for each step of the engine, in the order in which they were committed.",
    (
        Column("engine", _I, _NONE, "number of the engine process in this record, from 1"),
        Column("step_id", _I, _NONE, "number of the step in its engine"),
        Column("begin_at", _S, _NONE, "when it began"),
        Column("begin_ns", _I, _NS, "the same, monotonic"),
        Column("committed_ns", _I, _NS, "when its tokens were committed, monotonic"),
        Column("step_ns", _I, _NS, "from its begin to its commit"),
        Column("plan_ns", _I, _NS, "commands are drained and the plan is made"),
        Column("launch_ns", _I, _NS, "the plan is handed to the device"),
        Column("wait_ns", _I, _NS, "from there until the model begins to run"),
        Column("forward_ns", _I, _NS, "the model runs"),
        Column("sample_ns", _I, _NS, "tokens are chosen and come to the host"),
        Column("commit_ns", _I, _NS, "tokens are committed"),
        Column("rows", _I, _ROWS, "sequences in it"),
        Column("decode_rows", _I, _ROWS, "of these, that decode"),
        Column("prefill_tokens", _I, _TOKENS, "of prompts"),
        Column("recompute_tokens", _I, _TOKENS, "of these, computed again after a preemption"),
        Column("sampled_tokens", _I, _TOKENS, "that it gave"),
        Column("wasted_rows", _I, _ROWS, "of sequences that had ended meanwhile"),
        Column("preempted", _I, _SEQS, "that lost their blocks for it"),
        Column("budget_tokens", _I, _TOKENS, "that it could have had"),
        Column("target_ns", _I, _NS, "latency target that bounded its prompt tokens"),
        Column("running", _I, _SEQS, "in the batch"),
        Column("waiting", _I, _SEQS, "in the queue"),
        Column("waiting_tokens", _I, _TOKENS, "of prompts in the queue"),
        Column("blocks_used", _I, _BLOCKS, "of the KV cache, held by sequences"),
        Column("blocks_cached", _I, _BLOCKS, "free and with reusable contents"),
        Column("blocks_total", _I, _BLOCKS, "of the KV cache"),
        Column("mask_ns", _I, _NS, "of the sampling, for masks of constrained rows"),
        Column("masked_rows", _I, _ROWS, "constrained rows"),
        Column("device_busy_ns", _I, _NS, "by the device's own clock"),
        Column("device_bubble_ns", _I, _NS, "the device was idle before it"),
        Column("rank_skew_ns", _I, _NS, "ranks waited for the slowest"),
        Column("score_ns", _I, _NS, "of the forward pass, for scores of prompt tokens"),
        Column("scored_rows", _I, _ROWS, "prompt tokens that were scored"),
    ),
)

LEDGER = Table(
    "ledger",
    "One row for each part of a request's time; the parts of a request sum to its `e2e_ns`.",
    (
        Column("request_id", _T, _NONE, "the request, as in `requests`"),
        Column("ended_ns", _I, _NS, "when it ended, monotonic: an id may come twice"),
        Column("state", _T, _NONE, "what the request was doing"),
        Column("reason", _T, _NONE, "why it waited; empty where the state needs none"),
        Column("part", _T, _NONE, "what the time went into"),
        Column("payer", _T, _NONE, "the request that took the time, or the cause of a pause"),
        Column("spent_ns", _I, _NS, "how long"),
    ),
)

TABLES = (REQUESTS, STEPS, LEDGER)
