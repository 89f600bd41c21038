"""Tails, chains and the cost of diagnosis are scored by what stood, and for how long."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.diagnosis.actions import answered
from benchmarks.diagnosis.chains.scoring import ChainRow, came_about, is_right, stood_longest
from benchmarks.diagnosis.chains.scoring import acceptance as chains_held
from benchmarks.diagnosis.chains.scoring import row_of as chain_row
from benchmarks.diagnosis.cost.__main__ import LOADS
from benchmarks.diagnosis.cost.journal import pieces, timing_of
from benchmarks.diagnosis.cost.live import Block, order, summed
from benchmarks.diagnosis.episodes import Kept
from benchmarks.diagnosis.gauges import GAUGES, Gauges
from benchmarks.diagnosis.tails.__main__ import left_out, table
from benchmarks.diagnosis.tails.figures import Figure, nth
from benchmarks.diagnosis.tails.intensities import TailRecord
from benchmarks.diagnosis.tails.scoring import TailRow, acceptance, by_class, held_share, row_of
from lab.drills.calibration.probe import Calibration
from lab.drills.client import Sent
from lab.drills.harm import HarmMeasure, Level, Reached
from lab.drills.outcome.labels import Label
from lab.drills.outcome.result import EpisodeResult
from lab.drills.spec import Phases
from lab.drills.watch import PollSample, VerdictChange, timeline
from telemetry.facts.clock import MonotonicClock
from telemetry.journal.journal import write_journal
from tests.support.servers.served import facts_of, served, started

SECOND = 1_000_000_000
PHASES = Phases(warm_up_s=10, reference_s=10, fault_s=40, recovery_s=10)


def said(at_s: float, top: str | None, *chain: str) -> VerdictChange:
    named = () if top is None else ((top, 0.9),)
    verdict = "healthy" if top is None else "fault"
    return VerdictChange(at_s=at_s, verdict=verdict, named=named, chain=chain)


def kept(turns: list[VerdictChange], *, value: float = 2.0, **more: object) -> Kept:
    episode = EpisodeResult(
        name="host_stall-regex-9000",
        symptom="host_stall",
        mechanism="regex",
        intensity=30.0,
        seed=9000,
        phases=PHASES,
        flags=(),
        capacity=None,
        load=0.4,
        begin_ns=0,
        on_s=20.0,
        off_s=60.0,
        first_harmed_s=22.0,
        clients={},
        others={},
        harms=("stall_p95",),
        verdicts=turns,
        conditions={},
        discarded=[],
        label=Label(
            symptom="host_stall", mechanism="regex", intensity=30.0, unit="a minute", seed=9000,
            on_ns=20 * SECOND, off_ns=60 * SECOND,
        ),
        label_sha256="",
    )  # fmt: skip
    found = Calibration(
        symptom="host_stall", mechanism="regex", level=Level.LOWER, intensity=30.0, value=2.1,
        is_met=True, reference=100.0, tried=(),
    )  # fmt: skip
    reached = Reached(measure=HarmMeasure.TTFT_P95, reference=100.0, fault=100 * value, requests=80)
    return Kept(
        split="tails",
        date="2026-01-01",
        machine={"cpu": "one"},
        episode=msgspec.structs.replace(episode, **more),
        tail=TailRecord(level=Level.LOWER, calibration=found, reached=reached),
    )


# --- tails ---------------------------------------------------------------------------------


def test_held_is_the_share_of_the_fault_after_the_name() -> None:
    """Cut to the fault on both sides; what is never named is not held."""
    turns = [
        said(0, None), said(25, "throttled"), said(30, "host_stall"),
        said(50, "queue_overload"), said(55, "host_stall"), said(65, None),
    ]  # fmt: skip

    assert held_share(turns, "host_stall", 20, 60) == (30, pytest.approx(25 / 30))
    assert held_share(turns, "host_stall", 20, 40) == (30, 1.0)
    assert held_share(turns, "kv_thrash", 20, 60) == (None, 0.0)
    assert held_share([], "kv_thrash", 20, 60) == (None, 0.0)


def test_a_class_that_was_named_before_the_onset_is_not_named_by_it() -> None:
    """Not while it stands, whatever else changes; what is said anew in the fault is about it."""
    before = [said(0, None), said(18, "host_stall"), said(22, "host_stall", "host_stall", "x")]
    anew = [*before, said(25, None), said(30, "host_stall")]

    assert held_share(before, "host_stall", 20, 60) == (None, 0.0)
    assert held_share(anew, "host_stall", 20, 60) == (30, 1.0)
    assert row_of(kept(before)).to_name_s is None


def test_an_episode_is_named_from_its_first_harm_and_counts_at_its_level_only() -> None:
    """One whose clients saw too little, or far too much, is listed and left out."""
    turns = [said(0, None), said(26, "host_stall")]
    row = row_of(kept(turns))

    assert (row.to_name_s, row.held, row.right, row.why_not) == (4.0, 1.0, True, [])
    assert row_of(kept([said(0, None), said(21, "host_stall")])).to_name_s == 0.0
    mild, wild = row_of(kept(turns, value=1.1)), row_of(kept(turns, value=9.0))
    assert len(mild.why_not) == len(wild.why_not) == 1
    assert row_of(kept(turns, discarded=["steal"])).why_not == ["steal"]
    assert mild.name in left_out([row, mild])
    with pytest.raises(ValueError, match="no episode of the tail"):
        row_of(msgspec.structs.replace(kept(turns), tail=None))


def rows() -> list[TailRow]:
    good = row_of(kept([said(0, None), said(26, "host_stall")]))
    bad = row_of(kept([said(0, None)]))
    upper = msgspec.structs.replace(good, level=Level.UPPER, to_name_s=1.0)
    return [good, bad, upper]


def test_a_fault_that_is_never_named_is_later_than_all_others() -> None:
    """In the median, and as nothing held."""
    found = by_class(rows())["host_stall"]

    assert (found["lower"].right, found["lower"].episodes) == (1, 2)
    assert found["lower"].named_s == 4.0
    assert found["upper"].named_s == 1.0
    assert found["both"].held == pytest.approx(2 / 3, abs=1e-3)
    never = by_class([rows()[1]])["host_stall"]["lower"]
    assert (never.named, never.named_s) == (0, None)
    shown = table(rows())
    assert "| host_stall | 1 of 2 | 4 | 50 % | 1 of 1 | 1 | 100 % |" in shown


def test_the_acceptance_can_fail_in_each_of_its_figures() -> None:
    """A class that was not run at both levels is one of them."""
    one_class = acceptance([rows()[0], rows()[2]], classes=1)

    assert all(figure.holds for figure in one_class)
    assert not acceptance([rows()[0], rows()[2]], classes=18)[0].holds
    assert not acceptance([rows()[0]], classes=1)[0].holds
    missed = {figure.name: figure.holds for figure in acceptance([rows()[1]] * 2, classes=1)}
    assert sum(missed.values()) == 0
    assert acceptance([], classes=18) == []
    assert "never" in Figure("s", None, 10, False).line()
    assert nth([3, 1, float("inf")], 0.5) == 3


# --- chains --------------------------------------------------------------------------------


def test_a_chain_is_right_with_its_first_link_and_the_others_in_order() -> None:
    """More links do no harm; a missing or a later first link does."""
    truth = ("slow_client", "kv_exhaustion", "kv_thrash")

    assert is_right(truth, truth)
    assert is_right(("slow_client", "kv_exhaustion", "queue_overload", "kv_thrash"), truth)
    assert not is_right(("kv_exhaustion", "kv_thrash"), truth)
    assert not is_right(("slow_client", "kv_thrash", "kv_exhaustion"), truth)
    assert not is_right(("slow_client",), truth)
    assert not is_right((), truth)


def test_the_chain_that_stood_longest_is_the_answer() -> None:
    """A finding without a chain answers with its class."""
    turns = [said(0, None), said(30, "throttled", "throttled", "queue_overload"), said(55, "x")]

    assert stood_longest(turns, 40, 60) == ("throttled", "queue_overload")
    assert stood_longest(turns, 55, 60) == ("x",)
    assert stood_longest([], 0, 60) == ()


def gauges(begin_s: int = 20, end_s: int = 60, **fault: float) -> Gauges:
    usual = dict.fromkeys(GAUGES, 0.0)
    spans = [fault if begin_s <= at < end_s else {} for at in range(70)]
    return Gauges(begin_ns=0, rows=tuple(tuple({**usual, **more}.values()) for more in spans))


def test_an_episode_counts_only_if_the_links_of_its_chain_came_about() -> None:
    """Its own gauges show them: otherwise there was no chain to be found."""
    episode = kept([said(0, None)]).episode

    assert came_about("queue_overload", episode, gauges(waiting=4.0))
    assert not came_about("queue_overload", episode, gauges(waiting=0.5))
    assert came_about("kv_exhaustion", episode, gauges(waiting=1.0, kv_used=0.95))
    assert not came_about("kv_exhaustion", episode, gauges(kv_used=0.95))
    assert came_about("kv_thrash", episode, gauges(preemptions=1.0))
    assert not came_about("kv_thrash", episode, gauges())
    assert not came_about("kv_thrash", episode, None)


def test_a_cache_that_was_full_before_the_fault_too_did_not_become_so_by_it() -> None:
    """Nor one that was full for a second."""
    episode = kept([said(0, None)]).episode
    full = {"waiting": 1.0, "kv_used": 0.95}

    assert came_about("kv_exhaustion", episode, gauges(30, 35, **full))
    assert not came_about("kv_exhaustion", episode, gauges(30, 31, **full))
    assert not came_about("kv_exhaustion", episode, gauges(0, 60, **full))


def test_nineteen_chains_that_count_need_sixteen_right() -> None:
    """As large a part of them as of ten, and no fewer than ten."""
    one = ChainRow(
        name="", date="", cpu="", truth=("a", "b"), answer=("a", "b"), right=True,
        first_right=True, why_not=[],
    )  # fmt: skip
    wrong = msgspec.structs.replace(one, right=False)
    left_out = msgspec.structs.replace(one, why_not=["b did not come about"])

    def holds(*rows: ChainRow) -> list[bool]:
        return [figure.holds for figure in chains_held(rows)]

    assert holds(*[one] * 16, *[wrong] * 3, left_out) == [True, True]
    assert holds(*[one] * 15, *[wrong] * 4, left_out) == [True, False]
    assert holds(*[one] * 8, *[wrong] * 2) == [True, True]
    assert holds(*[one] * 9, *[left_out] * 9) == [False, True]


# --- actions -------------------------------------------------------------------------------


def test_what_was_not_answered_in_its_span_counts_on_no_side_of_an_action() -> None:
    """Else the slow ones would be left out before it, and counted after it."""
    episode = kept([said(0, None)]).episode

    def sent(due_s: float, end_s: float | None, **more: bool) -> Sent:
        end_ns = None if end_s is None else int(end_s * SECOND)
        return Sent(
            request_id=f"{due_s}", tenant="red", due_ns=int(due_s * SECOND), end_ns=end_ns,
            is_culprit=more.get("is_culprit", False),
        )  # fmt: skip

    log = [
        sent(19, 21), sent(21, 22), sent(22, 61), sent(23, None), sent(24, 25, is_culprit=True),
        sent(61, 62), sent(68, 71),
    ]  # fmt: skip

    assert [one.request_id for one in answered(episode, log, 20, 60)] == ["21"]
    assert [one.request_id for one in answered(episode, log, 60, 70)] == ["61"]


def test_a_row_of_a_chain_says_what_was_done_and_said() -> None:
    """The links of the finding are read from the server's answer, whatever else they hold."""
    answer = {
        "verdict": "fault",
        "findings": [
            {
                "symptom": "throttled",
                "confidence": 0.9,
                "chain": [{"symptom": "throttled", "ms": 9.0}, {"symptom": "queue_overload"}],
            }
        ],
    }
    raw = msgspec.Raw(msgspec.json.encode(answer))
    turns = timeline([PollSample(at_ns=30 * SECOND, until_ns=0, polls=1, answer=raw)], 0)
    one = kept(turns, symptom="throttled", mechanism="quota_then_queue")
    row = chain_row(msgspec.structs.replace(one, gauges=gauges(waiting=9.0)))

    assert row.answer == row.truth == ("throttled", "queue_overload")
    assert row.right
    assert row.why_not == []
    assert chain_row(one).why_not == ["queue_overload did not come about"]


