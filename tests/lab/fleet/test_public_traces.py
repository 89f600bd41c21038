"""Recorded traces of others: their lines become requests whose shared text is shared."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from lab.fleet.public_traces import (
    BLOCK_TOKENS,
    Line,
    PublicTrace,
    TraceFileError,
    read,
    sessions_of,
    shared_share,
)
from lab.fleet.traffic import Session
from lab.fleet.world import FleetScenario, FleetWorld
from service.fleet.routing.settings import RoutingSettings
from telemetry.requests.slo_policy import SloClass
from telemetry.stats.slo_report import Verdict

MOONCAKE = [
    {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 1500, "input_length": 1024, "output_length": 7, "hash_ids": [0, 2]},
    {"timestamp": 4000, "input_length": 1100, "output_length": 3, "hash_ids": [0, 1, 3]},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,1100,109
2023-11-16 18:15:51.2224670,0,55
"""


def _sessions(lines: list[Line], copies: int = 1) -> tuple[Session, ...]:
    """One request a second of each copy, as long as the trace."""
    return sessions_of(lines, copies=copies, rate_per_s=copies, span_s=len(lines))


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "mooncake.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in MOONCAKE))
    return path


@pytest.mark.parametrize("trace", [PublicTrace.MOONCAKE, PublicTrace.MOONCAKE_SYNTHETIC])
def test_a_mooncake_prompt_shares_its_beginning_with_those_that_have_the_same_ids(
    mooncake: Path, trace: PublicTrace
) -> None:
    lines = read(trace, mooncake)
    assert [line.at_s for line in lines] == [0.0, 1.5, 4.0]
    first, second = (session.new_tokens(0) for session in _sessions(lines)[:2])
    assert (len(first), len(second)) == (600, 1024)
    assert first[:BLOCK_TOKENS] == second[:BLOCK_TOKENS]
    assert set(first[BLOCK_TOKENS:]).isdisjoint(second)
    assert shared_share(lines) == 3 / 7


def test_prompts_of_azure_share_nothing_and_have_a_token_at_least(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    lines = read(PublicTrace.AZURE, path)
    assert [line.prompt_tokens for line in lines] == [374, 1100, 1]
    assert [round(line.at_s, 3) for line in lines] == [0.0, 4.315, 4.542]
    assert shared_share(lines) == 0.0


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        (PublicTrace.MOONCAKE, '{"timestamp": 0, "input_length": 9, "output_length": 5}'),
        (PublicTrace.MOONCAKE, json.dumps(MOONCAKE[0] | {"input_length": 1025})),
        (PublicTrace.MOONCAKE, "no JSON"),
        (PublicTrace.AZURE, "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.6805900,374"),
        (PublicTrace.AZURE, AZURE.replace("1100", "many")),
    ],
)
def test_a_file_of_another_format_is_refused_with_the_request_named(
    tmp_path: Path, trace: PublicTrace, text: str
) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceFileError, match=rf"trace: request \d is not of the format {trace}"):
        read(trace, path)


def test_requests_come_at_the_rate_with_the_gaps_of_the_trace() -> None:
    lines = [Line(at_s, 100, 1, (number,)) for number, at_s in enumerate((0, 1, 5, 6, 20, 22))]
    at_s = [session.at_ns / 1e9 for session in _sessions(lines)]
    gaps = [later - earlier for earlier, later in pairwise(at_s)]
    assert gaps == pytest.approx([one * 6 / 22 for one in (1, 4, 1, 14)])


def test_copies_begin_at_other_places_and_share_no_text() -> None:
    lines = [Line(float(second), 100, 1, (second // 2,)) for second in range(41)]
    found = _sessions(lines, copies=2)
    texts = [set(session.new_tokens(0)) for session in found]
    half = len(lines) // 2
    at_first = [session for session in found if session.at_ns == 0]
    assert len({session.new_tokens(0)[0] % 21 for session in at_first}) == 2, "of 21 blocks"
    assert len(set.union(*texts)) == 2 * half
    assert len(found) == 2 * (len(lines) - 1)


def test_a_trace_of_one_request_has_no_rate() -> None:
    with pytest.raises(ValueError, match="at least two requests"):
        _sessions([Line(0.0, 1, 1, (0,))])


def test_a_fleet_serves_recorded_requests_and_finds_their_shared_text(mooncake: Path) -> None:
    """The second prompt comes when the first is done: what it shares is not computed again."""
    lines = read(PublicTrace.MOONCAKE, mooncake)
    target = SloClass(name="slow", ttft_ns=10**11, itl_ns=10**10)
    world = FleetWorld(
        FleetScenario(
            seed=1, engines=1, sessions=_sessions(lines), settings=RoutingSettings(), target=target
        )
    )
    world.run()
    found = world.outcome(0, 10**12)
    assert found.good == found.requests == 2
    assert found.hit_share == BLOCK_TOKENS / (600 + 1024)
    outputs = [asked.tokens for asked in world.asked.values()]
    assert outputs == [5, 7]

    scenario = replace(world.scenario, target=replace_fields(target, itl_ns=1))
    strict = FleetWorld(scenario)
    strict.run()
    assert strict.outcome(0, 10**12).verdicts == {Verdict.SLOW_TOKENS.value: 2}
