"""Judge whether the default is the best setting, on this machine.

The default beside fixed token budgets, the old default and other servers, in turns: streams
beside long prompts, goodput against load, closed loops, a tenant that floods, voice beside batch.

    python -m benchmarks.peers.install vllm openvino openvino-export     # once; the peers
    python -m benchmarks.peers.models --only hf                          # once; prompts need it
    python -m benchmarks.peers.models --only openvino
    python -m benchmarks.default_settings [--loads mix,goodput,closed,tenants,voice] [--rounds 5]

Results go to benchmarks/results/default_settings.json after every cell; the same command goes on
with a run that was cut, and loads may be measured in separate runs.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.default_settings.acceptance import FIXED, RESULTS, figures
from benchmarks.default_settings.loads import LENGTHS
from benchmarks.default_settings.plan import (
    DEFAULT,
    LOADS,
    OLD,
    Choice,
    Trial,
    servers_of,
    trials_of,
)
from benchmarks.default_settings.rounds import GROUP, Rounds
from benchmarks.peers.fleet import Server
from benchmarks.peers.layout import REPOSITORY, PeerError, default_root, fail, say
from benchmarks.peers.machine import about, gpu_name
from benchmarks.peers.recipes import Recipe, Setup, phasescope, recipes, setup_of
from benchmarks.peers.span_counter import SpanReceiver
from benchmarks.peers.store import Store

OLD_FLAGS = "--max-batched-tokens 512 --order arrival"
_START_S, _CALIBRATION_S, _TURN_S = 15.0, 8.0, 1.0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.default_settings", description=str(__doc__).splitlines()[0]
    )
    add = parser.add_argument
    add("--loads", default=",".join(LOADS), help="comma-separated (default all)")
    add("--rounds", type=int, default=5)
    add("--only", default="", help="comma-separated servers beside the default (default all)")
    add("--budgets", default="64,128,256,512", help="fixed ones in mix")
    add("--goodput-budgets", default="64", help="fixed ones in goodput")
    add("--peers", default="vllm,openvino", help="in mix, as name or name@budget")
    add("--goodput-peers", default="vllm@256", help="in goodput")
    add("--lengths", default=",".join(LENGTHS), help="of goodput")
    add("--shares", default="0.5,0.9", help="of capacity, in goodput")
    add("--scale", type=float, default=1.0, help="stretches every window (default 1)")
    add("--injected-every", type=float, default=6.0, help="s between long prompts of mix (6)")
    add("--prompts", choices=("text", "ids"), default="text", help="ids: for dummy models of ours")
    add("--threads", type=int, default=0, help="compute threads of each peer (default: all cores)")
    add("--root", type=Path, default=default_root(), help="where peers and models live")
    add("--phasescope-flags", default="--kv-memory 512MiB --tracing full", help="of all of ours")
    add("--old-flags", default=OLD_FLAGS, help="of the old default")
    add("--out", type=Path, default=RESULTS)
    add("--fresh", action="store_true", help="replace the results instead of going on with them")
    add("--estimate", action="store_true", help="say how long it would take, and stop")
    return parser


def main() -> int:
    args = arguments().parse_args()
    signal.signal(signal.SIGTERM, _interrupted)  # servers are ended on the way out
    try:
        return _measure(args)
    except PeerError as error:
        return fail(error)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 130


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _measure(args: argparse.Namespace) -> int:
    trials = trials_of(choice_of(args))
    say(describe(trials, args.rounds))
    if args.estimate:
        return 0
    if not trials:
        raise PeerError(f"no loads: choose from {', '.join(LOADS)}")
    setup = setup_of(args.root, args.threads, "auto", args.phasescope_flags)
    as_text = args.prompts == "text"
    if as_text and not setup.layout.hf.exists():
        raise PeerError("prompts need the model: python -m benchmarks.peers.models --only hf")
    if args.fresh:
        args.out.unlink(missing_ok=True)
    settings = {
        key: getattr(args, key)
        for key in (
            "scale", "injected_every", "prompts", "threads", "phasescope_flags", "old_flags"
        )
    }  # fmt: skip
    places = {
        str(setup.layout.root): "$ROOT",
        str(REPOSITORY): "$REPOSITORY",
        sys.executable: "python",
        sys.prefix: "$ENVIRONMENT",
        str(Path.home()): "~",
    }
    store = Store(args.out, settings, {"machine": about(), "gpu": gpu_name()}, places)
    with SpanReceiver() as receiver:
        setup = replace(setup, otlp_endpoint=receiver.endpoint)
        servers = [server_named(label, setup, args.old_flags) for label in servers_of(trials)]
        Rounds(trials, args.rounds, setup.layout, store, receiver, as_text).run(servers)
    found = figures(store.data)
    for figure in found:
        say(figure.line())
    return 0 if all(figure.holds for figure in found) else 1


def choice_of(args: argparse.Namespace) -> Choice:
    """Raises PeerError for a word that is not known."""
    only = _words(args.only)

    def servers(*labels: str) -> tuple[str, ...]:
        return (DEFAULT, *(label for label in labels if not only or label in only))

    return Choice(
        loads=_known(args.loads, LOADS),
        scale=args.scale,
        injected_every_s=args.injected_every,
        mix_servers=servers(
            *(f"{FIXED}{int(budget)}" for budget in _words(args.budgets)), *_words(args.peers)
        ),
        goodput_servers=servers(
            OLD,
            *(f"{FIXED}{int(budget)}" for budget in _words(args.goodput_budgets)),
            *_words(args.goodput_peers),
        ),
        lengths=_known(args.lengths, tuple(LENGTHS)),
        shares=tuple(float(share) for share in _words(args.shares)),
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _known(text: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    words = _words(text)
    if unknown := set(words) - set(allowed):
        raise PeerError(f"no {', '.join(unknown)}: choose from {', '.join(allowed)}")
    return tuple(word for word in allowed if word in words)


def server_named(label: str, setup: Setup, old_flags: str) -> Server:
    """`name` or `name@budget`. Raises PeerError for a name that there is no recipe for."""
    known: dict[str, Recipe] = {
        recipe.name: recipe for recipe in recipes(setup) if recipe.group is GROUP
    }
    known[OLD] = phasescope(setup, OLD, GROUP, tuple(shlex.split(old_flags)))
    name, _, budget = label.partition("@")
    if name not in known:
        raise PeerError(f"no server {name}: choose from {', '.join(known)}")
    return Server(known[name], int(budget) if budget else None, setup.layout)


def describe(trials: list[Trial], rounds: int) -> str:
    """What will be measured, and for how long."""
    seconds: dict[str, float] = {}
    for trial in trials:
        times = 1 if trial.once else rounds
        name = " ".join(trial.load.split()[:2])
        spent_s = times * len(trial.labels) * (trial.estimated_s + _TURN_S)
        seconds[name] = seconds.get(name, 0.0) + spent_s
    servers = servers_of(trials)
    around_s = len(servers) * _START_S + rounds * (_CALIBRATION_S + 1.5 * len(servers))
    lines = [f"  {name}: {spent_s / 60:.1f} min" for name, spent_s in seconds.items()]
    total_s = sum(seconds.values()) + around_s
    return "\n".join(
        [
            f"{rounds} rounds, estimated duration: {total_s / 60:.0f} min",
            *lines,
            f"  starts and calibration: {around_s / 60:.1f} min",
            f"  servers: {', '.join(servers)}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
