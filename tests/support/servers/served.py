"""A simulated engine's facts with those that a gateway would have recorded around them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lab.simulation.scenarios import build_scenario
from lab.simulation.world import World
from telemetry.facts.engine_records import EngineStarted, SequenceEnded, SequenceQueued
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
    EngineDied,
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)

US = 1_000
EPOCH_NS = 10_000_000_000
CLASSES = ("chat", "voice", "")


@dataclass(frozen=True, slots=True)
class Arrived:
    """A fact as it came into the gateway: when, and by which lane."""

    at_ns: int
    is_engine: bool
    fact: Fact


def served(name: str, seed: int, delay_ns: int = 0) -> list[Arrived]:
    """All facts of a scenario in order of arrival; the engine's come up to `delay_ns` late.

    None comes later than its engine's death: that is told when the last has been read, and
    before the next engine begins. Every sequence is a request of its own. Times begin ten
    seconds after zero.
    """
    generator = random.Random(seed)
    found: list[Arrived] = []
    open_ids: dict[int, str] = {}
    facts = _restarted(World(build_scenario(name, seed)).run().facts)
    deaths_ns = [fact.at_ns for fact in facts if isinstance(fact, EngineDied)]
    came_ns = EPOCH_NS
    for fact in facts:
        late_ns = generator.randint(0, delay_ns) if delay_ns else 0
        came_ns = max(came_ns, min([fact_ns(fact) + late_ns, *deaths_ns[:1]]))
        if isinstance(fact, EngineDied):
            deaths_ns.pop(0)
            found.append(Arrived(came_ns, False, fact))
            for seq_id in list(open_ids):
                request_id = open_ids.pop(seq_id)
                found.append(_end(request_id, came_ns + 5 * US, EndReason.ENGINE_DIED))
            continue
        seq_id = getattr(fact, "seq_id", None)
        if isinstance(fact, SequenceQueued | SequenceEnded) and seq_id not in open_ids:
            assert seq_id is not None
            open_ids[seq_id] = f"req-{seq_id}"
            found += _beginning(seq_id, fact_ns(fact) - 100 * US)
        found.append(Arrived(came_ns, True, fact))
        if isinstance(fact, SequenceEnded) and fact.seq_id in open_ids:
            is_gone = fact.reason is EndReason.DISCONNECT
            at_ns = fact.at_ns - 50 * US if is_gone else came_ns + 5 * US
            found.append(_end(open_ids.pop(fact.seq_id), at_ns, fact.reason))
    return sorted(found, key=lambda arrived: arrived.at_ns)


def facts_of(arrivals: list[Arrived]) -> list[Fact]:
    return sorted((arrived.fact for arrived in arrivals), key=fact_ns)


def started(at_ns: int = EPOCH_NS - 1_000 * US, pid: int = 77) -> EngineStarted:
    return EngineStarted(
        at_ns, pid, "model", "torch-cpu", "float32", 64, 4, 64, 8, 16, True, 1, 1000, 1_000_000
    )


def _restarted(facts: Iterable[Fact]) -> list[Fact]:
    """Shifted; what follows a death comes a millisecond later still, since nothing is submitted
    to an engine that has not begun."""
    found: list[Fact] = []
    by_ns = EPOCH_NS
    for fact in facts:
        found.append(shifted(fact, by_ns))
        by_ns += 1_000 * US * isinstance(fact, EngineDied)
    return found


def shifted(fact: Fact, by_ns: int = EPOCH_NS) -> Fact:
    """The same fact later, by default by ten seconds: no stamp is negative."""
    names = [name for name in fact.__struct_fields__ if name.endswith("_ns")]
    moved = {
        name: value + by_ns
        for name in names
        if isinstance(value := getattr(fact, name), int) and name not in _LENGTHS
    }
    return msgspec.structs.replace(fact, **moved)


_LENGTHS = {
    "compile_ns", "mask_ns", "base_ns", "prefill_token_ns", "decode_row_ns", "context_token_ns",
}  # fmt: skip


def _beginning(seq_id: int, at_ns: int) -> list[Arrived]:
    request_id, slo_class = f"req-{seq_id}", CLASSES[seq_id % len(CLASSES)]
    facts: list[Fact] = [
        RequestAccepted(
            request_id, at_ns, f"{seq_id:032x}", None, None, None, "/v1/completions",
            "text_completion", "", slo_class,
        ),
        RequestParsed(request_id, at_ns + US, "model", True, 1, 16, 1.0, 1.0, 0, None),
        RequestTokenized(request_id, at_ns + 2 * US, 4),
        SequenceSubmitted(request_id, at_ns + 3 * US, seq_id, 0),
    ]  # fmt: skip
    return [Arrived(fact_ns(fact), False, fact) for fact in facts]


def _end(request_id: str, at_ns: int, reason: EndReason) -> Arrived:
    finished = reason.outcome == "finished"
    detected_ns = at_ns if reason.outcome == "cancelled" else None
    end = RequestEnded(
        request_id, at_ns, reason, 200, None if finished else reason.value, 0, None,
        at_ns - US if finished else None, 7, 10, detected_ns,
    )  # fmt: skip
    return Arrived(at_ns, False, end)
