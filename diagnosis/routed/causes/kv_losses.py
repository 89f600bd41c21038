"""Transfers that come to nothing, and what they leave behind."""

from __future__ import annotations

from diagnosis.detection.counts import BUCKET_NS
from diagnosis.routed.evidence import Transferred
from diagnosis.routed.symptoms import FleetFault, FleetSymptom, runbook_of
from diagnosis.routed.thresholds import (
    LEAST_LOST,
    REFUSED_SHARE,
    STRANDED_BLOCKS,
)
from diagnosis.routed.transfers import TransferWindow
from telemetry.facts.fleet.kv_transfer_records import KvFault

T = Transferred


def kv_corrupt(window: TransferWindow) -> FleetFault | None:
    """Blocks differ from the digests of their seal."""
    now = window.now
    if not now.corrupt_blocks:
        return None
    return FleetFault(
        symptom=FleetSymptom.KV_CORRUPT,
        claim=f"{now.corrupt_blocks} blocks arrived as something else than was sent; their prompts "
        "were computed here, and no token came of them",
        harm_ms=round(now.lost_ns / 1e6, 1),
        evidence=(
            T.CORRUPT_BLOCKS.of(now.corrupt_blocks),
            T.LOST_TRANSFERS.of(now.lost[KvFault.CORRUPT]),
            T.TRANSFERS.of(now.whole),
        ),
        intervention="take the link, or the memory behind it, out of use",
        runbook=runbook_of(FleetSymptom.KV_CORRUPT),
    )


def transfer_stall(window: TransferWindow) -> FleetFault | None:
    """Transfers that are wanted do not go on: leases end without progress."""
    now = window.now
    lost = now.lost[KvFault.LEASE]
    if lost < LEAST_LOST or lost < now.lost[KvFault.CANCELLED]:
        return None
    return FleetFault(
        symptom=FleetSymptom.TRANSFER_STALL,
        claim=f"KV does not come: {lost} leases ended without progress, and the oldest transfer "
        f"has waited for {now.oldest_ns / 1e9:.1f} s",
        harm_ms=round((now.lost_ns + now.oldest_ns) / 1e6, 1),
        evidence=(
            T.LEASES_ENDED.of(lost),
            T.OLDEST_TRANSFER.of(now.oldest_ns / 1e9),
            T.TRANSFERS.of(now.whole),
        ),
        intervention="compute prompts here until the other engine or the link answers",
        runbook=runbook_of(FleetSymptom.TRANSFER_STALL),
    )


def staging_full(window: TransferWindow) -> FleetFault | None:
    """No blocks can be reserved for KV that is to come."""
    now = window.now
    if now.refused < LEAST_LOST or now.refused < REFUSED_SHARE * now.tried:
        return None
    return FleetFault(
        symptom=FleetSymptom.STAGING_FULL,
        claim=f"{now.refused} of {now.tried} transfers found no blocks to be reserved: these "
        "prompts were computed here",
        harm_ms=0.0,
        evidence=(
            T.REFUSED_TRANSFERS.of(now.refused),
            T.TRIED_TRANSFERS.of(now.tried),
            T.RESERVED_BLOCKS.of(_mean_blocks(now.reserved_ns, now.ticks)),
        ),
        intervention="more blocks, or fewer transfers at once",
        runbook=runbook_of(FleetSymptom.STAGING_FULL),
    )


def kv_stranded(window: TransferWindow) -> FleetFault | None:
    """Blocks that nobody wants any more cannot be freed: a write may still land in them."""
    now, blocks = window.now, _mean_blocks(window.now.stranded_ns, window.now.ticks)
    if not window.blocks_total or blocks < STRANDED_BLOCKS * window.blocks_total:
        return None
    return FleetFault(
        symptom=FleetSymptom.KV_STRANDED,
        claim=f"{blocks:.0f} of {window.blocks_total} blocks are of transfers that came to "
        "nothing, and wait for proof that no write can land in them",
        harm_ms=0.0,
        evidence=(
            T.STRANDED_BLOCKS.of(blocks),
            T.RESERVED_BLOCKS.of(_mean_blocks(now.reserved_ns, now.ticks)),
            T.LOST_TRANSFERS.of(now.lost.total()),
        ),
        intervention="end the other engine, or let it answer: then they are free",
        runbook=runbook_of(FleetSymptom.KV_STRANDED),
    )


def _mean_blocks(block_ns: int, ticks: int) -> float:
    return block_ns / (ticks * BUCKET_NS) if ticks else 0.0
