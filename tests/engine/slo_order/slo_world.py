"""An engine that orders by slack, and what its sequences wait for."""

from __future__ import annotations

from lab.simulation.sim_executor import LinearCost
from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.engine.sequences.request import Request
from telemetry.facts.engine_records import SequenceAdmitted
from tests.support.worlds.engine_world import World

MS = 1_000_000
COST = LinearCost(prefill_token_ns=MS)
VOICE, CHAT, BATCH = 150 * MS, 1000 * MS, 60_000 * MS


def world(**limits: object) -> World:
    """An engine that runs one sequence at a time."""
    defaults: dict[str, object] = {
        "slo_order": True, "auto_budget": True, "budget_tokens": 64, "max_seqs": 1,
        "blocks_total": 400, "prefix_cache": False,
    }  # fmt: skip
    found = World(cost=COST, **{**defaults, **limits})  # type: ignore[arg-type]
    found.inbox.put(COST.as_fitted())
    return found


def submit(found: World, ttft_ns: int, prompt: int = 8, **fields: object) -> int:
    defaults: dict[str, object] = {"max_tokens": 2}
    return found.submit(
        prompt,
        first_token_by_ns=found.clock.now_ns() + ttft_ns,
        ttft_target_ns=ttft_ns,
        **{**defaults, **fields},  # type: ignore[arg-type]
    )


def run_until(found: World, now_ns: int) -> None:
    while found.clock.now_ns() < now_ns:
        assert found.loop.has_work
        found.step()


def order(found: World) -> list[int]:
    """Sequences in the order of their first admission."""
    admitted = [fact.seq_id for fact in found.facts if isinstance(fact, SequenceAdmitted)]
    return list(dict.fromkeys(admitted))


def request(
    prompt: int, by_ns: int | None, target_ns: int | None, queued_ns: int = 0, outputs: int = 0
) -> Request:
    command = Submit(
        seq_id=0, prompt=[0] * prompt, max_tokens=8, sampling=SamplingParams(temperature=0.0),
        first_token_by_ns=by_ns, ttft_target_ns=target_ns,
    )  # fmt: skip
    return Request(command, queued_ns=queued_ns, outputs=[0] * outputs)
