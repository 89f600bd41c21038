"""From charges to findings: one entry a symptom.

Each has the claim, the measurements that decide it, and the neighbours that look alike, each with
the measurement that rules it out.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from diagnosis.attribution.blame import Blame
from diagnosis.attribution.queue import is_in_danger
from diagnosis.detection.counts import Stage
from diagnosis.detection.request_state import AffectedRequest
from diagnosis.evidence import Measurement
from diagnosis.symptoms import Exclusion, Finding, Link, Symptom
from diagnosis.thresholds import (
    LEAST_CONFIDENCE,
    LEAST_DELAYED,
    LEAST_DELAYED_SHARE,
    LEAST_LARGEST,
    LEAST_PREEMPTED_SHARE,
    LEAST_SHARE,
)
from diagnosis.verdicts.chains import chain_of, claim_of
from diagnosis.verdicts.confidence import confidence
from diagnosis.verdicts.runbook import runbook_name

S, M = Symptom, Measurement

_MOST_VICTIMS, _MOST_EXEMPLARS = 10, 3


@dataclass(frozen=True, slots=True)
class Rule:
    """`evidence` and the values of `apart` are taken of each window by attribution
    (`Blame.facts`)."""

    claim: str
    evidence: tuple[Measurement, ...]
    apart: dict[Symptom, Measurement]


RULES: dict[Symptom, Rule] = {
    S.QUEUE_OVERLOAD: Rule(
        "requests wait because more work comes than the engine can do",
        (M.WAITED, M.EXPECTED_WAIT, M.WAIT_TARGET, M.TURNED_AWAY, M.WAIT_SEQS, M.WAIT_BUDGET,
         M.REQUESTS_PER_S, M.USUAL_REQUESTS_PER_S,
         M.OUTPUT_TOKENS_EACH, M.USUAL_OUTPUT_TOKENS_EACH),
        {S.KV_EXHAUSTION: M.WAIT_KV, S.THROTTLED: M.SLOW, S.HOST_STALL: M.HOST,
         S.CANCELLATION_LEAK: M.ZOMBIE_ROWS, S.UNFAIRNESS: M.WORST_TENANT_GROWTH_SHARE},
    ),
    S.PREFILL_INTERFERENCE: Rule(
        "tokens come late because long prompts of others are computed in the same steps",
        (M.CO_PREFILL, M.PROMPT_TOKENS_EACH, M.USUAL_PROMPT_TOKENS_EACH),
        {S.MEMORY_BANDWIDTH: M.SLOW, S.HOST_STALL: M.HOST, S.OVERSIZED_BATCH: M.CO_DECODE,
         S.GRAMMAR_COST: M.MASK},
    ),
    S.LONG_PROMPTS: Rule(
        "first tokens come late because prompts are longer than in the baseline",
        (M.OWN_PREFILL, M.PROMPT_TOKENS_EACH, M.USUAL_PROMPT_TOKENS_EACH),
        {S.PREFIX_CACHE_COLD: M.AVOIDABLE_TOKENS, S.INGEST_BACKLOG: M.INGEST},
    ),
    S.PREFIX_CACHE_COLD: Rule(
        "prompts are computed again that used to be cached",
        (M.AVOIDABLE_TOKENS, M.HIT_SHARE, M.USUAL_HIT_SHARE, M.GHOST_TOKENS),
        {S.LONG_PROMPTS: M.PROMPT_TOKENS_EACH, S.QUEUE_OVERLOAD: M.REQUESTS_PER_S},
    ),
    S.KV_EXHAUSTION: Rule(
        "requests wait for blocks of the KV cache although slots are free",
        (M.WAIT_KV, M.RECOMPUTE_TOKENS),
        {S.QUEUE_OVERLOAD: M.WAIT_SEQS, S.KV_THRASH: M.RECOMPUTE_SHARE,
         S.CANCELLATION_LEAK: M.ZOMBIE_ROWS},
    ),
    S.KV_THRASH: Rule(
        "running requests lose their blocks and are computed again",
        (M.WAIT_PREEMPTED, M.RECOMPUTE_TOKENS, M.RECOMPUTE_SHARE),
        {S.KV_EXHAUSTION: M.WAIT_KV},
    ),
    S.OVERSIZED_BATCH: Rule(
        "so many requests decode together that each token is late",
        (M.CO_DECODE, M.ROWS_EACH, M.USUAL_ROWS_EACH),
        {S.PREFILL_INTERFERENCE: M.CO_PREFILL, S.MEMORY_BANDWIDTH: M.SLOW},
    ),
    S.MEMORY_BANDWIDTH: Rule(
        "steps that read memory are slower than the same steps were, on a CPU of their own",
        (M.SLOW, M.SLOW_FACTOR, M.SLOW_DECODES, M.SLOW_PROMPTS, M.RUN_DELAY, M.NOT_RUNNING),
        {S.THROTTLED: M.SLOW_PROMPTS, S.CPU_STARVATION: M.RUN_DELAY,
         S.QUEUE_OVERLOAD: M.REQUESTS_PER_S},
    ),
    S.THROTTLED: Rule(
        "the processor runs less: all steps are slower, whatever they compute",
        (M.SLOW, M.SLOW_FACTOR, M.NOT_RUNNING, M.THROTTLED, M.SLOW_DECODES, M.SLOW_PROMPTS),
        {S.MEMORY_BANDWIDTH: M.SLOW_PROMPTS, S.CPU_STARVATION: M.RUN_DELAY},
    ),
    S.HOST_STALL: Rule(
        "the loop stands still between steps",
        (M.HOST, M.SLOW, M.RUN_DELAY),
        {S.CPU_STARVATION: M.RUN_DELAY, S.PREFILL_INTERFERENCE: M.CO_PREFILL,
         S.THROTTLED: M.SLOW},
    ),
    S.CPU_STARVATION: Rule(
        "something else has the CPU: the engine is ready to run and does not",
        (M.RUN_DELAY, M.SLOW, M.HOST),
        {S.HOST_STALL: M.HOST, S.THROTTLED: M.NOT_RUNNING},
    ),
    S.INGEST_BACKLOG: Rule(
        "requests are late before the engine hears of them",
        (M.INGEST, M.INGEST_WORK, M.GATEWAY_STOOD),
        {S.LONG_PROMPTS: M.OWN_PREFILL, S.QUEUE_OVERLOAD: M.WAITED},
    ),
    S.GRAMMAR_COST: Rule(
        "masks and grammars take the time, of everybody in the batch",
        (M.MASK, M.WAIT_GRAMMAR),
        {S.PREFILL_INTERFERENCE: M.CO_PREFILL, S.HEAVY_SAMPLING: M.SAMPLE},
    ),
    S.ADAPTER_CHURN: Rule(
        "requests wait for adapters that make room for each other",
        (M.WAIT_ADAPTER, M.ADAPTER_LOADS, M.ADAPTER_EVICTIONS, M.ADAPTER_READ),
        {S.QUEUE_OVERLOAD: M.WAIT_SEQS, S.KV_EXHAUSTION: M.WAIT_KV},
    ),
    S.SLOW_CLIENT: Rule(
        "clients read more slowly than the server sends; the server is not late",
        (M.DELIVER, M.GATEWAY_STOOD),
        {S.HOST_STALL: M.HOST},
    ),
    S.CANCELLATION_LEAK: Rule(
        "the engine goes on computing for clients that have disconnected",
        (M.ZOMBIE_ROWS,),
        {S.QUEUE_OVERLOAD: M.REQUESTS_PER_S, S.KV_EXHAUSTION: M.WAIT_KV},
    ),
    S.UNFAIRNESS: Rule(
        "one tenant's work delays the others'",
        (M.WORST_TENANT_GROWTH_SHARE, M.OTHERS_WAIT_SHARE, M.REQUESTS_PER_S),
        {S.QUEUE_OVERLOAD: M.WORST_TENANT_GROWTH_SHARE},
    ),
    S.HEAVY_SAMPLING: Rule(
        "choosing tokens takes the time: many choices, log probabilities or penalties",
        (M.SAMPLE, M.CHOICES_EACH),
        {S.GRAMMAR_COST: M.MASK, S.OVERSIZED_BATCH: M.CO_DECODE},
    ),
    S.BUDGET_TOO_SMALL: Rule(
        "steps are so small that most of each is its fixed cost",
        (M.EXTRA_CHUNKS, M.FULL_STEPS_SHARE, M.WAIT_BUDGET),
        {S.LONG_PROMPTS: M.PROMPT_TOKENS_EACH, S.QUEUE_OVERLOAD: M.REQUESTS_PER_S},
    ),
}  # fmt: skip


OF_DEVICES: dict[Symptom, tuple[Measurement, ...]] = {
    S.THROTTLED: (M.GPU_CLOCK, M.USUAL_GPU_CLOCK, M.GPU_SLOWED_SHARE, M.GPU_TEMPERATURE,
                  M.GPU_POWER, M.RANK_SKEW),
    S.MEMORY_BANDWIDTH: (M.GPU_MEMORY_MORE, M.GPU_DRAM, M.USUAL_GPU_DRAM, M.GPU_CLOCK),
    S.HOST_STALL: (M.DEVICE_BUBBLE, M.GPU_CLOCK),
    S.CPU_STARVATION: (M.DEVICE_BUBBLE, M.RANK_SKEW),
}  # fmt: skip
"""Further evidence where there is a GPU."""


def findings_of(
    charged: Blame,
    onset_ns: int,
    affected: Sequence[AffectedRequest],
    culprits: tuple[str, ...],
    before: Sequence[Finding] = (),
) -> list[Finding]:
    """Causes with a part in the harm, the largest first; none where hardly anything is delayed.
    `before` are those that stood until now."""
    chained, said = {one.symptom for one in before if one.chain}, {one.symptom for one in before}
    total_ns = charged.excess_ns
    if not total_ns or not _hurts(charged):
        return []
    found: list[Finding] = []
    ranked = [one for one in charged.harm_ns.ranked() if _may_be_said(charged, one[0], said)]
    largest = ranked[0][1] / total_ns if ranked else 0.0
    if largest < LEAST_LARGEST or confidence(largest, charged.seconds) < LEAST_CONFIDENCE:
        return []
    for symptom, harm_ns in ranked:
        share = harm_ns / total_ns
        if share < LEAST_SHARE:
            break
        chain = chain_of(charged, symptom, was_said=symptom in chained)
        found.append(_finding(charged, symptom, share, onset_ns, affected, culprits, chain))
    return found


def _may_be_said(charged: Blame, symptom: Symptom, said: Container[Symptom]) -> bool:
    """Whether somebody feels it: a queue that drains in time is what queues are for, and so is a
    fuller batch, in which all are served."""
    return symptom is not S.QUEUE_OVERLOAD or is_in_danger(charged, is_said=symptom in said)


def _hurts(charged: Blame) -> bool:
    least_ns = LEAST_DELAYED * 1e9 * charged.seconds
    preempted_ns = max(least_ns, LEAST_PREEMPTED_SHARE * charged.baseline_ns[Stage.DECODE])
    return charged.preempted_ns > preempted_ns or any(
        excess_ns > max(least_ns, LEAST_DELAYED_SHARE * charged.baseline_ns[stage])
        for stage, excess_ns in charged.stages_ns.items()
    )


def _finding(
    charged: Blame,
    symptom: Symptom,
    share: float,
    onset_ns: int,
    affected: Sequence[AffectedRequest],
    culprits: tuple[str, ...],
    chain: tuple[Link, ...],
) -> Finding:
    rule, harm_ms = RULES[symptom], charged.harm_ns[symptom] / 1e6
    engine = charged.engine
    claim = rule.claim if engine is None else engine.claims.get(symptom, rule.claim)
    claim = claim if not chain else claim_of(chain) or claim
    more = OF_DEVICES.get(symptom, ()) if engine is not None and engine.has_gpu else ()
    shown = tuple(measured.of(charged.facts[measured]) for measured in (*rule.evidence, *more))
    others = [one for one in affected if one.tenant != charged.tenant]
    return Finding(
        symptom=symptom,
        confidence=confidence(share, charged.seconds),
        claim=f"{claim}: {harm_ms:.0f} ms of requests' time in {charged.seconds:.1f} s",
        harm_ms=round(harm_ms, 1),
        evidence=shown,
        culprits=_culprits(charged, symptom, culprits),
        victims=tuple(one.request_id for one in others[:_MOST_VICTIMS]),
        exemplars=tuple(one.trace_id for one in others[:_MOST_EXEMPLARS]),
        excluded=tuple(
            Exclusion(other, _reason(charged, other, measured))
            for other, measured in rule.apart.items()
            if charged.harm_ns[other] < charged.harm_ns[symptom]
        ),
        share=round(share, 3),
        onset_ns=onset_ns,
        runbook=runbook_name(symptom),
        chain=chain,
    )


def _culprits(charged: Blame, symptom: Symptom, culprits: tuple[str, ...]) -> tuple[str, ...]:
    if symptom is S.UNFAIRNESS and charged.tenant is not None:
        return (charged.tenant,)
    if charged.engine is not None and symptom in charged.engine.culprits:
        return charged.engine.culprits[symptom]
    of_prompts = (S.PREFILL_INTERFERENCE, S.LONG_PROMPTS, S.INGEST_BACKLOG)
    return culprits if symptom in of_prompts else ()


def _reason(charged: Blame, other: Symptom, measured: Measurement) -> str:
    """What was measured, and how much that charges to the other symptom."""
    evidence, harm_ms = measured.of(charged.facts[measured]), charged.harm_ns[other] / 1e6
    if evidence.value is None:
        return f"{evidence.name} is not measured; {harm_ms:.0f} ms are charged to it"
    return f"{evidence.name} is {evidence.text}, which explains {harm_ms:.0f} ms"
