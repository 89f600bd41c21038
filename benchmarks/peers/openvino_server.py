"""OpenVINO GenAI behind an OpenAI-style route, as thin as it can be.

OpenVINO GenAI has no server on the package index. This one runs in the peer's own environment
and imports nothing of ours: its ContinuousBatchingPipeline steps in one thread, and after each
step every token goes to its stream through one call into the event loop.

    python openvino_server.py --model FOLDER --port 9000 [--max-batched-tokens 256]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
import uvicorn
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


@dataclass(eq=False)
class Ticket:
    """One request between the event loop and the pipeline's thread."""

    prompt: list[int]
    max_tokens: int
    ignore_eos: bool
    tokens: asyncio.Queue[tuple[list[int], bool]] = field(default_factory=asyncio.Queue)
    handle: Any = None
    cancelled: bool = False


class Engine:
    """The pipeline and its thread."""

    def __init__(self, args: argparse.Namespace) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = args.max_batched_tokens
        scheduler.max_num_seqs = args.max_num_seqs
        scheduler.cache_size = args.cache_gib
        scheduler.enable_prefix_caching = False
        scheduler.dynamic_split_fuse = True
        self._pipeline = genai.ContinuousBatchingPipeline(
            args.model, scheduler, "CPU", properties_of(args)
        )
        self._incoming: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._live: list[Ticket] = []
        self._numbers = itertools.count()
        self.loop: asyncio.AbstractEventLoop | None = None
        threading.Thread(target=self._run, daemon=True, name="pipeline").start()

    def submit(self, ticket: Ticket) -> None:
        self._incoming.put(ticket)

    def _run(self) -> None:
        while True:
            self._admit()
            self._pipeline.step()
            news = self._read()
            if news and self.loop is not None:
                self.loop.call_soon_threadsafe(deliver, news)

    def _admit(self) -> None:
        """Take what waits; sleep while there is nothing to do."""
        while not self._live or not self._incoming.empty():
            ticket = self._incoming.get()
            config = genai.GenerationConfig()
            config.max_new_tokens = ticket.max_tokens
            config.ignore_eos = ticket.ignore_eos
            config.do_sample = False
            ids = ov.Tensor(np.array([ticket.prompt], dtype=np.int64))
            ticket.handle = self._pipeline.add_request(next(self._numbers), ids, config)
            self._live.append(ticket)

    def _read(self) -> list[tuple[Ticket, list[int], bool]]:
        """New tokens of each live request, and whether they are its last."""
        news, still = [], []
        for ticket in self._live:
            if ticket.cancelled:
                ticket.handle.cancel()
                continue
            ids: list[int] = []
            while ticket.handle.can_read():
                for output in ticket.handle.read().values():
                    ids += output.generated_ids
            over = ticket.handle.get_status() != genai.GenerationStatus.RUNNING
            if ids or over:
                news.append((ticket, ids, over))
            if not over:
                still.append(ticket)
        self._live = still
        return news


def deliver(news: list[tuple[Ticket, list[int], bool]]) -> None:
    for ticket, ids, over in news:
        ticket.tokens.put_nowait((ids, over))


def properties_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the CPU plugin is told; everything else stays at its default."""
    found: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if args.threads:
        found["INFERENCE_NUM_THREADS"] = args.threads
    if args.precision:
        found["INFERENCE_PRECISION_HINT"] = args.precision
    if args.kv_precision:
        found["KV_CACHE_PRECISION"] = args.kv_precision
    return found


def precisions(args: argparse.Namespace) -> dict[str, str]:
    """What is computed with: as told, else as the export says, else the plugin's default."""
    core, told = ov.Core(), properties_of(args)
    model = core.read_model(str(Path(args.model) / "openvino_model.xml"))
    found: dict[str, str] = {}
    for name in ("KV_CACHE_PRECISION", "INFERENCE_PRECISION_HINT"):
        exported = ["runtime_options", name]
        said = model.get_rt_info(exported).value if model.has_rt_info(exported) else None
        found[name.lower()] = str(told.get(name) or said or core.get_property("CPU", name))
    return found


class App:
    """ASGI: /v1/completions streamed or whole, /v1/models, /health."""

    def __init__(self, engine: Engine, args: argparse.Namespace) -> None:
        self._engine = engine
        self._tokenizer = Tokenizer.from_file(str(Path(args.model) / "tokenizer.json"))
        self._about = {"id": "model", **precisions(args)}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self._engine.loop = asyncio.get_running_loop()
        match scope["method"], scope["path"]:
            case "GET", "/health":
                await answer(send, 200, {"status": "ok"})
            case "GET", "/v1/models":
                await answer(send, 200, {"object": "list", "data": [self._about]})
            case "POST", "/v1/completions":
                await self._complete(receive, send)
            case _:
                await answer(send, 404, {"error": {"message": "no such route"}})

    async def _complete(self, receive: Receive, send: Send) -> None:
        body = json.loads(await whole(receive))
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        ticket = Ticket(prompt, int(body.get("max_tokens", 16)), bool(body.get("ignore_eos")))
        self._engine.submit(ticket)
        leaving = asyncio.create_task(left(receive))
        leaving.add_done_callback(lambda _: setattr(ticket, "cancelled", True))
        try:
            await (self._stream if body.get("stream") else self._whole)(ticket, send)
        finally:
            leaving.cancel()

    async def _stream(self, ticket: Ticket, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        decode, count, over = DecodeStream(skip_special_tokens=False), 0, False
        while not over:
            ids, over = await ticket.tokens.get()
            events = [event(decode.step(self._tokenizer, one) or "", None) for one in ids]
            count += len(ids)
            if over:
                reason = "length" if count >= ticket.max_tokens else "stop"
                events += [event("", reason, usage(ticket, count)), b"data: [DONE]\n\n"]
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _whole(self, ticket: Ticket, send: Send) -> None:
        ids, over = [], False
        while not over:
            more, over = await ticket.tokens.get()
            ids += more
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        reason = "length" if len(ids) >= ticket.max_tokens else "stop"
        choice = {"index": 0, "text": text, "finish_reason": reason}
        await answer(send, 200, {"choices": [choice], "usage": usage(ticket, len(ids))})


def event(text: str, reason: str | None, used: dict[str, int] | None = None) -> bytes:
    found: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}
    if used is not None:
        found["usage"] = used
    return b"data: " + json.dumps(found).encode() + b"\n\n"


def usage(ticket: Ticket, count: int) -> dict[str, int]:
    return {"prompt_tokens": len(ticket.prompt), "completion_tokens": count}


async def answer(send: Send, status: int, body: dict[str, Any]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": _JSON})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def whole(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of an exported model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-batched-tokens", type=int, default=256, help="GenAI's default")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="GenAI's default")
    parser.add_argument("--cache-gib", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0: the plugin decides")
    parser.add_argument("--precision", help="INFERENCE_PRECISION_HINT, as in bf16 or f32")
    parser.add_argument("--kv-precision", help="KV_CACHE_PRECISION, as in bf16, f32 or u8")
    args = parser.parse_args()
    app = App(Engine(args), args)
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
