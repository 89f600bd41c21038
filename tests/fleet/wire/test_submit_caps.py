"""What a client may choose, as long as it may be, fits what a node reads of a gateway."""

from __future__ import annotations

from typing import Any

import msgspec

from service.config.settings import SamplingDefaults
from service.engine.inbox import Submit
from service.engine.plan import Grammar, GrammarKind, Reasoning, SamplingParams
from service.engine.prompt_output import PromptOutput
from service.fleet.wire import messages
from service.fleet.wire.checks import MOST_GRAMMAR_CHARACTERS
from service.fleet.wire.handshake import SEAL_BYTES
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.fleet.sent_sequence import for_node
from service.gateway.http import limits
from service.gateway.ingest.compat.compat_options import salt_of
from service.gateway.ingest.schemas import parse_completion
from service.gateway.routes.route_table import GENERATION
from telemetry.facts.reasons import EndReason
from tests.fleet.fleet_world import SPAN_ID, TRACE_ID, GatewayWorld, NodeWorld, run, steps, until

SALT = "\N{GRINNING FACE}" * limits.SALT_CHARACTERS.value
LAST_ID = limits.TOKEN_ID.value
INT64 = (1 << 63) - 1
BODY: dict[str, Any] = {
    "prompt": [LAST_ID],
    "max_tokens": limits.TOKENS.value,
    "min_tokens": limits.TOKENS.value,
    "top_k": limits.TOKENS.value,
    "seed": -INT64,
    "stop_token_ids": [LAST_ID - number for number in range(limits.STOP_IDS.value)],
    "logit_bias": {str(999_999_999 - number): 99.5 for number in range(limits.LOGIT_BIAS.value)},
    "logprobs": limits.LOGPROBS.value,
    "prompt_logprobs": limits.LOGPROBS.value,
    "timeout": limits.TIMEOUT_S.value,
    "priority": -limits.PRIORITY.value,
    "cache_prefix": False,
    "cache_salt": SALT,
    "extra_key": SALT,
}
NOT_OF_A_CLIENT = {"prefill"}


def longest() -> messages.RemoteSubmit:
    """What a gateway sends if everything is as long as it may be."""
    request = parse_completion(msgspec.json.encode(BODY), SamplingDefaults())
    submit = Submit(
        seq_id=INT64,
        prompt=[LAST_ID] * limits.PROMPT_IDS.value,
        max_tokens=request.max_tokens or 0,
        sampling=SamplingParams(
            top_k=request.top_k,
            seed=request.seed or 0,
            logprobs=request.sampled_logprobs,
            logit_bias=request.logit_bias,
            reasoning=Reasoning(LAST_ID, LAST_ID, True, limits.TOKENS.value),
        ),
        min_tokens=request.min_tokens,
        end_token_ids=(LAST_ID,),
        stop_token_ids=request.stop_token_ids,
        tenant="\N{GRINNING FACE}" * limits.LABEL_CHARACTERS.value,
        priority=request.priority,
        deadline_ns=limits.TIMEOUT_S.value * 10**9,
        cache_salt=request.cache_salt,
        cache_prefix=request.cache_prefix,
        grammar=Grammar(GrammarKind.TOOLS, "\N{GRINNING FACE}" * MOST_GRAMMAR_CHARACTERS),
        first_token_by_ns=INT64,
        ttft_target_ns=INT64,
        itl_target_ns=INT64,
        prompt_output=PromptOutput(logprobs=request.prompt_logprobs),
    )
    about = RequestContext(
        "r" * limits.REQUEST_ID_CHARACTERS.value,
        TRACE_ID,
        SPAN_ID,
        True,
        "s" * limits.LABEL_CHARACTERS.value,
        max((one.path for one in GENERATION), key=len),
        "text_completion",
        limits.SEQUENCES.value - 1,
        limits.SEQUENCES.value,
    )
    return for_node(submit, about, 1, 0)


def test_a_node_reads_the_longest_that_a_client_can_choose() -> None:
    sent = longest()
    payload = messages.packed(sent)

    assert messages.to_node.decode(payload) == sent
    assert len(sent.cache_salt) <= limits.SALT_CHARACTERS.value
    assert len(payload) + SEAL_BYTES <= messages.TO_NODE_BYTES


def test_no_field_that_a_client_chooses_is_left_out_here() -> None:
    """A field that is added to a submit belongs into what is tried above."""
    sent = longest()
    fields = msgspec.structs.fields(messages.RemoteSubmit)

    same = {one.name for one in fields if getattr(sent, one.name) == one.default}
    assert same == NOT_OF_A_CLIENT


def test_a_request_with_the_longest_salts_is_served_beside_others() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            other = gateway.ask("other")
            asked = gateway.ask(
                "r" * limits.REQUEST_ID_CHARACTERS.value,
                cache_salt=salt_of(SALT, SALT),
                tenant="t" * limits.LABEL_CHARACTERS.value,
            )
            await until(lambda: len(node.handlers) == 2, "both are there")
            await steps(node, 4, 2)
            for one in (other, asked):
                await one.take()
                assert one.ends == [EndReason.MAX_TOKENS]

    run(case)