# --- the cost ------------------------------------------------------------------------------


def test_blocks_with_and_without_the_folds_take_turns() -> None:
    """Each is first in half of the pairs, so that drift of the machine hits both."""
    found = order(4)

    assert found == [True, False, False, True] * 2


def test_the_cost_is_what_the_folds_took_while_they_were_on() -> None:
    """Switched: the difference of the whole process, from neighbours."""

    def block(is_on: bool, fold_s: float, gateway_s: float) -> Block:
        return Block(is_on=is_on, seconds=10.0, fold_cpu_s=fold_s, gateway_cpu_s=gateway_s, facts=9)

    off = [block(False, 0, 2.0), block(False, 0, 2.2)]
    blocks = [block(True, 0.2, 2.3), *off, block(True, 0.1, 2.3)]
    found = summed(LOADS[0], {"diagnosis": 0.015}, block(True, 0.15, 2.3), blocks)

    assert found.fold == 0.015
    assert found.switch == pytest.approx(0.02)
    assert found.switch_error == pytest.approx(0.01)


def test_the_fold_is_timed_over_a_journal_in_the_pieces_of_a_live_server(tmp_path: Path) -> None:
    """All facts, in order, none in two pieces."""
    facts = [started(), *facts_of(served("poisson", 4))]
    path = tmp_path / "one.journal"
    write_journal(path, facts, MonotonicClock(), "test")
    found = timing_of(path)

    assert [fact for piece in pieces(facts) for fact in piece] == facts
    assert found.facts == len(facts)
    assert found.cpu_s >= 0
    assert found.share > 0
