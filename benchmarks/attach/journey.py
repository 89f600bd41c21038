"""The user's way through docs/attach.md: attach a vLLM, and every view shows that server.

`phasescope attach -- COMMAND` starts the sidecar and vLLM. One request ends by itself, one client
leaves, one request is refused. Then `top`, `explain`, `diagnose`, `timeline`, and a trace of each
request at a real OTLP receiver.

    .venv/bin/python -m benchmarks.attach.journey [--eager]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.attach.arguments import finish, parser_of, vllm_flags
from benchmarks.attach.client import Stream, ask, tokens_of
from benchmarks.attach.sidecar import Sidecar, cli
from benchmarks.attach.vllm_server import READY_TIMEOUT_S as VLLM_WITHIN_S
from benchmarks.attach.vllm_server import Vllm
from benchmarks.contract.client import NotSupported, prompt_ids
from benchmarks.contract.common import Figure, Report, equal, say, ticking
from benchmarks.contract.spans import Receiver, start_receiver
from benchmarks.peers.layout import REPOSITORY

FINISHED, ABORTED, REJECTED = "journey-finished", "journey-aborted", "journey-rejected"
OUTCOMES = {FINISHED: "finished", ABORTED: "cancelled", REJECTED: "rejected"}
OUTPUT_TOKENS, LEAVE_AFTER = 40, 8
TRACES_WITHIN_S = 30.0
_PHASES = ("queue", "prefill", "decode")


@dataclass
class Seen:
    """What each view said; a value is True where it shows that server."""

    streams: dict[str, Stream] = field(default_factory=dict)
    shows: dict[str, bool] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def note(self, view: str, text: str, *wanted: str) -> None:
        """The view is right if it has all that is wanted."""
        missing = [one for one in wanted if one not in text]
        self.shows[view] = not missing
        self.said[view] = f"without {', '.join(missing)}" if missing else "as wanted"
        if missing:
            say(f"  {view} shows no {', '.join(missing)}:\n{text[:1500]}")


async def run(*arguments: str, within_s: float = 120.0) -> str:
    """What a command of ours prints; NotSupported when it fails."""
    process = await asyncio.create_subprocess_exec(
        *cli(*arguments), cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, stdin=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "160"},
    )  # fmt: skip
    async with asyncio.timeout(within_s):
        said, _ = await process.communicate()
    if process.returncode:
        raise NotSupported(f"phasescope {' '.join(arguments)} failed: {said.decode()[-300:]}")
    return said.decode()


async def three_requests(port: int, seen: Seen) -> None:
    """One of each end."""
    prompt = prompt_ids("journey", 48)
    seen.streams[FINISHED] = await ask(port, tokens_of(prompt, OUTPUT_TOKENS), FINISHED)
    seen.streams[ABORTED] = await ask(
        port, tokens_of(prompt, 400), ABORTED, leave_after_tokens=LEAVE_AFTER
    )
    refused = {**tokens_of(prompt, 8), "max_tokens": -1}
    seen.streams[REJECTED] = await ask(port, refused, REJECTED)


async def look(sidecar: Sidecar, receiver: Receiver, seen: Seen, folder: Path) -> None:
    """Every view, one after the other."""
    url = sidecar.url
    for request_id, outcome in OUTCOMES.items():
        facts = await sidecar.facts_of(request_id, timeout_s=20.0)
        known = {} if facts is None else facts
        seen.note(f"/debug/requests of the {outcome}", json.dumps(known), f'"{outcome}"', "ledger")
        if facts is not None:
            seen.note(f"explain of the {outcome}", await run("explain", request_id, url), outcome)
    seen.note("top", await run("top", "--once", url), "model")
    seen.note("diagnose", await run("diagnose", url))
    seen.note("snapshot", json.dumps(await sidecar.get("/debug/snapshot")), "vllm")
    out = folder / "timeline.json"
    await run("timeline", url, "-o", str(out))
    seen.note("timeline", out.read_text(), FINISHED, "traceEvents")
    await traces(receiver, seen)


async def traces(receiver: Receiver, seen: Seen) -> None:
    """A whole tree for each request."""
    async with ticking("waiting for traces"):
        for _ in range(int(TRACES_WITHIN_S * 2)):
            trees = {tree.attribute("gen_ai.request.id"): tree for tree in receiver.trees()}
            if all(request_id in trees for request_id in OUTCOMES):
                break
            await asyncio.sleep(0.5)
    receiver.check_all()
    for request_id, outcome in OUTCOMES.items():
        tree = trees.get(request_id)
        names = [] if tree is None else [span.name for span in tree.spans]
        wanted = _PHASES if request_id == FINISHED else ()
        seen.note(f"trace of the {outcome}", " ".join(names), *wanted)
        seen.shows[f"trace of the {outcome}"] &= tree is not None


async def check(args: argparse.Namespace) -> Report:
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder, start_receiver() as receiver:
        sidecar = Sidecar("--otlp-endpoint", receiver.endpoint)
        server = Vllm(*vllm_flags(args), attach_to=sidecar.socket)
        sidecar.command, sidecar.environment = server.command(), server.environment()
        async with sidecar:
            await sidecar.until_attached(within_s=VLLM_WITHIN_S)
            await server.until_answers()
            await three_requests(server.port, seen)
            await look(sidecar, receiver, seen, Path(folder))
    return report(seen, server.flags)


def report(seen: Seen, flags: tuple[str, ...]) -> Report:
    streams = seen.streams
    figures: list[Figure] = [
        equal("tokens of the finished request", len(streams[FINISHED].token_ns), OUTPUT_TOKENS),
        equal("status of the rejected request", streams[REJECTED].status, 400),
        *(equal(f"{view} shows it", int(shows), 1) for view, shows in seen.shows.items()),
    ]
    return Report("journey", figures, {"vllm": list(flags)}, {"said": seen.said})


def main() -> int:
    args = parser_of("journey", __doc__ or "").parse_args()
    return finish(args, lambda: check(args))


if __name__ == "__main__":
    sys.exit(main())
