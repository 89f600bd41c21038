"""Three hours of healthy traffic on real servers: how many false alarms, and how long are they?
Does the autopilot leave them alone?

    .venv/bin/python -m benchmarks.diagnosis.soak [--segments 13] [--first 9970] [--most N]
        [--minutes 15] [--scale 1] [--work FOLDER] [--out FILE] [--again] [--fresh] [--mixed]

Every segment is a server of its own with an automatic step budget and `--autopilot act`, under
Poisson traffic, bursts (MMPP) or a daily ramp, from 0.2 to 0.85 of its capacity. The capacity is
measured over a minute: the requests per second of 16 clients, as many as the server has places,
that send the next request when the last is answered. What the class is promised is measured first
on each machine, because a server that misses its SLO is not healthy: 1.5 times what the slowest
hundredth of the requests sees at 0.85 of capacity. The report has each segment at once,
and the same command goes on with those that are missing, on this machine or another; `--most N`
runs so many, `--again` runs those anew that do not count, `--fresh` all. A report with segments of
other code, or of code that was not recorded, is gone on with only by `--mixed`.
`--scale 0.02` tries it in short, with a report in `--work`. The exit status is 1 when a figure does
not hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.autopilot.running import Decided
from benchmarks.autopilot.scoring import harms_of
from benchmarks.diagnosis.episodes import Kept, say, work_folder
from benchmarks.diagnosis.gauges import gauges_of_file
from benchmarks.diagnosis.records import RECORDS, read_clients
from benchmarks.diagnosis.score import machine_speed
from benchmarks.diagnosis.soak.plan import FIRST_SEED, Segment, segments
from benchmarks.diagnosis.soak.scoring import (
    SegmentResult,
    alarms_in,
    figures,
    unsure_s,
    with_reason,
)
from benchmarks.diagnosis.version import code_digest
from benchmarks.machine import machine
from benchmarks.promised import Slo
from lab.drills.client import Sent
from lab.drills.episode import run_episode
from lab.drills.servers import DidNotStart
from lab.drills.spec import EpisodeSpec, Phases
from service.config.settings import ConfigError
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.journal.journal_reader import JournalError, open_journal
from telemetry.numbers.quantiles import quantile

OUT = RECORDS.parent / "soak.json"
SYMPTOM = "healthy_light"
PROMISE_PHASES = Phases(warm_up_s=10, reference_s=10, fault_s=80, recovery_s=5)
PROMISE_SEED, PROMISE_LOAD, ROOM, OBJECTIVE = 9690, 0.85, 1.5, 0.99
_FLAGS = ("--max-batched-tokens", "auto", "--autopilot", "act")
_PLACES = 16  # of a drill's server: what as many clients get is its capacity
# How long the capacity is measured, its first quarter left out; less where `--scale` is small
_CAPACITY_S, _LEAST_CAPACITY_S = 80.0, 12.0


def promise(known: Sequence[SegmentResult], work: Path, scale: float, model: str | None) -> Slo:
    """What this machine can promise at the highest load; measured once for a series, on a quiet
    machine."""
    path, cpu = work / "promise.json", machine()["cpu"]
    for one in known:
        if one.cpu == cpu:
            return one.slo
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Slo)
    say(f"measuring what can be promised at {PROMISE_LOAD:g} of capacity")
    phases = msgspec.structs.replace(PROMISE_PHASES, fault_s=max(10.0, 80 * min(1.0, scale)))
    result = run_episode(_spec("steady", PROMISE_LOAD, PROMISE_SEED, phases, work, model), say)
    log = [one for one in read_clients(work / result.name) if one.is_good]
    waits_ms = [one.ttft_ns / 1e6 for one in log if one.ttft_ns is not None]
    gaps_ms = [max(one.gaps_us) / 1e3 for one in log if one.gaps_us]
    ttft_ms, gap_ms = quantile(waits_ms, 0.99), quantile(gaps_ms, 0.99)
    if ttft_ms is None or gap_ms is None:
        raise ConfigError("no request was served while the promise was measured")
    found = Slo(ttft_ms=round(ROOM * ttft_ms), itl_ms=round(ROOM * gap_ms), objective=OBJECTIVE)
    if result.discarded:
        say(f"measured again next time: {'; '.join(result.discarded)}")
    else:
        path.write_bytes(msgspec.json.encode(found))
    return found


def _spec(
    pattern: str, load: float, seed: int, phases: Phases, work: Path, model: str | None
) -> EpisodeSpec:
    path = work / "slo.toml"
    slo = ("--slo-file", str(path.resolve())) if path.exists() else ()
    return EpisodeSpec(
        symptom=SYMPTOM,
        mechanism=pattern,
        intensity=load,
        seed=seed,
        phases=phases,
        out=work,
        model=model,
        flags=(*_FLAGS, *slo),
        capacity_s=min(_CAPACITY_S, max(_LEAST_CAPACITY_S, phases.fault_s)),
        capacity_users=_PLACES,
    )


def run_segment(
    segment: Segment, work: Path, slo: Slo, model: str | None, code: str
) -> SegmentResult:
    spec = _spec(segment.pattern, segment.load, segment.seed, segment.phases, work, model)
    episode = run_episode(spec, say)
    date = time.strftime("%Y-%m-%d %H:%M:%S %z")
    folder = work / episode.name
    gauges = gauges_of_file(folder / "journal") if (folder / "journal").exists() else None
    kept = Kept(split="soak", date=date, machine=machine(), episode=episode, gauges=gauges)
    log, speed = read_clients(folder), machine_speed(kept)
    begin_s, end_s = segment.phases.reference_at_s, segment.phases.end_s
    found = alarms_in(episode.verdicts, begin_s, end_s)
    decisions = decisions_of(folder / "journal", episode.begin_ns)
    return SegmentResult(
        name=episode.name,
        date=date,
        cpu=kept.machine["cpu"],
        slo=slo,
        seed=segment.seed,
        pattern=segment.pattern,
        load=segment.load,
        watched_s=end_s - begin_s,
        requests=len(log),
        good=round(sum(slo.is_met_by(one) for one in log) / max(1, len(log)), 4),
        ttft_p95_ms=_ttft_p95_ms(log),
        unsure_s=unsure_s(episode.verdicts, begin_s, end_s),
        alarms=[with_reason(alarm, speed, log, episode.begin_ns, slo) for alarm in found],
        decisions=decisions,
        harms=harms_of(decisions, log, episode.begin_ns, slo),
        discarded=list(episode.discarded),
        code=code,
    )


def decisions_of(journal: Path, begin_ns: int) -> list[Decided]:
    """The decisions of the autopilot after the traffic began. Raises JournalError."""
    return [
        Decided(
            at_s=round((one.at_ns - begin_ns) / 1e9, 1),
            **{name: getattr(one, name) for name in Decided.__struct_fields__ if name != "at_s"},
        )
        for one in open_journal(journal).facts()
        if isinstance(one, AutopilotDecided)
    ]


def _ttft_p95_ms(log: list[Sent]) -> float | None:
    value = quantile([one.ttft_ns / 1e6 for one in log if one.ttft_ns is not None], 0.95)
    return None if value is None else round(value, 1)


def read_report(path: Path) -> list[SegmentResult]:
    """What was measured so far. Raises msgspec.MsgspecError."""
    if not path.exists():
        return []
    return msgspec.convert(msgspec.json.decode(path.read_bytes())["segments"], list[SegmentResult])


def refuse_other_code(found: Iterable[SegmentResult], code: str) -> None:
    """Raises ConfigError where a segment is of other code, or it is not known of which."""
    others = sorted({one.code or "unknown" for one in found if one.code != code})
    if others:
        raise ConfigError(
            f"it has segments of the code {', '.join(others)}, and this is {code}: give another "
            "--out, or --fresh, or --mixed to sum up both"
        )


def write_report(path: Path, results: Iterable[SegmentResult]) -> None:
    results = sorted(results, key=lambda one: one.seed)
    held = [{**msgspec.to_builtins(one), "holds": one.holds} for one in figures(results)]
    report = {"machine": machine(), "figures": held, "segments": results}
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    part.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--segments", type=int, default=13)
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="run at most so many now")
    parser.add_argument("--minutes", type=float, default=15.0, help="of each segment")
    parser.add_argument("--scale", type=float, default=1.0, help="of the lengths, to try it")
    parser.add_argument("--model", help="as for `phasescope serve`")
    parser.add_argument("--work", type=Path, help="where journals and results go, uncommitted")
    parser.add_argument("--out", type=Path, help="the report (default: below benchmarks/results)")
    parser.add_argument("--again", action="store_true", help="run those anew that do not count")
    parser.add_argument("--fresh", action="store_true", help="run all anew")
    parser.add_argument("--mixed", action="store_true", help="go on with segments of other code")
    args = parser.parse_args()
    work = args.work or work_folder("soak" if args.scale == 1 else f"soak-{args.scale:g}")
    work.mkdir(parents=True, exist_ok=True)
    out = args.out or (OUT if args.scale == 1 else work / OUT.name)
    code = code_digest()
    try:
        found = [] if args.fresh else read_report(out)
        if not args.mixed:
            refuse_other_code(found, code)
    except (KeyError, msgspec.MsgspecError) as error:
        parser.error(f"{out} is no report of this version ({error}): give another, or --fresh")
    except ConfigError as error:
        parser.error(f"{out}: {error}")
    known = {one.seed: one for one in found}
    slo = promise(list(known.values()), work, args.scale, args.model)
    (work / "slo.toml").write_text(slo.as_toml())
    planned = segments(args.segments, 60 * args.minutes * args.scale, args.first)
    failed, missing = 0, [one for one in planned if _is_missing(known.get(one.seed), args.again)]
    for segment in missing[: args.most]:
        print(f"{segment.number + 1}/{len(planned)} {segment.pattern} at {segment.load:g}")
        try:
            known[segment.seed] = done = run_segment(segment, work, slo, args.model, code)
        except (DidNotStart, JournalError, OSError) as error:
            failed += 1
            say(f"failed: {error}")
            continue
        say(done.line())
        write_report(out, known.values())
    held = figures(list(known.values()))
    print("\n".join(figure.line() for figure in held))
    return 0 if not failed and all(figure.holds for figure in held) else 1


def _is_missing(known: SegmentResult | None, again: bool) -> bool:
    return known is None or (again and bool(known.discarded))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
