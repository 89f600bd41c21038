"""Records of real episodes, one of each class: an old journal tells the present version as much."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.diagnosis.again import harmed_again, judged_again, turns_of
from benchmarks.diagnosis.episodes import Kept, read_kept
from benchmarks.diagnosis.identity import replayed
from benchmarks.diagnosis.records import RECORDS, SLO_FILE, SUFFIX, folder_of, results_beside
from benchmarks.diagnosis.score import judge_kept, truth_of

pytestmark = pytest.mark.long

KEPT = read_kept(results_beside(RECORDS))
NAMES = [one.episode.name for one in KEPT]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_episode_replays_to_the_same_decisions(name: str) -> None:
    """Every admission, chunk, preemption, eviction and end, with recorded durations."""
    found = replayed(RECORDS / f"{name}{SUFFIX}")

    assert found.decisions > 1000
    assert found.differences == []


@pytest.mark.parametrize("kept", KEPT, ids=NAMES)
def test_the_present_diagnosis_names_the_cause_of_a_recorded_episode(kept: Kept) -> None:
    """By its journal alone, for most of the second half of the fault."""
    judged = judged_again((kept, RECORDS))

    assert judged is not None
    assert judge_kept(judged, again=True).answer == truth_of(kept.episode)


def test_an_episode_is_judged_by_the_slo_that_is_kept_with_it(tmp_path: Path) -> None:
    name = "healthy_host_stall-write-2000"
    folder = folder_of(name, tmp_path)
    assert folder is not None

    def says_missed() -> bool:
        return any(turn.top == "slo_missed" for turn in turns_of(folder, 0))

    assert not says_missed()
    (folder / SLO_FILE).write_text("[classes.chat]\nttft_ms = 1\nitl_ms = 1\n")
    assert says_missed()


def test_the_first_harm_of_a_record_is_found_again_within_its_fault() -> None:
    """Of an overload by longer outputs: its own requests are those that it makes late."""
    name = "queue_overload-longer_outputs-2000"
    (kept,) = (one for one in KEPT if one.episode.name == name)
    found = harmed_again((kept, RECORDS))

    assert found is not None
    assert found.episode.first_harmed_s == pytest.approx(44.97, abs=0.01)
    assert found.again is kept.again


def test_an_episode_without_a_record_is_passed_over() -> None:
    assert judged_again((KEPT[0], RECORDS / "nowhere")) is None
    assert harmed_again((KEPT[0], RECORDS / "nowhere")) is None
