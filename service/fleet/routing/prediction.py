"""What would become of a request on an engine: first token, finish, and what it takes from others.

With D the time of a step of the decodes there, a prompt token's a, and W the work of the prompt's
part that the engine does not hold:

    TTFT    = prompts before it + slots and blocks that must become free + half a step + W
              + a D for each step that W is spread over
    finish  = TTFT + (outputs - 1) * (D with its rows)
    harm    = rows there * (W + steps that they share with it * what its rows add to one)

Costs are the engine's own fit, so that engines of different speed are compared in nanoseconds. The
harm is that to the decodes: each waits while the prompt is computed, and has its rows (one for each
sequence of the request) beside it.
"""

from __future__ import annotations

from typing import NamedTuple

from service.fleet.routing.engine_view import SILENT_NS, EngineView
from service.fleet.routing.request import RouteRequest
from telemetry.costs.step_load import attention_pairs
from telemetry.facts.fleet.routing_records import Candidate


class Predicted(NamedTuple):
    """Nanoseconds from the choice on; `score` is what is compared. Of the time until the first
    token, it waits for others for `before_ns`, and its own prompt takes `work_ns`."""

    score: float
    before_ns: float
    work_ns: float
    ttft_ns: float
    finish_ns: float
    harm_ns: float
    cached_tokens: int
    view: EngineView

    def candidate(self, now_ns: int) -> Candidate:
        return Candidate(
            self.view.name,
            self.view.age_ns(now_ns),
            self.cached_tokens,
            round(self.ttft_ns),
            round(self.finish_ns),
            round(self.harm_ns),
        )


def predict(
    view: EngineView,
    request: RouteRequest,
    cached_tokens: int,
    now_ns: int,
    mean_outputs: float,
    harm_weight: float,
) -> Predicted:
    """`mean_outputs` tokens is what requests that ended lately had. Without calls, because a choice
    makes about ten of these."""
    computed = request.prompt_tokens - cached_tokens
    work_ns = computed * view.prefill_ns + view.mixed_ns
    if view.pair_ns:
        work_ns += view.pair_ns * attention_pairs(computed, cached_tokens)
    decode_ns, outputs = view.decode_ns, mean_outputs
    before_ns = view.ready_ns - now_ns
    if before_ns < 0:
        before_ns = 0.0
    if now_ns - view.signal_ns > SILENT_NS:
        before_ns += now_ns - view.signal_ns
    if view.rows:
        before_ns += decode_ns / 2
        before_ns += _wait_for_room_ns(view, computed, mean_outputs)
    steps = work_ns / view.spare_ns
    ttft_ns = before_ns + work_ns + (steps if steps > 1.0 else 1.0) * decode_ns
    if request.max_tokens < outputs:
        outputs = float(request.max_tokens)
    row_ns = view.row_ns + view.context_token_ns * (request.prompt_tokens + outputs / 2)
    row_ns *= request.sequences
    finish_ns = ttft_ns + (outputs - 1) * (decode_ns + row_ns)
    shared_steps = mean_outputs / 2
    if outputs < shared_steps:
        shared_steps = outputs
    harm_ns = view.rows * (work_ns + shared_steps * row_ns)
    score = finish_ns + harm_weight * harm_ns
    return Predicted(score, before_ns, work_ns, ttft_ns, finish_ns, harm_ns, cached_tokens, view)


def _wait_for_room_ns(view: EngineView, computed: int, mean_outputs: float) -> float:
    """Until a slot and blocks are free: those who run end one after the other."""
    life_ns = mean_outputs * view.decode_ns
    if view.residents >= view.max_seqs:
        return (view.residents + 1 - view.max_seqs) * life_ns / view.max_seqs
    if view.free_blocks is None:
        return 0.0
    short = computed / view.block_tokens - view.free_blocks
    return short * life_ns / max(1.0, view.used_blocks) if short > 0 else 0.0
