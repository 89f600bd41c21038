"""What would become of a request on an engine: first token, finish, and what it takes from others.

With D the time of a step of the decodes there, a prompt token's a, and W the work of the prompt's
part that the engine does not hold:

    TTFT    = prompts before it + slots and blocks that must become free + half a step + W
              + a D for each step that W is spread over
    finish  = TTFT + (outputs - 1) * (D with one more row)
    harm    = rows there * (W + steps that they share with it * what its row adds to one)

Costs are the engine's own fit, so that engines of different speed are compared in nanoseconds. The
harm is that to the decodes: each waits while the prompt is computed, and has a row more beside it.
"""

from __future__ import annotations

from typing import NamedTuple

from service.engine.budget import LEAST_SHARE
from service.fleet.routing.engine_view import EngineView
from service.fleet.routing.request import RouteRequest
from telemetry.costs.step_load import attention_pairs
from telemetry.facts.fleet.routing_records import Candidate


class Predicted(NamedTuple):
    """Nanoseconds from the choice on; `score` is what is compared."""

    score: float
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
    """`mean_outputs` tokens is what requests that ended lately had."""
    cost, rows, decode_ns = view.cost, view.rows, view.decode_ns
    computed = request.prompt_tokens - cached_tokens
    pairs = attention_pairs(computed, cached_tokens)
    work_ns = computed * cost.prefill_token_ns + pairs * cost.pair_ns + cost.mixed_ns
    steps, step_ns = 1.0, decode_ns
    target_ns = view.target_ns
    if rows and target_ns is not None:
        spare_ns = max(target_ns / cost.spread - decode_ns, decode_ns * LEAST_SHARE, 1.0)
        steps = max(1.0, work_ns / spare_ns)
    before_ns = max(0.0, view.ready_ns - now_ns) + view.silence_ns(now_ns)
    if rows:
        before_ns += decode_ns / 2
    life_ns = mean_outputs * step_ns
    if view.residents >= view.max_seqs:
        before_ns += (view.residents + 1 - view.max_seqs) * life_ns / view.max_seqs
    elif view.free_blocks is not None:
        short = computed / view.block_tokens - view.free_blocks
        if short > 0:
            before_ns += short * life_ns / max(1.0, view.used_blocks)
    ttft_ns = before_ns + work_ns + steps * decode_ns
    outputs = min(float(request.max_tokens), mean_outputs)
    row_ns = cost.decode_row_ns + cost.context_token_ns * (request.prompt_tokens + outputs / 2)
    finish_ns = ttft_ns + max(0.0, outputs - 1) * (decode_ns + row_ns)
    shared_steps = min(outputs, mean_outputs / 2)
    harm_ns = rows * (work_ns + shared_steps * row_ns)
    score = finish_ns + harm_weight * harm_ns
    return Predicted(score, ttft_ns, finish_ns, harm_ns, cached_tokens, view)
