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

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from service.fleet.routing.engine_view import SILENT_NS, EngineView
from service.fleet.routing.request import RouteRequest
from telemetry.costs.step_load import attention_pairs
from telemetry.facts.fleet.routing_records import Candidate


class Predicted(msgspec.Struct, frozen=True, eq=False, gc=False):
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


def predict(
    held: Mapping[int, int],
    views: Sequence[EngineView],
    request: RouteRequest,
    now_ns: int,
    mean_outputs: float,
    harm_weight: float,
) -> list[Predicted]:
    """For engines, by index with the tokens of the prompt that they hold. `mean_outputs` tokens is
    what requests that ended lately had. One loop, nearly without calls, because a choice makes
    about ten of these."""
    prompt_tokens, sequences = request.prompt_tokens, request.sequences
    prompts = request.prompts
    all_tokens = prompt_tokens * prompts
    outputs = mean_outputs
    if request.max_tokens < outputs:
        outputs = float(request.max_tokens)
    later_tokens = outputs - 1
    context_tokens = prompt_tokens + outputs / 2
    shared_steps = mean_outputs / 2
    if outputs < shared_steps:
        shared_steps = outputs
    found = []
    for index, cached_tokens in held.items():
        view = views[index]
        computed = all_tokens - cached_tokens
        work_ns = computed * view.prefill_ns + view.mixed_ns
        if view.pair_ns:
            # prompts do not attend to each other
            work_ns += view.pair_ns * attention_pairs(computed, cached_tokens) / prompts
        decode_ns, rows = view.decode_ns, view.rows
        before_ns = view.ready_ns - now_ns
        if before_ns < 0:
            before_ns = 0.0
        if now_ns - view.signal_ns > SILENT_NS:
            before_ns += now_ns - view.signal_ns
        if rows:
            before_ns += decode_ns / 2
            life_ns = mean_outputs * decode_ns  # those who run end one after the other
            if view.residents >= view.max_seqs:
                before_ns += (view.residents + 1 - view.max_seqs) * life_ns / view.max_seqs
            elif view.free_blocks is not None:
                short = computed / view.block_tokens - view.free_blocks
                if short > 0:
                    before_ns += short * life_ns / max(1.0, view.used_blocks)
        steps = work_ns / view.spare_ns
        ttft_ns = before_ns + work_ns + (steps if steps > 1.0 else 1.0) * decode_ns
        row_ns = (view.row_ns + view.context_token_ns * context_tokens) * sequences
        finish_ns = ttft_ns + later_tokens * (decode_ns + row_ns)
        harm_ns = rows * (work_ns + shared_steps * row_ns)
        score = finish_ns + harm_weight * harm_ns
        found.append(
            Predicted(score, before_ns, work_ns, ttft_ns, finish_ns, harm_ns, cached_tokens, view)
        )
    return found


def candidates(weighed: Iterable[Predicted], now_ns: int) -> tuple[Candidate, ...]:
    """Predictions as the `Candidate` rows of a RequestRouted fact."""
    found = []
    for one in weighed:
        view = one.view
        age_ns = None if view.report is None else max(0, now_ns - view.signal_ns)
        found.append(
            Candidate(
                view.name,
                age_ns,
                one.cached_tokens,
                round(one.ttft_ns),
                round(one.finish_ns),
                round(one.harm_ns),
            )
        )
    return tuple(found)
