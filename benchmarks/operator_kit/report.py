"""A drill breaks a real server, which writes its incident folder; a browser opens the report.

The server runs with `--report-dir`. When the drill is over, there must be a folder that is named
after the drill's cause, with stacks of both processes, a dump that can be read, and a report that a
real Chromium opens without a network and with JavaScript off: it names the cause, loads nothing,
prints no error on the console, and fits a phone.

    .venv/bin/python -m benchmarks.operator_kit.report [--drill NAME] [--screenshots FOLDER]

A stopped engine, the default, is found on any machine. Drills that slow a server down, such as
prefill_interference, want a machine of their own: whatever else runs there is a cause, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from dashboards.extras import ExtraMissing, need
from lab.drills.episode import run_episode
from lab.drills.outcome.result import EpisodeResult
from lab.drills.servers import DidNotStart
from lab.drills.spec import EpisodeSpec, Phases
from telemetry.journal.journal_reader import open_journal

RESULTS = Path(__file__).parents[1] / "results" / "operator_report.json"
CHROMIUM = Path("/usr/bin/chromium")
SCREENS = {"wide": (1280, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
FILES = ("incident.journal", "report.html", "stacks.txt")


class Failed(Exception):
    """What this program shows does not hold; the message says what."""


@dataclass
class Opened:
    """One way in which the report was opened."""

    screen: str
    scheme: str
    title: str
    heading: str
    requested: list[str]
    console: list[str]
    page_width: int
    screen_width: int
    headings: list[str] = field(default_factory=list)
    axe: list[str] = field(default_factory=list)

    def check(self, cause: str) -> None:
        """Raises Failed."""
        wanted = cause.replace("_", " ")
        if wanted not in self.heading.lower() or wanted not in self.title.lower():
            raise Failed(f"the page says {self.heading!r}, and the drill was {cause}")
        if self.console:
            raise Failed(f"the console has {self.console}")
        if self.requested:
            raise Failed(f"the page loads {self.requested}")
        if self.axe:
            raise Failed(f"axe-core finds {self.axe}")
        if self.page_width > self.screen_width:
            raise Failed(f"{self.page_width} px do not fit a {self.screen} of {self.screen_width}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drill", default="engine_hung", help="the class of fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", help="as for `phasescope serve`")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of the report")
    parser.add_argument("--keep", type=Path, help="keep the drill and the folders here")
    args = parser.parse_args()
    try:
        with _work(args.keep) as work:
            found = show(args, work)
    except (Failed, ExtraMissing, DidNotStart) as error:
        print(f"does not hold: {error}", file=sys.stderr)
        return 1
    RESULTS.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    print(f"holds: {found['folder']} names {args.drill}; {RESULTS.name} is written")
    return 0


@contextmanager
def _work(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="phasescope-report-") as folder:
        yield Path(folder)


def show(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run the drill, and open what the server wrote. Raises Failed, ExtraMissing, DidNotStart."""
    need("playwright.sync_api", "dev")  # before a minute of a drill
    incidents = work / "incidents"
    result = drill(args, work, incidents)
    folder = _folder_of(incidents, args.drill)
    sizes = {name: (folder / name).stat().st_size for name in FILES if (folder / name).exists()}
    if set(sizes) != set(FILES):
        raise Failed(f"{folder.name} has {sorted(sizes)}, not {list(FILES)}")
    _check_stacks((folder / "stacks.txt").read_text())
    facts = sum(1 for _ in open_journal(folder / "incident.journal").facts())
    opened = open_report(folder / "report.html", args.screenshots)
    for one in opened:
        one.check(args.drill)
    return {
        "drill": args.drill,
        "seed": args.seed,
        "folder": folder.name.split("-", 3)[-1],
        "folders": sorted(path.name.split("-", 3)[-1] for path in incidents.iterdir()),
        "bytes": sizes,
        "facts": facts,
        "fault_s": [result.on_s, result.off_s],
        "opened": [asdict(one) for one in opened],
    }


