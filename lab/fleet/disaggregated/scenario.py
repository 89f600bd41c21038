"""What a world depends on: same scenario, same run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

from lab.fleet.disaggregated.network import LinkModel
from lab.simulation.sim_executor import Cost, LinearCost
from service.engine.admission import Limits
from service.fleet.transfer.decode_side import DecodeSideSettings, DecodeState
from service.fleet.transfer.sending import PrefillSideSettings, PrefillState

MS = 1_000_000
SECOND = 1_000 * MS
BLOCK_TOKENS = 4
_HOLD_NS, _RESEND_NS = 15 * SECOND, 200 * MS
_STAGING_BYTES = (20, 200, 600, 2000)
"""Less than one block of 68 bytes, and up to 29 of them: a prompt has at most 12."""


class Fault(StrEnum):
    """What happens to a world in the moment that a transfer is in a certain state."""

    KILL_DECODE = "kill_decode"
    KILL_PREFILL = "kill_prefill"
    FREEZE_DECODE = "freeze_decode"
    FREEZE_PREFILL = "freeze_prefill"
    CANCEL = "cancel"
    PAUSE = "pause"
    STALL = "stall"
    CUT = "cut"


STATES = [("decode", state.value) for state in DecodeState] + [
    ("prefill", state.value) for state in PrefillState
]


@dataclass(frozen=True, slots=True)
class StateFault:
    """A fault when, for the `nth` time, a transfer is seen in `state` on `side`."""

    fault: Fault
    side: str
    state: str
    nth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request. It is computed where it is decoded unless `remote`."""

    at_ns: int
    prompt: tuple[int, ...]
    max_tokens: int
    remote: bool
    eos_at: int | None = None
    cancel_ns: int | None = None
    deadline_ns: int | None = None
    pause_ns: int | None = None
    resume_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One world. `offsets_ns` are what clocks of engines show at the beginning."""

    seed: int
    asks: tuple[Ask, ...]
    limits: Limits
    link: LinkModel = field(default_factory=LinkModel)
    faults: tuple[StateFault, ...] = ()
    prefills: int = 1
    decodes: int = 1
    depth: int = 1
    cost: Cost = field(default_factory=LinearCost)
    offsets_ns: tuple[int, ...] = (0,)
    restart_ns: int = 2 * SECOND
    decode_patience: DecodeSideSettings = field(
        default_factory=lambda: DecodeSideSettings(
            lease_ns=3 * SECOND, longest_ns=10 * SECOND, resend_ns=200 * MS
        )
    )
    prefill_patience: PrefillSideSettings = field(
        default_factory=lambda: PrefillSideSettings(hold_ns=_HOLD_NS, resend_ns=_RESEND_NS)
    )


def scenario_of(seed: int) -> Scenario:
    """A world with some of everything; two thirds have a fault in a state, one after the other, and
    in a fifth little may be on its way at once."""
    random = Random(seed)
    depth = random.choice((1, 1, 2))
    faults: list[StateFault] = []
    if seed % 3:
        place = seed - seed // 3 - 1  # counts those with a fault
        nth_state, nth_fault = divmod(place, len(Fault))
        fault = list(Fault)[nth_fault]
        side, state = STATES[nth_state % len(STATES)]
        faults.append(StateFault(fault, side, state, random.randint(1, 3)))
    blocks = random.choice((24, 40, 80))
    return Scenario(
        seed=seed,
        asks=_asks(random),
        limits=_limits(random, blocks),
        link=_link(random),
        faults=tuple(faults),
        prefills=random.choice((1, 1, 2)),
        decodes=random.choice((1, 1, 2)),
        depth=depth,
        cost=LinearCost(base_ns=random.choice((5, 20)) * MS, prefill_token_ns=MS),
        offsets_ns=tuple(random.randrange(0, 200 * SECOND) for _ in range(4)),
        prefill_patience=_prefill_patience(seed),
    )


def _prefill_patience(seed: int) -> PrefillSideSettings:
    known = PrefillSideSettings(hold_ns=_HOLD_NS, resend_ns=_RESEND_NS)
    turn, place = divmod(seed, 5)
    if place != 3:
        return known
    return replace(known, staging_bytes=_STAGING_BYTES[turn % len(_STAGING_BYTES)])


def _limits(random: Random, blocks: int) -> Limits:
    return Limits(
        block_tokens=BLOCK_TOKENS,
        blocks_total=blocks,
        max_model_tokens=64,
        max_seqs=random.choice((1, 3, 6)),
        budget_tokens=random.choice((8, 16)),
        chunked_prefill=random.random() < 0.85,
        queue_limit_requests=random.choice((4, 100)),
        queue_limit_tokens=100_000,
        prefix_cache=random.random() < 0.8,
        cache_identity="simulated",
        draft_tokens=random.choice((0, 0, 2)),
    )


def _link(random: Random) -> LinkModel:
    quiet = random.random() < 0.25
    begin_ns = random.randrange(2 * SECOND)
    stalls = ((begin_ns, begin_ns + random.randrange(5 * SECOND)),) if random.random() < 0.3 else ()
    return LinkModel(
        jitter_ns=random.choice((0, 2, 50)) * MS,
        block_ns=random.choice((0, 1, 20)) * MS,
        loss=0.0 if quiet else random.choice((0.0, 0.05, 0.3)),
        twice=0.0 if quiet else random.choice((0.0, 0.3)),
        flip=0.0 if quiet else random.choice((0.0, 0.0, 0.05)),
        write_fails=0.0 if quiet else random.choice((0.0, 0.0, 0.03)),
        stalls=stalls,
    )


def _asks(random: Random) -> tuple[Ask, ...]:
    families = [tuple(random.randrange(1000) for _ in range(24)) for _ in range(2)]
    return tuple(_ask(random, families) for _ in range(random.randint(3, 10)))


def _ask(random: Random, families: list[tuple[int, ...]]) -> Ask:
    shared = random.choice(families)[: random.choice((0, 8, 16, 24))]
    own = tuple(random.randrange(1000) for _ in range(random.randint(1, 24)))

    def sometimes(chance: float, most_ns: int) -> int | None:
        return random.randrange(most_ns) if random.random() < chance else None

    pause_ns = sometimes(0.1, SECOND)
    max_tokens = random.randint(1, 12)
    return Ask(
        at_ns=random.randrange(2 * SECOND),
        prompt=shared + own,
        max_tokens=max_tokens,
        remote=random.random() < 0.8,
        eos_at=random.randrange(max_tokens) if random.random() < 0.2 else None,
        cancel_ns=sometimes(0.2, SECOND),
        deadline_ns=sometimes(0.1, 3 * SECOND),
        pause_ns=pause_ns,
        resume_ns=None if pause_ns is None else pause_ns + random.randrange(2 * SECOND),
    )
