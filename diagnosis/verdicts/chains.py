"""Chains of causes: by way of what the harm of a cause came, each link with its ms and its proof.

`LINKS` are the links that are possible. One is said where the record has its measurement: requests'
time that attribution charged to the cause by way of the effect (`Blame.through`), or, of findings
of late tokens, what stood behind them in the same time (`attribution.first_links`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from diagnosis.attribution.chain_thresholds import LEAST_LINKED, LINK_SHARE, STAYS, WHOLE_LINKED
from diagnosis.attribution.charges import Blame, Charges
from diagnosis.attribution.first_links import block_holders, held_facts, is_on_the_loop
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.learning import BaselineLearner
from diagnosis.detection.window import window_of
from diagnosis.evidence import Measurement, Taken
from diagnosis.symptoms import Evidence, Finding, Link, Symptom
from diagnosis.thresholds import WINDOW_NS
from diagnosis.verdicts.runbook import runbook_name

S, M = Symptom, Measurement


class PossibleLink(NamedTuple):
    """A cause that may lead to an effect: in words, and what shows it."""

    cause: Symptom
    effect: Symptom
    claim: str
    evidence: tuple[Measurement, ...]


_QUEUE = (M.WAITED, M.WAIT_SEQS, M.WAIT_BUDGET)
_SLOWER = "each request takes longer, so that others wait for a slot or the budget"
_BLOCKS = (M.WAIT_KV, M.RECOMPUTE_TOKENS)
_FILLED = "fill the blocks, and others wait for some"

LINKS: tuple[PossibleLink, ...] = (
    PossibleLink(
        S.SLOW_CLIENT, S.KV_EXHAUSTION,
        "sequences of clients that read slowly keep blocks, and others wait for some",
        (M.SLOW_BLOCKS_SHARE, M.SLOW_RECOMPUTE_SHARE, *_BLOCKS),
    ),
    PossibleLink(
        S.SLOW_CLIENT, S.QUEUE_OVERLOAD,
        "sequences of clients that read slowly keep slots, and others wait for one", _QUEUE,
    ),
    PossibleLink(
        S.CANCELLATION_LEAK, S.KV_EXHAUSTION,
        "sequences of clients that have gone keep blocks, and others wait for some",
        (M.ZOMBIE_BLOCKS_SHARE, M.ZOMBIE_ROWS, *_BLOCKS),
    ),
    PossibleLink(
        S.CANCELLATION_LEAK, S.QUEUE_OVERLOAD,
        "sequences of clients that have gone keep slots, and others wait for one",
        (M.ZOMBIE_ROWS, *_QUEUE),
    ),
    PossibleLink(
        S.KV_EXHAUSTION, S.KV_THRASH,
        "running sequences lose their blocks, and are computed again",
        (M.WAIT_PREEMPTED, M.RECOMPUTE_TOKENS, M.RECOMPUTE_SHARE),
    ),
    PossibleLink(
        S.INGEST_BACKLOG, S.HOST_STALL,
        "the event loop stands still while it parses and encodes, and what waits for it is late",
        (M.GATEWAY_STOOD, M.INGEST_WORK),
    ),
    PossibleLink(
        S.INGEST_BACKLOG, S.QUEUE_OVERLOAD,
        "requests that were held up come to the engine at once, and wait for each other",
        (M.WAVE, *_QUEUE),
    ),
    PossibleLink(
        S.PREFIX_CACHE_COLD, S.PREFILL_INTERFERENCE,
        "prompts that are computed again make tokens late that are decoded beside them",
        (M.CO_PREFILL, M.AVOIDABLE_TOKENS),
    ),
    PossibleLink(
        S.LONG_PROMPTS, S.PREFILL_INTERFERENCE,
        "longer prompts make tokens late that are decoded beside them", (M.CO_PREFILL,),
    ),
    *(
        PossibleLink(cause, S.KV_EXHAUSTION, f"{words} {_FILLED}", (*evidence, *_BLOCKS))
        for cause, words, evidence in (
            (S.QUEUE_OVERLOAD, "more requests, or longer answers,", (M.REQUESTS_PER_S,)),
            (S.UNFAIRNESS, "requests of one tenant", (M.WORST_TENANT_GROWTH_SHARE,)),
            (S.LONG_PROMPTS, "longer prompts", (M.PROMPT_TOKENS_EACH,)),
            (S.PREFILL_INTERFERENCE, "longer prompts", (M.PROMPT_TOKENS_EACH,)),
        )
    ),
    PossibleLink(
        S.UNFAIRNESS, S.QUEUE_OVERLOAD,
        "requests of one tenant take the slots, and the others wait for one",
        (M.WORST_TENANT_GROWTH_SHARE, *_QUEUE),
    ),
    *(
        PossibleLink(cause, S.QUEUE_OVERLOAD, _SLOWER, _QUEUE)
        for cause in (
            S.PREFILL_INTERFERENCE, S.LONG_PROMPTS, S.PREFIX_CACHE_COLD, S.KV_THRASH,
            S.OVERSIZED_BATCH, S.MEMORY_BANDWIDTH, S.THROTTLED, S.HOST_STALL, S.CPU_STARVATION,
            S.GRAMMAR_COST, S.HEAVY_SAMPLING, S.BUDGET_TOO_SMALL, S.ADAPTER_CHURN,
        )
    ),
)  # fmt: skip
_BY_ENDS = {(link.cause, link.effect): link for link in LINKS}

# effects that lead on, so that a chain has three links; a cause may lead to the last one as well
_LEADS_ON = {
    S.KV_EXHAUSTION: S.KV_THRASH,
    S.HOST_STALL: S.QUEUE_OVERLOAD,
    S.PREFILL_INTERFERENCE: S.QUEUE_OVERLOAD,
}


def possible_link(cause: Symptom, effect: Symptom) -> PossibleLink | None:
    return _BY_ENDS.get((cause, effect))


def chain_of(charged: Blame, cause: Symptom, *, was_said: bool = False) -> tuple[Link, ...]:
    """The chain that begins with a cause: at each link, the effect by way of which most of the harm
    came. Empty where the harm came directly. One that `was_said` needs less to stay."""
    harm_ns = charged.harm_ns[cause]
    second_ns = 1e9 * charged.seconds  # one request, all the time
    least_ns = LEAST_LINKED * second_ns
    if cause is not S.SLOW_CLIENT:  # most of its harm is the slow clients' own time
        least_ns = max(least_ns, min(LINK_SHARE * harm_ns, WHOLE_LINKED * second_ns))
    least_ns *= STAYS if was_said else 1.0
    through = Charges({effect: ns for (one, effect), ns in charged.through.items() if one is cause})
    chain = _path(cause, through, least_ns)
    return (Link(cause, _ms(harm_ns)), *_links(chain, through, charged.facts)) if chain else ()


def claim_of(chain: Sequence[Link]) -> str:
    """What the first link led to, in words; empty where the cause says enough by itself."""
    link = _BY_ENDS[chain[0].symptom, chain[1].symptom]
    return "" if link.claim is _SLOWER else link.claim


def _path(cause: Symptom, through: Charges, least_ns: float) -> list[Symptom]:
    """Effects in their order."""
    heads = [one for one in through if (cause, one) in _BY_ENDS]
    heads += [one for one, last in _LEADS_ON.items() if last in through]
    paths: list[list[Symptom]] = []
    for head in dict.fromkeys(heads):
        last = _LEADS_ON.get(head)
        path = [head] if last is None or through[last] < least_ns else [head, last]
        is_short = head is S.KV_EXHAUSTION and len(path) > 1  # blocks lost are blocks that lack
        if (cause, head) in _BY_ENDS and (through[head] >= least_ns or is_short):
            paths.append(path)
    return max(paths, key=lambda path: sum(through[one] for one in path), default=[])


def _links(chain: Sequence[Symptom], through: Charges, taken: Taken) -> list[Link]:
    """Each with what was lost to it and to those after it."""
    found: list[Link] = []
    for place, effect in enumerate(chain):
        link = next(one for one in LINKS if one.effect is effect)
        if place:
            link = _BY_ENDS[chain[place - 1], effect]
        ns = sum(through[one] for one in chain[place:])
        found.append(Link(effect, _ms(ns), _measured(link, taken)))
    return found


def _measured(link: PossibleLink, taken: Taken) -> tuple[Evidence, ...]:
    return tuple(measured.of(taken.get(measured)) for measured in link.evidence)


def _ms(ns: float) -> float:
    return round(ns / 1e6, 1)


class FirstLinks:
    """An annotator: findings of late tokens whose cause has a cause are named by it, and findings
    that are a link of another one's chain are in it and not beside it."""

    def __init__(self, aggregator: Aggregator, learner: BaselineLearner) -> None:
        self._aggregator = aggregator
        self._learner = learner

    def __call__(self, found: Sequence[Finding], end_ns: int) -> list[Finding]:
        named = [self._named(one, end_ns) for one in found]
        kept: dict[Symptom, Finding] = {}
        for one in named:
            linked = {link.symptom for other in kept.values() for link in other.chain[1:]}
            if one.symptom not in kept and not (one.blows and one.symptom in linked):
                kept[one.symptom] = one
        return list(kept.values())

    def _named(self, finding: Finding, end_ns: int) -> Finding:
        """A finding of late tokens by its first link."""
        if not finding.blows or finding.chain or finding.onset_ns is None:
            return finding
        begin_ns = max(finding.onset_ns, end_ns - WINDOW_NS)
        window = window_of(self._aggregator, begin_ns, end_ns)
        if finding.symptom in (S.KV_EXHAUSTION, S.KV_THRASH):
            taken = held_facts(window)
            holders = block_holders(taken).ranked()
            return _led_to(finding, holders[0][0], taken) if holders else finding
        if finding.symptom is S.HOST_STALL and self._learner.reference is not None:
            on_the_loop, taken = is_on_the_loop(window, self._learner.reference)
            return _led_to(finding, S.INGEST_BACKLOG, taken) if on_the_loop else finding
        return finding


def _led_to(finding: Finding, cause: Symptom, taken: Taken) -> Finding:
    """The same finding, named by its cause."""
    effects = [finding.symptom]
    if finding.symptom is S.KV_THRASH:
        effects.insert(0, S.KV_EXHAUSTION)
    link = _BY_ENDS[cause, effects[0]]
    shown = _measured(link, taken)
    links = [Link(one, finding.harm_ms, shown if not place else ()) for place, one in
             enumerate(effects)]  # fmt: skip
    shown = tuple(one for one in shown if one.value is not None)
    return msgspec.structs.replace(
        finding,
        symptom=cause,
        claim=f"{link.claim}; {finding.claim}",
        evidence=(*shown, *finding.evidence),
        chain=(Link(cause, finding.harm_ms), *links),
        runbook=runbook_name(cause),
    )
