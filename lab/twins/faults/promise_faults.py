"""Promises that were never kept: the server has missed its SLO since its start."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.traffic import ClassMix, Setting, policy_of_world

PLAIN_POLICY = policy_of_world(1_000, 300)
"""What these servers keep without what is wrong with them."""

_SLOTS, _BUDGET, _BLOCKS = "slots", "budget", "blocks"


def _plain(setting: Setting, draw: Random) -> None:
    """A server whose cost of a step is known, and targets that it meets with a load below one
    half."""
    setting.sends_step_cost = True
    setting.system_share = setting.disconnects = setting.two_choices = setting.constrained = 0.0
    setting.limits = replace(setting.limits, max_seqs=32, budget_tokens=256)
    setting.policy = PLAIN_POLICY
    setting.load = draw.uniform(0.3, 0.45)


def _too_much(setting: Setting, draw: Random) -> None:
    """More requests than the engine can do, at any setting. The queue is full after a few seconds,
    so that nothing changes any more."""
    setting.load = draw.uniform(1.7, 2.4)
    setting.limits = replace(setting.limits, queue_limit_requests=draw.randint(32, 48))


def _bad_setting(setting: Setting, draw: Random) -> None:
    """One limit is much too small for traffic that the engine could serve: slots, the budget of a
    step, or blocks of the cache."""
    kind, limits = draw.choice((_SLOTS, _BUDGET, _BLOCKS)), setting.limits
    if kind == _SLOTS:
        limits = replace(limits, max_seqs=draw.choice((1, 2)))
    elif kind == _BUDGET:
        setting.prompt = (120, 240)
        limits = replace(limits, max_seqs=6, budget_tokens=draw.choice((7, 8, 9)))
    else:
        setting.physics = replace(setting.physics, prompt_token_ns=120_000)
        setting.prompt = (200, 400)
        limits = replace(limits, max_model_tokens=480, blocks_total=30)
    setting.load = draw.uniform(0.45, 0.6)
    rate_per_s = setting.rate_per_s  # at the good limits
    setting.limits = replace(limits, queue_limit_requests=draw.randint(16, 24))
    setting.load = rate_per_s / setting.capacity_per_s


def _long_prompts(setting: Setting, draw: Random) -> None:
    """Prompts that alone take longer than the target, at a low load: 0.4 ms a token."""
    setting.prompt, setting.outputs = (700, 900), (8, 16)
    setting.limits = replace(setting.limits, budget_tokens=1024)
    setting.policy = policy_of_world(draw.choice((200, 250)), 1_500)
    setting.load = draw.uniform(0.35, 0.5)


def _voice_and_batch(setting: Setting, draw: Random) -> None:
    """One class needs first tokens sooner than steps with the other's prompts end."""
    setting.classes = {
        "chat": ClassMix(share=draw.uniform(0.45, 0.6), prompt=(200, 500)),
        "voice": ClassMix(share=0.5, prompt=(16, 48)),
    }
    setting.policy = policy_of_world(4_000, 500, voice=draw.choice((60, 70, 80)))
    setting.prompt = (110, 270)
    setting.limits = replace(setting.limits, budget_tokens=512)
    setting.load = draw.uniform(0.55, 0.65)


PROMISES: Mechanisms = {
    "impossible": Fault(prepare=_plain, always=_long_prompts),
    "misconfigured": Fault(prepare=_plain, always=_bad_setting),
    "at_its_limit": Fault(prepare=_plain, always=_too_much),
    "one_class": Fault(prepare=_plain, always=_voice_and_batch),
}
