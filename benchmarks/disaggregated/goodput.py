"""Four engines that do both, against some that compute prompts and some that decode: at which rate
do nine of ten requests still meet both targets?

    python -m benchmarks.disaggregated.goodput

In virtual time, with the production scheduler and protocol, and with the costs of a step that
`benchmarks.disaggregated.step_costs` measured, as if each engine had a machine of its own and a
link of 1 GB/s. Engines that do both are tried with the fixed budget of a step and with one that
follows the inter-token target; the better one counts. Engines apart are tried in each ratio, as
DistServe's placement searches too. In `by_rule` they are tried in each ratio again, and each prompt
goes the way that a gateway would choose (`service.fleet.routing.prefill_choice`); who decodes
follows the inter-token target there. A claim in kind (DistServe, Zhong et al., OSDI 2024).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from lab.fleet.disaggregated.network import LinkModel
from lab.fleet.disaggregated.node import SimNode
from lab.fleet.disaggregated.scenario import MS, SECOND, Ask, Scenario
from lab.fleet.disaggregated.world import Builds, World
from lab.simulation.sim_executor import FittedCost, WritingExecutor
from service.engine.admission import Limits
from service.engine.inbox import SetStepCost, Submit
from service.engine.plan import Emission
from service.fleet.routing.prefill_choice import Computes, Decodes, PrefillChoice
from service.fleet.transfer.decode_side import DecodeSideSettings
from service.fleet.transfer.sending import PrefillSideSettings
from service.fleet.transfer.split import ASSUMED_DIGEST_BYTE_NS, LinkCost
from service.fleet.wire.load_fold import LoadFold
from service.fleet.wire.messages import EngineLoad
from telemetry.costs.step_load import attention_pairs
from telemetry.facts.fleet.kv_transfer_records import Way

FOLDER = Path(__file__).parents[1] / "results"
COSTS, RESULTS = FOLDER / "disaggregated_step_cost.json", FOLDER / "disaggregated_goodput.json"
BLOCK_TOKENS, BLOCK_NS = 16, 370_000  # a block of the default model in bf16, at 1 GB/s
REQUESTS, GOOD, ENGINES = 160, 0.9, 4
NO_NOISE = 1.0  # the spread of steps in virtual time
LINK = LinkCost(
    token_bytes=23_040, bytes_per_ns=1.0, delay_ns=300_000, digest_byte_ns=ASSUMED_DIGEST_BYTE_NS
)
BUDGET_TOKENS = 512
PRECISION = 1.04  # a goodput is known when this many times as much is too much
_WIDER, _LEAST_OF_GUESS = 1.5, 1 / 100


Asks = tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Mix:
    """What is asked for. Targets are multiples of what an idle engine takes."""

    name: str
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    ttft_times: float
    tpot_times: float


MIXES = (
    Mix("long prompts, tight between tokens", (400, 1200), (30, 90), 4.0, 2.0),
    Mix("long prompts, loose between tokens", (400, 1200), (30, 90), 4.0, 12.0),
    Mix("short prompts, long answers", (20, 80), (60, 180), 8.0, 3.0),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """Who asks, and of which machines: what a step costs, what a block of 16 tokens takes on the
    link, and what the rule is told of it. `seed` draws the requests."""

    mix: Mix
    cost: SetStepCost
    block_ns: int = BLOCK_NS
    link: LinkCost = LINK
    seed: int = 7
    requests: int = REQUESTS


class Timed(World):
    """A world that notes when each token was known, and does not walk pools after each step."""

    most_events = 10_000_000

    def __init__(
        self,
        scenario: Scenario,
        by_rule: bool,
        link: LinkCost = LINK,
        ttft_target_ns: int | None = None,
    ) -> None:
        self.token_ns: dict[int, list[int]] = defaultdict(list)
        self.by_rule, self._link, self._ttft_target_ns = by_rule, link, ttft_target_ns
        self.ways: Counter[Way] = Counter()
        self._choice = PrefillChoice()
        self._folds: dict[str, LoadFold] = defaultdict(LoadFold)
        self._seen_facts: Counter[str] = Counter()
        super().__init__(scenario, Builds(executor=WritingExecutor))
        self.invariants.after_iteration = lambda node: None  # type: ignore[method-assign]
        for node in self.decodes + self.prefills:
            node.send(scenario.cost.fitted)  # type: ignore[attr-defined]

    def emitted(self, node: SimNode, emissions: list[Emission]) -> None:
        for emission in emissions:
            if emission.sample is not None:
                self.token_ns[emission.seq_id].append(self.events.now_ns)
            self._choice.computed(emission.seq_id)
        super().emitted(node, emissions)

    def _submit(self, node: SimNode, submit: Submit, remote: bool) -> None:
        """Submit a prompt. With `by_rule` each goes the way that a gateway would choose."""
        if not self.by_rule:
            super()._submit(node, submit, remote)
            return
        tokens = len(submit.prompt)
        there = [
            Computes(one.peer.name, self._load(one), BLOCK_TOKENS, self._link)
            for one in self.prefills
        ]
        here = Decodes(node.peer.name, self._load(node), 0)
        found = self._choice.best(tokens, (), here, there, self._ttft_target_ns)
        assert found is not None, "engines that compute prompts are there all the time"
        self.ways[found.split.way] += 1
        is_remote = found.split.way is Way.REMOTE
        self._folds[here.name].submitted(submit.seq_id, tokens, is_remote)
        if is_remote:
            self._choice.sent_away(submit.seq_id, found, here.name, tokens, ())
            peers = {one.peer.name: one.peer for one in self.prefills}
            self._start_remote(node, submit, peers[found.name])
        else:
            self._choice.sent_here(here.name, tokens)
            node.send(submit)

    def _load(self, node: SimNode) -> EngineLoad:
        """What an engine and its node say, by what they know now."""
        name = node.peer.name
        fresh = node.facts[self._seen_facts[name] :]
        self._seen_facts[name] += len(fresh)
        self._folds[name].take(fresh)
        self._choice.reported(name)
        return self._folds[name].load()


def cost_of(path: Path, spread: float | None = None) -> SetStepCost:
    """A measured cost. `around_ns` of a simulated step are in its device's time."""
    found = json.loads(path.read_text())["bf16"]["step_cost"] | {"around_ns": 0}
    return SetStepCost(**(found if spread is None else found | {"spread": spread}))


