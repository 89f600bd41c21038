"""What is committed of the benchmarks stays small, whole and true to its figures."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.diagnosis.episodes import read_kept
from benchmarks.diagnosis.records import RECORDS, SUFFIX, results_beside
from benchmarks.diagnosis.score import HEALTHY, truth_of
from diagnosis.symptoms import Symptom
from lab.drills.mechanism import TEST
from lab.drills.registry import of_split

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
FIGURES = PAGES / "img"
NOT_RECORDED = {Symptom.ADAPTER_CHURN}
"""Classes of which no episode was recorded: they are younger than the corpus."""
CORPUS = (RECORDS, results_beside(RECORDS))
MB, KIB = 1_000_000, 1024
SOURCE = re.compile(r"benchmarks/results/(\S+) sha256:([0-9a-f]{64})")


def tracked() -> dict[Path, int]:
    """Bytes of every file that a fresh clone has."""
    command = ["git", "ls-files", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return {path: path.lstat().st_size for path in paths if path.exists()}


def of_corpus(path: Path) -> bool:
    return any(folder in path.parents for folder in CORPUS)


def test_a_clone_is_small() -> None:
    """Results and pictures below 6 MB, less than 19 MB in all, and no file beyond 512 KiB."""
    sizes = tracked()
    measured = (ROOT / "benchmarks" / "results", ROOT / "docs" / "results", ROOT / "docs" / "img")

    assert sum(n for path, n in sizes.items() if {*measured} & {*path.parents}) < 6 * MB
    assert sum(sizes.values()) < 19 * MB
    assert {path.name for path, size in sizes.items() if size > 512 * KIB} == set()


def test_results_are_summaries() -> None:
    """Less than 2 MB with the plots; the records beside them at most 5."""
    sizes = tracked()
    summaries = {
        path: size
        for path, size in sizes.items()
        if (RESULTS in path.parents and not of_corpus(path)) or FIGURES in path.parents
    }

    assert 0 < sum(summaries.values()) < 2 * MB
    assert 0 < sum(size for path, size in sizes.items() if of_corpus(path)) <= 5 * MB


def test_the_corpus_has_one_episode_of_each_class_and_a_healthy_one() -> None:
    """Of every cause that makes requests late but NOT_RECORDED; each record has its result."""
    kept = read_kept(results_beside(RECORDS))
    late = {mechanism.symptom for mechanism in of_split(TEST) if mechanism.harms}
    harmful = late - {Symptom.SLO_MISSED} - NOT_RECORDED  # the first is no cause

    assert sorted(truth_of(one.episode) for one in kept) == sorted({*harmful, HEALTHY})
    assert {path.name.removesuffix(SUFFIX) for path in RECORDS.iterdir()} == {
        one.episode.name for one in kept
    }
    assert not [one.episode.name for one in kept if one.episode.discarded]


def test_every_result_can_be_read() -> None:
    """JSON that is JSON, which knows no infinity, and not empty."""
    paths = [path for path in RESULTS.rglob("*.json") if not of_corpus(path)]
    strange: list[str] = []

    assert paths
    for path in paths:
        assert json.loads(path.read_text(), parse_constant=strange.append), path
        assert strange == [], path


def test_every_figure_is_drawn_from_the_results_that_are_there() -> None:
    """A file whose results have changed since is drawn anew by `python -m benchmarks.plots`."""
    figures = sorted(FIGURES.glob("*.svg"))

    assert figures
    for path in figures:
        text = path.read_text()
        sources = dict(SOURCE.findall(text))
        now = {name: hashlib.sha256((RESULTS / name).read_bytes()).hexdigest() for name in sources}

        assert ElementTree.fromstring(text).tag.endswith("svg"), path.name
        assert len(text.encode()) < 60_000, path.name
        assert sources, path.name
        assert now == sources, path.name


def test_pages_show_every_figure_and_name_files_that_exist() -> None:
    """And one commit at which the other records are."""
    texts = {path.name: path.read_text() for path in PAGES.glob("*.md")}
    shown = {name for text in texts.values() for name in re.findall(r"\(img/(\S+?)\)", text)}
    linked = {name for text in texts.values() for name in re.findall(r"\((\w+\.md)\)", text)}
    named = {
        name for text in texts.values() for name in re.findall(r"`(benchmarks/results/\S+?)`", text)
    }
    commits = {
        commit
        for text in (texts["records.md"], (ROOT / "benchmarks" / "README.md").read_text())
        for commit in re.findall(r"\b[0-9a-f]{40}\b", text)
    }

    assert shown == {path.name for path in FIGURES.iterdir()}
    assert linked | {"index.md"} == set(texts)
    assert {name for name in named if not (ROOT / name).exists()} == set()
    assert len(commits) == 1
