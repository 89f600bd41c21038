"""Faults of the configuration: they last from the start, and show against a good run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.physics import MS
from lab.twins.traffic import Setting, policy_of_world
from service.engine.kv.blocks import blocks_for
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.records import Fact
from telemetry.numbers.quantiles import quantile


def _long_prompts(setting: Setting, draw: Random) -> None:
    """Long prompts that are cheap to compute, and short outputs: prompts take most of the cache."""
    setting.physics = replace(setting.physics, prompt_token_ns=120_000)
    setting.prompt, setting.outputs = (120, 360), (10, 20)
    setting.system_share, setting.two_choices = 0.0, 0.0
    setting.load = draw.uniform(0.7, 0.8)
    setting.limits = replace(setting.limits, max_model_tokens=512, max_seqs=32)


def _half_the_need(setting: Setting, good: Sequence[Fact], draw: Random) -> None:
    """40 to 60 % of the blocks that were in use when there were enough."""
    used = [fact.blocks_used for fact in good if isinstance(fact, StepRecorded)]
    need = quantile(used, 0.98) or 0
    _shrink(setting, int(draw.uniform(0.4, 0.6) * need))


def _shrink(setting: Setting, blocks: int) -> None:
    least = blocks_for(setting.limits.max_model_tokens, setting.limits.block_tokens)
    setting.limits = replace(setting.limits, blocks_total=max(blocks, least))


EXHAUSTION: Mechanisms = {"small_pool": Fault(prepare=_long_prompts, misconfigure=_half_the_need)}


def _long_answers(setting: Setting, draw: Random) -> None:
    """Short prompts and long outputs: sequences start small and grow large."""
    setting.prompt, setting.outputs = (16, 48), (100, 200)
    setting.system_share, setting.two_choices = 0.0, 0.0
    setting.load = draw.uniform(0.4, 0.6)
    setting.limits = replace(setting.limits, max_model_tokens=384)


def _one_request(setting: Setting, good: Sequence[Fact], draw: Random) -> None:
    """A pool just above the largest request that is allowed."""
    largest = blocks_for(setting.limits.max_model_tokens, setting.limits.block_tokens)
    _shrink(setting, largest + draw.randint(2, 8))


THRASH: Mechanisms = {"one_request": Fault(prepare=_long_answers, misconfigure=_one_request)}


def _expensive_rows(setting: Setting, draw: Random) -> None:
    """An engine that gains little by batching, and demand that comes in bursts."""
    setting.physics = replace(setting.physics, base_ns=3 * MS, decode_row_ns=1_600_000)
    setting.prompt, setting.outputs = (16, 64), (40, 100)
    setting.limits = replace(setting.limits, max_seqs=8)
    setting.load = draw.uniform(0.6, 0.75)
    setting.burst_requests = draw.randint(24, 32)
    setting.policy = policy_of_world(8_000, 450)


def _more_seqs(setting: Setting, good: Sequence[Fact], draw: Random) -> None:
    setting.limits = replace(setting.limits, max_seqs=8 * draw.choice((4, 6, 8)))


def _plateaus(setting: Setting, draw: Random) -> None:
    """The same in fewer and larger bursts."""
    _expensive_rows(setting, draw)
    setting.burst_requests = draw.randint(40, 52)
    setting.policy = policy_of_world(12_000, 450)  # the last of a burst waits for all before it


OVERSIZED: Mechanisms = {
    "max_seqs": Fault(prepare=_expensive_rows, misconfigure=_more_seqs),
    "plateaus": Fault(prepare=_plateaus, misconfigure=_more_seqs),
}


def _few_seqs(setting: Setting, draw: Random) -> None:
    setting.limits = replace(setting.limits, max_seqs=8)
    setting.load = draw.uniform(0.45, 0.6)


def _small_budget(setting: Setting, good: Sequence[Fact], draw: Random) -> None:
    setting.limits = replace(setting.limits, budget_tokens=16)


def _strict_target(setting: Setting, good: Sequence[Fact], draw: Random) -> None:
    """A target that no step can meet: beside decodes each carries one block of a prompt."""
    setting.limits = replace(setting.limits, itl_target_ns=int(draw.uniform(5, 10) * MS))
    setting.sends_step_cost = True


SMALL_BUDGET: Mechanisms = {
    "budget": Fault(prepare=_few_seqs, misconfigure=_small_budget),
    "itl_target": Fault(prepare=_few_seqs, misconfigure=_strict_target),
}