def limits_of(
    tpot_ns: int | None, budget_tokens: int = BUDGET_TOKENS, chunked: bool = True
) -> Limits:
    return Limits(
        block_tokens=BLOCK_TOKENS, blocks_total=4_000, max_model_tokens=2_048, max_seqs=64,
        budget_tokens=budget_tokens, chunked_prefill=chunked, queue_limit_requests=10_000,
        queue_limit_tokens=10**9, cache_identity="default",
        itl_target_ns=tpot_ns, auto_budget=tpot_ns is not None,
    )  # fmt: skip


def asks_of(mix: Mix, rate: float, remote: bool, seed: int = 7, count: int = REQUESTS) -> Asks:
    """The same requests at any rate, in the same order."""
    random, at_ns, asks = Random(seed), 0.0, list[Ask]()
    for _ in range(count):
        at_ns += random.expovariate(rate) * SECOND
        tokens = random.randint(*mix.prompt_tokens)
        prompt = tuple(random.randrange(1000) for _ in range(tokens))
        outputs = random.randint(*mix.output_tokens)
        asks.append(Ask(at_ns=round(at_ns), prompt=prompt, max_tokens=outputs, remote=remote))
    return tuple(asks)


def targets_of(mix: Mix, cost: SetStepCost) -> tuple[float, float]:
    """(first token, between tokens) in nanoseconds: of the middle prompt, alone."""
    tokens = sum(mix.prompt_tokens) // 2
    steps = -(-tokens // 512)
    alone_ns = steps * (cost.base_ns + cost.mixed_ns) + tokens * cost.prefill_token_ns
    alone_ns += round(cost.pair_ns * attention_pairs(tokens, 0))
    return mix.ttft_times * alone_ns, mix.tpot_times * cost.decode_step_ns(1, tokens)


@dataclass(frozen=True, slots=True)
class Layout:
    """What engines are for. Without `prefills` all do both, with a budget that is `paced` by the
    inter-token target or fixed; with them, each prompt goes there, or where the rule says. Without
    `chunked` a prompt is computed in one step."""

    prefills: int = 0
    paced: bool = False
    by_rule: bool = False
    budget_tokens: int = BUDGET_TOKENS
    chunked: bool = True


class Judged(Timed):
    """Says of each request whether it met its targets, as soon as that is known: it misses them
    when its first token is overdue, or when its tokens have taken what all of them may take."""

    def __init__(self, setting: Setting, rate: float, layout: Layout) -> None:
        mix, cost = setting.mix, setting.cost
        self._ttft_ns, self._tpot_ns = targets_of(mix, cost)
        asks = asks_of(mix, rate, layout.prefills > 0, setting.seed, setting.requests)
        self.met: dict[int, bool] = {}
        super().__init__(
            Scenario(
                seed=1, asks=asks,
                limits=limits_of(
                    int(self._tpot_ns) if layout.paced else None, layout.budget_tokens,
                    layout.chunked,
                ),
                link=LinkModel(jitter_ns=0, block_ns=setting.block_ns), cost=FittedCost(cost),
                prefills=layout.prefills, decodes=ENGINES - layout.prefills,
                decode_patience=DecodeSideSettings(lease_ns=600 * SECOND, longest_ns=600 * SECOND),
                prefill_patience=PrefillSideSettings(hold_ns=600 * SECOND),
            ),
            layout.by_rule, setting.link, int(self._ttft_ns),
        )  # fmt: skip
        for seq_id, ask in enumerate(asks):
            overdue = partial(self._overdue, seq_id)
            self.events.at(ask.at_ns + int(self._ttft_ns) + 1, overdue)

    def _overdue(self, seq_id: int) -> None:
        if not self.token_ns[seq_id]:
            self.met.setdefault(seq_id, False)

    def emitted(self, node: SimNode, emissions: list[Emission]) -> None:
        super().emitted(node, emissions)
        for emission in emissions:
            seq_id, stamps = emission.seq_id, self.token_ns[emission.seq_id]
            if not stamps or seq_id in self.met:
                continue
            ask = self.scenario.asks[seq_id]
            in_time = stamps[0] - ask.at_ns <= self._ttft_ns
            most_ns = self._tpot_ns * (ask.max_tokens - 1)
            if not in_time or stamps[-1] - stamps[0] > most_ns:
                self.met[seq_id] = False
            elif len(stamps) == ask.max_tokens:
                self.met[seq_id] = True

    def is_good(self) -> bool:
        """Whether GOOD of the requests meet their targets; runs until that is known."""
        count = len(self.scenario.asks)
        needed = next(n for n in range(count + 1) if n / count >= GOOD)
        seen = good = 0
        while good < needed and seen - good <= count - needed:
            if not self.events.step():
                raise AssertionError(f"{count - seen} requests have not ended")
            if len(self.met) != seen:
                seen, good = len(self.met), sum(self.met.values())
        return good >= needed


def shares(setting: Setting, rate: float, layout: Layout) -> tuple[float, float]:
    """The share of requests that meet both targets, and of prompts that the rule sent away."""
    world = Judged(setting, rate, layout)
    world.run()
    assert len(world.met) == setting.requests, "each request has all of its tokens"
    ways = world.ways[Way.REMOTE]
    return sum(world.met.values()) / setting.requests, ways / setting.requests


def is_good(setting: Setting, rate: float, layout: Layout) -> bool:
    return Judged(setting, rate, layout).is_good()


def guess_of(setting: Setting) -> float:
    """A rate to begin a search at: prompts take half of the time of all engines."""
    ttft_ns, _ = targets_of(setting.mix, setting.cost)
    return ENGINES / 2 / (ttft_ns / setting.mix.ttft_times / SECOND)


def goodput(setting: Setting, layout: Layout, above: float = 0.0) -> float:
    """The highest rate, in requests a second for all engines together, to within 4 %; 0.0 where
    it is not above `above`, or nearly nothing is served in time."""
    high = above or guess_of(setting)
    least = above or high * _LEAST_OF_GUESS
    if is_good(setting, high, layout):
        low, high = high, high * _WIDER
        while is_good(setting, high, layout):
            low, high = high, high * _WIDER
    else:
        low = high / _WIDER
        while low >= least and not is_good(setting, low, layout):
            low, high = low / _WIDER, low
        if low < least:
            return 0.0
    while high / low > PRECISION:
        middle = (low + high) / 2
        if is_good(setting, middle, layout):
            low = middle
        else:
            high = middle
    return low


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--costs", type=Path, default=COSTS, help="what `step_costs` has written")
    parser.add_argument("--only", default="", help="mixes whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    cost = cost_of(chosen.costs, NO_NOISE)
    found: list[dict[str, Any]] = []
    for mix in (one for one in MIXES if chosen.only in one.name):
        setting, ratios = Setting(mix, cost), range(1, ENGINES)
        apart = {n: goodput(setting, Layout(n)) for n in ratios}
        ruled = [Layout(n, paced=True, by_rule=True) for n in ratios]
        chosen_way = {one.prefills: goodput(setting, one) for one in ruled}
        best = max(ruled, key=lambda one: chosen_way[one.prefills])
        rates = {
            "fixed": goodput(setting, Layout()),
            "paced": goodput(setting, Layout(paced=True)),
            **{f"{n}+{ENGINES - n}": rate for n, rate in apart.items()},
            "apart": max(apart.values()),
            **{f"{n}+{ENGINES - n} by_rule": rate for n, rate in chosen_way.items()},
            "by_rule": chosen_way[best.prefills],
        }
        together = max(rates["fixed"], rates["paced"])
        ttft_ns, tpot_ns = targets_of(mix, cost)
        found.append(
            {
                "mix": mix.name,
                "targets_ms": [round(ttft_ns / MS), round(tpot_ns / MS)],
                "requests_per_s": {name: round(rate, 3) for name, rate in rates.items()},
                "over_together": {
                    name: round(rates[name] / together, 2) if together else None
                    for name in ("apart", "by_rule")
                },
                "sent_away_by_rule": round(shares(setting, rates["by_rule"], best)[1], 3),
            }
        )
        print(json.dumps(found[-1]), flush=True)
    chosen.out.write_text(json.dumps({"good_share": GOOD, "mixes": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
