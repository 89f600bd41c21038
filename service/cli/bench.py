"""`phasescope bench`: put load on any OpenAI-compatible server and measure it in the client."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.cli.outputs import require_writable
from service.cli.say import complain
from service.cli.source import API_KEY, add_key
from service.config.settings import ConfigError
from telemetry.journal.atomic_file import write_atomically

_DEFAULT_URL = "http://127.0.0.1:8000"
_EXIT_FAILED, _EXIT_INTERRUPTED = 1, 130
_TABLE_COLUMNS = 120


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure a server under load, or find its knee (bench sweep)",
        description="Loads an OpenAI-compatible server and measures it in the client. "
        "`bench sweep` raises the common rate (or users) until the SLO is no longer kept.",
    )
    parser.add_argument(
        "url", nargs="?", default=_DEFAULT_URL, help=f"the server (default {_DEFAULT_URL})"
    )
    _add_server(parser)
    _add_load(parser)
    _add_end(parser)
    _add_sweep(parser)
    parser.set_defaults(run=run)


def sweep_as_flag(argv: list[str]) -> list[str]:
    """`bench sweep ...` rewritten as `bench --sweep ...`, because the parser of a subcommand would
    not accept the flags and the address in any order."""
    return ["bench", "--sweep", *argv[2:]] if argv[:2] == ["bench", "sweep"] else argv


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--model", help="model to request (default: the first that the server lists)"
    )
    add_key(group, "--api-key", API_KEY, "sent as a bearer token")
    group.add_argument(
        "--endpoint", choices=("completions", "chat"), default="completions",
        help="/v1/completions (default) or /v1/chat/completions",
    )  # fmt: skip
    group.add_argument(
        "--prompt-form", choices=("ids", "text"), default="ids",
        help="send token ids (default), or text of an exact length in tokens",
    )  # fmt: skip
    group.add_argument(
        "--tokenizer", metavar="FILE_OR_FOLDER",
        help="the model's .gguf or folder with tokenizer.json; prompts are then real words",
    )  # fmt: skip
    group.add_argument(
        "--corpus", metavar="FILE", help="text file from which the words of prompts are taken"
    )
    group.add_argument(
        "--token-ids",
        metavar="LOW:HIGH",
        help="range of random token ids (default: one that the server accepts)",
    )
    group.add_argument("--no-ignore-eos", action="store_true", help="do not send ignore_eos")
    group.add_argument("--no-stream-usage", action="store_true", help="do not send stream_options")
    group.add_argument(
        "--extra-body", metavar="JSON", default="{}",
        help="fields that are added to each body, or replace its own; null removes one",
    )  # fmt: skip
    group.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="sent with each request"
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    from lab.load.parse import CLASS_HELP, LENGTHS_HELP

    group = parser.add_argument_group("load")
    group.add_argument("--users", type=int, help="closed loop: number of clients")
    group.add_argument("--rate", type=float, help="open loop: mean requests a second, Poisson")
    group.add_argument("--interval", type=float, help="open loop: seconds between two requests")
    group.add_argument("--burst", type=int, help="requests sent at once, with --rate or --interval")
    group.add_argument(
        "--trace", metavar="FILE",
        help='open loop: JSON lines {"at_ms", "prompt_tokens", "max_tokens" [, "class"]}',
    )  # fmt: skip
    group.add_argument("--lengths", help=f"{LENGTHS_HELP} (default 64/64)")
    group.add_argument("--slo", help="latency targets: ttft_ms=..,itl_ms=..,tpot_ms=..,e2e_ms=..")
    group.add_argument(
        "--class", dest="classes", action="append", default=[], metavar="SPEC", help=CLASS_HELP
    )
    group.add_argument(
        "--seed", type=int, default=0, help="seed of arrivals and lengths (default 0)"
    )
    group.add_argument(
        "--salt", type=int, help="seed of the prompts' content (default: new in each run)"
    )


def _add_end(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("end and results")
    group.add_argument(
        "--duration", type=float, metavar="S", help="seconds to measure, after the warm-up"
    )
    group.add_argument(
        "--requests", type=int, metavar="N", help="requests to measure, of all classes"
    )
    group.add_argument(
        "--warmup", default="0", metavar="N|Ns",
        help="first requests (20) or seconds (5s) that are not measured",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="for one request (default 600)"
    )
    group.add_argument(
        "--drain-timeout", type=float, default=60, metavar="S",
        help="how long to wait for replies after the last request (default 60)",
    )  # fmt: skip
    group.add_argument("--json", type=Path, metavar="FILE", help="write the whole result as JSON")


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sweep")
    group.add_argument("--sweep", action="store_true", help="find the knee (also: bench sweep)")
    group.add_argument(
        "--over", choices=("rate", "users"), default="rate", help="what to raise (default rate)"
    )
    group.add_argument(
        "--from", dest="first", type=float, default=1.0, metavar="X", help="first value (default 1)"
    )
    group.add_argument(
        "--to", dest="last", type=float, default=256.0, metavar="X", help="highest (default 256)"
    )
    group.add_argument(
        "--bisections", type=int, default=4, metavar="N",
        help="values to try between the highest that met the target and the lowest that missed it "
        "(default 4)",
    )  # fmt: skip
    group.add_argument(
        "--target", type=float, default=0.9, metavar="SHARE",
        help="share of requests that must meet their SLO (default 0.9)",
    )  # fmt: skip
    group.add_argument(
        "--least-requests", type=int, default=20, metavar="N",
        help="fewest requests at a value; a low rate runs longer than --duration (default 20)",
    )  # fmt: skip
    group.add_argument(
        "--html", type=Path, default=Path("sweep.html"), metavar="FILE",
        help="where the plot goes (default sweep.html)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from lab.load.errors import BenchError

    try:
        return _sweep(args) if args.sweep else _bench(args)
    except BenchError as error:
        complain(error)
        return _EXIT_FAILED


def _bench(args: argparse.Namespace) -> int:
    from lab.load.report import render
    from lab.load.run import run_bench

    require_writable("--json", args.json)
    result = run_bench(spec_of(args), _print_progress)
    is_written = _tell(render(result), [(args.json, _as_json(result))])
    if result.all_failed or not is_written:
        return _EXIT_FAILED
    return _EXIT_INTERRUPTED if result.partial else 0


def _sweep(args: argparse.Namespace) -> int:
    from lab.load.plot import sweep_html
    from lab.load.report import render_sweep
    from lab.load.sweep import Over, SweepSpec, run_sweep

    if args.users is not None or args.trace is not None:
        raise ConfigError("a sweep sets the arrivals itself: use --over, --from and --to")
    require_writable("--html", args.html)
    require_writable("--json", args.json)
    spec = SweepSpec(
        bench=spec_of(args),
        over=Over(args.over),
        first=args.first,
        last=args.last,
        bisections=args.bisections,
        target=args.target,
        least_requests=args.least_requests,
    )
    sweep = run_sweep(spec, _print_cell, _print_progress)
    files = [(args.html, sweep_html(sweep).encode()), (args.json, _as_json(sweep))]
    is_written = _tell(render_sweep(sweep), files)
    if is_written:
        print(f"plot: {args.html}")
    if not is_written or all(cell.result.all_failed for cell in sweep.cells):
        return _EXIT_FAILED
    return _EXIT_INTERRUPTED if sweep.partial else 0


def _print_cell(cell: Any) -> None:
    share = cell.result.total.slo_attained
    met = "no request was measured" if share is None else f"{100 * share:.1f} % met the SLO"
    print(f"{cell.value:g}: {met}", file=sys.stderr, flush=True)


def _as_json(result: Any) -> bytes:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def _tell(drawn: Any, files: Sequence[tuple[Path | None, bytes]]) -> bool:
    """Show the table and write the files, each whatever becomes of the others. False, with a
    message, where one could not be written."""
    done = True
    try:
        _show(drawn)
    finally:  # also when nobody reads the table
        for path, data in files:
            done = (path is None or _is_written(path, data)) and done
    return done


def _is_written(path: Path, data: bytes) -> bool:
    try:
        write_atomically(path, data)
    except OSError as error:
        complain(f"{path}: {error.strerror}; the result is only in the table")
        return False
    return True


def _show(drawn: Any) -> None:
    """Print a table as wide as the terminal; of a fixed width where the output goes to a file."""
    from dashboards.terminal import Plain, terminal

    terminal(None if sys.stdout.isatty() else _TABLE_COLUMNS).print(Plain(drawn))


def spec_of(args: argparse.Namespace) -> Any:
    """The BenchSpec that the flags describe. Raises ConfigError."""
    from lab.load.parse import parse_arrivals, parse_class, parse_lengths, parse_slo
    from lab.load.spec import BenchSpec, ClassSpec, Endpoint, PromptForm

    arrivals = parse_arrivals(
        "arrivals",
        users=args.users,
        rate_per_s=args.rate,
        interval_s=args.interval,
        burst=args.burst,
        trace=args.trace,
    )
    if args.classes and (args.lengths or args.slo):
        raise ConfigError("with --class, give lengths and targets in the classes")
    default = ClassSpec(lengths=parse_lengths(args.lengths or "64/64"))
    if args.slo:
        default = ClassSpec(lengths=default.lengths, slo=parse_slo(args.slo))
    warmup_requests, warmup_s = _warmup(args.warmup)
    return BenchSpec(
        url=args.url,
        classes=tuple(parse_class(text) for text in args.classes) or (default,),
        arrivals=arrivals,
        model=args.model,
        api_key=args.api_key,
        endpoint=Endpoint(args.endpoint),
        prompt_form=PromptForm(args.prompt_form),
        tokenizer=args.tokenizer,
        corpus=args.corpus,
        token_ids=_token_ids(args.token_ids),
        ignore_eos=not args.no_ignore_eos,
        stream_usage=not args.no_stream_usage,
        extra_body=_json_object(args.extra_body),
        headers=dict(_header(text) for text in args.header),
        duration_s=args.duration,
        requests=args.requests,
        warmup_requests=warmup_requests,
        warmup_s=warmup_s,
        timeout_s=args.timeout,
        drain_s=args.drain_timeout,
        seed=args.seed,
        salt=args.salt,
    )


def _print_progress(progress: Any) -> None:
    """One line, at least every two seconds."""
    what = "warming up" if progress.warming_up else "measuring"
    print(
        f"  {progress.elapsed_s:6.1f} s {what}: {progress.sent} sent, {progress.ok} ok, "
        f"{progress.failed} failed, {progress.in_flight} in flight, "
        f"{progress.chunks} chunks",
        file=sys.stderr,
        flush=True,
    )


def _warmup(text: str) -> tuple[int, float]:
    try:
        return (0, float(text[:-1])) if text.endswith("s") else (int(text), 0.0)
    except ValueError:
        raise ConfigError(f"--warmup {text}: write 20 for requests or 5s for seconds") from None


def _token_ids(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, _, high = text.partition(":")
    try:
        return int(low), int(high)
    except ValueError:
        raise ConfigError(f"--token-ids {text}: write LOW:HIGH, for instance 200:32000") from None


def _json_object(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(f'--extra-body: write a JSON object, {{"seed": 1}} ({error})') from None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or "\n" in text or "\r" in text:
        raise ConfigError(f"--header {text!r}: write NAME:VALUE")
    return name.strip().lower(), value.strip()
