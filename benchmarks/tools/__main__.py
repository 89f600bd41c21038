"""Function calling of a real server: is every call valid, how many are right, what do calls cost.

Each question of the test is asked once, at temperature 0, with tool_choice required, through the
official `openai` client. Each call is validated with `jsonschema` against the schema that was sent:
a second opinion, as the server checks with another library. Calls that max_tokens cut are counted
apart. Validity says what the server does; how many calls are right says what the model can.

    .venv/bin/python -m benchmarks.tools [--url http://127.0.0.1:8000] [--questions 100]
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai

from benchmarks.machine import machine
from benchmarks.peers.layout import PeerError, fail
from benchmarks.starter import serving
from benchmarks.tools.dataset import CATEGORIES, REQUIREMENT, Question, questions
from benchmarks.tools.scoring import all_right

RESULTS = Path(__file__).parents[1] / "results" / "tools"
_COSTS = ("tool_parse", "tool_check", "grammar_compile", "mask")


@dataclass(frozen=True)
class Answer:
    """`problems` are those that `jsonschema` has with whole calls; `cut` calls are not whole."""

    finish: str
    calls: int
    cut: int
    problems: tuple[str, ...]
    is_right: bool
    has_text: bool
    error: str | None = None


@dataclass(frozen=True)
class Asking:
    """How each question is asked."""

    client: openai.OpenAI
    model: str
    max_tokens: int
    parallel: bool = field(default=True)

    def ask(self, question: Question) -> Answer:
        """One answer, judged."""
        try:
            answer = self.client.chat.completions.create(
                model=self.model,
                messages=question.messages,  # type: ignore[arg-type]
                tools=question.tools,  # type: ignore[arg-type]
                tool_choice="required",
                parallel_tool_calls=self.parallel,
                temperature=0,
                max_tokens=self.max_tokens,
            )
        except openai.APIError as error:
            return Answer("error", 0, 0, (), False, False, str(error)[:300])
        choice = answer.choices[0]
        return judged(question, choice.finish_reason, choice.message)


def judged(question: Question, finish: str, message: Any) -> Answer:
    """What the test and `jsonschema` say of an answer."""
    calls = message.tool_calls or []
    whole: list[tuple[str, dict[str, Any]]] = []
    problems: list[str] = []
    cut = 0
    for index, call in enumerate(calls):
        try:
            arguments = json.loads(call.function.arguments)
            jsonschema.validate(arguments, question.schema(call.function.name))
            whole.append((call.function.name, arguments))
        except ValueError as error:
            is_last = finish == "length" and index == len(calls) - 1
            cut += is_last
            if not is_last:
                problems.append(f"no JSON: {error}")
        except jsonschema.ValidationError as error:
            problems.append(error.message[:200])
    return Answer(
        finish=finish,
        calls=len(calls),
        cut=cut,
        problems=tuple(problems),
        is_right=len(whole) == len(calls) and all_right(whole, question.expected),
        has_text=bool(message.content),
    )


def measure(asking: Asking, category: str, limit: int | None, streams: int) -> dict[str, Any]:
    """All questions of one category, `streams` at a time."""
    asked = list(islice(questions(category), limit))
    with ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(asking.ask, asked))
    return {"category": category, "questions": len(asked), **summary(answers)}


def summary(answers: Iterable[Answer]) -> dict[str, Any]:
    """The counts of a report."""
    found = list(answers)
    whole = sum(answer.calls - answer.cut for answer in found)
    invalid = [problem for answer in found for problem in answer.problems]
    return {
        "finish_reasons": dict(Counter(answer.finish for answer in found)),
        "answers_without_a_call": sum(not answer.calls for answer in found),
        "answers_with_text": sum(answer.has_text for answer in found),
        "whole_calls": whole,
        "valid_calls": whole - len(invalid),
        "invalid_calls": len(invalid),
        "calls_cut_by_length": sum(answer.cut for answer in found),
        "right_answers": sum(answer.is_right for answer in found),
        "accuracy_pct": round(100 * sum(answer.is_right for answer in found) / len(found), 1),
        "errors": [answer.error for answer in found if answer.error][:10],
        "problems": invalid[:10],
    }


def costs(url: str) -> dict[str, Any]:
    """The server's own counts of calls, and its histograms of what they cost, in milliseconds."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    found: dict[str, Any] = {
        name: float(value) for name, value in values.items() if name.startswith("phasescope_tool_")
        and "_seconds" not in name
    }  # fmt: skip
    for cost in _COSTS:
        sums = {
            part: sum(
                float(value)
                for name, value in values.items()
                if name.startswith(f"phasescope_{cost}_seconds_{part}")
            )
            for part in ("sum", "count")
        }
        found[f"{cost}_mean_ms"] = round(1e3 * sums["sum"] / max(1, sums["count"]), 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="a running server; one is started if absent")
    parser.add_argument("--questions", type=int, help="of each category; all if absent")
    parser.add_argument("--categories", nargs="*", default=list(CATEGORIES))
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--out", type=Path, default=RESULTS / "bfcl.json")
    args = parser.parse_args()
    try:
        with contextlib.ExitStack() as running:
            url = args.url or running.enter_context(serving()).url
            result = _run(url, args)
    except PeerError as error:
        raise SystemExit(fail(error)) from error
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for one in result["categories"]:
        print(
            f"{one['category']}: {one['valid_calls']} of {one['whole_calls']} calls valid, "
            f"{one['calls_cut_by_length']} cut, {one['accuracy_pct']} % right"
        )


def _run(url: str, args: argparse.Namespace) -> dict[str, Any]:
    served = httpx.get(f"{url}/v1/models").json()["data"][0]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
    found = []
    for category in args.categories:
        # a question with one call is asked for one call
        asking = Asking(client, served["id"], args.max_tokens, not category.startswith("simple"))
        found.append(measure(asking, category, args.questions, args.streams))
    return {
        "machine": machine(),
        "server": served,
        "dataset": REQUIREMENT,
        "streams": args.streams,
        "max_tokens": args.max_tokens,
        "categories": found,
        "server_says": costs(url),
    }


if __name__ == "__main__":
    main()
