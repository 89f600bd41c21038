"""Three hours of healthy traffic on real servers: how many false alarms, and how long are they?

    .venv/bin/python -m benchmarks.diagnosis.soak [--segments 13] [--minutes 15] [--scale 1]
        [--work FOLDER] [--out FILE]

Every segment is a server of its own under Poisson traffic, bursts (MMPP) or a daily ramp, from 0.2
to 0.85 of its measured capacity. What the class is promised is measured first, because a server
that misses its SLO is not healthy: 1.5 times what the slowest hundredth of the requests sees at
0.85 of capacity. The series may be stopped and goes on with the segment that is missing; `--again`
runs those anew that do not count. `--scale 0.02` tries it in short. The exit status is 1 when a
figure does not hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.diagnosis.episodes import Kept, say, work_folder
from benchmarks.diagnosis.gauges import gauges_of_file
from benchmarks.diagnosis.records import RECORDS, read_clients
from benchmarks.diagnosis.score import machine_speed
from benchmarks.diagnosis.soak.plan import Segment, segments
from benchmarks.diagnosis.soak.scoring import (
    SegmentResult,
    Slo,
    alarms_in,
    figures,
    unsure_s,
    with_reason,
)
from benchmarks.machine import machine
from lab.drills.client import Sent
from lab.drills.episode import run_episode
from lab.drills.servers import DidNotStart
from lab.drills.spec import EpisodeSpec, Phases
from service.config.settings import ConfigError
from telemetry.numbers.quantiles import quantile

OUT = RECORDS.parent / "soak.json"
SYMPTOM = "healthy_light"
PROMISE_PHASES = Phases(warm_up_s=10, reference_s=10, fault_s=80, recovery_s=5)
PROMISE_SEED, PROMISE_LOAD, ROOM = 9690, 0.85, 1.5
_SLO_FILE = """default = "chat"

[classes.chat]
ttft_ms = %g
itl_ms = %g
objective = %g
"""


def promise(work: Path, scale: float, model: str | None) -> Slo:
    """What this machine can promise at the highest load; measured once for a series, on a quiet
    machine."""
    path = work / "promise.json"
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
    found = Slo(ttft_ms=round(ROOM * ttft_ms), itl_ms=round(ROOM * gap_ms))
    if result.discarded:
        say(f"measured again next time: {'; '.join(result.discarded)}")
    else:
        path.write_bytes(msgspec.json.encode(found))
    return found


def _spec(
    pattern: str, load: float, seed: int, phases: Phases, work: Path, model: str | None
) -> EpisodeSpec:
    path = work / "slo.toml"
    return EpisodeSpec(
        symptom=SYMPTOM,
        mechanism=pattern,
        intensity=load,
        seed=seed,
        phases=phases,
        out=work,
        model=model,
        flags=("--slo-file", str(path.resolve())) if path.exists() else (),
    )


def run_segment(segment: Segment, work: Path, slo: Slo, model: str | None) -> SegmentResult:
    spec = _spec(segment.pattern, segment.load, segment.seed, segment.phases, work, model)
    episode = run_episode(spec, say)
    date = time.strftime("%Y-%m-%d %H:%M:%S %z")
    folder = work / episode.name
    gauges = gauges_of_file(folder / "journal") if (folder / "journal").exists() else None
    kept = Kept(split="soak", date=date, machine=machine(), episode=episode, gauges=gauges)
    log, speed = read_clients(folder), machine_speed(kept)
    begin_s, end_s = segment.phases.reference_at_s, segment.phases.end_s
    found = alarms_in(episode.verdicts, begin_s, end_s)
    return SegmentResult(
        name=episode.name,
        date=date,
        cpu=kept.machine["cpu"],
        pattern=segment.pattern,
        load=segment.load,
        watched_s=end_s - begin_s,
        requests=len(log),
        good=round(sum(slo.is_met_by(one) for one in log) / max(1, len(log)), 4),
        ttft_p95_ms=_ttft_p95_ms(log),
        unsure_s=unsure_s(episode.verdicts, begin_s, end_s),
        alarms=[with_reason(alarm, speed, log, episode.begin_ns, slo) for alarm in found],
        discarded=list(episode.discarded),
    )


def _ttft_p95_ms(log: list[Sent]) -> float | None:
    value = quantile([one.ttft_ns / 1e6 for one in log if one.ttft_ns is not None], 0.95)
    return None if value is None else round(value, 1)


def report(results: list[SegmentResult], slo: Slo) -> dict[str, object]:
    held = figures(results)
    return {
        "machine": machine(),
        "promise": slo,
        "figures": [{**msgspec.to_builtins(one), "holds": one.holds} for one in held],
        "segments": results,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--segments", type=int, default=13)
    parser.add_argument("--minutes", type=float, default=15.0, help="of each segment")
    parser.add_argument("--scale", type=float, default=1.0, help="of the lengths, to try it")
    parser.add_argument("--model", help="as for `phasescope serve`")
    parser.add_argument("--work", type=Path, help="where journals and results go, uncommitted")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--again", action="store_true", help="run those anew that do not count")
    args = parser.parse_args()
    work = args.work or work_folder("soak" if args.scale == 1 else f"soak-{args.scale:g}")
    done = work / "segments"
    done.mkdir(parents=True, exist_ok=True)
    slo = promise(work, args.scale, args.model)
    (work / "slo.toml").write_text(_SLO_FILE % (slo.ttft_ms, slo.itl_ms, slo.objective))
    planned = segments(args.segments, 60 * args.minutes * args.scale)
    results, failed = list[SegmentResult](), 0
    for segment in planned:
        path = done / f"{segment.number:02d}.json"
        if path.exists():
            known = msgspec.json.decode(path.read_bytes(), type=SegmentResult)
            if not (args.again and known.discarded):
                results.append(known)
                continue
        print(f"{segment.number + 1}/{len(planned)} {segment.pattern} at {segment.load:g}")
        try:
            found = run_segment(segment, work, slo, args.model)
        except (DidNotStart, OSError) as error:
            failed += 1
            say(f"failed: {error}")
            continue
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(found))
        part.replace(path)
        results.append(found)
        named = [f"{', '.join(one.named)} for {one.length_s:.1f} s" for one in found.alarms]
        say(f"alarms: {'; '.join(named) or 'none'} {found.discarded or ''}")
        data = msgspec.json.format(msgspec.json.encode(report(results, slo)), indent=1)
        args.out.write_bytes(data + b"\n")
    print("\n".join(figure.line() for figure in figures(results)))
    return 0 if not failed and all(figure.holds for figure in figures(results)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
