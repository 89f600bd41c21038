"""TTFT and ITL of load generators beside ours, over the same requests.

    python -m benchmarks.clients [--tools guidellm,aiperf] [--requests 200] [--streams 4]

Each tool loads a fresh server with the default model, from an environment of its own. Its figure
of each request is set beside the server's own, by request id: percentiles are of the same requests
and of the same definitions (ITL of a request is first to last token, over the tokens after the
first).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.clients.comparison import AGREES_PCT, Latency, Row, compare, worst_request_pct
from benchmarks.clients.environments import version_of
from benchmarks.clients.tokenizer import write_tokenizer
from benchmarks.clients.tools import TOOLS, Load, Tool
from benchmarks.machine import machine
from benchmarks.peers.layout import PeerError, fail, say
from benchmarks.starter import serving
from service.model_files.model_store import ensure_default_model

RESULT = Path(__file__).resolve().parents[1] / "results" / "clients.json"
MODEL = "SmolLM2-135M-Instruct"
_WARM_UP = 4
_PAGE = 1000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clients", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--tools", default=",".join(TOOLS), help="which, by name, with commas")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--streams", type=int, default=4, help="requests at a time")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--keep", type=Path, help="keep what the tools write in this folder")
    args = parser.parse_args(arguments)
    if unknown := set(args.tools.split(",")) - set(TOOLS):
        parser.error(f"no such tool: {', '.join(sorted(unknown))}; there are {', '.join(TOOLS)}")
    found: dict[str, Any] = {
        "machine": machine(),
        "model": MODEL,
        **{name: getattr(args, name) for name in _LOAD},
        "tools": {},
    }
    found["tools"] = _kept(args.out, found)
    try:
        for name in args.tools.split(","):
            found["tools"][name] = measured(TOOLS[name], args)
    except PeerError as error:
        return fail(error)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(found["tools"][name]["agrees"] for name in args.tools.split(",")) else 1


_LOAD = ("requests", "streams", "prompt_tokens", "output_tokens")


def _kept(out: Path, now: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run said of other tools, if it was of the same load on such a machine."""
    if not out.is_file():
        return {}
    before: dict[str, Any] = json.loads(out.read_text())
    same = all(before[name] == now[name] for name in ("machine", "model", *_LOAD))
    tools: dict[str, Any] = before["tools"] if same else {}
    return tools


def measured(tool: Tool, args: argparse.Namespace) -> dict[str, Any]:
    """One run of a tool against a server of its own."""
    with _folder(tool, args.keep) as folder:
        tokenizer = write_tokenizer(ensure_default_model(say), folder / "tokenizer")
        with serving("--executor", "native", log=folder / "server.log") as server:
            for _ in range(_WARM_UP):
                _completion(server.url)
            sizes = {name: getattr(args, name) for name in _LOAD}
            tool.send(Load(server.url, MODEL, tokenizer, folder, **sizes))
            ours = _of_server(server.url)
        theirs = tool.read(folder)
    rows = compare(theirs, ours)
    _show(tool.name, rows)
    return {
        "version": version_of(tool.name),
        "requests": len(theirs),
        "agrees": all(row.agrees for row in rows),
        "worst_request_ttft_pct": round(worst_request_pct(theirs, ours), 2),
        "percentiles": [row.as_json() for row in rows],
    }


@contextlib.contextmanager
def _folder(tool: Tool, keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        folder = keep.resolve() / tool.name
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=f"phasescope-{tool.name}-") as name:
        yield Path(name)


def _of_server(url: str) -> dict[str, Latency]:
    """Every request that ended, by its id."""
    found: dict[str, Latency] = {}
    since = 0
    while True:
        page = _get(f"{url}/debug/requests?since={since}&limit={_PAGE}")
        for line in page["requests"]:
            if line["ttft_ns"] is not None:
                found[line["request_id"]] = Latency(line["ttft_ns"], line["tpot_ns"])
        if page["next"] == since or not page["requests"]:
            return found
        since = page["next"]


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def _completion(url: str) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 16, "stream": True}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def _show(name: str, rows: list[Row]) -> None:
    say(f"{name} {version_of(name)}: theirs, ours, difference (at most {AGREES_PCT:g} % agree)")
    for row in rows:
        say(
            f"  {row.measure:4} p{100 * row.share:<3g} {row.theirs_ns / 1e6:9.2f} ms "
            f"{row.ours_ns / 1e6:9.2f} ms {row.off_pct:+6.2f} %"
        )


if __name__ == "__main__":
    sys.exit(main())
