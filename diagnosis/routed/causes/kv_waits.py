"""What transfers wait for: the side that computes, this side, the link, or the wrong choice."""

from __future__ import annotations

from diagnosis.routed.evidence import Transferred
from diagnosis.routed.symptoms import FleetFault, FleetSymptom, runbook_of
from diagnosis.routed.thresholds import (
    BOUND_BESIDE_USUAL,
    BOUND_SHARE,
    LEAST_TRANSFERS,
    REGRET_OF_TIME,
    REGRET_SHARE,
    SLOW_LINK_BESIDE_USUAL,
    SLOW_LINK_SHARE,
)
from diagnosis.routed.transfers import TransferWindow
from telemetry.requests.kv_accounts import KvPart

T = Transferred
_GIB = 1 << 30


def prefill_bound(window: TransferWindow) -> FleetFault | None:
    """Prompts wait at the side that computes them."""
    return _bound(
        window,
        (KvPart.QUEUE,),
        FleetSymptom.PREFILL_BOUND,
        "prompts wait at the engines that compute them",
        "one more engine that computes prompts, or fewer prompts that are sent there",
    )


def decode_bound(window: TransferWindow) -> FleetFault | None:
    """Sequences wait for blocks or a place at this side."""
    return _bound(
        window,
        (KvPart.RESERVE, KvPart.WAIT),
        FleetSymptom.DECODE_BOUND,
        "sequences wait for blocks or for a place in the batch of the engine that decodes",
        "one more engine that decodes, or more sequences and blocks here",
    )


def _bound(
    window: TransferWindow,
    parts: tuple[KvPart, ...],
    symptom: FleetSymptom,
    what: str,
    intervention: str,
) -> FleetFault | None:
    now, past = window.now, window.past
    wait_ns, elapsed_ns = now.each_ns(*parts), now.elapsed_ns / max(1, now.whole)
    usual_ns = None if past is None else past.each_ns(*parts)
    if wait_ns is None or usual_ns is None or now.whole < LEAST_TRANSFERS:
        return None
    if wait_ns < BOUND_SHARE * elapsed_ns or wait_ns < BOUND_BESIDE_USUAL * usual_ns:
        return None
    return FleetFault(
        symptom=symptom,
        claim=f"{what}: {wait_ns / 1e6:,.0f} ms of the {elapsed_ns / 1e6:,.0f} ms until they "
        "generate",
        harm_ms=round(now.whole * (wait_ns - usual_ns) / 1e6, 1),
        evidence=(
            T.WAIT_OF_TRANSFER.of(wait_ns / 1e6),
            T.USUAL_WAIT_OF_TRANSFER.of(usual_ns / 1e6),
            T.TRANSFER_ELAPSED.of(elapsed_ns / 1e6),
            T.TRANSFERS.of(now.whole),
        ),
        intervention=intervention,
        runbook=runbook_of(symptom),
    )


def transfer_slow(window: TransferWindow) -> FleetFault | None:
    """What no compute hides of the way takes longer for each byte than it did."""
    now, past = window.now, window.past
    if past is None or now.whole < LEAST_TRANSFERS or not now.bytes or not past.bytes:
        return None
    way = (KvPart.TRANSFER, KvPart.WIRE)
    spent_ns, usual_spent_ns = (sum(cell.parts_ns[part] for part in way) for cell in (now, past))
    per_gib_ns = spent_ns / now.bytes * _GIB
    usual_ns = max(1.0, usual_spent_ns / past.bytes * _GIB)
    if per_gib_ns < SLOW_LINK_BESIDE_USUAL * usual_ns:
        return None
    if spent_ns < SLOW_LINK_SHARE * now.elapsed_ns:
        return None
    return FleetFault(
        symptom=FleetSymptom.TRANSFER_SLOW,
        claim=f"KV takes {per_gib_ns / usual_ns:.1f} times as long on its way as it did, beyond "
        "what is hidden below computing",
        harm_ms=round(spent_ns * (1 - usual_ns / per_gib_ns) / 1e6, 1),
        evidence=(
            T.WAY_PER_GIB.of(per_gib_ns / 1e6),
            T.USUAL_WAY_PER_GIB.of(usual_ns / 1e6),
            T.TRANSFERS.of(now.whole),
        ),
        intervention="a quicker link between the two engines, or prompts computed here",
        runbook=runbook_of(FleetSymptom.TRANSFER_SLOW),
    )


def split_not_worth_it(window: TransferWindow) -> FleetFault | None:
    """Most prompts that were sent away would have been quicker here."""
    now = window.now
    if now.judged < LEAST_TRANSFERS or now.worse < REGRET_SHARE * now.judged:
        return None
    if now.regret_ns < REGRET_OF_TIME * now.elapsed_ns:
        return None
    return FleetFault(
        symptom=FleetSymptom.SPLIT_NOT_WORTH_IT,
        claim=f"{now.worse} of {now.judged} prompts that were computed elsewhere took longer than "
        "here, with the harm to others counted",
        harm_ms=round(now.regret_ns / 1e6, 1),
        evidence=(
            T.WORSE_SPLITS.of(now.worse),
            T.JUDGED_SPLITS.of(now.judged),
            T.REGRET.of(now.regret_ns / 1e6),
        ),
        intervention="compute these prompts where they are decoded",
        runbook=runbook_of(FleetSymptom.SPLIT_NOT_WORTH_IT),
    )
