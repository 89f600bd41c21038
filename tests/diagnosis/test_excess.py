"""When it hurts: sums that ring for what lasts, and say when it has eased."""

from __future__ import annotations

import msgspec
import pytest

from diagnosis.detection.counts import BUCKET_NS, Counts
from diagnosis.detection.excess import Exact, Watch, half_of, spreads_of, stopped, stopped_of
from diagnosis.detection.reference import Reference, promised
from telemetry.facts.reasons import WaitReason

Held = tuple[float, float, float, float]
CALM: Held = (0.0, 0.0, 0.0, 0.0)
QUIET = (CALM, Exact())


def usual(**more: object) -> Reference:
    return msgspec.structs.replace(
        promised(), seconds=30.0, live=(0.1, 1.0, 2.0, 0.1), spread=(0.05, 0.3, 0.5, 0.05),
        slow_spread=0.1, own_prompt_spread=0.1, running=2.0, **more,
    )  # fmt: skip


def watched(halves: list[tuple[Held, Exact]], reference: Reference | None = None) -> Watch:
    """Half seconds of requests held up, by stage and by what is known exactly."""
    watch = Watch()
    for number, (held, exact) in enumerate(halves):
        watch.take(number * BUCKET_NS, held, exact, (), reference or usual())
    return watch


@pytest.mark.parametrize("part", Exact._fields)
def test_what_is_known_exactly_is_seen_below_the_noise_of_its_stage(part: str) -> None:
    """Half a request held up, which queues vary by anyway."""
    held_up = (CALM, Exact()._replace(**{part: 0.5}))

    assert watched([QUIET] * 20).onset_ns is None
    assert watched([QUIET] * 8 + [held_up] * 14).onset_ns == 8 * BUCKET_NS


def test_who_was_running_and_is_stopped_is_counted_beyond_the_usual() -> None:
    """Readers who do not read, and blocks that were taken; who waits for a first slot was not
    running."""
    counts = Counts()
    counts.skipped_ns[WaitReason.CLIENT_PAUSE] = 2 * BUCKET_NS
    counts.skipped_ns[WaitReason.KV] = 5 * BUCKET_NS
    counts.waited_ns[WaitReason.PREEMPTED] = BUCKET_NS
    counts.waited_ns[WaitReason.SEQS] = 7 * BUCKET_NS
    mean, spread = stopped_of([half_of(counts), half_of(Counts())])

    assert (mean, spread) == (1.5, 1.5)
    assert stopped(half_of(counts), msgspec.structs.replace(usual(), stopped=mean)) == 1.5
    assert stopped_of([]) == (0.0, 0.0)


def test_one_reader_who_rests_for_a_second_rings_nothing() -> None:
    one = (CALM, Exact(stopped=1.0))

    assert watched([QUIET] * 8 + [one] * 2).onset_ns is None
    assert watched([QUIET] * 8 + [one] * 4).onset_ns == 8 * BUCKET_NS


def test_a_burst_that_drains_eases() -> None:
    """Two half seconds without anybody held up are enough to make no new finding."""
    held = (0.0, 6.0, 0.0, 0.0)
    burst = [QUIET] * 4 + [(held, Exact())] * 4
    rings = watched(burst)

    assert rings.onset_ns == 4 * BUCKET_NS
    assert not rings.has_eased
    drained = watched([*burst, *[QUIET] * 3])
    assert drained.onset_ns is not None
    assert drained.has_eased
    assert watched([*burst, *[QUIET] * 9]).onset_ns is None


def test_a_late_first_token_of_a_rare_request_does_not_ease() -> None:
    """Where few come, the half seconds between them are all calm."""
    reference = usual(first_commit_log=0.0, first_commit_log_spread=0.3)
    watch = Watch()
    for number in range(24):
        late = [("red", 1.5)] if number % 3 == 0 else []
        watch.take(number * BUCKET_NS, CALM, Exact(), late, reference)

    assert watch.onset_ns is not None
    assert not watch.has_eased


def test_after_a_short_look_more_is_taken_for_chance() -> None:
    """Twice as much after twelve seconds as after twenty."""
    long, short = spreads_of(usual()), spreads_of(msgspec.structs.replace(usual(), seconds=12.0))

    assert short == tuple(2 * spread for spread in long)


def test_a_hunch_is_no_alarm_until_it_is_believed() -> None:
    """Half way to its threshold a sum says since when; believed, that is the onset."""
    held = (0.0, 2.0, 0.0, 0.0)
    watch = watched([QUIET] * 4 + [(held, Exact())])

    assert (watch.onset_ns, watch.hunch_ns) == (None, 4 * BUCKET_NS)
    watch.believe()
    assert watch.onset_ns == 4 * BUCKET_NS
    assert watched([QUIET] * 4).hunch_ns is None


def test_a_hunch_outlasts_a_quiet_moment() -> None:
    """Between two requests nobody is held up; what began goes on to be watched for a while."""
    begun = [QUIET] * 4 + [((0.0, 2.1, 0.0, 0.0), Exact())]

    assert watched(begun).hunch_ns == 4 * BUCKET_NS
    assert watched([*begun, QUIET]).hunch_ns == 4 * BUCKET_NS
    assert watched([*begun, *[QUIET] * 6]).hunch_ns is None
    assert watched([QUIET] * 4 + [((0.0, 1.7, 0.0, 0.0), Exact())]).hunch_ns is None
