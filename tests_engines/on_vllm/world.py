"""vLLM's own scheduler with a model that is a counter, so that no weights are needed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_TOKENS, CONTEXT_TOKENS, EOS = 16, 512, 2
_TOKEN = 1_000  # what the counter gives; it ends nothing


@cache
def _model() -> ModelConfig:
    path = os.environ["PHASESCOPE_TEST_MODEL"]
    return ModelConfig(model=path, dtype="bfloat16", max_model_len=CONTEXT_TOKENS)


class World:
    """A scheduler, its queue of steps, and what clients do. `depth` steps may be planned before the
    outcome of the first; more than one makes scheduling asynchronous."""

    def __init__(
        self,
        *,
        depth: int = 1,
        seqs: int = 8,
        budget: int = 64,
        blocks: int = 64,
        policy: str = "fcfs",
        prefix_cache: bool = True,
        chunked: bool = True,
        observed: bool = True,
    ) -> None:
        limits = SchedulerConfig(
            max_num_seqs=seqs,
            max_num_batched_tokens=max(budget, CONTEXT_TOKENS if not chunked else 0),
            max_model_len=CONTEXT_TOKENS,
            enable_chunked_prefill=chunked,
            is_encoder_decoder=False,
            policy=policy,
        )
        cache_config = CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=prefix_cache)
        config = VllmConfig(
            model_config=_model(), cache_config=cache_config, scheduler_config=limits
        )
        limits.async_scheduling = depth > 1  # a CPU platform turns it off
        cache_config.num_gpu_blocks = blocks
        self._hasher = self._block_hasher() if prefix_cache else None
        self._depth = depth
        self._steps: deque[Any] = deque()
        self.planned: list[dict[str, int]] = []
        self.given: dict[str, int] = {}
        chosen = limits.get_scheduler_cls()
        self.scheduler = (chosen if observed else chosen.__mro__[2])(
            vllm_config=config,
            kv_cache_config=_one_group(blocks),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=True,
        )

    def add(
        self, name: str, prompt: Iterable[int], max_tokens: int = 8, priority: int = 0
    ) -> Request:
        """What the engine core does with a request that arrives."""
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(
            request_id=name,
            prompt_token_ids=list(prompt),
            sampling_params=params,
            pooling_params=None,
            priority=priority,
            block_hasher=self._hasher,
        )
        self.scheduler.add_request(request)
        return request

    def abort(self, *names: str) -> None:
        self.scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED)

    def turn(self, before_outcome: Callable[[], None] = lambda: None) -> None:
        """A turn of the engine's loop: plan as far ahead as may be, then take one outcome."""
        while len(self._steps) < self._depth and self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self.planned.append(dict(output.num_scheduled_tokens))
            self._steps.append((output, self._run(output)))
        before_outcome()
        if self._steps:
            output, outcome = self._steps.popleft()
            for client in self.scheduler.update_from_output(output, outcome).values():
                for one in client.outputs:
                    count = self.given.get(one.request_id, 0)
                    self.given[one.request_id] = count + len(one.new_token_ids)

    def run(self, most_turns: int = 2_000) -> None:
        """Until nothing is left."""
        for _ in range(most_turns):
            if not self.scheduler.has_requests() and not self._steps:
                return
            self.turn()
        raise AssertionError("it does not end")

    def _run(self, output: Any) -> ModelRunnerOutput:
        """Each sequence whose known tokens are all computed gets the next one."""
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.scheduler.requests[name]
            is_chunk = request.is_prefill_chunk
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            sampled.append([] if is_chunk else [_TOKEN] * (1 + drafts))
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
        )

    def _block_hasher(self) -> Any:
        function = get_hash_fn_by_name("sha256")
        init_none_hash(function)
        return get_request_block_hasher(BLOCK_TOKENS, function)


def _one_group(blocks: int) -> KVCacheConfig:
    spec = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
