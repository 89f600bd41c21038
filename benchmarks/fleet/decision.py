"""How long a routing decision takes among 8, 64 and 1,000 engines.

    python -m benchmarks.fleet.decision [--policy least_finish]

One gateway's router, with reports of each engine every 500 ms, tenants' system prompts that many
engines hold, and agents' prompts that one holds. A decision is `choose` and `sent`, which includes
the book's part; the anchors of a prompt are hashed before and timed apart. Times are CPU time of
this thread, without what others run meanwhile, one after the other, with the garbage collector as
servers have it.

The same requests are decided `_RUNS` times, each time by a new router, which decides the same. The
quantiles are of all decisions, as a server has them. Those of the `least` are of the shortest time
of each decision: what it takes by itself, where no other guest of the machine took the caches or
the processor.
"""

from __future__ import annotations

import argparse
import time
from itertools import count
from random import Random

import msgspec

from lab.fleet.engine import COST, IDENTITY, KEY, LIMITS, as_fact
from service.fleet.routing.anchors import anchors_of
from service.fleet.routing.request import RouteRequest
from service.fleet.routing.router import Router
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import EngineReported, RequestRouted, RoutingPolicy
from telemetry.host.gc_watch import settle_collector
from telemetry.numbers.quantiles import quantile

_DECISIONS = 8_000
_RUNS = 5
_PERIOD_NS = 500_000_000
_PER_ENGINE_PER_S = 2.0
_LIVE = 8  # of each engine, on average


class DecisionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of one decision, of taking a report, and of hashing a prompt of 1,500 tokens."""

    engines: int
    policy: str
    decisions: int
    choose_p50_us: float
    choose_p99_us: float
    with_sent_p50_us: float
    with_sent_p99_us: float
    choose_least_p99_us: float
    with_sent_least_p99_us: float
    report_p50_us: float
    hash_1500_us: float
    candidates_mean: float


class _Run:
    """Microseconds of each decision of one run, and of the reports between them."""

    def __init__(self) -> None:
        self.choose: list[float] = []
        self.sent: list[float] = []
        self.report: list[float] = []
        self.candidates = 0


def measure(engines: int, policy: RoutingPolicy) -> DecisionTimes:
    """Decide again and again in a fleet that is busy."""
    runs = [_run(engines, policy) for _ in range(_RUNS)]
    random = Random(engines)
    prompt = [random.randrange(50_000) for _ in range(1500)]
    hashing = [_timed(lambda: _hash(prompt)) for _ in range(200)]
    choose = [one for run in runs for one in run.choose]
    sent = [one for run in runs for one in run.sent]
    return DecisionTimes(
        engines=engines,
        policy=policy.value,
        decisions=_DECISIONS * _RUNS,
        choose_p50_us=_q(choose, 0.5),
        choose_p99_us=_q(choose, 0.99),
        with_sent_p50_us=_q(sent, 0.5),
        with_sent_p99_us=_q(sent, 0.99),
        choose_least_p99_us=_q(list(map(min, *(run.choose for run in runs))), 0.99),
        with_sent_least_p99_us=_q(list(map(min, *(run.sent for run in runs))), 0.99),
        report_p50_us=_q([one for run in runs for one in run.report], 0.5),
        hash_1500_us=_q(hashing, 0.5),
        candidates_mean=round(runs[0].candidates / _DECISIONS, 2),
    )


def _run(engines: int, policy: RoutingPolicy) -> _Run:
    """One router from its start on: same arguments, same decisions."""
    random, numbers, run = Random(engines), count(1), _Run()
    router = Router(RoutingSettings(policy=policy, seed=3), lambda fact: None, 0)
    names = [f"engine-{number}" for number in range(engines)]
    for name in names:
        router.joined(name, 1, LIMITS.block_tokens, 0)
    tenants = [tuple(random.getrandbits(60) for _ in range(20)) for _ in range(6 * engines)]
    sent_to, ended_at = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    live: list[tuple[str, str]] = []
    now_ns, next_report = 0, 0
    settle_collector()
    for number in range(_DECISIONS):
        now_ns += int(random.expovariate(_PER_ENGINE_PER_S * engines) * 1e9)
        while next_report * _PERIOD_NS <= now_ns * engines:
            name = names[next_report % engines]
            report = _report(name, now_ns, next(numbers), sent_to[name], ended_at[name], router)
            run.report.append(_timed(lambda one=report: router.report(one)))
            next_report += 1
        request = _request(random, number, tenants)
        before = time.thread_time_ns()
        routed = router.choose(request, now_ns)
        between = time.thread_time_ns()
        assert isinstance(routed, RequestRouted)
        router.sent(routed)
        after = time.thread_time_ns()
        run.choose.append((between - before) / 1e3)
        run.sent.append((after - before) / 1e3)
        run.candidates += len(routed.candidates)
        sent_to[routed.engine] += 1
        live.append((request.request_id, routed.engine))
        if len(live) > _LIVE * engines:
            request_id, engine = live.pop(random.randrange(len(live)))
            ended_at[engine] += 1
            router.ended(request_id, 100, now_ns)
    return run


def _request(random: Random, number: int, tenants: list[tuple[int, ...]]) -> RouteRequest:
    """Half with a tenant's system prompt, a quarter an agent's of 64 anchors, a quarter alone."""
    kind = random.random()
    if kind < 0.5:
        anchors = random.choice(tenants[: max(4, len(tenants) // 8)])
    elif kind < 0.75:
        session = random.randrange(500)
        own = Random(session)
        anchors = tenants[session % len(tenants)] + tuple(own.getrandbits(60) for _ in range(44))
    else:
        anchors = tuple(random.getrandbits(60) for _ in range(4))
    tokens = len(anchors) * 64 + random.randrange(1, 64)
    return RouteRequest(
        request_id=f"r{number}", prompt_tokens=tokens, max_tokens=256, anchors=anchors,
        itl_target_ns=100_000_000, ttft_target_ns=500_000_000,
    )  # fmt: skip


def _report(
    name: str, now_ns: int, number: int, received: int, ended: int, router: Router
) -> EngineReported:
    running = len(router.outstanding(name))
    return EngineReported(
        at_ns=now_ns, engine=name, incarnation=1, number=number, age_ns=500_000, received=received,
        ended=ended, running=running, waiting=0, prompt_tokens=running * 30, decode_rows=running,
        context_tokens=running * 600, blocks_used=running * 40, blocks_total=1536,
        max_seqs=16, budget_tokens=2048, target_ns=100_000_000, cost=as_fact(COST),
    )  # fmt: skip


def _hash(prompt: list[int]) -> tuple[int, ...]:
    return anchors_of(prompt, LIMITS.block_tokens, key=KEY, identity=IDENTITY)


def _timed(call: object) -> float:
    assert callable(call)
    before = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - before) / 1e3


def _q(values: list[float], share: float) -> float:
    found = quantile(values, share)
    assert found is not None
    return round(found, 1)


def measure_all() -> list[DecisionTimes]:
    return [measure(n, policy) for policy in RoutingPolicy for n in (8, 64, 1000)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=RoutingPolicy, choices=list(RoutingPolicy))
    chosen = parser.parse_args().policy
    for policy in RoutingPolicy if chosen is None else [chosen]:
        for engines in (8, 64, 1000):
            print(msgspec.json.encode(measure(engines, policy)).decode(), flush=True)


if __name__ == "__main__":
    main()
