"""What a gateway tells the split rule of a request."""

from __future__ import annotations

from msgspec.structs import replace

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.membership.members import Role
from service.fleet.wire.messages import EngineIs, EngineLoad, KvOffer, LoadReport
from service.gateway.fleet.prefill import PrefillSplit
from telemetry.facts.engine_records import StepCostSet
from tests.fleet.gateway.test_routing import Fleet
from tests.fleet.test_wire import STARTED

PROMPT_TOKENS = 500
COST = StepCostSet(
    at_ns=0, step_id=0, base_ns=50_000_000, prefill_token_ns=1_000_000, decode_row_ns=1_000_000,
    context_token_ns=0,
)  # fmt: skip


def test_the_first_token_target_of_a_request_decides_where_its_prompt_is_computed() -> None:
    """Here it takes 0.55 s and makes four others wait for as long; there 1.65 s, by the queue."""
    fleet = Fleet(2)
    fleet.change(["n1"], role=Role.PREFILL)
    offer = KvOffer(layout="l", token_bytes=1000, port=1)
    loads = {
        "n0": EngineLoad(running=4, decode_rows=4, budget_tokens=512, cost=COST),
        "n1": EngineLoad(prompt_tokens=1_000, budget_tokens=512, cost=COST),
    }
    for name, link in fleet.links.items():
        link.engine = EngineIs(incarnation=1, started=STARTED, ready=True, kv=offer)
        link.report = LoadReport(
            number=1, incarnation=1, node_ns=0, received=0, ended=0, load=loads[name]
        )
        fleet.routing.changed(link, 0)
    submit = Submit(seq_id=1, prompt=[1], max_tokens=3, sampling=SamplingParams())
    routed = fleet.routing.choose(submit, "r", PROMPT_TOKENS, fleet.links, 0, 1)
    assert routed is not None
    is_remote = []
    for target_ns in (None, 1_000_000_000):
        found = PrefillSplit("auto").choose(
            submit, 1, fleet.links["n0"], fleet.links, replace(routed, ttft_target_ns=target_ns)
        )
        assert found is not None
        is_remote.append(found.is_remote)
    assert is_remote == [True, False]
