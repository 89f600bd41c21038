"""The closed enums of facts: outcomes, reasons to end, reasons to wait, phases."""

from __future__ import annotations

from enum import IntFlag, StrEnum


class Outcome(StrEnum):
    """How a request or a sequence ended. LOST: it ended, and its terminal fact was lost."""

    FINISHED = "finished"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    FAILED = "failed"
    LOST = "lost"


class EndReason(StrEnum):
    """Why a request or a sequence ended; each reason belongs to one outcome."""

    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    INVALID = "invalid"
    INVALID_TOKEN = "invalid_token"
    QUEUE_FULL = "queue_full"
    TENANT_LIMIT = "tenant_limit"
    TTFT_UNREACHABLE = "ttft_unreachable"
    GRAMMAR_INVALID = "grammar_invalid"
    ADAPTER_FAILED = "adapter_failed"
    ADAPTER_UNLOADED = "adapter_unloaded"
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
    EndReason.TTFT_UNREACHABLE: Outcome.REJECTED,
    EndReason.GRAMMAR_INVALID: Outcome.REJECTED,
    EndReason.ADAPTER_FAILED: Outcome.FAILED,
    EndReason.ADAPTER_UNLOADED: Outcome.CANCELLED,
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
    """Why a step could not be computed, as the executor reports it."""

    OUT_OF_MEMORY = "out_of_memory"  # an allocation was refused
    KERNEL_ERROR = "kernel_error"  # the device or a library refused the operation
    RANK_LOST = "rank_lost"  # a process that computes a part of the model is gone
    BAD_INPUT = "bad_input"  # a token or a position that the model does not have


class WaitReason(StrEnum):
    """The one constraint that kept a live sequence out of a step."""

    BUDGET = "budget"
    SEQS = "seqs"
    KV = "kv"
    HEAD_OF_LINE = "head_of_line"
    POLICY = "policy"
    GRAMMAR = "grammar"
    ADAPTER = "adapter"  # the weights of its adapter are not on the device
    CLIENT_PAUSE = "client_pause"
    PREEMPTED = "preempted"
    REMOTE_KV = "remote_kv"  # its KV blocks come from another machine or store


class Phase(StrEnum):
    """The phases that tile a request's time; `telemetry.requests.phases` defines their borders."""

    ACCEPT = "gateway.accept"
    PARSE = "gateway.parse"
    TOKENIZE = "tokenize"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    DETOKENIZE = "detokenize"
    DELIVER = "deliver"


class StartStage(StrEnum):
    """The stages of a start. LAUNCH, the engine's stages and ANNOUNCE tile the time to readiness;
    the gateway's own stages run at the same time."""

    LAUNCH = "launch"  # the command line is read, the engine's process is started
    IMPORTS = "imports"  # the engine's libraries, torch above all
    WEIGHTS = "weights"
    CACHE = "cache"
    WARM_UP = "warm-up"  # the first steps, which are slow
    ENGINE = "engine"  # vocabulary of grammars, scheduler, garbage collector
    ANNOUNCE = "announce"  # until the gateway knows that the engine is ready
    GATEWAY_IMPORTS = "gateway imports"
    TOKENIZER = "tokenizer"


class HostProcess(StrEnum):
    """Which process was paused."""

    ENGINE = "engine"
    GATEWAY = "gateway"


class FactSource(StrEnum):
    """The writer of a lane's facts."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    OTHER = "other"  # the machine, the exporter, the flight recorder, telemetry itself

    @property
    def is_of_requests(self) -> bool:
        """Whether timelines of requests are made from its facts."""
        return self is not FactSource.OTHER


class PauseCause(StrEnum):
    """Why a process was paused, the most specific cause first."""

    GC = "gc"  # the garbage collector held the interpreter
    THROTTLED = "cgroup_throttled"  # the control group had used up its CPU quota
    OFF_CPU = "off_cpu"  # runnable, but another task had the CPU
    LOOP_BLOCKED = "loop_blocked"  # its loop was blocked, and none of the above explains it


class ClockEvent(IntFlag):
    """Bits of NVML's mask of the reasons for lowered clocks; the others are settings."""

    GPU_IDLE = 0x1
    SW_POWER_CAP = 0x4  # the power limit is reached
    HW_SLOWDOWN = 0x8  # hardware: temperature or power, clocks halved
    SW_THERMAL_SLOWDOWN = 0x20  # the driver: temperature
    HW_THERMAL_SLOWDOWN = 0x40
    HW_POWER_BRAKE_SLOWDOWN = 0x80  # the power supply asks for it


class HangKind(StrEnum):
    """In which way a live engine process does not respond."""

    STOPPED = "stopped"  # stopped by a signal or a debugger
    SILENT = "silent"  # it runs or waits, without a heartbeat
    STUCK = "stuck"  # it has a heartbeat, but an iteration of its loop does not end


class StackSource(StrEnum):
    """Where the stacks of a process come from; NOBODY: there are none."""

    NOBODY = "nobody"
    FAULTHANDLER = "faulthandler"  # the process itself, in C, at a signal
    PY_SPY = "py-spy"  # from outside, from its memory
    KERNEL = "kernel"  # /proc of each thread: no Python functions


class AutopilotDecision(StrEnum):
    """What the autopilot decided."""

    PROPOSED = "proposed"  # a replay of the last minutes finds this change better
    UPHELD = "upheld"  # advise: a later replay finds the same
    WITHDRAWN = "withdrawn"  # advise: it would not be proposed any more
    REFUSED = "refused"  # the search found a change, and the autopilot does not propose it
    APPLIED = "applied"  # act: it is in force and is measured
    VOIDED = "voided"  # something else changed in between: what was measured does not count
    KEPT = "kept"  # it stays
    ROLLED_BACK = "rolled_back"  # the values from before are in force again
    STOPPED = "stopped"  # these limits are left alone until the server restarts


class AutopilotReason(StrEnum):
    """Why the autopilot decided so."""

    GAIN = "gain"  # more requests would be good, and of no class fewer
    PROMISE_KEPT = "promise_kept"  # what came is what was promised
    PROMISE_MISSED = "promise_missed"  # what came is what was there before
    WORSE = "worse"  # a class is clearly worse than before
    TOO_FEW_REQUESTS = "too_few_requests"  # too few to tell
    ENGINE_RESTARTED = "engine_restarted"
    OPERATOR = "operator"  # somebody else changed limits
    LOAD_CHANGED = "load_changed"  # more or fewer requests, or longer ones
    BACKLOG = "backlog"  # a class became worse that had requests waiting for too long before
    NO_GAIN_IN_GOING_BACK = "no_gain_in_going_back"  # by a replay after something else changed
    NOT_CONFIRMED = "not_confirmed"  # the engine has not put it in force, or refused it
    NO_ANSWER = "no_answer"  # the search gave none in time
    OUT_OF_BOUNDS = "out_of_bounds"
    LOSS = "loss"  # a class would lose more than noise
    NO_GAIN = "no_gain"  # no class would gain more than noise
    FORECAST_OFF = "forecast_off"  # the replay of what was is too far from what was measured
    TRIED_BEFORE = "tried_before"  # it was rolled back under the same load
    STALE = "stale"  # the limits have changed since the search began
    COOLING = "cooling"  # the limit was changed too short a time ago
    HEALTHY = "healthy"  # nothing is wrong any more
