"""Commands: the only way to change the engine from outside.

They are applied between steps, in the order of arrival, and each leaves a fact, so that
a recorded run can be replayed. The inbox itself is a thread-safe queue; sockets that
fill it live outside the pure core.
"""

from __future__ import annotations

from collections import deque

import msgspec

from service.engine.plan import Grammar, Sample, SamplingParams
from service.engine.prompt_output import PromptOutput
from telemetry.facts.adapter_records import UnloadMode
from telemetry.facts.engine_start import RuntimeLimits
from telemetry.facts.fleet.kv_transfer_records import KvFault
from telemetry.facts.reasons import EndReason


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Generate one sequence.

    `max_tokens` bounds the output; with 0 only the prompt is computed. The gateway has checked that
    both fit the context. `end_token_ids` end the text (the model's EOS tokens, unless the client
    asked to ignore them), `stop_token_ids` are the client's own. A smaller `priority` is served
    earlier. At `deadline_ns` (monotonic) the sequence ends, waiting or running.
    The first token should come by `first_token_by_ns` (monotonic), which is `ttft_target_ns` after
    the request was accepted, and each further one within `itl_target_ns` of the one before: the
    targets of its SLO class.
    `cache_salt` keeps its cached prefix apart from the tenant's others; `cache_prefix`
    false neither reads nor fills the prefix cache. A sequence with a `grammar` waits until
    GrammarReady comes for it, and one with an `adapter` (0: none) until that is placed. With a
    `prompt_output` that reads every row the prefix cache is neither read nor filled.

    With `receives_kv` the KV of its prompt comes from another engine, in the transfer of that
    epoch: it waits for AdmitKv or FailKv. With `sends_kv` its blocks are kept after its end, until
    ReleaseKv. 0: neither.
    """

    seq_id: int
    prompt: list[int]
    max_tokens: int
    sampling: SamplingParams
    min_tokens: int = 0
    end_token_ids: tuple[int, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    tenant: str = ""
    priority: int = 0
    deadline_ns: int | None = None
    cache_salt: str = ""
    cache_prefix: bool = True
    grammar: Grammar | None = None
    adapter: int = 0
    first_token_by_ns: int | None = None
    ttft_target_ns: int | None = None
    itl_target_ns: int | None = None
    prompt_output: PromptOutput | None = None
    receives_kv: int = 0
    sends_kv: int = 0


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """End a sequence now, for `reason`: a disconnect, a timeout, or a stop string that
    the gateway found in the text."""

    seq_id: int
    reason: EndReason


class Pause(msgspec.Struct, frozen=True, tag=True):
    """The sequence's client reads too slowly: generate nothing for it until Resume."""

    seq_id: int


class Resume(msgspec.Struct, frozen=True, tag=True):
    """The client has caught up."""

    seq_id: int


class GrammarReady(msgspec.Struct, frozen=True, tag=True):
    """A sequence's grammar has been compiled (`error` None) or cannot be."""

    seq_id: int
    compile_ns: int
    cached: bool
    error: str | None


OF_START = 0
"""The ticket of the adapters of the start; a gateway's are larger."""


class LoadAdapter(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Serve the adapter in the folder `source` under `name`. `ticket` comes back in the fact that
    answers. With `replace` another adapter may have that name: new sequences get the new one. Only
    a replay states its `number`; 0: the next one."""

    ticket: int
    name: str
    source: str
    replace: bool = False
    number: int = 0


class WeightsRead(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The files of an adapter have been read, in `read_ns` (`error` None), or cannot be. `digest`
    is of what was read; a replay has none, since the record says what came of it."""

    number: int
    bytes: int
    rank: int
    read_ns: int
    error: str | None = None
    digest: str = ""


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Unload the adapter of that name. `ticket` comes back in the fact that answers."""

    ticket: int
    name: str
    mode: UnloadMode


class SetStepCost(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The fitted cost of a step in nanoseconds; the step budget uses it.

    `pair_ns` is for each pair of a prompt token and a token that it attends to, `mixed_ns` for any
    step with prompts. Steps with decodes and prompts take at most `spread` times their prediction,
    nearly all of them. `around_ns` of a step are not the forward pass.
    """

    base_ns: int
    prefill_token_ns: int
    decode_row_ns: int
    context_token_ns: int = 0
    pair_ns: float = 0.0
    mixed_ns: int = 0
    spread: float = 1.0
    around_ns: int = 0

    def decode_step_ns(self, decodes: int, context_tokens: int) -> int:
        """Predicted duration of a step without prefill."""
        return self.base_ns + self.decode_row_ns * decodes + self.context_token_ns * context_tokens


class SetLimits(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Put `limits` in force; `changed` names what is new, `by` and `why` say who changed it and for
    what reason. They have been checked (`service.engine.limits_record.with_runtime`)."""

    limits: RuntimeLimits
    changed: tuple[str, ...]
    by: str
    why: str


class FlushCache(msgspec.Struct, frozen=True, tag=True):
    """Forget every cached prefix."""


class AdmitKv(msgspec.Struct, frozen=True, tag=True):
    """The reserved blocks of transfer `epoch` have the KV of the whole prompt, which was verified;
    `first` is its first token. No write into them can come any more."""

    seq_id: int
    epoch: int
    first: Sample


class FailKv(msgspec.Struct, frozen=True, tag=True):
    """The sequence waits no longer for KV of another engine: its prompt is computed here. Writes of
    `epoch` may still come."""

    seq_id: int
    epoch: int
    why: KvFault


class ReleaseKv(msgspec.Struct, frozen=True, tag=True):
    """No write into blocks that were reserved for transfer `epoch`, or no read of those that were
    kept for it, can come any more."""

    epoch: int


class SetRecording(msgspec.Struct, frozen=True, tag=True):
    """Switch the record of steps on or off, to measure what it costs."""

    enabled: bool


Command = (
    Submit
    | Cancel
    | Pause
    | Resume
    | GrammarReady
    | LoadAdapter
    | WeightsRead
    | UnloadAdapter
    | SetStepCost
    | SetLimits
    | FlushCache
    | AdmitKv
    | FailKv
    | ReleaseKv
    | SetRecording
)


class Inbox:
    """Commands that are not applied yet; any thread may put, the engine loop drains."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()

    def __len__(self) -> int:
        return len(self._commands)

    def put(self, command: Command) -> None:
        self._commands.append(command)

    def drain(self) -> list[Command]:
        return [self._commands.popleft() for _ in range(len(self._commands))]
