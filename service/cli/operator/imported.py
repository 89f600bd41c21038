"""`phasescope diagnose --from KIND`: what can be told from evidence of other tools."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.operator.ticker import Ticker
from service.cli.say import complain, say
from service.config.settings import ConfigError
from telemetry.facts.clock import MonotonicClock, sleep_ns

if TYPE_CHECKING:
    from diagnosis.importers.registry import RelativeSpans
    from diagnosis.importers.verdict import ImportedDiagnosis, ImportedFinding, Undecided
    from diagnosis.symptoms import Evidence

DEFAULT_SECONDS = 60.0
_UNREAD = 1
_OF_OURS = (
    "root", "settings", "only_runtime", "without", "baseline", "save_baseline", "slo_file",
)  # fmt: skip
_LABEL = 24


def add_imported(parser: argparse.ArgumentParser) -> None:
    """The flags of evidence of other tools."""
    from diagnosis.importers.kinds import Kind

    parser.add_argument(
        "--from",
        dest="kind",
        choices=[kind.value for kind in Kind],
        metavar="KIND",
        help="read evidence that another tool has written, and say what can be told from it: "
        f"{', '.join(Kind)}; SOURCE is then its files, or for vllm-metrics the URL of the server",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="S",
        help="with --from vllm-metrics and a URL: how long to read it (default %(default)g)",
    )


def run_imported(args: argparse.Namespace) -> int:
    """Raises ConfigError."""
    import msgspec

    from diagnosis.importers.reading import NotImportable

    try:
        found = _diagnosed(args)
    except NotImportable as error:
        complain(error)
        return _UNREAD
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        say(*lines_of(found))
    return 0


def _diagnosed(args: argparse.Namespace) -> ImportedDiagnosis:
    """Raises NotImportable, ConfigError."""
    from dashboards.monitor.client import is_server, server_url
    from diagnosis.importers.kinds import Kind
    from diagnosis.importers.registry import diagnose_files, diagnose_vllm

    kind, given, clock = Kind(args.kind), _given(args), MonotonicClock()
    _refuse_flags_of_ours(args)
    if not args.sources:
        raise ConfigError(f"--from {kind.value} needs the files to read as SOURCE")
    urls = [server_url(source) for source in args.sources if is_server(source)]
    if not urls:
        paths = [Path(source) for source in args.sources]
        return diagnose_files(kind, paths, Ticker(clock), given)
    if kind is not Kind.VLLM_METRICS or len(args.sources) > 1:
        raise ConfigError(
            f"--from {kind.value} reads files; only --from vllm-metrics reads a URL, and just one"
        )
    if not args.seconds > 0:
        raise ConfigError("--seconds must be above 0")
    return diagnose_vllm(urls[0], args.seconds, Ticker(clock), clock, sleep_ns, given)


def _given(args: argparse.Namespace) -> RelativeSpans | None:
    """What is compared with what, where the caller says so. Raises ConfigError."""
    if args.window is None and args.reference is None:
        return None
    if args.window is None or args.reference is None:
        raise ConfigError("--from compares --window with --reference: give both or neither")
    window, reference = args.window, args.reference
    return (window.from_s, window.until_s), (reference.from_s, reference.until_s)


def _refuse_flags_of_ours(args: argparse.Namespace) -> None:
    """Raises ConfigError."""
    given = [f"--{name.replace('_', '-')}" for name in _OF_OURS if getattr(args, name)]
    if given:
        flags = ", ".join(given)
        raise ConfigError(f"{flags} needs a record of phasescope, not --from {args.kind}")


def lines_of(found: ImportedDiagnosis) -> list[str]:
    """The diagnosis as text."""
    lines = [f"{found.kind.value}: {found.records} {found.noun}, {found.length:g} {found.unit}"]
    if found.now:
        now, usual = _spans(found.now), _spans(found.usual)
        lines += [f"late: {now} {found.unit} from its begin; compared with {usual}"]
    lines += [f"{found.verdict.replace('_', ' ')}{': ' * bool(found.why)}{found.why}"]
    for rank, one in enumerate(found.findings, 1):
        lines += _of_finding(rank, one)
    for undecided in found.undecided:
        lines += _of_undecided(undecided)
    lines += ["", "what this record can tell:"]
    for told in found.causes:
        said = told.certainty.value if told.certainty is not None else f"no; needs {told.missing}"
        lines.append(_row(told.symptom.value, said))
    return [*lines, "", *(f"note: {note}" for note in found.notes)]


def _of_finding(rank: int, one: ImportedFinding) -> list[str]:
    share = "" if one.share is None else f", {100 * one.share:.0f} % of the lateness"
    lines = [f"{rank}. {one.symptom.value} ({one.certainty.value}{share})", f"   {one.claim}"]
    lines += _of_evidence(one.evidence)
    if one.open_to:
        lines.append(_row("could also be", ", ".join(one.open_to)))
    return [*lines, _row("runbook", one.runbook)]


def _of_undecided(one: Undecided) -> list[str]:
    lines = [f"?. undecided ({100 * one.share:.0f} % of the lateness)", f"   {one.claim}"]
    return [*lines, *_of_evidence(one.evidence), _row("one of", ", ".join(one.causes))]


def _of_evidence(evidence: Sequence[Evidence]) -> list[str]:
    return [_row(one.name, one.text) for one in evidence]


def _row(label: str, text: str) -> str:
    return f"   {label:>{_LABEL}}: {text}"


def _spans(spans: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{begin:g} to {end:g}" for begin, end in spans)
