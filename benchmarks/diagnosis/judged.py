"""One row for each episode: the injected fault, the finding, and the time to it.

Results of all episodes are megabytes; their rows are small enough to be committed, so that a
figure of `score` can be followed to the episodes that it is made of.

    .venv/bin/python -m benchmarks.diagnosis.judged [FOLDER ...] [--out FILE]

Folders are results of episodes; each is a list of rows under its own name.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.diagnosis.answers import UNSURE, spans
from benchmarks.diagnosis.episodes import RESULTS, Kept, read_kept
from benchmarks.diagnosis.score import judge_kept

Row = dict[str, object]


def row(kept: Kept) -> Row:
    """Seconds are as in `score.Judged`; `unsure_s` is the time since the warm-up with an
    indeterminate verdict. `discarded` says why an episode does not count."""
    judged, episode = judge_kept(kept), kept.episode
    answers = spans(episode.verdicts, episode.phases.reference_at_s, episode.phases.end_s)
    unsure_s = sum(length_s for length_s, answer in answers if answer == UNSURE)
    return {
        "name": episode.name,
        "split": kept.split,
        "date": kept.date,
        "cpu": kept.machine["cpu"],
        "intensity": episode.intensity,
        "done": judged.truth,
        "named": judged.answer,
        "to_detect_s": _rounded(judged.to_detect_s),
        "from_onset_s": _rounded(judged.from_onset_s),
        "to_clear_s": _rounded(judged.to_clear_s),
        "false_alarms": judged.alarms,
        "watched_s": _rounded(judged.watched_s),
        "unsure_s": _rounded(unsure_s),
        "discarded": episode.discarded,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def text(rows: Mapping[str, Sequence[Row]]) -> str:
    """JSON with a line for each row."""
    parts = [
        f'"{name}": [\n' + ",\n".join(json.dumps(one) for one in mine) + "\n]"
        for name, mine in rows.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[RESULTS], metavar="FOLDER")
    parser.add_argument("--out", type=Path, help="write the rows here, not to the terminal")
    args = parser.parse_args()
    found = text({folder.name: [row(one) for one in read_kept(folder)] for folder in args.folders})
    if args.out is None:
        print(found, end="")
    else:
        args.out.write_text(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
