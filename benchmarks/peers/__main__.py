"""Measure phasescope and its peers in turns, and write one table.

    python -m benchmarks.peers.install          # once: the peers, each in an environment of its own
    python -m benchmarks.peers.models           # once: the model in every format
    python -m benchmarks.peers [--groups bf16,int8] [--tests c1,c8,c16,pf,mix] [--repetitions 5]

Results go to benchmarks/results/peers.json after every cell; the same command goes on with a
run that was cut.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.peers.comparison import Comparison, Plan
from benchmarks.peers.layout import HERE, REPOSITORY, PeerError, default_root, fail, say
from benchmarks.peers.machine import about
from benchmarks.peers.recipes import OURS, Group, recipes, setup_of
from benchmarks.peers.span_counter import SpanReceiver
from benchmarks.peers.store import Store
from benchmarks.peers.table import render
from benchmarks.peers.workloads import loads

TESTS = ("c1", "c8", "c16", "pf", "mix")

# what all cells of one file must share; anything else may be added run by run
_SETTINGS = ("scale", "mix_interval", "threads", "dtype", "phasescope_flags")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--root", type=Path, default=default_root(), help="where peers and models live")
    add("--groups", default="bf16,int8", help="comma-separated: bf16, int8 (default both)")
    add("--tests", default=",".join(TESTS), help="comma-separated (default all)")
    add("--only", default="", help="comma-separated servers; without it, all that are installed")
    add("--repetitions", type=int, default=5, help="at least 5 for figures to be shown (default 5)")
    add("--scale", type=float, default=1.0, help="stretches every window (default 1)")
    add("--mix-interval", type=float, default=2.0, help="seconds between long prompts of mix")
    add("--peer-budgets", default="default,256", help="token budgets of the peers in mix")
    add(
        "--our-budgets",
        default="default,128,256,1024",
        help="ours in mix; default follows the targets of the SLO classes",
    )
    add("--threads", type=int, default=0, help="compute threads of each peer (default: all cores)")
    add("--dtype", choices=("auto", "bfloat16", "float32"), default="auto",
        help="in which vllm and transformers hold the bfloat16 weights; auto is float32 where "
        "the CPU cannot multiply bfloat16")  # fmt: skip
    add("--phasescope-flags", default="--kv-memory 1GiB", help="given to `phasescope serve`")
    add("--out", type=Path, default=HERE.parent / "results" / "peers.json")
    add("--fresh", action="store_true", help="replace the results instead of going on with them")
    add("--estimate", action="store_true", help="say how long it would take, and stop")
    return parser


def main() -> int:
    args = arguments().parse_args()
    signal.signal(signal.SIGTERM, _interrupted)  # servers are ended on the way out
    try:
        return _compare(args)
    except PeerError as error:
        return fail(error)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 130


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _compare(args: argparse.Namespace) -> int:
    setup = setup_of(args.root, args.threads, args.dtype, args.phasescope_flags)
    plan = Plan(
        groups=[Group(one) for one in _words(args.groups, [str(group) for group in Group])],
        tests=_words(args.tests, list(TESTS)),
        repetitions=args.repetitions,
        loads=loads(args.scale, args.mix_interval),
        peer_budgets=_budgets(args.peer_budgets),
        our_budgets=_budgets(args.our_budgets),
        only=_words(args.only, [recipe.name for recipe in recipes(setup)]) if args.only else None,
    )
    with SpanReceiver() as receiver:
        setup = replace(setup, otlp_endpoint=receiver.endpoint)
        present = plan.present(recipes(setup))
        if not any(recipe.name.startswith(OURS) for recipe in present):
            say("note: phasescope itself does not take part in this run")
        say(plan.describe(present))
        if args.estimate:
            return 0
        settings = {key: getattr(args, key) for key in _SETTINGS}
        if args.fresh:
            args.out.unlink(missing_ok=True)
        places = {
            str(setup.layout.root): "$ROOT",
            str(REPOSITORY): "$REPOSITORY",
            sys.executable: "python",
            sys.prefix: "$ENVIRONMENT",
            str(Path.home()): "~",
        }
        store = Store(args.out, settings, {"machine": about()}, places)
        Comparison(plan, setup, store, receiver).run(present)
    page = render(store.data)
    args.out.with_suffix(".md").write_text(page)
    say(page)
    return 0


def _words(text: str, allowed: list[str]) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in allowed:
            raise PeerError(f"{word!r} is not one of {', '.join(allowed)}")
    return words


def _budgets(text: str) -> list[int | None]:
    """The token budgets of a text; None is the server's own default."""
    return list(_each_budget(text))


def _each_budget(text: str) -> Iterator[int | None]:
    for word in text.split(","):
        if word.strip() != "default" and not word.strip().isdigit():
            raise PeerError(f"{word!r} is not a token budget: write default or a number")
        yield None if word.strip() == "default" else int(word)


if __name__ == "__main__":
    sys.exit(main())
