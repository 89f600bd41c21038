"""The closed sets that facts draw from: outcomes, reasons to end, reasons to wait, phases."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The ways in which a request or a sequence can end. LOST: it has, and how is not recorded."""

    FINISHED = "finished"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    FAILED = "failed"
    LOST = "lost"


class EndReason(StrEnum):
    """Why it ended; each reason belongs to exactly one outcome."""

    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    INVALID = "invalid"
    INVALID_TOKEN = "invalid_token"
    QUEUE_FULL = "queue_full"
    TENANT_LIMIT = "tenant_limit"
    GRAMMAR_INVALID = "grammar_invalid"
    KV_TOO_SMALL = "kv_too_small"
    NOT_READY = "not_ready"
    DRAINING = "draining"
    DISCONNECT = "disconnect"
    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    DELETED = "deleted"
    SLOW_CLIENT = "slow_client"
    SHUTDOWN = "shutdown"
    ENGINE_DIED = "engine_died"
    EXECUTOR_ERROR = "executor_error"
    INTERNAL = "internal"
    END_LOST = "end_lost"

    @property
    def outcome(self) -> Outcome:
        return _OUTCOME_OF[self]


_OUTCOME_OF: dict[EndReason, Outcome] = {
    EndReason.EOS: Outcome.FINISHED,
    EndReason.STOP_TOKEN: Outcome.FINISHED,
    EndReason.STOP_STRING: Outcome.FINISHED,
    EndReason.MAX_TOKENS: Outcome.FINISHED,
    EndReason.CONTEXT: Outcome.FINISHED,
    EndReason.INVALID: Outcome.REJECTED,
    EndReason.INVALID_TOKEN: Outcome.REJECTED,
    EndReason.QUEUE_FULL: Outcome.REJECTED,
    EndReason.TENANT_LIMIT: Outcome.REJECTED,
    EndReason.GRAMMAR_INVALID: Outcome.REJECTED,
    EndReason.KV_TOO_SMALL: Outcome.REJECTED,
    EndReason.NOT_READY: Outcome.REJECTED,
    EndReason.DRAINING: Outcome.REJECTED,
    EndReason.DISCONNECT: Outcome.CANCELLED,
    EndReason.TIMEOUT: Outcome.CANCELLED,
    EndReason.DEADLINE: Outcome.CANCELLED,
    EndReason.DELETED: Outcome.CANCELLED,
    EndReason.SLOW_CLIENT: Outcome.CANCELLED,
    EndReason.SHUTDOWN: Outcome.CANCELLED,
    EndReason.ENGINE_DIED: Outcome.FAILED,
    EndReason.EXECUTOR_ERROR: Outcome.FAILED,
    EndReason.INTERNAL: Outcome.FAILED,
    EndReason.END_LOST: Outcome.LOST,
}


class StepFailure(StrEnum):
    """Why a step could not be computed, as the executor tells it when it happens."""

    OUT_OF_MEMORY = "out_of_memory"  # an allocation was refused
    KERNEL_ERROR = "kernel_error"  # the device or a library refused the operation
    RANK_LOST = "rank_lost"  # a process that computes a part of the model is gone
    BAD_INPUT = "bad_input"  # a token or a place that the model does not have


class WaitReason(StrEnum):
    """The one constraint that kept a live sequence out of a step."""

    BUDGET = "budget"
    SEQS = "seqs"
    KV = "kv"
    HEAD_OF_LINE = "head_of_line"
    POLICY = "policy"
    GRAMMAR = "grammar"
    CLIENT_PAUSE = "client_pause"
    PREEMPTED = "preempted"


class Phase(StrEnum):
    """The phases that tile a request's life; `telemetry.requests.phases` defines their borders."""

    ACCEPT = "gateway.accept"
    PARSE = "gateway.parse"
    TOKENIZE = "tokenize"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    DETOKENIZE = "detokenize"
    DELIVER = "deliver"


class StartStage(StrEnum):
    """What a start is made of. The engine's stages lie between LAUNCH and ANNOUNCE and tile
    the time to readiness with them; the gateway's own work happens beside them."""

    LAUNCH = "launch"  # the command line is read, the engine's process is started
    IMPORTS = "imports"  # the engine's libraries, torch above all
    WEIGHTS = "weights"
    CACHE = "cache"
    WARM_UP = "warm-up"  # the first steps, which are slow
    ENGINE = "engine"  # grammars' vocabulary, scheduler, collector settled
    ANNOUNCE = "announce"  # the gateway hears of it
    GATEWAY_IMPORTS = "gateway imports"
    TOKENIZER = "tokenizer"


class HostProcess(StrEnum):
    """Whose interpreter stood still."""

    ENGINE = "engine"
    GATEWAY = "gateway"


class FactSource(StrEnum):
    """Whose facts a lane takes."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    OTHER = "other"  # the machine, the exporter, the flight recorder, telemetry itself

    @property
    def is_of_requests(self) -> bool:
        """Whether what is known of requests is made of them."""
        return self is not FactSource.OTHER


class PauseCause(StrEnum):
    """Why a process did not go on, the most telling cause first."""

    GC = "gc"  # the garbage collector held the interpreter
    THROTTLED = "cgroup_throttled"  # the control group had used up its share of CPU
    OFF_CPU = "off_cpu"  # runnable, but something else had the CPU
    LOOP_BLOCKED = "loop_blocked"  # its loop did not turn, and none of the above explains it


class HangKind(StrEnum):
    """How an engine process that lives gives no sign of life."""

    STOPPED = "stopped"  # a signal or a debugger has stopped it: it runs no instruction
    SILENT = "silent"  # it runs or waits, and its heartbeat has ended
    STUCK = "stuck"  # its heart beats, and one turn of its loop does not end


class StackSource(StrEnum):
    """Who told where the threads of a process are."""

    NOBODY = "nobody"
    FAULTHANDLER = "faulthandler"  # the process itself, in C, at a signal
    PY_SPY = "py-spy"  # from outside, from its memory
    KERNEL = "kernel"  # what /proc says of each thread: no functions of ours
