"""Where a prompt is computed: by the engine that decodes it, or by another that sends the blocks.

Both ways are predicted from the fitted cost of a step, and the cheaper one is taken:

    local     its queue, then its prompt in chunks beside the sequences that decode there; and the
              harm: each of these waits for every chunk
    remote    the queue there, its prompt in chunks, what of the transfer no chunk hides, the
              comparison of the digests, and a step of the sequences that decode here

A tie is local: it needs nobody else. With a target for the first token, a prompt that would miss it
there and meet it here stays, however long it makes others wait, if they can: those who decode here
need no more than half of their inter-token target. Else engines that may only compute prompts would
hold up a fleet whose other engines have time.

That it is the uncached part of a prompt that counts is llm-d's rule; that the load of the decoders
does is Dynamo's. Here both follow from the prediction.

Pure. What was predicted is a fact (KvSplitChosen), so that regret can be computed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.engine.inbox import SetStepCost
from telemetry.costs.step_load import attention_pairs
from telemetry.facts.fleet.kv_transfer_records import KvSplitChosen, Way

ASSUMED_DIGEST_BYTE_NS = 0.5
"""Until one was measured: to read a byte of a block and hash it (BLAKE3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPlace:
    """An engine that could compute the prompt. `cached_tokens` of it are in its prefix cache;
    `waiting_tokens` of other prompts come first; `residents` sequences decode there, which attend
    to `context_tokens` together, and whose targets leave time for prompts if it `has_time`; a step
    takes at most `chunk_tokens` of prompts."""

    cost: SetStepCost
    cached_tokens: int
    waiting_tokens: int
    residents: int
    context_tokens: int
    chunk_tokens: int
    has_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """The way between two engines: bytes of a token, their rate, how long a message takes, and how
    long a byte takes to be compared with its digest."""

    token_bytes: int
    bytes_per_ns: float
    delay_ns: int
    digest_byte_ns: float


@dataclass(frozen=True, slots=True)
class Split:
    """What both ways are predicted to take until the first token, and which is taken."""

    way: Way
    local_ns: int
    harm_ns: int
    remote_ns: int
    exposed_ns: int

    def fact(
        self,
        seq_id: int,
        at_ns: int,
        prompt_tokens: int,
        cached_tokens: int,
        remote_cached_tokens: int,
    ) -> KvSplitChosen:
        """The record of the choice."""
        return KvSplitChosen(
            seq_id=seq_id,
            at_ns=at_ns,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            remote_cached_tokens=remote_cached_tokens,
            way=self.way,
            local_ns=self.local_ns,
            harm_ns=self.harm_ns,
            remote_ns=self.remote_ns,
            exposed_ns=self.exposed_ns,
        )


def choose(
    prompt_tokens: int,
    local: PrefillPlace,
    remote: PrefillPlace,
    link: LinkCost,
    ttft_target_ns: int | None = None,
) -> Split:
    """Predict both ways for a prompt. The decode engine need not get blocks that it has. The first
    token is promised within `ttft_target_ns` from now."""
    steps, work_ns = _here(local, prompt_tokens)
    local_ns = _queue_ns(local) + steps * _decode_ns(local) + work_ns
    harm_ns = work_ns * local.residents
    computed_ns, exposed_ns = _remote(prompt_tokens, local.cached_tokens, remote, link)
    sent_bytes = max(0, prompt_tokens - local.cached_tokens) * link.token_bytes
    wait_ns = _decode_ns(local) if local.residents else 0
    remote_ns = _queue_ns(remote) + computed_ns + exposed_ns + wait_ns
    remote_ns += 2 * link.delay_ns + sent_bytes * link.digest_byte_ns
    way = Way.REMOTE if round(remote_ns) < round(local_ns + harm_ns) else Way.LOCAL
    if ttft_target_ns is not None and local.has_time and local_ns <= ttft_target_ns < remote_ns:
        way = Way.LOCAL
    return Split(way, round(local_ns), round(harm_ns), round(remote_ns), round(exposed_ns))


def _here(place: PrefillPlace, prompt_tokens: int) -> tuple[int, float]:
    """(steps that the prompt is spread over, what it adds to them). Without a look at each chunk:
    beside many who decode one may be a few tokens."""
    begin, cost = _first(place, prompt_tokens), place.cost
    tokens = prompt_tokens - begin
    steps = -(-tokens // place.chunk_tokens)
    work_ns = steps * cost.mixed_ns + cost.prefill_token_ns * tokens
    return steps, work_ns + cost.pair_ns * attention_pairs(tokens, begin)


def _first(place: PrefillPlace, prompt_tokens: int) -> int:
    """The first token that is computed; the last one is even where all is cached."""
    return min(place.cached_tokens, prompt_tokens - 1)


def _decode_ns(place: PrefillPlace) -> float:
    """A step of those who decode."""
    return place.cost.decode_step_ns(place.residents, place.context_tokens)


def _chunks(place: PrefillPlace, prompt_tokens: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of each chunk."""
    begin = _first(place, prompt_tokens)
    while begin < prompt_tokens:
        end = min(prompt_tokens, begin + place.chunk_tokens)
        yield begin, end
        begin = end


def _chunk_ns(place: PrefillPlace, chunk: tuple[int, int]) -> float:
    """A whole step with a chunk."""
    begin, end = chunk
    tokens, cost = end - begin, place.cost
    prompt_ns = cost.mixed_ns + cost.prefill_token_ns * tokens
    return _decode_ns(place) + prompt_ns + cost.pair_ns * attention_pairs(tokens, begin)


def _queue_ns(place: PrefillPlace) -> float:
    """The prompts that come first."""
    steps = -(-place.waiting_tokens // place.chunk_tokens)
    each_ns = _decode_ns(place) + place.cost.mixed_ns
    return steps * each_ns + place.waiting_tokens * place.cost.prefill_token_ns


def _remote(
    prompt_tokens: int, known_tokens: int, remote: PrefillPlace, link: LinkCost
) -> tuple[float, float]:
    """(time to compute, time after that until the last block is there): each chunk is sent when it
    is computed and the one before it has arrived. What the other engine has cached goes with the
    first chunk; the first `known_tokens` are not sent."""
    computed_ns = arrived_ns = 0.0
    sent_tokens = known_tokens
    for chunk in _chunks(remote, prompt_tokens):
        computed_ns += _chunk_ns(remote, chunk)
        tokens, sent_tokens = max(0, chunk[1] - sent_tokens), max(sent_tokens, chunk[1])
        arrived_ns = max(arrived_ns, computed_ns) + tokens * link.token_bytes / link.bytes_per_ns
    return computed_ns, arrived_ns - computed_ns
