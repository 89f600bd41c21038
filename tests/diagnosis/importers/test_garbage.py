"""Whatever a file holds: a diagnosis, or one typed error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diagnosis.importers.kinds import Kind
from diagnosis.importers.reading import NotImportable
from diagnosis.importers.verdict import ImportedDiagnosis
from tests.diagnosis.importers.test_formats import WRITTEN
from tests.diagnosis.importers.written import RECORDED, Line, diagnose

LINES: dict[Kind, list[bytes]] = {
    **{kind: [json.dumps(line).encode() for line in lines] for kind, lines in WRITTEN.items()},
    Kind.VLLM_OTLP: gzip.decompress(
        (RECORDED / "vllm_blocks_sound_1.otlp.jsonl.gz").read_bytes()
    ).splitlines(),
    Kind.VLLM_METRICS: gzip.decompress(
        (RECORDED / "vllm_blocks_sound_1.prom.gz").read_bytes()
    ).splitlines()[:400],
}  # fmt: skip
NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 1e308, -1e308, 2**63, 2**64, 2**200, 0.5, 1e-300, None, True, "x"]),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
)
few = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def survives(kind: Kind, path: Path) -> None:
    """A diagnosis that can be encoded, or the typed error."""
    try:
        found = diagnose(kind, path)
    except NotImportable:
        return
    assert isinstance(found, ImportedDiagnosis)
    assert msgspec.json.encode(found)


@pytest.mark.parametrize("kind", list(Kind))
@few
@given(data=st.binary(max_size=400))
def test_any_bytes_are_survived(kind: Kind, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)

    survives(kind, path)


@pytest.mark.parametrize("kind", list(Kind))
@few
@given(
    cuts=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 4000), st.binary(max_size=6)),
                  max_size=6),
)  # fmt: skip
def test_damaged_lines_are_survived(
    kind: Kind, tmp_path: Path, cuts: list[tuple[int, int, bytes]]
) -> None:
    lines = list(LINES[kind])
    for number, place, put in cuts:
        line = lines[number % len(lines)]
        at = place % (len(line) + 1)
        lines[number % len(lines)] = line[:at] + put + line[at + len(put) :]
    path = tmp_path / "file"
    path.write_bytes(b"\n".join(lines))

    survives(kind, path)


@pytest.mark.parametrize("kind", list(WRITTEN))
@few
@given(changes=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 40), NUMBERS), max_size=12))
def test_any_numbers_are_survived(
    kind: Kind, tmp_path: Path, changes: list[tuple[int, int, Any]]
) -> None:
    """Values that no engine writes, in the place of its own."""
    lines: list[Line] = json.loads(json.dumps(WRITTEN[kind]))
    for number, place, value in changes:
        places = list(leaves(lines[number]))
        holder, name = places[place % len(places)]
        holder[name] = value
    path = tmp_path / "file"
    path.write_text("\n".join(json.dumps(line) for line in lines))

    survives(kind, path)


def leaves(line: Line) -> list[tuple[Line, str]]:
    found: list[tuple[Line, str]] = []
    for name, value in line.items():
        found += leaves(value) if isinstance(value, dict) else [(line, name)]
    return found


@few
@given(values=st.lists(st.floats() | st.integers(-5, 5), min_size=4, max_size=40))
def test_any_scrapes_are_survived(tmp_path: Path, values: list[float]) -> None:
    """Counters that fall, and values that are no numbers."""
    text = ""
    for at_s, value in enumerate(values):
        text += f"# scrape {at_s * 3}\nvllm:num_requests_running 1\n"
        text += f"vllm:generation_tokens_total {value}\n"
        text += f'vllm:request_success_total{{finished_reason="error"}} {value}\n'
        text += f"vllm:inter_token_latency_seconds_sum {value}\n"
        text += f"vllm:inter_token_latency_seconds_count {at_s * 9}\n"
    path = tmp_path / "file"
    path.write_text(text)

    survives(Kind.VLLM_METRICS, path)
