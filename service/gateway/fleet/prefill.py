"""Where the prompt of a request is computed: by the engine that was chosen to generate, or by one
that computes prompts for others (`service.fleet.transfer.split`). Belongs to the event loop.

What is known of both is their last load report, and what this gateway has sent to a prefill engine
since. Of the two only predictions are compared; what was predicted goes with the submit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from service.engine.inbox import Submit
from service.fleet.membership.members import Role
from service.fleet.routing.anchors import STRIDE_BLOCKS
from service.fleet.routing.engine_view import ASSUMED_BUDGET_TOKENS, ASSUMED_COST, step_cost_at
from service.fleet.routing.prefix_index import PrefixIndex
from service.fleet.transfer.split import LinkCost, PrefillPlace, Split, choose
from service.fleet.wire.messages import KvOffer, KvRates, Load, PrefillAt
from service.gateway.fleet.link import EngineLink, LinkState
from telemetry.facts.fleet.kv_transfer_records import Way
from telemetry.facts.fleet.routing_records import RequestRouted

ASSUMED_BYTES_PER_NS = 1.0
ASSUMED_DIGEST_BYTE_NS = 2.0
ASSUMED_DELAY_NS = 500_000
"""Until a transfer was measured: 1 GB/s, blake2b and a copy, and half a millisecond."""


class PrefillSplit:
    """`mode`: `auto` takes the way that is predicted to be cheaper, `always` the other engine
    wherever there is one, `never` none."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._sent_tokens: Counter[str] = Counter()
        self._prefixes = PrefixIndex()
        self._numbers: dict[str, int] = {}
        self._last_number = 0

    def reported(self, name: str) -> None:
        """A load report has come: it has what was sent before, nearly always."""
        self._sent_tokens[name] = 0

    def left(self, name: str) -> None:
        """An engine is gone, and its cache with it."""
        self._sent_tokens.pop(name, None)
        number = self._numbers.pop(name, None)
        if number is not None:
            self._prefixes.forget(number)

    def choose(
        self,
        submit: Submit,
        sequences: int,
        link: EngineLink,
        links: Mapping[str, EngineLink],
        routed: RequestRouted,
    ) -> PrefillAt | None:
        """Where the prompt is computed that `link` goes on with; None where there is no choice."""
        offer, anchors = link.kv, routed.anchors
        prompt_tokens, cached_tokens = routed.prompt_tokens, routed.candidates[0].cached_tokens
        if self._mode == "never" or offer is None or not _may_go(submit, sequences):
            return None
        found: tuple[Split, EngineLink, int] | None = None
        for other in _prefill_engines(link, links.values()):
            cached = self._cached(other, anchors)
            split = choose(
                prompt_tokens,
                _place(link, cached_tokens, 0),
                _place(other, cached, self._sent_tokens[other.name]),
                _link_cost(offer, other.kv_rates, link.kv_rates),
            )
            if found is None or split.remote_ns < found[0].remote_ns:
                found = split, other, cached
        if found is None:
            return None
        split, other, cached = found
        is_remote = split.way is Way.REMOTE or self._mode == "always"
        if is_remote:
            self._sent_tokens[other.name] += max(0, prompt_tokens - cached)
            self._remember(other.name, anchors)
        assert other.kv is not None
        assert other.kv.port is not None
        host, port = other.member.kv_address or (other.member.host, other.kv.port)
        return PrefillAt(
            host=host,
            port=port,
            is_remote=is_remote,
            cached_tokens=cached_tokens,
            remote_cached_tokens=cached,
            local_ns=split.local_ns,
            harm_ns=split.harm_ns,
            remote_ns=split.remote_ns,
            exposed_ns=split.exposed_ns,
        )

    def _remember(self, name: str, anchors: tuple[int, ...]) -> None:
        """An engine will have these prefixes."""
        if name not in self._numbers:
            self._last_number += 1
            self._numbers[name] = self._last_number
        self._prefixes.add(self._numbers[name], anchors)

    def _cached(self, link: EngineLink, anchors: tuple[int, ...]) -> int:
        """How much of a prompt an engine is believed to have, by what was sent there."""
        number, started = self._numbers.get(link.name), link.started
        if number is None or started is None:
            return 0
        for depth, holders in self._prefixes.matches(anchors):
            if number in holders:
                return depth * STRIDE_BLOCKS * started.block_tokens
        return 0


def _may_go(submit: Submit, sequences: int) -> bool:
    """Adapters and prompts whose rows are read stay where they are decoded. So do several sequences
    of one request: the first computes the prompt for all of them."""
    is_read = submit.prompt_output is not None or not submit.max_tokens
    return not submit.adapter and not is_read and sequences == 1


def _prefill_engines(link: EngineLink, links: Iterable[EngineLink]) -> list[EngineLink]:
    """Those that compute prompts for an engine, with a cache like its own."""
    return [
        other
        for other in links
        if other is not link
        and other.role is Role.PREFILL
        and other.state is LinkState.READY
        and other.kv is not None
        and other.kv.port is not None
        and link.kv is not None
        and other.kv.layout == link.kv.layout
    ]


def _place(link: EngineLink, cached_tokens: int, sent_tokens: int) -> PrefillPlace:
    load = Load() if link.report is None else link.report.load
    return PrefillPlace(
        cost=ASSUMED_COST if load.cost is None else step_cost_at(load.cost, load.drift),
        cached_tokens=cached_tokens,
        waiting_tokens=load.prompt_tokens + sent_tokens,
        residents=load.decode_rows,
        context_tokens=load.context_tokens,
        chunk_tokens=load.budget_tokens or ASSUMED_BUDGET_TOKENS,
    )


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
