"""What the importers say of recordings with known faults.

    python -m benchmarks.importers.score CUT --out benchmarks/results/attach/importers-SEED.json

`CUT` is a folder that `python -m benchmarks.importers.trim` has written. Outcomes: *named* the
injected cause is the first that is named; *open* it is one of those that the answer leaves open, or
a later one; *wrong* another is named; *abstained*; *quiet* nothing was injected and nothing named.
Exits with 1 where a cause was named though nothing had been injected.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from diagnosis.importers.kinds import Kind
from diagnosis.importers.registry import diagnose_files
from diagnosis.importers.verdict import ImportedDiagnosis
from diagnosis.symptoms import Symptom

_SOUND = "sound"
# what an injection does: long prompts of others delay tokens, a small pool makes both
_SHOWS = {
    "long_prompts": {Symptom.PREFILL_INTERFERENCE, Symptom.LONG_PROMPTS},
    "prefix_cache_cold": {Symptom.PREFIX_CACHE_COLD},
    "queue_overload": {Symptom.QUEUE_OVERLOAD},
    "kv_thrash": {Symptom.KV_THRASH, Symptom.KV_EXHAUSTION},
}


class Scored(msgspec.Struct, frozen=True):
    """One recording by one kind of evidence."""

    recording: str
    kind: Kind
    injected: str
    outcome: str
    named: list[str]
    undecided: list[list[str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cut", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    found = [_scored(path) for path in sorted(args.cut.glob("*.gz"))]
    if not found:
        print(f"score: {args.cut}: no recordings; run record_vllm and trim first", file=sys.stderr)
        return 1
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    for one in found:
        print(f"{one.recording:<28} {one.kind.value:<13} {one.outcome:<10} {', '.join(one.named)}")
    return int(any(one.outcome == "false alarm" for one in found))


def _scored(path: Path) -> Scored:
    kind = Kind.VLLM_METRICS if ".prom" in path.name else Kind.VLLM_OTLP
    recording = path.name.partition(".")[0].removeprefix("vllm_")
    injected = recording.partition("_")[2]
    said = diagnose_files(kind, [path], lambda _: None)
    return Scored(
        recording,
        kind,
        _SOUND if injected.startswith(_SOUND) else injected,
        _outcome(injected, said),
        [f"{one.symptom.value} ({one.certainty.value})" for one in said.findings],
        [[cause.value for cause in one.causes] for one in said.undecided],
    )


def _outcome(injected: str, said: ImportedDiagnosis) -> str:
    named = [one.symptom for one in said.findings]
    if injected.startswith(_SOUND):
        return "false alarm" if named else "quiet"
    expected = _SHOWS[injected]
    left = {cause for one in said.findings for cause in one.open_to}
    left |= {cause for one in said.undecided for cause in one.causes} | {*named[1:]}
    if named and named[0] in expected:
        return "named"
    if expected & left:
        return "open"
    return "wrong" if named else "abstained"


if __name__ == "__main__":
    sys.exit(main())
