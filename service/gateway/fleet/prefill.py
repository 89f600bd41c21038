"""Where the prompt of a request is computed: by the engine that was chosen to generate, or by one
that computes prompts for others (`service.fleet.routing.prefill_choice`).

What was predicted goes with the submit. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from service.engine.inbox import Submit
from service.fleet.membership.members import Role
from service.fleet.routing.prefill_choice import Computes, Decodes, Found, PrefillChoice
from service.fleet.transfer.split import ASSUMED_DIGEST_BYTE_NS, LinkCost
from service.fleet.wire.messages import EngineLoad, KvOffer, KvRates, PrefillAt
from service.gateway.fleet.link import EngineLink, LinkState
from telemetry.facts.fleet.kv_transfer_records import Way
from telemetry.facts.fleet.routing_records import RequestRouted

ASSUMED_BYTES_PER_NS = 1.0
ASSUMED_DELAY_NS = 500_000
"""Until a transfer was measured: 1 GB/s, and half a millisecond."""


class PrefillSplit:
    """`mode`: `auto` goes by the prediction (`service.fleet.transfer.split`), `always` takes the
    other engine wherever there is one, `never` none."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._choice = PrefillChoice()

    def reported(self, name: str) -> None:
        """A load report has come."""
        self._choice.reported(name)

    def computed(self, seq_id: int) -> None:
        """The prompt of a sequence is computed, or the sequence has ended."""
        self._choice.computed(seq_id)

    def left(self, name: str) -> None:
        """An engine is gone."""
        self._choice.left(name)

    def choose(
        self,
        submit: Submit,
        sequences: int,
        link: EngineLink,
        prefilling: Mapping[str, EngineLink],
        routed: RequestRouted,
    ) -> PrefillAt | None:
        """Where the prompt is computed that `link` goes on with; None where there is no choice.
        Engines that compute prompts for others are among `prefilling`."""
        offer, anchors = link.kv, routed.anchors
        prompt_tokens, cached_tokens = routed.prompt_tokens, routed.candidates[0].cached_tokens
        if self._mode == "never" or offer is None:
            return None
        found: Found | None = None
        if _may_go(submit, sequences):
            here = Decodes(link.name, _load(link), cached_tokens)
            there = _computing(link, offer, prefilling.values(), routed.at_ns)
            target_ns = routed.ttft_target_ns
            found = self._choice.best(prompt_tokens, anchors, here, there, target_ns)
        computed_tokens = prompt_tokens - cached_tokens
        if found is None:  # what several sequences share is computed once
            self._choice.sent_here(link.name, computed_tokens * routed.prompts // sequences)
            return None
        split, other = found.split, prefilling[found.name]
        is_remote = split.way is Way.REMOTE or self._mode == "always"
        if is_remote:
            self._choice.sent_away(submit.seq_id, found, link.name, prompt_tokens, anchors)
        else:
            self._choice.sent_here(link.name, computed_tokens)
        assert other.kv is not None
        assert other.kv.port is not None
        host, port = other.member.kv_address or (other.member.host, other.kv.port)
        return PrefillAt(
            host=host,
            port=port,
            is_remote=is_remote,
            cached_tokens=cached_tokens,
            remote_cached_tokens=found.cached_tokens,
            local_ns=split.local_ns,
            harm_ns=split.harm_ns,
            remote_ns=split.remote_ns,
            exposed_ns=split.exposed_ns,
        )


def _may_go(submit: Submit, sequences: int) -> bool:
    """Adapters and prompts whose rows are read stay where they are decoded. So do several sequences
    of one request: the first computes the prompt for all of them."""
    is_read = submit.prompt_output is not None or not submit.max_tokens
    return not submit.adapter and not is_read and sequences == 1


def _load(link: EngineLink) -> EngineLoad:
    return EngineLoad() if link.report is None else link.report.load


def _computing(
    link: EngineLink, offer: KvOffer, links: Iterable[EngineLink], now_ns: int
) -> Iterator[Computes]:
    """The engines that compute prompts for an engine, with a cache like its own."""
    for other in links:
        computes = other.role is Role.PREFILL and other.state_at(now_ns) is LinkState.READY
        if other is link or not computes or other.kv is None or other.kv.port is None:
            continue
        if other.kv.layout == offer.layout:
            block_tokens = 0 if other.started is None else other.started.block_tokens
            cost = _link_cost(offer, other.kv_rates, link.kv_rates)
            yield Computes(other.name, _load(other), block_tokens, cost)


def _link_cost(offer: KvOffer, sender: KvRates | None, receiver: KvRates | None) -> LinkCost:
    """What the two have measured, wherever they sent to and got from."""
    bytes_per_ns = None if sender is None else sender.bytes_per_ns
    digest_byte_ns = None if receiver is None else receiver.digest_byte_ns
    return LinkCost(
        token_bytes=offer.token_bytes,
        bytes_per_ns=bytes_per_ns or ASSUMED_BYTES_PER_NS,
        delay_ns=ASSUMED_DELAY_NS,
        digest_byte_ns=digest_byte_ns or ASSUMED_DIGEST_BYTE_NS,
    )
