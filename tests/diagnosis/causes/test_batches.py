"""Requests that came at once: told from chance by the rate of the moment and by the baseline."""

from __future__ import annotations

from itertools import pairwise
from math import exp
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.attribution.batches import Batch, Batches, poisson_tail
from diagnosis.detection.counts import Stage
from diagnosis.detection.late import Late, LateKind, LateLog, Tails, largest_cluster
from diagnosis.detection.reference import Reference, slo_baseline
from diagnosis.detection.request_state import RequestState
from tests.support.worlds.twins.cases import SECOND

MS = 1_000_000
TEN = [f"tenant-{number}" for number in range(10)]


def request(begun_ns: int, tenant: str) -> RequestState:
    return RequestState(
        request_id=f"req-{begun_ns}", trace_id="0" * 32, tenant=tenant, begun_ns=begun_ns,
        stage=Stage.FIRST, entered_ns=begun_ns, read_ns=begun_ns, slo_class="",
        gap_target_ns=100 * MS, submitted_ns=begun_ns,
    )  # fmt: skip


def usual(per_s: float = 1.5, most_at_once: int = 2, tenants: int = 10) -> Reference:
    return msgspec.structs.replace(
        slo_baseline(),
        seconds=60.0,
        requests_per_s=per_s,
        tenants_per_s=dict.fromkeys(TEN[:tenants], per_s / tenants),
        tails=Tails(most_at_once=most_at_once),
    )


def before(came: list[tuple[int, str]], reference: Reference, tenant: str = "tenant-7") -> object:
    """The batch that a request of this tenant waits for, which comes at 30 s; the others came so
    many ms before."""
    log = LateLog()
    for before_ms, owner in sorted(came, reverse=True):
        begun_ns = 30 * SECOND - before_ms * MS
        log.first(request(begun_ns, owner), begun_ns + 200 * MS)
    mine = request(30 * SECOND, tenant)
    log.first(mine, 31 * SECOND)
    late = Late(LateKind.FIRST, mine, mine.begun_ns, 31 * SECOND, 200 * MS)
    return Batches(log, reference).before(late)


def test_requests_of_one_tenant_in_ten_that_came_at_once_are_its_batch() -> None:
    batch = [(400 + step, "tenant-3") for step in range(4)]

    assert before(batch, usual()) == Batch(4, "tenant-3", 29_597 * MS)


def test_requests_of_all_tenants_that_came_at_once_are_nobodys_batch() -> None:
    batch = [(400 + step, f"tenant-{step}") for step in range(6)]

    assert before(batch, usual()) == Batch(6, None, 29_595 * MS)


def test_tenants_that_nobody_knew_are_no_culprits_for_coming_together() -> None:
    batch = [(400 + step, f"stranger-{step}") for step in range(6)]

    assert before(batch, usual()) == Batch(6, None, 29_595 * MS)


def test_a_flood_at_once_is_judged_by_its_first_requests() -> None:
    """Of thousands no binomial coefficient is a float."""
    flood = [(400 + step // 50, "tenant-3") for step in range(4_000)]

    assert before(flood, usual()) == Batch(200, "tenant-3", 29_521 * MS)


def test_where_there_is_one_tenant_a_batch_is_nobodys() -> None:
    batch = [(400 + step, "tenant-0") for step in range(6)]

    assert before(batch, usual(tenants=1), "tenant-0") == Batch(6, None, 29_595 * MS)


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        (usual(most_at_once=4), "as many came at once in the baseline"),
        (usual(per_s=20.0), "at such a rate as many come by chance"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_chance_sends_is_no_batch(reference: Reference, why: str) -> None:
    batch = [(400 + step, "tenant-3") for step in range(4)]

    assert before(batch, reference) is None


def test_in_a_surge_more_may_come_at_once_by_chance() -> None:
    """All of the last ten seconds come more often than the baseline's, and four at once among
    them."""
    surge = [(150 + 60 * step, f"tenant-{step % 10}") for step in range(160)]
    batch = [(400 + step, "tenant-3") for step in range(3)]

    assert before(batch + surge, usual()) is None


def test_a_batch_long_before_the_request_has_drained() -> None:
    batch = [(8_000 + step, "tenant-3") for step in range(6)]

    assert before(batch, usual()) is None


@pytest.mark.parametrize("per_s", [0.5, 2.0, 8.0, 40.0])
def test_independent_arrivals_hardly_ever_make_a_batch(per_s: float) -> None:
    draw, at_ms, came = Random(7), 0.0, list[tuple[int, str]]()
    while at_ms < 600_000:
        at_ms += draw.expovariate(per_s) * 1_000
        came.append((int(at_ms), f"tenant-{draw.randrange(10)}"))
    times = [at * MS for at, _ in came]
    learnt = [at for at in times if at < 60 * SECOND]
    begin, end = largest_cluster(learnt, 100 * MS)
    log, found = LateLog(), 0
    for at_ms_, owner in came:
        log.first(request(at_ms_ * MS, owner), at_ms_ * MS + 200 * MS)
    batches = Batches(log, usual(per_s, end - begin))
    for at_ns in times:
        if at_ns >= 60 * SECOND:
            late = Late(LateKind.FIRST, request(at_ns, "x"), at_ns, at_ns + SECOND, 0)
            found += batches.before(late) is not None

    assert found <= 0.05 * len(times)


@given(st.lists(st.integers(0, 1_000), max_size=40), st.integers(0, 300))
def test_the_largest_cluster_is_as_large_as_any(times: list[int], within: int) -> None:
    times.sort()
    begin, end = largest_cluster(times, within)

    most = max((sum(at <= one <= at + within for one in times) for at in times), default=0)
    assert end - begin == most
    assert not times or times[end - 1] - times[begin] <= within


@given(st.floats(0.01, 30.0))
def test_the_poisson_tail_is_one_at_none_and_falls_from_there(mean: float) -> None:
    tails = [poisson_tail(least, mean) for least in range(80)]

    assert tails[0] == 1.0
    assert tails[1] == pytest.approx(1 - exp(-mean))
    assert all(after <= before for before, after in pairwise(tails))
    assert tails[79] < 1e-6
