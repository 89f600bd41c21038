"""`python -m docs.pictures`: serve under load, keep what the server says, draw it into docs/img.

With `--record FOLDER` what it said is kept there; with `--from FOLDER` only the drawing is done.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from docs.pictures import terminal, timeline, trace
from docs.pictures.record import record

IMAGES = Path(__file__).parents[1] / "img"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.pictures")
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    parser.add_argument("--from", dest="recorded", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.recorded is not None:
        draw(args.recorded)
        return
    with tempfile.TemporaryDirectory(prefix="phasescope-pictures-") as temporary:
        folder = args.record or Path(temporary)
        record(folder)
        draw(folder)


def draw(folder: Path) -> None:
    """All pictures from what was recorded."""
    IMAGES.mkdir(exist_ok=True)
    for name, picture in (
        ("explain", terminal.explain(folder)),
        ("monitor", terminal.monitor(folder)),
        ("trace", trace.draw(folder)),
        ("timeline", timeline.draw(folder)),
    ):
        path = IMAGES / f"{name}.svg"
        path.write_text(picture)
        print(f"{path.name}: {len(picture) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
