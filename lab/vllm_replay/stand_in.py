"""vLLM's scheduler with its real cache manager and configuration, and no model.

Runs in vLLM's Python. Requests are vLLM's own. A block's tokens are its alias, so that two blocks
have one hash exactly where their aliases, and those before them, are equal.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from lab.vllm_replay.protocol import (
    Admission,
    Arrive,
    Build,
    Built,
    Command,
    Commit,
    Committed,
    Done,
    Ended,
    Finish,
    Flush,
    GrammarIsReady,
    Plan,
    Planned,
    PlannedRow,
    Reply,
)

END_TOKEN = 1 << 50
_SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 8,
    "torch_dtype": "float32",
}


class _Grammars:
    """In place of vLLM's manager of grammars: it compiles nothing and takes every token."""

    def accept_tokens(self, request: Any, new_token_ids: list[int]) -> bool:
        return True


class _Constraint:
    """In place of a request's grammar: None until it is ready."""

    def __init__(self) -> None:
        self.grammar: object | None = None


class StandIn:
    """Holds one scheduler and does commands on it."""

    def __init__(self) -> None:
        self._scheduler: Any = None
        self._sequences: dict[int, Arrive] = {}
        self._steps: dict[int, tuple[Any, tuple[PlannedRow, ...]]] = {}
        self._preempted: list[int] = []
        self._prompt_until: dict[int, int] = {}  # by sequence, since it was admitted
        self._block_tokens = 0
        self._hasher: Any = None

    @property
    def has_requests(self) -> bool:
        return bool(self._scheduler is not None and self._scheduler.has_requests())

    def do(self, command: Command) -> Reply:
        match command:
            case Plan():
                return self._plan(command.number)
            case Commit():
                return self._commit(command.number)
            case Arrive():
                return self._arrive(command)
            case Finish():
                return self._finish(command.seq_id)
            case GrammarIsReady():
                request = self._scheduler.requests.get(str(command.seq_id))
                if request is not None and request.structured_output_request is not None:
                    request.structured_output_request.grammar = object()
                return Done()
            case Flush():
                self._scheduler.reset_prefix_cache()
                return Done()
            case Build():
                return self._build(command)

    def _build(self, build: Build) -> Built:
        version = _version()  # first: it says at once that there is no vLLM
        import torch
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        config = _vllm_config(build)
        config.cache_config.num_gpu_blocks = build.blocks_total
        spec = FullAttentionSpec(
            block_size=build.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        kv = KVCacheConfig(
            num_blocks=build.blocks_total,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self._scheduler = _watched(AsyncScheduler if build.is_async else Scheduler, self)(
            vllm_config=config,
            kv_cache_config=kv,
            structured_output_manager=_Grammars(),
            block_size=build.block_tokens,
            log_stats=False,
        )
        self._block_tokens = build.block_tokens
        self._sequences, self._prompt_until, self._preempted = {}, {}, []
        self._steps.clear()
        if config.cache_config.enable_prefix_caching:
            hash_block = get_hash_fn_by_name("sha256")
            init_none_hash(hash_block)
            self._hasher = get_request_block_hasher(build.block_tokens, hash_block)
        else:
            self._hasher = None
        kind = type(self._scheduler).__mro__[1]
        return Built(version, f"{kind.__module__}.{kind.__name__}", self._free_blocks)

    @property
    def _free_blocks(self) -> int:
        found: int = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return found

    def _arrive(self, arrive: Arrive) -> Done:
        from vllm import SamplingParams
        from vllm.v1.request import Request, RequestStatus

        self._sequences[arrive.seq_id] = arrive
        sampling = SamplingParams(max_tokens=arrive.max_tokens, temperature=0.0, ignore_eos=False)
        sampling.stop_token_ids = [END_TOKEN]
        request = Request(
            request_id=str(arrive.seq_id),
            prompt_token_ids=[self._token(arrive, at) for at in range(arrive.prompt_tokens)],
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=float(arrive.arrival),
            priority=arrive.priority,
            block_hasher=self._hasher,
        )
        if arrive.is_constrained:
            request.structured_output_request = constraint = _Constraint()
            if arrive.waits_for_grammar:
                request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            else:
                constraint.grammar = object()
        self._scheduler.add_request(request)
        return Done()

    def _token(self, arrive: Arrive, position: int) -> int:
        block = position // self._block_tokens
        if arrive.aliases is not None and block < len(arrive.aliases):
            return arrive.aliases[block]
        return -1 - arrive.seq_id

    def _finish(self, seq_id: int) -> Done:
        from vllm.v1.request import RequestStatus

        aborted = RequestStatus.FINISHED_ABORTED
        return Done(
            tuple(
                Ended(seq_id, request.status.name, request.num_output_tokens)
                for request in self._scheduler.finish_requests(str(seq_id), aborted)
            )
        )

    def preempts(self, request_id: str) -> None:
        self._preempted.append(int(request_id))

    def _plan(self, number: int) -> Planned:
        scheduler = self._scheduler
        self._preempted = []
        output = scheduler.schedule()
        fresh = {one.req_id for one in output.scheduled_new_reqs}
        fresh |= output.scheduled_cached_reqs.resumed_req_ids
        for name in fresh:
            self._prompt_until[int(name)] = scheduler.requests[name].num_tokens
        rows = tuple(
            self._row(scheduler.requests[name], tokens)
            for name, tokens in output.num_scheduled_tokens.items()
        )
        if rows:
            self._steps[number] = output, rows
        else:  # vLLM takes the outcome of an empty step like any other; nothing comes of it
            scheduler.update_from_output(output, _outcome([], []))
        waiting = [*scheduler.kv_holding_waiting, *scheduler.waiting]
        pool = scheduler.kv_cache_manager.block_pool
        used = scheduler.kv_cache_config.num_blocks - 1 - self._free_blocks
        return Planned(
            rows=rows,
            admitted=tuple(
                Admission(row.seq_id, row.known_tokens, row.context_tokens)
                for row in rows
                if str(row.seq_id) in fresh
            ),
            preempted=tuple(self._preempted),
            running=len(scheduler.running),
            idle=tuple(
                int(one.request_id)
                for one in scheduler.running
                if one.request_id not in output.num_scheduled_tokens
            ),
            waiting=tuple(int(one.request_id) for one in waiting),
            waiting_tokens=sum(one.num_tokens - one.num_computed_tokens for one in waiting),
            blocks_used=used,
            blocks_cached=len(pool.cached_block_hash_to_block),
        )

    def _row(self, request: Any, tokens: int) -> PlannedRow:
        """`schedule` has already counted the tokens of this step as computed. After a preemption
        the output so far is a part of the prompt."""
        seq_id, context = int(request.request_id), request.num_computed_tokens - tokens
        return PlannedRow(
            seq_id=seq_id,
            is_prefill=context < self._prompt_until[seq_id],
            tokens=tokens,
            context_tokens=context,
            known_tokens=request.num_tokens,
            gives=not request.is_prefill_chunk,
        )

    def _commit(self, number: int) -> Committed:
        if number not in self._steps:
            return Committed((), ())
        output, rows = self._steps.pop(number)
        names = list(output.num_scheduled_tokens)
        requests = [self._scheduler.requests.get(name) for name in names]
        sampled = [
            [] if request is None or not row.gives else [self._next_token(request)]
            for request, row in zip(requests, rows, strict=True)
        ]
        before = [0 if request is None else request.num_output_tokens for request in requests]
        self._scheduler.update_from_output(output, _outcome(names, sampled))
        ended = tuple(
            Ended(int(request.request_id), request.status.name, request.num_output_tokens)
            for request in requests
            if request is not None and request.is_finished()
        )
        given = tuple(
            None if request is None else request.num_output_tokens - was
            for request, was in zip(requests, before, strict=True)
        )
        return Committed(given, ended)

    def _next_token(self, request: Any) -> int:
        arrive = self._sequences[int(request.request_id)]
        number = request.num_output_tokens + 1
        if arrive.end_output is not None and number >= arrive.end_output:
            return END_TOKEN
        return self._token(arrive, request.num_tokens)


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def _outcome(names: list[str], sampled: list[list[int]]) -> Any:
    from vllm.v1.outputs import ModelRunnerOutput

    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: place for place, name in enumerate(names)},
        sampled_token_ids=sampled,
    )


