"""KV of other engines in a replay: the commands that the record shows."""

from __future__ import annotations

from collections.abc import Callable

from service.engine.inbox import AdmitKv, Command, FailKv, ReleaseKv
from service.engine.plan import Sample
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvFault,
    KvHeld,
    KvLost,
    KvRefused,
    KvReleased,
    KvReserved,
)
from telemetry.facts.records import Fact

KV_DECISIONS = (KvReserved, KvRefused, KvAdmitted, KvLost, KvHeld, KvReleased)


def kv_command(fact: Fact, first_token: Callable[[int], int | None]) -> Command | None:
    """The command that caused a fact about KV of other engines; None where none did, or where the
    submission of its sequence was lost. `first_token(seq_id)` stands for the first token of a
    sequence, which is in no fact; None: it is unknown. A sequence gives its KV up because of a
    Pause, or of the ReleaseKv that KvReleased shows."""
    match fact:
        case KvAdmitted():
            token = first_token(fact.seq_id)
            return None if token is None else AdmitKv(fact.seq_id, fact.epoch, Sample(token))
        case KvLost() if fact.why not in (KvFault.PAUSED, KvFault.RELEASED):
            return FailKv(fact.seq_id, fact.epoch, fact.why)
        case KvReleased():
            return ReleaseKv(fact.epoch)
        case _:
            return None
