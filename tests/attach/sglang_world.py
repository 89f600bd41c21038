"""A small scheduler with the objects of SGLang that the adapter reads, driven through its hooks.

It plans, launches and processes as SGLang does with the overlap schedule: prompts first and in
chunks, one batch object for all decode steps, results that are read after the next launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from service.attach.inside.sglang import core
from service.attach.inside.sglang.observer import Observer
from service.attach.inside.transport import Listing
from telemetry.facts.clock import ManualClock
from telemetry.facts.records import Fact

EOS = 0


class FINISH_LENGTH:  # noqa: N801  the adapter tells SGLang's reasons apart by these names
    length = 0


class FINISH_ABORT:  # noqa: N801
    def __init__(self, status_code: int | None = None) -> None:
        self.message, self.status_code = "Aborted", status_code


class FINISH_MATCHED_TOKEN:  # noqa: N801
    def __init__(self, matched: int) -> None:
        self.matched = matched


@dataclass(eq=False)
class Req:
    rid: str
    origin_input_ids: list[int]
    sampling_params: Any
    output_ids: list[int] = field(default_factory=list)
    computed: int = 0
    priority: int | None = None
    grammar: Any = None
    finished_reason: Any = None
    finished_len: int | None = None
    to_finish: Any = None
    host_hit_length: int = 0
    eos_token_ids: frozenset[int] = frozenset({EOS})
    is_retracted: bool = False

    @property
    def known(self) -> int:
        return len(self.origin_input_ids) + len(self.output_ids)


@dataclass(eq=False)
class Batch:
    reqs: list[Req]
    is_prefill: bool = False
    prefix_lens: list[int] = field(default_factory=list)
    extend_lens: list[int] = field(default_factory=list)
    decoding_reqs: list[Req] | None = None
    batch_is_full: bool = False
    middle: Req | None = None

    @property
    def forward_mode(self) -> Any:
        return SimpleNamespace(is_extend=lambda: self.is_prefill)

    def retract_decode(self, victim: Req) -> tuple[list[Req], float, list[Req]]:
        self.reqs = [one for one in self.reqs if one is not victim]
        victim.is_retracted = True
        return [victim], 0.5, []


class Notes:
    """Takes what a sender takes."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.names: dict[int, str] = {}
        self.turned_off: list[tuple[str, str, bool]] = []
        self.turn_ns: int | None = None

    def started(self, fact: Fact) -> None:
        self.facts.append(fact)

    def append(self, fact: Fact) -> None:
        self.facts.append(fact)

    def name(self, seq_id: int, name: str) -> None:
        self.names[seq_id] = name

    def turn_off(self, hook: str, reason: str, *, is_all: bool = False) -> None:
        self.turned_off.append((hook, reason, is_all))

    def close(self, timeout_s: float = 1.0) -> None:
        pass