def _watched(kind: type[Any], stand_in: StandIn) -> type[Any]:
    """A subclass that says which requests are preempted: `SchedulerOutput` does not, in every
    release."""

    class Watched(kind):  # type: ignore[misc]
        def _preempt_request(self, request: Any, *args: Any, **more: Any) -> Any:
            stand_in.preempts(request.request_id)
            return super()._preempt_request(request, *args, **more)

    return Watched


def _vllm_config(build: Build) -> Any:
    """vLLM's configuration for a model that is never loaded, with the recorded limits. What vLLM
    would change for this machine's platform is set back."""
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig

    values = dict(build.values)
    prefix_cache = bool(values.pop("enable_prefix_caching"))
    with tempfile.TemporaryDirectory() as folder:
        shape = {**_SHAPE, "max_position_embeddings": build.max_model_tokens}
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        model = ModelConfig(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=build.max_model_tokens,
        )
        config = VllmConfig(
            model_config=model,
            scheduler_config=SchedulerConfig(
                max_model_len=build.max_model_tokens, is_encoder_decoder=False, **values
            ),
            cache_config=CacheConfig(
                block_size=build.block_tokens, enable_prefix_caching=prefix_cache
            ),
        )
    for name, value in values.items():
        setattr(config.scheduler_config, name, value)
    config.scheduler_config.async_scheduling = build.is_async
    config.cache_config.block_size = build.block_tokens
    config.cache_config.enable_prefix_caching = prefix_cache
    return config
