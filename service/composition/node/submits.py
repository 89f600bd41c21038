"""A gateway's submit as the node's engine gets it: in the node's numbers and clock."""

from __future__ import annotations

from service.engine.inbox import Submit
from service.fleet.transfer.messages import TransferRequestContext
from service.fleet.wire import messages
from service.gateway.engine_client.request_context import RequestContext
from service.process import frames
from telemetry.facts.fleet.kv_transfer_records import KvSplitChosen, Way


def about_of(submit: messages.RemoteSubmit, request_id: str) -> RequestContext:
    about = submit.about
    return RequestContext(
        request_id=request_id,
        trace_id=about.trace_id,
        span_id=about.span_id,
        sampled=about.sampled,
        slo_class=about.slo_class,
        route=about.route,
        operation=about.operation,
        sequence=about.choice,
        sequences=about.choices,
    )


def split_of(
    submit: messages.RemoteSubmit, at: messages.PrefillAt, seq_id: int, read_ns: int
) -> KvSplitChosen:
    """The gateway's choice as a fact of this node."""
    return KvSplitChosen(
        seq_id=seq_id,
        at_ns=read_ns,
        prompt_tokens=len(submit.prompt),
        cached_tokens=at.cached_tokens,
        remote_cached_tokens=at.remote_cached_tokens,
        way=Way.REMOTE if at.is_remote else Way.LOCAL,
        local_ns=at.local_ns,
        harm_ns=at.harm_ns,
        remote_ns=at.remote_ns,
        exposed_ns=at.exposed_ns,
    )


def elsewhere(
    submit: messages.RemoteSubmit, at: messages.PrefillAt, seq_id: int, request_id: str
) -> frames.PrefillElsewhere:
    """Where the engine gets the KV of the prompt from."""
    about = submit.about
    return frames.PrefillElsewhere(
        seq_id,
        at.host,
        at.port,
        TransferRequestContext(
            request_id=request_id,
            trace_id=about.trace_id,
            span_id=about.span_id,
            sampled=about.sampled,
        ),
    )


def for_engine(submit: messages.RemoteSubmit, seq_id: int, received_ns: int) -> Submit:
    """The submit in the node's numbers and clock."""

    def until(left_ns: int | None) -> int | None:
        return None if left_ns is None else received_ns + left_ns

    return Submit(
        seq_id=seq_id,
        prompt=submit.prompt,
        max_tokens=submit.max_tokens,
        sampling=submit.sampling,
        min_tokens=submit.min_tokens,
        end_token_ids=submit.end_token_ids,
        stop_token_ids=submit.stop_token_ids,
        tenant=submit.tenant,
        priority=submit.priority,
        deadline_ns=until(submit.deadline_in_ns),
        cache_salt=submit.cache_salt,
        cache_prefix=submit.cache_prefix,
        grammar=submit.grammar,
        first_token_by_ns=until(submit.first_token_in_ns),
        ttft_target_ns=submit.ttft_target_ns,
        itl_target_ns=submit.itl_target_ns,
        prompt_output=submit.prompt_output,
    )
