"""The five drills: a server with one wrong limit, and the setting that is best by hand.

A running engine cannot be given more than it started with, so the server starts with the good
setting, and a rollout (`by: config`, which is no operator's hand) sets the wrong one before the
first request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.drills.traffic import Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Poisson arrivals of one kind at `load` times the capacity that was measured with its mix.
    What a culprit asks for is of an SLO class without a promise, and is not counted."""

    mix: Mix
    load: float
    tenant: str = "calm"
    is_culprit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """`flags` of the server beside those of all, `wrong` the limits that are set at once, `best`
    those that a hand would set (empty: what the server started with). Loads are shares of what a
    server serves that starts with `flags` and then `best_flags`."""

    name: str
    about: str
    streams: tuple[Stream, ...]
    flags: tuple[str, ...] = ()
    best_flags: tuple[str, ...] = ()
    wrong: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)


CHAT = Mix(name="chat", prompt=(16, 64), output=(24, 64))
LONG = Mix(name="long", prompt=(500, 900), output=(8, 16))
SHARED = Mix(name="shared", prompt=(16, 48), output=(24, 48), shared_tokens=512)
ESSAY = Mix(name="essay", prompt=(16, 48), output=(120, 200))
# A promise counts tokens, a client the pieces of text: each of these tokens is one letter, so that
# no piece has two.
_LETTERS = {"logit_bias": {str(one): 100 for one in range(100, 108)}}
# below 100 tokens, so that one late gap is too many
STREAM = Mix(name="stream", prompt=(16, 48), output=(64, 96), fields=_LETTERS)
DICE = Mix(
    name="dice",
    prompt=(64, 128),
    output=(48, 96),
    fields={"temperature": 2.0, **_LETTERS},
)

# An automatic budget fills steps up to the promised gap. The promise is what the server by hand
# keeps, so that server has another promise: with such a budget it would not be the same server.
_FIXED = ("--max-batched-tokens", "128")

DRILLS: tuple[Drill, ...] = (
    Drill(
        name="budget_too_large",
        about="whole prompts in one step make the streams beside them late",
        streams=(Stream(mix=STREAM, load=0.4), Stream(mix=LONG, load=0.25)),
        flags=("--max-batched-tokens", "auto"),
        wrong={"max_batched_tokens": 1024},
        best={"max_batched_tokens": 64},
    ),
    Drill(
        name="too_few_sequences",
        about="requests wait for a place in a batch that is nearly empty",
        streams=(Stream(mix=CHAT, load=0.6),),
        flags=(*_FIXED, "--max-num-seqs", "16"),
        wrong={"max_num_seqs": 1},
    ),
    Drill(
        name="cache_off_in_a_tight_pool",
        about="prompts that begin alike are computed each time, in a pool without room",
        streams=(Stream(mix=SHARED, load=0.6),),
        flags=(*_FIXED, "--kv-memory", "96MiB"),
        wrong={"prefix_cache": False},
    ),
    Drill(
        name="flood_without_caps",
        about="one tenant has all places in the batch",
        streams=(
            Stream(mix=CHAT, load=0.15, tenant="calm"),
            Stream(mix=ESSAY, load=3.0, tenant="flood", is_culprit=True),
        ),
        flags=(*_FIXED, "--max-num-seqs", "16"),
        best={"tenant_max_seqs": 8},
    ),
    Drill(
        name="drafts_that_do_not_pay",
        about="eight words by chance: each pair was there before, and is followed by another word",
        streams=(Stream(mix=DICE, load=0.8),),
        flags=(*_FIXED, "--speculative-tokens", "8"),
        best_flags=("--speculative-tokens", "0"),
        best={"speculative_tokens": 0},
    ),
)
