"""Promises that were never kept: a server whose limit is wrong from its start on, so that there is
no better time to compare with."""

from __future__ import annotations

from lab.drills.mechanism import DEV, TEST, Mechanism
from lab.drills.traffic import Mix

_READING = Mix(name="reading", prompt=(80, 200))

PROMISES = (
    Mechanism(
        symptom="slo_missed",
        name="few_slots",
        split=DEV,
        about="one sequence runs at a time from the start on, where the same traffic needs several",
        unit="slots",
        levels=(1.0,),
        harms=("ttft_p95",),
        load=0.8,
        bad_flags=lambda need, slots: ("--max-num-seqs", str(round(slots))),
        never_better=True,
    ),
    Mechanism(
        symptom="slo_missed",
        name="small_budget",
        split=TEST,
        about="steps may take few tokens from the start on, so that prompts need many of them",
        unit="tokens a step",
        levels=(4.0, 3.0, 2.0),
        harms=("ttft_p95",),
        mix=_READING,
        load=0.65,
        bad_flags=lambda need, tokens: (
            "--max-num-seqs",
            "2",
            "--max-batched-tokens",
            str(round(tokens)),
        ),
        never_better=True,
    ),
)
