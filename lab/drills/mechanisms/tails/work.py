"""Tails that single requests make: a long chat, a grammar, samples that take long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.drills.mechanism import Mechanism
from lab.drills.mechanisms.tails.shared import (
    GAPS,
    OTHERS_GAPS,
    OTHERS_LATE_FIRST,
    SHORT_STEPS,
    tail,
)
from lab.drills.traffic import Mix, PlannedRequest, Scene, completion_body
from lab.load.workload.words import WORDS

# bodies above 4 KiB go to the processes that read bodies, and so wait for the long ones
NOTED = Mix(name="noted", fields={"metadata": {f"note-{n}": "n" * 500 for n in range(12)}})
_DOCUMENT_EVERY_S, _WORDS, _LETTERS = 4.0, 20_000, 12
_ENOUGH_TOKENS = 200  # enough for a constrained text to end by itself
# pieces that overlap, in any order: each mask must follow all ways in which the text can be read
_GRAMMAR = """start: piece piece piece piece? "%s"
piece: word | phrase | open
word: /[a-z]{1,9}[ ,.]/
phrase: /([a-z ]{1,20}[aeiou ]){1,2}/
open: /(.{1,22}[ e]){1,2}/
"""
_PENALISED = Mix(
    name="penalised",
    output=(24, 32),
    fields={
        "n": 8,
        "logprobs": 20,
        "temperature": 0.9,
        "min_p": 0.02,
        "seed": 1,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
        "logit_bias": {str(number): -1 for number in range(20, 1000)},
    },
)


def _document_now_and_then(scene: Scene) -> list[PlannedRequest]:
    return scene.baseline() + documents(scene, 1 / _DOCUMENT_EVERY_S)


def documents(scene: Scene, rate_per_s: float) -> list[PlannedRequest]:
    """Whole documents of so many megabytes, one at a time, of which the last 16 tokens are wanted:
    each is split into tokens as a whole, and then costs the engine little."""
    draw = scene.rng("documents")
    letters = draw.integers(ord("a"), ord("z") + 1, (_WORDS, _LETTERS))
    known = [bytes(row.tolist()).decode() for row in letters]
    count = round(scene.intensity * 1e6 / (_LETTERS + 1))
    words = [known[int(place)] for place in draw.integers(_WORDS, size=count)]
    body = completion_body(" ".join(words), 1, truncate_prompt_tokens=16)
    times_s = scene.arrival_times("documents", rate_per_s, *scene.fault_span_s, regular=True)
    return [
        PlannedRequest(at_s=at_s, body=body, tenant="gray", is_culprit=True) for at_s in times_s
    ]


def _some_grammars(scene: Scene) -> list[PlannedRequest]:
    """The baseline, with a new grammar for each of a share of its requests."""
    draw, (begin_s, end_s) = scene.rng("grammars"), scene.fault_span_s
    found: list[PlannedRequest] = []
    for number, request in enumerate(scene.baseline()):
        if begin_s <= request.at_s < end_s and draw.random() < scene.intensity:
            body = completion_body(
                f"Write something with these words: {_words(draw, 10)}.\n",
                _ENOUGH_TOKENS,
                ignore_eos=None,  # a constrained text must be able to end
                structured_outputs={"grammar": _GRAMMAR % f"z{scene.seed}q{number}"},
            )
            request = replace(request, body=body, is_culprit=True)
        found.append(request)
    return found


def _penalised(scene: Scene) -> list[PlannedRequest]:
    rate_per_s = scene.intensity * scene.rate_per_s
    return scene.baseline() + scene.requests(
        "penalised", rate_per_s, scene.fault_span_s, _PENALISED, regular=True, is_culprit=True
    )


def _words(draw: np.random.Generator, count: int) -> str:
    return " ".join(WORDS[int(place)] for place in draw.integers(len(WORDS), size=count))


WORK_TAILS: tuple[Mechanism, ...] = (
    tail(
        (0.1, 6.0),
        OTHERS_LATE_FIRST,
        symptom="ingest_backlog",
        name="document_now_and_then",
        about="every four seconds a whole document comes, whose end is wanted: it is split into "
        "tokens while others wait",
        unit="megabytes",
        flags=("--ingest-workers", "1"),
        mix=NOTED,
        load=0.35,
        traffic=_document_now_and_then,
        clean=Scene.baseline,
    ),
    tail(
        (0.06, 1.0),
        GAPS,
        symptom="grammar_cost",
        name="some_grammars",
        about="some requests are constrained by a context-free grammar that can be read in many "
        "ways, each a new one",
        unit="of requests",
        flags=SHORT_STEPS,
        load=0.35,
        traffic=_some_grammars,
        clean=Scene.baseline,
    ),
    tail(
        (0.02, 0.6),
        OTHERS_GAPS,
        symptom="heavy_sampling",
        name="penalised",
        about="now and then a request wants 8 choices, sampled with penalties, biases and 20 "
        "log-probabilities a token",
        unit="of usual requests",
        flags=SHORT_STEPS,
        load=0.3,
        traffic=_penalised,
        clean=Scene.baseline,
    ),
)
