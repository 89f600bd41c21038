"""Scrapes that are not whole, and of which stretch what they count is said."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest

from diagnosis.importers.kinds import KINDS, Kind
from diagnosis.importers.registry import diagnose_files
from diagnosis.importers.verdict import ImportedDiagnosis
from diagnosis.symptoms import Symptom as Cause
from tests.diagnosis.importers.written import RECORDED, diagnose, read, silent

MARK = "# scrape "


def scrapes_of(name: str) -> list[str]:
    """The text of each scrape of a real record, with its mark."""
    text = gzip.decompress((RECORDED / f"vllm_{name}.prom.gz").read_bytes()).decode()
    return [f"{MARK}{one}" for one in text.split(MARK)[1:]]


def written(path: Path, scrapes: Sequence[str]) -> Path:
    path.write_text("".join(scrapes))
    return path


def said(found: ImportedDiagnosis) -> tuple[object, ...]:
    """What does not change by a scrape more or less."""
    named = [(one.symptom, one.certainty, one.open_to) for one in found.findings]
    restarts = [note for note in found.notes if "began again" in note]
    return found.verdict, named, [one.causes for one in found.undecided], found.causes, restarts


def test_a_last_scrape_of_one_line_does_not_decide_what_the_record_has(tmp_path: Path) -> None:
    """Fifty are whole."""
    *whole, last = scrapes_of("blocks_sound_1")
    first_line = "".join(last.splitlines(keepends=True)[:2])

    record = read(Kind.VLLM_METRICS, written(tmp_path / "cut.prom", [*whole, first_line]))

    assert (len(whole), record.count) == (50, 50)
    assert record.seen == KINDS[Kind.VLLM_METRICS].seen


@pytest.mark.parametrize("part", range(8))
def test_wherever_the_last_scrape_is_cut_the_findings_are_as_they_are(
    part: int, tmp_path: Path
) -> None:
    """In a name, in a label, in the middle of a value (then it looks as if its counter fell)."""
    *whole, last = scrapes_of("wide_long_prompts")
    expected = said(diagnose(Kind.VLLM_METRICS, written(tmp_path / "whole.prom", [*whole, last])))
    size = len(last) // 8
    places = [
        *range(part * size, (part + 1) * size, 41),
        *range(len(last) - 1 - part, len(last), 8),
    ]

    for place in places:
        path = written(tmp_path / "cut.prom", [*whole, last[:place]])
        assert said(diagnose(Kind.VLLM_METRICS, path)) == expected, last[:place][-40:]


def test_a_scrape_in_the_middle_that_is_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    """Else the next one would count all of the counters that it lacks as growth."""
    scrapes = scrapes_of("blocks_sound_1")
    cut = scrapes[20][: len(scrapes[20]) // 2].rpartition("\n")[0] + "\n"
    whole = written(tmp_path / "whole.prom", [*scrapes[:20], *scrapes[21:]])
    path = written(tmp_path / "cut.prom", [*scrapes[:20], cut, *scrapes[21:]])

    found = diagnose(Kind.VLLM_METRICS, path)

    assert said(found) == said(diagnose(Kind.VLLM_METRICS, whole))
    assert "scrapes that are not whole, and are left out: 1" in found.notes


def test_a_last_scrape_that_is_cut_between_two_engines_is_no_restart(tmp_path: Path) -> None:
    """Every name is there, and the sum of one is smaller."""
    scrapes = [
        f"{MARK}{at_s}\n"
        + "".join(f'vllm:generation_tokens_total{{engine="{one}"}} {at_s}\n' for one in range(2))
        for at_s in range(30)
    ]
    cut = scrapes[-1].rpartition("vllm:")[0]

    found = diagnose(Kind.VLLM_METRICS, written(tmp_path / "cut.prom", [*scrapes[:-1], cut]))

    assert found.records == 29
    assert not any("began again" in note for note in found.notes)


def hung(from_s: int, until_s: int) -> list[str]:
    """Three hundred scrapes, a second apart, of an engine that makes 20 tokens a second, but for
    [from_s, until_s)."""
    found: list[str] = []
    tokens = 0
    for at_s in range(300):
        tokens += 0 if from_s <= at_s < until_s else 20
        values = {
            "num_requests_running": 4, "num_requests_waiting": 0,
            "generation_tokens_total": tokens, "iteration_tokens_total_count": tokens // 4,
            "inter_token_latency_seconds_sum": tokens * 0.05,
            "inter_token_latency_seconds_count": tokens,
        }  # fmt: skip
        lines = (f"vllm:{name} {value}\n" for name, value in values.items())
        found.append(f"{MARK}{at_s}\n{''.join(lines)}")
    return found


def test_a_hang_before_the_stretch_is_not_found_in_it(tmp_path: Path) -> None:
    """It is found in a stretch that it reaches into, and in the whole record."""
    path = written(tmp_path / "hung.prom", hung(20, 50))

    def named(now: tuple[float, float], usual: tuple[float, float]) -> list[Cause]:
        found = diagnose_files(Kind.VLLM_METRICS, [path], silent, (now, usual))
        return [one.symptom for one in found.findings]

    assert named((99, 0), (199, 99)) == []
    assert named((275, 199), (99, 0)) == [Cause.ENGINE_HUNG]
    assert [one.symptom for one in diagnose(Kind.VLLM_METRICS, path).findings] == [
        Cause.ENGINE_HUNG
    ]
