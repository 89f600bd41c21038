"""The page: a view model through templates, everything inline, so that the file stands alone.

All values are escaped: tenants, classes and reasons are words of clients and operators.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dashboards.report.charts import picture
from dashboards.report.incident import Incident, Remedies
from dashboards.report.moments import shown
from dashboards.report.runbook import Sections, runbook
from diagnosis.evidence import Counted, Late, Measurement, Promised
from diagnosis.routed.evidence import Routed, Transferred
from diagnosis.routed.symptoms import FleetSymptom
from diagnosis.symptoms import Evidence, Symptom

_TEMPLATES = Path(__file__).parent / "templates"
_STEPS_SHOWN = ("Mitigate now", "Confirm", "Fix", "Is it over?")
_SECOND_MS, _MINUTE_MS = 1_000.0, 60_000.0
_ACRONYMS = ("cpu", "kv", "slo")
_LONG_MS = re.compile(r"\b(\d{1,3}(?:,\d{3})+|\d{4,}(?:\.\d+)?) ms\b")


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Who made the report, when, and with which versions."""

    made: str
    versions: dict[str, str]


def report_page(incident: Incident, helped: Remedies, about: About) -> str:
    """The whole HTML file."""
    sections = _sections(incident)
    template = _environment().get_template("report.html")
    return template.render(
        incident=incident,
        helped=helped,
        about=about,
        picture=picture(incident),
        mitigate=sections.get("Mitigate now", ()),
        steps=[(name, sections[name]) for name in _STEPS_SHOWN if sections.get(name)],
        reproduce=sections.get("Reproduce", ()),
        commands=commands(incident.record.source),
        shown_ids={one.request_id for one in incident.exemplars},
    )


def commands(source: str) -> tuple[tuple[str, str], ...]:
    """What to run on the record, and what each says."""
    is_url = "://" in source
    first = (
        (f"curl -o incident.journal {source}/debug/journal", "keep the record: a restart forgets"),
    )
    record = "incident.journal" if is_url else source
    return (
        *(first if is_url else ()),
        (f"phasescope diagnose {record} --root --settings", "the verdict and the replays"),
        (f"phasescope timeline {record} -o incident.json.gz", "every step, for ui.perfetto.dev"),
        (f"phasescope export {record} --out tables", "requests, steps and ledgers as Parquet"),
        (f"phasescope report {record} -o incident.html", "this report"),
    )


def title_of(symptom: Symptom | FleetSymptom) -> str:
    """A symptom as a heading."""
    words = symptom.value.split("_")
    found = [word.upper() if word in _ACRONYMS else word for word in words]
    return " ".join([found[0][:1].upper() + found[0][1:], *found[1:]])


def meaning_of(evidence: Evidence) -> str:
    """What a quantity of a finding is; empty for one of an older version."""
    for kind in (Measurement, Counted, Late, Promised, Routed, Transferred):
        try:
            return kind.named(evidence.name).meaning
        except KeyError:
            continue
    return ""


def _sections(incident: Incident) -> Sections:
    """The runbook of the first cause, with the names of this incident where it has some."""
    top = incident.top
    if top is None:
        return {}
    names = {}
    requests = [one.name for one in incident.culprits if one.is_named and one.is_request]
    if requests:
        names["CULPRIT"] = requests[0]
    if incident.exemplars:
        names["VICTIM"] = incident.exemplars[0].request_id
    return runbook(top.symptom, names)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        duration=_duration, offset=_offset, percent=_percent, number=_number, title_of=title_of,
        limit=shown, permille=_permille, readable=_readable, brief=_brief, meaning=meaning_of,
    )  # fmt: skip
    return found


def _duration(value_ms: float | None) -> str:
    """Milliseconds with three digits that count, or seconds, or minutes."""
    if value_ms is None:
        return "-"
    if value_ms >= _MINUTE_MS:
        whole_s = round(value_ms / 1e3)
        return f"{whole_s // 60} min {whole_s % 60:02d} s"
    if value_ms >= _SECOND_MS:
        return f"{value_ms / 1e3:.2f} s"
    digits = 0 if value_ms >= 100 else 1 if value_ms >= 10 else 2
    return f"{value_ms:.{digits}f} ms"


def _readable(text: str) -> str:
    """The same words, with long times in larger units."""
    return _LONG_MS.sub(lambda found: _duration(float(found[1].replace(",", ""))), text)


def _brief(claim: str) -> str:
    """A claim up to its details."""
    return re.split(r"[,:] ", claim, maxsplit=1)[0]


def _offset(at_s: float) -> str:
    return f"{at_s:+.1f} s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def _permille(share: float) -> str:
    """A share of a width, as a coordinate of 1000."""
    return f"{1000 * share:.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