class Scheduler:
    """The attributes that the adapter reads, and the methods that it hooks, on virtual time."""

    page_size, device, schedule_policy = 1, "cpu", "fcfs"
    enable_overlap = True
    max_req_len = 1_000
    max_prefill_tokens, chunked_prefill_size = 64, 16
    max_queued_requests: int | None = None
    spec_algorithm = SimpleNamespace(is_none=lambda: True)
    disaggregation_mode, dllm_config, enable_pdmux = SimpleNamespace(value="null"), None, False
    _engine_paused = False
    model_config = SimpleNamespace(dtype="torch.float32", context_len=1_000)
    server_args = SimpleNamespace(served_model_name="/models/small", model_path="", api_key="x")

    def __init__(self, clock: ManualClock, most_running: int = 4, kv_tokens: int = 200) -> None:
        self.clock = clock
        self.max_running_requests, self.max_total_num_tokens = most_running, kv_tokens
        self.waiting_queue: list[Req] = []
        self.running_batch = Batch([])
        self.chunked_req: Req | None = None
        self._pending_chunked_abort_req: Req | None = None
        self.grammar_manager = SimpleNamespace(grammar_queue=[])
        self.pool_stats_observer = self

    def get_pool_stats(self) -> Any:
        held = self.running_batch.reqs + ([self.chunked_req] if self.chunked_req else [])
        used = min(self.max_total_num_tokens, sum(one.computed for one in held))
        return SimpleNamespace(
            full_num_used=used, full_evictable_size=0, full_capacity=self.max_total_num_tokens
        )

    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None:
        most = self.max_queued_requests
        if most is not None and len(self.waiting_queue) >= most:
            self.hooked(core._release, self._release_aborted_request, req)
            return
        self.waiting_queue.append(req)

    def _release_aborted_request(self, req: Req) -> None:
        pass

    def hooked(self, hook: Callable[..., Any], method: Callable[..., Any], *args: Any) -> Any:
        """Call one of the methods as SGLang's registry does, through the hook around it."""
        return hook(lambda owner, *rest: method(*rest), self, *args)

    def add(self, req: Req, is_retracted: bool = False) -> None:
        self.hooked(core._add, self._add_request_to_queue, req, is_retracted)

    def abort(self, rid: str, *, abort_all: bool = False, abort_message: str = "") -> None:
        request = SimpleNamespace(rid=rid, abort_all=abort_all, abort_message=abort_message)
        self.hooked(core._abort, self.abort_request, request)

    def abort_request(self, recv_req: Any) -> None:
        for req in [
            one for one in self.waiting_queue if recv_req.abort_all or one.rid == recv_req.rid
        ]:
            self.waiting_queue.remove(req)
            self.hooked(core._release, self._release_aborted_request, req)
        live = self.running_batch.reqs + ([self.chunked_req] if self.chunked_req else [])
        for req in live:
            if (recv_req.abort_all or req.rid == recv_req.rid) and req.finished_reason is None:
                req.to_finish = FINISH_ABORT()

    def plan(self, last: Batch | None, victim: Req | None) -> Any:
        """`get_next_batch_to_run`: a batch of prompts if there are any, else everybody decodes."""
        if last is not None and last.is_prefill:
            done = [one for one in last.reqs if one is not last.middle]
            known = set(map(id, self.running_batch.reqs))
            self.running_batch.reqs += [one for one in done if id(one) not in known]
        running = self.running_batch
        running.reqs = [one for one in running.reqs if one.finished_reason is None]
        batch = self._prompts()
        if batch is None and running.reqs:
            if victim is not None and len(running.reqs) > 1 and victim in running.reqs:
                core._retract(lambda owner: owner.retract_decode(victim), running)
                victim.computed = 0
                self.add(victim, True)
            for req in running.reqs:
                req.computed += 1
            batch = running
        running.batch_is_full = bool(self.waiting_queue)
        return SimpleNamespace(batch_to_run=batch, running_batch=running)

    def _prompts(self) -> Batch | None:
        left, reqs, before, lens = self.chunked_prefill_size, [], [], []
        candidates = [self.chunked_req] if self.chunked_req is not None else []
        slots = self.max_running_requests - len(self.running_batch.reqs) - len(candidates)
        candidates += self.waiting_queue[: max(0, slots)]
        self.chunked_req = None
        for req in candidates:
            if left <= 0:
                break
            tokens = min(left, req.known - req.computed)
            reqs.append(req)
            before.append(req.computed)
            lens.append(tokens)
            req.computed += tokens
            req.is_retracted = False
            left -= tokens
            if req in self.waiting_queue:
                self.waiting_queue.remove(req)
            if req.computed < req.known:
                self.chunked_req = req
        return Batch(reqs, True, before, lens, middle=self.chunked_req) if reqs else None

    def process(self, batch: Batch, result: Any) -> None:
        for req in result.reqs:
            if req.finished_reason is not None or req.is_retracted or req is result.middle:
                continue
            req.output_ids.append(result.token)
            if req.to_finish is not None:
                req.finished_reason, req.to_finish = req.to_finish, None
            elif result.token in req.eos_token_ids:
                req.finished_reason = FINISH_MATCHED_TOKEN(result.token)
            elif len(req.output_ids) >= req.sampling_params.max_new_tokens:
                req.finished_reason = FINISH_LENGTH()


class World:
    """A scheduler with its observer, and the loop around them."""

    def __init__(self, seed: int = 0, **settings: int) -> None:
        self.random, self.clock, self.notes = Random(seed), ManualClock(1), Notes()
        self.scheduler = Scheduler(self.clock, **settings)

        def make_sender(listing: Callable[[], Listing], is_resting: Callable[[], bool]) -> Any:
            return self.notes

        self.observer = Observer(self.scheduler, make_sender, _Ticking(self.clock))
        self.observer.begin("0.5.23")
        self.last: Batch | None = None
        self.results: list[tuple[Batch, Any]] = []
        core._watch = self.observer

    def request(self, prompt_tokens: int, most_tokens: int) -> Req:
        name = f"r{self.random.random()}"
        req = Req(name, [7] * prompt_tokens, SimpleNamespace(max_new_tokens=most_tokens))
        self.scheduler.add(req)
        return req

    def turn(self, victim: Req | None = None, token: int = 7) -> None:
        """One turn of the loop with the overlap schedule."""
        scheduler = self.scheduler
        plan = core._plan(lambda owner: owner.plan(self.last, victim), scheduler)
        batch = plan.batch_to_run
        if batch is not None:
            result = SimpleNamespace(reqs=list(batch.reqs), middle=batch.middle, token=token)
            core._run(lambda owner, one: result, scheduler, batch)
            self.results.append((batch, result))
        if self.last is not None:
            done, outcome = self.results.pop(0)
            core._process(Scheduler.process, scheduler, done, outcome)
        self.last = batch

    def run_dry(self) -> None:
        for _ in range(10_000):
            if self.last is None and not self.scheduler.waiting_queue and not self.results:
                return
            self.turn()
        raise AssertionError("the scheduler does not come to an end")

    def close(self) -> None:
        core._watch = None


class _Ticking:
    """Each look at the clock is later than the one before."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def now_ns(self) -> int:
        self._clock.advance(1)
        return self._clock.now_ns()
