"""Faults of single requests: huge bodies, grammars, sampling, invalid outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lab.drills.mechanism import DEV, TEST, Mechanism
from lab.drills.traffic import Mix, PlannedRequest, Scene, completion_body, token_ids
from lab.load.workload.words import WORDS

_TEXT_CHARACTERS = 200_000
_MANY_IDS = 300_000
_EVERY_S = 2.0
_NESTED = ("text", "sentence", "answer")
_ENOUGH_TOKENS = 200  # enough for a constrained text to end by itself
# bounded texts that match in many ways, all of which each mask must follow; no longer than baseline
# outputs, so that the number of tokens stays the same
_OPEN_TEXT = "^(.{1,24}[ e]){1,2}[a-z ]{2,8}x%s$"
_OPEN_REGEX = "(.{1,30}[ae]){1,2}(.{1,30}[ ,.]){1,2}z%s"
HEAVY = Mix(
    name="heavy",
    output=(24, 32),
    fields={"n": 8, "logprobs": 20, "temperature": 1.0, "top_p": 0.95, "seed": 1},
)
_ANSWER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "London", "Rome", "Oslo", "Madrid", "Vienna"]},
        "sure": {"type": "boolean"},
    },
    "required": ["city", "sure"],
    "additionalProperties": False,
}
_CUT_TOKENS, _WHOLE_TOKENS = 6, 48

Constrain = Callable[[str], dict[str, Any]]


# --- texts ---------------------------------------------------------------------------------


def _large_bodies(scene: Scene, body: bytes) -> list[PlannedRequest]:
    """Bursts of the same large body; each is refused for its length after it was read."""
    burst = round(scene.intensity)
    rate_per_s = burst / _EVERY_S
    times_s = scene.arrival_times("large", rate_per_s, *scene.fault_span_s, burst=burst)
    large = [
        PlannedRequest(at_s=at_s, body=body, tenant="gray", is_culprit=True) for at_s in times_s
    ]
    return scene.baseline() + large


def _long_texts(scene: Scene) -> list[PlannedRequest]:
    draw, words, count = scene.rng("text"), list[str](), 0
    while count < _TEXT_CHARACTERS:
        words.append(WORDS[int(draw.integers(len(WORDS)))])
        count += len(words[-1]) + 1
    return _large_bodies(scene, completion_body(" ".join(words), 16))


def _many_ids(scene: Scene) -> list[PlannedRequest]:
    return _large_bodies(scene, completion_body(token_ids(scene.rng("ids"), _MANY_IDS), 16))


# --- grammars ------------------------------------------------------------------------------


def deep_schema(tag: str) -> dict[str, Any]:
    """A JSON schema that no other tag has: nested, with a free text inside."""
    schema: dict[str, Any] = {"type": "string", "pattern": _OPEN_TEXT % tag}
    for name in _NESTED:
        schema = {
            "type": "object",
            "properties": {name: schema},
            "required": [name],
            "additionalProperties": False,
        }
    return {"json": schema}


def open_regex(tag: str) -> dict[str, Any]:
    """A regular expression that no other tag has."""
    return {"regex": _OPEN_REGEX % tag}


def constrained(scene: Scene, constrain: Constrain) -> list[PlannedRequest]:
    """The baseline, with a new grammar for each of a share of its requests."""
    draw, begin_s, end_s = scene.rng("constrained"), *scene.fault_span_s
    found: list[PlannedRequest] = []
    for number, request in enumerate(scene.baseline()):
        if begin_s <= request.at_s < end_s and draw.random() < scene.intensity:
            body = completion_body(
                f"Write a sentence with these words: {_words(draw, 10)}.\n",
                _ENOUGH_TOKENS,
                ignore_eos=None,  # a constrained text must be able to end
                structured_outputs=constrain(f"x{scene.seed}q{number}"),
            )
            request = replace(request, body=body, is_culprit=True)
        found.append(request)
    return found


def _cut_answers(scene: Scene) -> list[PlannedRequest]:
    return _answers(scene, scene.intensity)


def _whole_answers(scene: Scene) -> list[PlannedRequest]:
    return _answers(scene, 0.0)


def _answers(scene: Scene, cut_share: float) -> list[PlannedRequest]:
    """Constrained requests that end by themselves; in the fault a share is cut off before."""
    draw, found = scene.rng("answers"), list[PlannedRequest]()
    for request in scene.baseline():
        is_cut = draw.random() < cut_share and _within(request.at_s, scene.fault_span_s)
        body = completion_body(
            _question(draw),
            _CUT_TOKENS if is_cut else _WHOLE_TOKENS,
            ignore_eos=None,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": _ANSWER},
            },
        )
        found.append(replace(request, body=body, is_culprit=is_cut))
    return found


def _question(draw: np.random.Generator) -> str:
    return f"Which city do these words make you think of: {_words(draw, 8)}? As JSON: "


def _words(draw: np.random.Generator, count: int) -> str:
    return ", ".join(WORDS[int(place)] for place in draw.integers(len(WORDS), size=count))


def _within(at_s: float, span_s: tuple[float, float]) -> bool:
    return span_s[0] <= at_s < span_s[1]


# --- samples -------------------------------------------------------------------------------


def _heavy_samplers(scene: Scene) -> list[PlannedRequest]:
    rate_per_s = scene.intensity * scene.rate_per_s
    return scene.baseline() + scene.requests(
        "heavy", rate_per_s, scene.fault_span_s, HEAVY, is_culprit=True
    )


WORK = (
    Mechanism(
        symptom="ingest_backlog",
        name="long_texts",
        split=DEV,
        about="prompts of 200,000 characters come, several at once, which are split into tokens "
        "and then refused",
        unit="at once",
        levels=(6.0, 8.0, 12.0),
        harms=("ttft_p95", "stall_p50"),
        load=0.4,
        traffic=_long_texts,
        clean=Scene.baseline,
    ),
    Mechanism(
        symptom="ingest_backlog",
        name="many_ids",
        split=TEST,
        about="prompts of 300,000 token ids come, several at once, which are read, checked and "
        "then refused",
        unit="at once",
        levels=(6.0, 8.0, 12.0),
        harms=("ttft_p95", "stall_p50"),
        load=0.4,
        traffic=_many_ids,
        clean=Scene.baseline,
    ),
    Mechanism(
        symptom="grammar_cost",
        name="deep_schemas",
        split=DEV,
        about="requests are constrained by deep JSON schemas with open texts, each a new one",
        unit="of requests",
        levels=(0.5, 0.75, 1.0),
        harms=("itl_p50", "e2e_p50"),
        load=0.4,
        traffic=lambda scene: constrained(scene, deep_schema),
        clean=Scene.baseline,
    ),
    Mechanism(
        symptom="grammar_cost",
        name="open_regexes",
        split=TEST,
        about="requests are constrained by regular expressions with many ways to go on, each a "
        "new one",
        unit="of requests",
        levels=(0.5, 0.75, 1.0),
        harms=("itl_p50", "e2e_p50"),
        load=0.4,
        traffic=lambda scene: constrained(scene, open_regex),
        clean=Scene.baseline,
    ),
    Mechanism(
        symptom="invalid_output",
        name="cut",
        split=DEV,
        about="max_tokens ends JSON answers in the middle",
        unit="of requests",
        levels=(0.3, 0.6, 0.9),
        load=0.4,
        traffic=_cut_answers,
        clean=_whole_answers,
    ),
    Mechanism(
        symptom="heavy_sampling",
        name="choices",
        split=DEV,
        about="some requests want 8 choices, sampled by top_p, with 20 log-probabilities a token",
        unit="of usual requests",
        levels=(0.15, 0.2, 0.3),
        harms=("itl_p50", "e2e_p50"),
        load=0.35,
        traffic=_heavy_samplers,
        clean=Scene.baseline,
    ),
)
