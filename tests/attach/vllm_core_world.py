"""vLLM's scheduler as far as the observer of the engine core reads it, without vLLM."""

from __future__ import annotations

import enum
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from service.attach.inside.vllm_core.hooks import Hooks
from service.attach.inside.vllm_core.observer import Observer
from tests.attach.sidecar import Connection, Sidecar


class Status(enum.IntEnum):
    """The names of vLLM's RequestStatus."""

    WAITING = enum.auto()
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = enum.auto()
    WAITING_FOR_REMOTE_KVS = enum.auto()
    WAITING_FOR_STREAMING_REQ = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_IGNORED = enum.auto()
    FINISHED_ERROR = enum.auto()
    FINISHED_REPETITION = enum.auto()


PAUSED_ALL = 2  # of vLLM's PauseState


def request(name: str = "a", **fields: Any) -> SimpleNamespace:
    """One of vLLM's requests, of ten prompt tokens."""
    known = {
        "request_id": name,
        "status": Status.WAITING,
        "num_prompt_tokens": 10,
        "num_tokens": 10,
        "num_computed_tokens": 0,
        "num_output_tokens": 0,
        "num_output_placeholders": 0,
        "num_stale_output_tokens": 0,
        "drop_stale_output": False,
        "num_preemptions": 0,
        "max_tokens": 5,
        "priority": 0,
        "stop_reason": None,
        "lora_request": None,
        "prefill_stats": None,
        "block_hashes": [],
        "resumable": False,
    }
    return SimpleNamespace(**{**known, **fields})


def scheduler(running: list[Any], waiting: list[Any], **fields: Any) -> SimpleNamespace:
    """What is read of a scheduler that has planned: it has free slots, blocks, and eight tokens a
    step."""
    pool = SimpleNamespace(
        num_gpu_blocks=65, get_num_free_blocks=lambda: 64, cached_block_hash_to_block={}
    )
    known = {
        "running": running,
        "waiting": deque(waiting),
        "kv_holding_waiting": deque(),
        "max_num_scheduled_tokens": 8,
        "max_num_active_reqs": 4,
        "num_waiting_for_streaming_input": 0,
        "pause_state": 0,
        "lora_config": None,
        "scheduler_config": SimpleNamespace(enable_chunked_prefill=True),
        "block_size": 16,
        "kv_cache_manager": SimpleNamespace(block_pool=pool),
    }
    return SimpleNamespace(**{**known, **fields})


class Core:
    """A scheduler with a model that gives a token for each row, and the engine's loop around it. A
    session has ended its turn with the token; `is_full`: nothing more is admitted."""

    def __init__(self) -> None:
        vars(self).update(vars(scheduler([], [], max_num_scheduled_tokens=64)))
        self.cache_config = SimpleNamespace(enable_prefix_caching=False)
        self.parallel_config = SimpleNamespace(data_parallel_index=0)
        self.requests: dict[str, Any] = {}
        self.is_full = False

    def turn(self, *args: Any) -> None:
        """A turn of the loop, which rests where there is nothing to do."""
        if self.has_unfinished_requests():
            self.update_from_output(self.schedule(*args), None)

    def load(self, one: Any) -> None:
        """The KV of a request begins to come from elsewhere."""
        self.waiting.remove(one)
        self.kv_holding_waiting.append(one)
        one.status, one.num_computed_tokens = Status.WAITING_FOR_REMOTE_KVS, one.num_tokens - 1

    def schedule(self, throttle_prefills: bool = False) -> Any:
        for queue in () if self.is_full else (self.kv_holding_waiting, self.waiting):
            for one in [waits for waits in queue if waits.status == Status.WAITING]:
                queue.remove(one)
                one.status = Status.RUNNING
                self.running.append(one)
        rows = {one.request_id: one.num_tokens - one.num_computed_tokens for one in self.running}
        for one in self.running:
            one.num_computed_tokens = one.num_tokens
        return SimpleNamespace(
            num_scheduled_tokens=rows, total_num_scheduled_tokens=sum(rows.values())
        )

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = []
        for name in scheduler_output.num_scheduled_tokens:
            one = self.requests[name]
            one.num_tokens, one.num_output_tokens = one.num_tokens + 1, one.num_output_tokens + 1
            outputs.append(SimpleNamespace(request_id=name, new_token_ids=[7]))
            if one.resumable:
                self.running.remove(one)
                self.kv_holding_waiting.append(one)
                one.status = Status.WAITING_FOR_STREAMING_REQ
                self.num_waiting_for_streaming_input += 1
        return {0: SimpleNamespace(outputs=outputs)}

    def add_request(self, request: Any) -> None:
        """Of a session that waits, more input; what it generated is kept, but for the last token.
        One that is not resumable is the end of the input."""
        known = self.requests.get(request.request_id)
        if known is None:
            self.requests[request.request_id] = request
            self.waiting.append(request)
        elif not request.resumable:
            self.finish_requests(request.request_id, Status.FINISHED_ABORTED)
        else:
            known.num_prompt_tokens = known.num_computed_tokens + request.num_prompt_tokens
            known.num_tokens, known.num_output_tokens = known.num_prompt_tokens, 0
            known.status = Status.WAITING
            self.num_waiting_for_streaming_input -= 1

    def finish_requests(self, request_ids: str, finished_status: Status) -> None:
        one = self.requests[request_ids]
        self.num_waiting_for_streaming_input -= one.status == Status.WAITING_FOR_STREAMING_REQ
        for queue in (self.running, self.waiting, self.kv_holding_waiting):
            if one in queue:
                queue.remove(one)
        one.status = finished_status
        self._free_request(one)

    def _free_request(self, request: Any) -> None:
        del self.requests[request.request_id]

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting) + len(self.kv_holding_waiting)

    def has_unfinished_requests(self) -> bool:
        if self.pause_state == PAUSED_ALL:
            return False
        return sum(self.get_request_counts()) > self.num_waiting_for_streaming_input

    def shutdown(self) -> None:
        pass


class ObservedCore(Hooks, Core):
    """The same with the hooks of the adapter, which tells a sidecar at `path`."""

    def __init__(self, path: Path) -> None:
        Core.__init__(self)  # the hooks' own looks for vLLM
        self.observer = self.phasescope = Observer(self, Status, path, "0.32.0")

    def told(self, sidecar: Sidecar) -> Connection:
        """Shut down, and give all that was said."""
        self.shutdown()
        connection = sidecar.accept()
        connection.read_to_end()
        return connection