def drill(args: argparse.Namespace, work: Path, incidents: Path) -> EpisodeResult:
    """Raises DidNotStart."""
    spec = EpisodeSpec(
        symptom=args.drill,
        seed=args.seed,
        model=args.model,
        out=work / "drills",
        phases=Phases(warm_up_s=15.0, reference_s=20.0, fault_s=25.0, recovery_s=20.0),
        flags=("--report-dir", str(incidents), "--report-interval", "5"),
    )
    return run_episode(spec, lambda line: print(f"  {line}", flush=True))


def _folder_of(incidents: Path, cause: str) -> Path:
    """The last folder that is named after the cause."""
    if not incidents.is_dir():
        raise Failed("the server wrote no folder")
    found = sorted(path for path in incidents.iterdir() if path.name.endswith(f"-{cause}"))
    if not found:
        names = sorted(path.name for path in incidents.iterdir())
        raise Failed(f"no folder is named after {cause}: {names}")
    return found[-1]


def _check_stacks(text: str) -> None:
    """Check the stacks of both processes, each twice and with several threads. Raises Failed."""
    for process in ("gateway", "engine"):
        parts = text.split(f"\n{process}\n")[1:]
        if len(parts) != 2 or any(part.count("hread ") < 2 for part in parts):
            raise Failed(f"the stacks lack threads of the {process}")


def open_report(report: Path, screenshots: Path | None) -> list[Opened]:
    """In light and dark, on a wide screen and on a phone; without a network, without JavaScript.
    Raises Failed, ExtraMissing."""
    if not CHROMIUM.exists():
        raise Failed(f"{CHROMIUM} is not installed: apt-get install chromium")
    sync_api = need("playwright.sync_api", "dev")
    opened: list[Opened] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        for screen, size in SCREENS.items():
            for scheme in SCHEMES:
                context = browser.new_context(java_script_enabled=False, **_options(scheme, size))
                one = _open(context, report, screen, scheme, size[0], screenshots)
                context.close()
                one.axe = _axe(browser, report, _options(scheme, size))
                opened.append(one)
        browser.close()
    return opened


def _options(scheme: str, size: tuple[int, int]) -> dict[str, Any]:
    viewport = {"width": size[0], "height": size[1]}
    return {"offline": True, "color_scheme": scheme, "viewport": viewport}


def _open(
    context: Any, report: Path, screen: str, scheme: str, width: int, screenshots: Path | None
) -> Opened:
    console: list[str] = []
    requested: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: console.append(message.text))
    page.on("pageerror", lambda error: console.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(report.resolve().as_uri())
    if screenshots is not None:
        screenshots.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=screenshots / f"report-{screen}-{scheme}.png")
        page.screenshot(path=screenshots / f"report-{screen}-{scheme}-whole.png", full_page=True)
    return Opened(
        screen=screen,
        scheme=scheme,
        title=page.title(),
        heading=page.locator("h1").inner_text(),
        requested=[url for url in requested if url != report.resolve().as_uri()],
        console=console,
        page_width=page.evaluate("document.documentElement.scrollWidth"),
        screen_width=width,
        headings=[text.strip() for text in page.locator("main > h2").all_inner_texts()],
    )


def _axe(browser: Any, report: Path, options: dict[str, Any]) -> list[str]:
    """What axe-core finds that is serious or worse; it is a script, so here these are allowed."""
    axe = need("axe_playwright_python.sync_playwright", "dev")
    context = browser.new_context(bypass_csp=True, **options)
    page = context.new_page()
    page.goto(report.resolve().as_uri())
    for summary in page.locator("summary").all():
        summary.click()
    found = axe.Axe().run(page).response["violations"]
    context.close()
    return [
        f"{one['id']}: {one['help']} ({one['nodes'][0]['target']})"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


if __name__ == "__main__":
    sys.exit(main())
