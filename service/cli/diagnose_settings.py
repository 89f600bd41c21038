"""`phasescope diagnose --settings`: what every SLO class would have had under other settings."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from service.cli.say import say
from service.config.settings import ConfigError
from telemetry.facts.clock import Clock, MonotonicClock

if TYPE_CHECKING:
    from diagnosis.settings_search.answer import ClassForecast, SettingsAnswer
    from telemetry.requests.slo_policy import SloPolicy

_QUIET_NS = 2_000_000_000
_HEAD = ("", "class", "requests", "good", "TTFT p95", "ITL p99", "tokens/s")


class Progress:
    """Lines on standard error, of whatever takes longer than two seconds in all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun_ns = clock.now_ns()

    def __call__(self, what: str) -> None:
        if self._clock.now_ns() - self._begun_ns >= _QUIET_NS:
            print(f"  {what} ...", file=sys.stderr)


def policy_from(args: argparse.Namespace) -> SloPolicy | None:
    """The policy of `--slo-file`, None without it. Raises ConfigError."""
    from telemetry.requests.slo_policy import SloFileError, read_policy

    try:
        return None if args.slo_file is None else read_policy(args.slo_file)
    except SloFileError as error:
        raise ConfigError(f"--slo-file {error}") from error


def search_settings(args: argparse.Namespace) -> SettingsAnswer:
    """Raises Unreachable, JournalError, NotReplayable, ConfigError."""
    from dashboards.source import journal_of
    from diagnosis.settings_search.offline import search_journal
    from diagnosis.verdicts.offline import policy_for

    policy, progress = policy_from(args), Progress(MonotonicClock())
    with journal_of(args.source, args.debug_key) as journal:
        return search_journal(
            journal,
            policy_for(journal, policy),
            only_runtime=args.only_runtime,
            without=args.without or frozenset(),
            progress=progress,
        )


def encoded_settings(answer: SettingsAnswer) -> bytes:
    """The answer as JSON, with what is derived from it."""
    import msgspec

    from diagnosis.settings_search.words import sentences

    return msgspec.json.encode(
        {
            "form": answer.form,
            "remedy": answer.remedy,
            "said": sentences(answer),
            **msgspec.to_builtins(answer),
        }
    )


def print_settings(answer: SettingsAnswer) -> None:
    from diagnosis.settings_search.words import sentences

    say(
        f"the last {answer.window_s:.0f} s, replayed {answer.tried} times in {answer.cpu_s:.1f} s "
        "of CPU"
    )
    rows = [_HEAD, *_rows("measured", answer.recorded), *_rows("replayed", answer.present.classes)]
    best, now = answer.best, answer.best_runtime
    if now is not None:
        rows += _rows("best that can be set now", now.classes)
    if best is not None and best != now:
        rows += _rows("best", best.classes)
    if answer.capacity is not None:
        rows += _rows(f"one of {answer.capacity.replicas} replicas", answer.capacity.classes)
    _print_table(rows)
    noise = ", ".join(f"{name} {100 * share:.1f} %" for name, share in answer.noise.items())
    if noise:
        say(f"shares that differ by less are alike: {noise}")
    say("")
    for sentence in sentences(answer):
        say(sentence)


def _rows(label: str, classes: dict[str, ClassForecast]) -> list[tuple[str, ...]]:
    return [
        (
            label if number == 0 else "",
            name,
            str(one.requests),
            f"{100 * one.good_share:.1f} %",
            _ms(one.ttft_p95_ms),
            _ms(one.itl_p99_ms),
            f"{one.output_tokens_per_s:.1f}",
        )
        for number, (name, one) in enumerate(classes.items())
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        cells = [
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        say("  ".join(cells).rstrip())
