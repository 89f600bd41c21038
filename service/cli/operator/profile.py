"""`phasescope profile`: a server's next steps, kernel by kernel, for ui.perfetto.dev."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.cli.say import complain, say
from service.cli.source import add_debug_key
from telemetry.facts.credentials import bearer, shown_url

_EXTRA_WAIT_S = 90.0  # longer than the server takes to write the trace, or to give up


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "profile", help="record a server's next steps, kernel by kernel, for ui.perfetto.dev"
    )
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="the server")
    parser.add_argument(
        "--steps", type=int, default=20, metavar="N", help="number of steps, up to 200 (default 20)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds to wait for so many steps, up to 120; fewer are kept then (default 30)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("phasescope-profile.json.gz"),
        metavar="FILE",
        help="the trace, gzipped when it ends in .gz (default phasescope-profile.json.gz)",
    )
    add_debug_key(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import shutil
    import urllib.error
    import urllib.request
    from http.client import HTTPException, IncompleteRead

    from dashboards.monitor.client import server_url
    from telemetry.journal.atomic_file import atomic_file

    base = server_url(args.url)
    url = f"{base}/debug/profile?steps={args.steps}&timeout_s={args.timeout:g}"
    encoding = "gzip" if args.output.suffix == ".gz" else "identity"
    headers = {"accept-encoding": encoding, **bearer(args.debug_key)}
    try:
        request = urllib.request.Request(url, method="POST", headers=headers)
        with urllib.request.urlopen(request, timeout=args.timeout + _EXTRA_WAIT_S) as answer:
            with atomic_file(args.output) as path, path.open("wb") as file:
                shutil.copyfileobj(answer, file)
                if answer.length:  # what was announced and has not come
                    raise IncompleteRead(b"", answer.length)
            steps = answer.headers["x-profile-steps"]
            contents = answer.headers["x-profile-contents"]
    except urllib.error.HTTPError as error:
        complain(_error_message(error.read(), error.code))
        return 1
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        complain(f"no profile of {shown_url(base)}: {reason}")
        return 1
    say(f"{args.output}: {steps} steps ({contents}); open it at ui.perfetto.dev")
    return 0


def _error_message(body: bytes, status: int) -> str:
    """The message of the server's error, which says what to do next."""
    import msgspec

    try:
        message: str = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"the server answers {status}"
    hint = "; give --debug-key with it" if status == 401 else ""
    return f"{message}{hint}"
