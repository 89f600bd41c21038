"""What each way of choosing tokens costs a server on a GPU: eight streams that all ask for it,
beside eight greedy ones, which the GPU chooses itself. Turns of all ways follow each other on one
server, so that a drift of the machine meets them alike.

    python -m benchmarks.gpu.servers.sampled [--model dummy:llama-1b] [--device cuda] [--rounds 3]
        [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.contract.client import Body, completion, now_ns, prompt_ids
from benchmarks.contract.common import Server, percentile
from benchmarks.gpu.counters import about
from benchmarks.gpu.servers.clients import chunks
from benchmarks.machine import spread

RESULTS = Path(__file__).resolve().parents[2] / "results" / "gpu_sampled.json"
STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 64, 300
REQUEST_TIMEOUT_S = 60.0
BASE = "greedy"
WAYS: dict[str, Body] = {
    BASE: {},
    "temperature": {"temperature": 0.8, "seed": 1},
    "temperature, top_p": {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 1},
    "logprobs": {"logprobs": 0},
    "5 top logprobs": {"logprobs": 5},
    "penalties": {"frequency_penalty": 0.2, "presence_penalty": 0.1},
    "logit_bias": {"logit_bias": {"300": 1.5}},
    "two choices": {"temperature": 0.8, "seed": 1, "n": 2},
    "a grammar": {"structured_outputs": {"regex": "[a-z]{400}"}, "ignore_eos": False},
}


class Turn:
    """Eight requests of one way, at once."""

    def __init__(self, port: int, way: str, turn: int) -> None:
        self._port, self._way, self._turn = port, way, turn
        self.gaps_ms: list[float] = []
        self.tokens = 0
        self.seconds = 0.0
        self.wrong: list[str] = []

    async def run(self) -> None:
        begin_ns = now_ns()
        await asyncio.gather(*[self._one(index) for index in range(STREAMS)])
        self.seconds = (now_ns() - begin_ns) / 1e9

    async def _one(self, index: int) -> None:
        prompt = prompt_ids(f"{self._turn}-{index}", PROMPT_TOKENS)
        body = completion(prompt, OUTPUT_TOKENS)
        body.pop("logprobs")
        body |= WAYS[self._way]
        wanted = OUTPUT_TOKENS * int(body.get("n", 1))
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                tokens = await self._read(body)
            self.tokens += tokens
            if tokens != wanted:
                self.wrong.append(f"{tokens} tokens instead of {wanted}")
        except (OSError, EOFError, ValueError) as error:  # a timeout is an OSError
            self.wrong.append(f"{type(error).__name__}: {error}")

    async def _read(self, body: Body) -> int:
        """The tokens of all its choices, as the server counts them; 0: it did not say."""
        last_ns: dict[int, int] = {}
        tokens = 0
        async for chunk in chunks(self._port, body):
            self._take(chunk, last_ns)
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
        return tokens

    def _take(self, chunk: dict[str, Any], last_ns: dict[int, int]) -> None:
        at_ns = now_ns()
        for choice in chunk["choices"]:
            index = choice["index"]
            if index in last_ns:
                self.gaps_ms.append((at_ns - last_ns[index]) / 1e6)
            last_ns[index] = at_ns


async def measure(model: str, device: str, rounds: int) -> dict[str, Any]:
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    memory = "4GiB" if device == "cuda" else "256MiB"
    flags = ["--model", model, "--device", device, "--kv-memory", memory, "--max-model-len", "1024"]
    async with Server(*flags, "--max-num-seqs", str(2 * STREAMS)) as server:
        for number in range(-1, rounds):  # the first one warms up
            for place, way in enumerate(WAYS):
                turn = Turn(server.port, way, number * len(WAYS) + place)
                await turn.run()
                if number >= 0:
                    turns[way].append(turn)
                print(f"{number} {way}: {turn.tokens / turn.seconds:.0f} tokens/s", flush=True)
        flagged = list(server.flags)
    base = [turn.tokens / turn.seconds for turn in turns[BASE]]
    return {
        "model": model,
        "flags": flagged,
        "streams": STREAMS,
        "ways": {way: _summary(found, base) for way, found in turns.items()},
    }


def _summary(turns: list[Turn], base: list[float]) -> dict[str, Any]:
    speeds = [turn.tokens / turn.seconds for turn in turns]
    return {
        "tokens_per_s": spread(speeds),
        "of_greedy": spread([ours / its for ours, its in zip(speeds, base, strict=True)]),
        "itl_p50_ms": _spread_of(turns, 0.5),
        "itl_p99_ms": _spread_of(turns, 0.99),
        "wrong": sorted({said for turn in turns for said in turn.wrong}),
    }


def _spread_of(turns: list[Turn], share: float) -> dict[str, float | int | None]:
    """The spread of a quantile over the turns that have enough gaps for it."""
    known = (percentile(turn.gaps_ms, share) for turn in turns)
    return spread(one for one in known if one is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="dummy:llama-1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = asyncio.run(measure(args.model, args.device, args.rounds))
    args.out.write_text(json.dumps({**about(args.device), **found}, indent=1) + "\n")
    print(json.dumps(found["ways"]))
    return 1 if any(one["wrong"] for one in found["ways"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
