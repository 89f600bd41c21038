"""Structured output of a real server: is it always valid, what does it cost, who is refused.

300 requests over 20 JSON schemas, 16 at a time, drawn at temperature 1 so that the model
tries everything. Every text that ended by itself (finish_reason stop) is validated with
`jsonschema`; texts that max_tokens cut are counted apart. Then 20 invalid schemas, each of
which must be answered 400 with a message of its own, the same one twice.

The cost of masks is read from /metrics, as seconds over the run; as every token of the run
is sampled in one of its steps, seconds of masks over seconds of the run are the share of
masks in the time per output token. An unconstrained run of the same shape stands beside it.

    .venv/bin/python -m benchmarks.structured [--url http://127.0.0.1:8000] [--requests 300]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema

from benchmarks.machine import machine
from benchmarks.starter import serving
from telemetry.numbers.quantiles import median

HERE = Path(__file__).parent
MASK_SECONDS = "phasescope_grammar_mask_seconds_total"
MASKED_TOKENS = "phasescope_sampled_masked_tokens_total"


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed text; times in seconds."""

    status: int
    finish: str | None
    text: str
    tokens: int
    ttft_s: float
    tpot_s: float | None
    error: str | None = None


def body_of(schema: dict[str, Any] | None, name: str, seed: int, max_tokens: int) -> dict[str, Any]:
    wanted = f"Reply with a JSON value for: {name}"
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": wanted}],
        "max_tokens": max_tokens,
        "temperature": 1.0,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if schema is not None:
        named = {"name": "answer", "schema": schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    return body


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    """Send one request and read its stream to the end."""
    begin = time.perf_counter()
    text, finish, tokens, arrivals = "", None, 0, []
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            error = json.loads(await answer.aread())["error"]
            return Answer(answer.status_code, None, "", 0, 0.0, None, error["message"])
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[len("data: ") :])
            if "error" in event:
                return Answer(200, "error", text, tokens, 0.0, None, event["error"]["message"])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
                arrivals.append(time.perf_counter())
    first = arrivals[0] if arrivals else begin
    tpot_s = (arrivals[-1] - first) / (tokens - 1) if tokens > 1 else None
    return Answer(200, finish, text, tokens, first - begin, tpot_s)


async def run_all(
    client: httpx.AsyncClient, bodies: list[dict[str, Any]], concurrency: int
) -> list[Answer]:
    """All bodies in order, at most `concurrency` at a time."""
    gate = asyncio.Semaphore(concurrency)

    async def guarded(body: dict[str, Any]) -> Answer:
        async with gate:
            return await ask(client, body)

    return list(await asyncio.gather(*(guarded(body) for body in bodies)))


def _p50_ms(values_s: list[float]) -> float | None:
    middle_s = median(values_s)
    return None if middle_s is None else 1000 * middle_s


