"""From charges to findings: one entry a symptom.

Each has the claim, the measurements that decide it, and the neighbours that look alike, each with
the measurement that rules it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnosis.attribution.blame import Blame
from diagnosis.detection.requests import AffectedRequest
from diagnosis.symptoms import Evidence, Exclusion, Finding, Symptom
from diagnosis.thresholds import (
    LEAST_CONFIDENCE,
    LEAST_DELAYED,
    LEAST_DELAYED_SHARE,
    LEAST_LARGEST,
    LEAST_SHARE,
)
from diagnosis.verdicts.confidence import confidence
from diagnosis.verdicts.runbook import runbook_name

S = Symptom

_MOST_VICTIMS, _MOST_EXEMPLARS = 10, 3

_UNITS = {
    "_share": "of 1", "_tokens": "tokens", "_each": "each", "_per_s": "1/s", "_rows": "rows",
    "_factor": "times", "_chunks": "rows",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """`evidence` and the values of `apart` are names of measurements in `Blame.facts`."""

    claim: str
    evidence: tuple[str, ...]
    apart: dict[Symptom, str]


RULES: dict[Symptom, Rule] = {
    S.QUEUE_OVERLOAD: Rule(
        "requests wait because more work comes than the engine can do",
        ("waited", "wait_seqs", "wait_budget", "requests_per_s", "usual_requests_per_s",
         "output_tokens_each", "usual_output_tokens_each"),
        {S.KV_EXHAUSTION: "wait_kv", S.THROTTLED: "slow", S.HOST_STALL: "host",
         S.CANCELLATION_LEAK: "zombie_rows", S.UNFAIRNESS: "worst_tenant_growth_share"},
    ),
    S.PREFILL_INTERFERENCE: Rule(
        "tokens come late because long prompts of others are computed in the same steps",
        ("co_prefill", "prompt_tokens_each", "usual_prompt_tokens_each"),
        {S.MEMORY_BANDWIDTH: "slow", S.HOST_STALL: "host", S.OVERSIZED_BATCH: "co_decode",
         S.GRAMMAR_COST: "mask"},
    ),
    S.LONG_PROMPTS: Rule(
        "first tokens come late because prompts are longer than in the baseline",
        ("own_prefill", "prompt_tokens_each", "usual_prompt_tokens_each"),
        {S.PREFIX_CACHE_COLD: "avoidable_tokens", S.INGEST_BACKLOG: "ingest"},
    ),
    S.PREFIX_CACHE_COLD: Rule(
        "prompts are computed again that used to be cached",
        ("avoidable_tokens", "hit_share", "usual_hit_share", "ghost_tokens"),
        {S.LONG_PROMPTS: "prompt_tokens_each", S.QUEUE_OVERLOAD: "requests_per_s"},
    ),
    S.KV_EXHAUSTION: Rule(
        "requests wait for blocks of the KV cache although slots are free",
        ("wait_kv", "recompute_tokens"),
        {S.QUEUE_OVERLOAD: "wait_seqs", S.KV_THRASH: "recompute_share",
         S.CANCELLATION_LEAK: "zombie_rows"},
    ),
    S.KV_THRASH: Rule(
        "running requests lose their blocks and are computed again",
        ("wait_preempted", "recompute_tokens", "recompute_share"),
        {S.KV_EXHAUSTION: "wait_kv"},
    ),
    S.OVERSIZED_BATCH: Rule(
        "so many requests decode together that each token is late",
        ("co_decode", "rows_each", "usual_rows_each"),
        {S.PREFILL_INTERFERENCE: "co_prefill", S.MEMORY_BANDWIDTH: "slow"},
    ),
    S.MEMORY_BANDWIDTH: Rule(
        "steps that read memory are slower than the same steps were, on a CPU of their own",
        ("slow", "slow_factor", "slow_decodes", "slow_prompts", "run_delay", "not_running"),
        {S.THROTTLED: "slow_prompts", S.CPU_STARVATION: "run_delay",
         S.QUEUE_OVERLOAD: "requests_per_s"},
    ),
    S.THROTTLED: Rule(
        "the processor runs less: all steps are slower, whatever they compute",
        ("slow", "slow_factor", "not_running", "throttled", "slow_decodes", "slow_prompts"),
        {S.MEMORY_BANDWIDTH: "slow_prompts", S.CPU_STARVATION: "run_delay"},
    ),
    S.HOST_STALL: Rule(
        "the loop stands still between steps",
        ("host", "slow", "run_delay"),
        {S.CPU_STARVATION: "run_delay", S.PREFILL_INTERFERENCE: "co_prefill",
         S.THROTTLED: "slow"},
    ),
    S.CPU_STARVATION: Rule(
        "something else has the CPU: the engine is ready to run and does not",
        ("run_delay", "slow", "host"),
        {S.HOST_STALL: "host", S.THROTTLED: "not_running"},
    ),
    S.INGEST_BACKLOG: Rule(
        "requests are late before the engine hears of them",
        ("ingest", "ingest_work", "gateway_stood"),
        {S.LONG_PROMPTS: "own_prefill", S.QUEUE_OVERLOAD: "waited"},
    ),
    S.GRAMMAR_COST: Rule(
        "masks and grammars take the time, of everybody in the batch",
        ("mask", "wait_grammar"),
        {S.PREFILL_INTERFERENCE: "co_prefill", S.HEAVY_SAMPLING: "sample"},
    ),
    S.SLOW_CLIENT: Rule(
        "clients read more slowly than the server sends; the server is not late",
        ("deliver", "gateway_stood"),
        {S.HOST_STALL: "host"},
    ),
    S.CANCELLATION_LEAK: Rule(
        "the engine goes on computing for clients that have disconnected",
        ("zombie_rows",),
        {S.QUEUE_OVERLOAD: "requests_per_s", S.KV_EXHAUSTION: "wait_kv"},
    ),
    S.UNFAIRNESS: Rule(
        "one tenant's work delays the others'",
        ("worst_tenant_growth_share", "others_wait_share", "requests_per_s"),
        {S.QUEUE_OVERLOAD: "worst_tenant_growth_share"},
    ),
    S.HEAVY_SAMPLING: Rule(
        "choosing tokens takes the time: many choices, log probabilities or penalties",
        ("sample", "choices_each"),
        {S.GRAMMAR_COST: "mask", S.OVERSIZED_BATCH: "co_decode"},
    ),
    S.BUDGET_TOO_SMALL: Rule(
        "steps are so small that most of each is its fixed cost",
        ("extra_chunks", "full_steps_share", "wait_budget"),
        {S.LONG_PROMPTS: "prompt_tokens_each", S.QUEUE_OVERLOAD: "requests_per_s"},
    ),
}  # fmt: skip


def findings_of(
    charged: Blame,
    onset_ns: int,
    affected: Sequence[AffectedRequest],
    culprits: tuple[str, ...],
) -> list[Finding]:
    """Causes with a part in the harm, the largest first; none where hardly anything is delayed."""
    total_ns = charged.excess_ns
    if not total_ns or not _hurts(charged):
        return []
    found: list[Finding] = []
    ranked = charged.harm_ns.ranked()
    largest = ranked[0][1] / total_ns if ranked else 0.0
    if largest < LEAST_LARGEST or confidence(largest, charged.seconds) < LEAST_CONFIDENCE:
        return []
    for symptom, harm_ns in ranked:
        share = harm_ns / total_ns
        if share < LEAST_SHARE:
            break
        found.append(_finding(charged, symptom, share, onset_ns, affected, culprits))
    return found


def _hurts(charged: Blame) -> bool:
    least_ns = LEAST_DELAYED * 1e9 * charged.seconds
    return any(
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
) -> Finding:
    rule, harm_ms = RULES[symptom], charged.harm_ns[symptom] / 1e6
    facts = charged.facts
    others = [one for one in affected if one.tenant != charged.tenant]
    return Finding(
        symptom=symptom,
        confidence=confidence(share, charged.seconds),
        claim=f"{rule.claim}: {harm_ms:.0f} ms of requests' time in {charged.seconds:.1f} s",
        harm_ms=round(harm_ms, 1),
        evidence=tuple(_evidence(n, facts[n]) for n in rule.evidence if n in facts),
        culprits=_culprits(charged, symptom, culprits),
        victims=tuple(one.request_id for one in others[:_MOST_VICTIMS]),
        exemplars=tuple(one.trace_id for one in others[:_MOST_EXEMPLARS]),
        excluded=tuple(
            Exclusion(other, _reason(charged, other, name))
            for other, name in rule.apart.items()
            if name in facts and charged.harm_ns[other] < charged.harm_ns[symptom]
        ),
        share=round(share, 3),
        onset_ns=onset_ns,
        runbook=runbook_name(symptom),
    )


def _culprits(charged: Blame, symptom: Symptom, culprits: tuple[str, ...]) -> tuple[str, ...]:
    if symptom is S.UNFAIRNESS and charged.tenant is not None:
        return (charged.tenant,)
    of_prompts = (S.PREFILL_INTERFERENCE, S.LONG_PROMPTS, S.INGEST_BACKLOG)
    return culprits if symptom in of_prompts else ()


def _reason(charged: Blame, other: Symptom, name: str) -> str:
    measured = _evidence(name, charged.facts[name])
    harm_ms = charged.harm_ns[other] / 1e6
    return f"{measured.name} is {measured.value:g} {measured.unit}, which explains {harm_ms:.0f} ms"


def _evidence(name: str, value: float) -> Evidence:
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "ms")
    if name in ("slow_decodes", "slow_prompts"):
        unit = "times"
    return Evidence(name, round(value, 3), unit)
