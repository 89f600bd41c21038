"""The console script: finds the subcommand and turns known errors into one clear line."""

from __future__ import annotations

import argparse
import os
import sys

from service.cli import (
    bench,
    config,
    console,
    diagnose,
    drill,
    explain,
    plan,
    pull,
    replay,
    serve,
    timeline,
    top,
)
from service.cli.internal import engine as engine_process
from service.cli.internal import gateway
from service.cli.operator import attach, export, fleet, limits, mcp, node, profile, report
from service.cli.say import complain, in_one_line
from service.config.settings import ConfigError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141  # 128 + SIGPIPE, as shells report it


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="phasescope",
        description="An LLM inference server that can prove why it was slow.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (
        serve,
        node,
        fleet,
        attach,
        config,
        pull,
        bench,
        top,
        console,
        limits,
        explain,
        diagnose,
        replay,
        plan,
        profile,
        timeline,
        report,
        export,
        mcp,
        drill,
        engine_process,
        gateway,
    ):
        module.register(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = bench.sweep_as_flag(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser().parse_args(arguments)
        code: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `phasescope config | head`: the reader has seen enough
        _give_up_output()
        return EXIT_PIPE
    except ConfigError as error:
        complain(error)
        return serve.EXIT_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        complain(in_one_line(error))
        try:
            sys.stdout.flush()
        except OSError:  # of a full disk
            _give_up_output()
        return EXIT_FAILED
    return code


def _give_up_output() -> None:
    """What cannot be written would be tried again, and be an error again, at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