def counters(text: str) -> dict[str, float]:
    """The two counters of grammars in a Prometheus exposition, summed over labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in (MASK_SECONDS, MASKED_TOKENS):
            found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def fault_of(answer: Answer, schema: dict[str, Any]) -> str | None:
    """Why a finished text is not what the schema asks for."""
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return None


def summary(answers: list[Answer], wall_s: float) -> dict[str, Any]:
    good = [answer for answer in answers if answer.status == 200]
    tpots = [answer.tpot_s for answer in good if answer.tpot_s is not None]
    return {
        "wall_s": wall_s,
        "tokens": sum(answer.tokens for answer in good),
        "ttft_ms_p50": _p50_ms([answer.ttft_s for answer in good]),
        "tpot_ms_p50": _p50_ms(tpots),
        "finish": dict(Counter(str(answer.finish or answer.status) for answer in answers)),
    }


async def measure(url: str, args: argparse.Namespace) -> dict[str, Any]:
    data = json.loads((HERE / "data" / "schemas.json").read_text())
    picked = [data["valid"][i % len(data["valid"])] for i in range(args.requests)]
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        bodies = [
            body_of(one["schema"], one["name"], i, args.max_tokens) for i, one in enumerate(picked)
        ]
        before = counters((await client.get("/metrics")).text)
        begin = time.perf_counter()
        answers = await run_all(client, bodies, args.concurrency)
        constrained = summary(answers, time.perf_counter() - begin)
        after = counters((await client.get("/metrics")).text)
        free_tokens = max(2, constrained["tokens"] // max(1, args.requests))
        free = [body_of(None, one["name"], i, free_tokens) for i, one in enumerate(picked)]
        begin = time.perf_counter()
        unconstrained = summary(
            await run_all(client, free, args.concurrency), time.perf_counter() - begin
        )
        refused = [await refusals(client, one["schema"]) for one in data["invalid"]]
    faults = [
        {"name": one["name"], "text": answer.text, "fault": fault}
        for one, answer in zip(picked, answers, strict=True)
        if answer.finish == "stop" and (fault := fault_of(answer, one["schema"])) is not None
    ]
    stopped = sum(answer.finish == "stop" for answer in answers)
    messages = [error for _, error, _ in refused]
    return {
        "requests": len(answers),
        "completed": stopped,
        "valid": stopped - len(faults),
        "cut_by_length": sum(answer.finish == "length" for answer in answers),
        "failed": [a.error for a in answers if a.finish not in ("stop", "length")],
        "faults": faults,
        "invalid_schemas": len(refused),
        "answered_400": sum(status == 400 for status, _, _ in refused),
        "distinct_messages": len(set(messages)),
        "same_message_twice": sum(steady for _, _, steady in refused),
        "messages": messages,
        "constrained": constrained,
        "unconstrained": unconstrained,
        "masks": mask_cost(before, after, constrained["wall_s"]),
    }


async def refusals(client: httpx.AsyncClient, schema: Any) -> tuple[int, str | None, bool]:
    """Status and message for a bad schema, and whether a second try says the same."""
    first, second = [await ask(client, body_of(schema, "x", 1, 8)) for _ in range(2)]
    return first.status, first.error, (first.status, first.error) == (second.status, second.error)


def mask_cost(
    before: dict[str, float], after: dict[str, float], wall_s: float
) -> dict[str, float] | None:
    """What masks cost between two readings of counters; None when the server does not say."""
    if MASK_SECONDS not in after or MASKED_TOKENS not in after:
        return None
    seconds = after[MASK_SECONDS] - before.get(MASK_SECONDS, 0.0)
    tokens = after[MASKED_TOKENS] - before.get(MASKED_TOKENS, 0.0)
    return {
        "seconds": seconds,
        "tokens": tokens,
        "us_per_token": 1e6 * seconds / tokens if tokens else 0.0,
        "share_of_tpot_pct": 100 * seconds / wall_s,
    }


def report(result: dict[str, Any]) -> str:
    masks = result["masks"]
    cost = (
        f"{masks['us_per_token']:.0f} us a token, {masks['share_of_tpot_pct']:.2f} % of TPOT"
        if masks
        else "not reported by the server"
    )
    return "\n".join(
        [
            f"valid {result['valid']} of {result['completed']} completed "
            f"({result['cut_by_length']} cut by length, {len(result['failed'])} failed)",
            f"invalid schemas: {result['answered_400']} of {result['invalid_schemas']} answered "
            f"400, {result['distinct_messages']} distinct messages",
            f"masks: {cost}",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="a running server; one is started if absent")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "structured.json")
    args = parser.parse_args()
    with contextlib.ExitStack() as running:
        url = args.url or running.enter_context(serving()).url
        served = httpx.get(f"{url}/v1/models").json()["data"][0]
        result = asyncio.run(measure(url, args))
    about = {"machine": machine(), "server": served, "concurrency": args.concurrency}
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps({**about, **result}, indent=1, ensure_ascii=False) + "\n")
    print(report(result))


if __name__ == "__main__":
    main()
