"""When it hurts: sums that ring for what lasts, and say when it has eased."""

from __future__ import annotations

import msgspec
import pytest

from diagnosis.counts import BUCKET_NS
from diagnosis.excess import Watch, spreads_of
from diagnosis.reference import Reference, promised

CALM = (0.0, 0.0, 0.0, 0.0)


def usual(**more: object) -> Reference:
    return msgspec.structs.replace(
        promised(), seconds=30.0, live=(0.1, 1.0, 2.0, 0.1), spread=(0.05, 0.3, 0.5, 0.05),
        slow_spread=0.1, own_prompt_spread=0.1, running=2.0, **more,
    )  # fmt: skip


def watched(
    halves: list[tuple[tuple[float, float, float, float], float, float]],
    reference: Reference | None = None,
) -> Watch:
    """Half seconds of requests held up by stage, by slow steps, and by long prompts."""
    watch = Watch()
    for number, (held, slow, prompts) in enumerate(halves):
        watch.take(number * BUCKET_NS, held, slow, prompts, (), reference or usual())
    return watch


@pytest.mark.parametrize("part", ["slow", "prompts"])
def test_what_is_known_exactly_is_seen_below_the_noise_of_its_stage(part: str) -> None:
    """A fifth of a request held up, which queues vary by anyway."""
    slow, prompts = (0.5, 0.0) if part == "slow" else (0.0, 0.5)

    assert watched([(CALM, 0.0, 0.0)] * 20).onset_ns is None
    assert watched([(CALM, 0.0, 0.0)] * 8 + [(CALM, slow, prompts)] * 14).onset_ns == 8 * BUCKET_NS


def test_a_burst_that_drains_eases() -> None:
    """Two half seconds without anybody held up are enough to make no new finding."""
    held = (0.0, 6.0, 0.0, 0.0)
    burst = [(CALM, 0.0, 0.0)] * 4 + [(held, 0.0, 0.0)] * 4
    rings = watched(burst)

    assert rings.onset_ns == 4 * BUCKET_NS
    assert not rings.has_eased
    drained = watched([*burst, *[(CALM, 0.0, 0.0)] * 3])
    assert drained.onset_ns is not None
    assert drained.has_eased
    assert watched([*burst, *[(CALM, 0.0, 0.0)] * 9]).onset_ns is None


def test_a_late_first_token_of_a_rare_request_does_not_ease() -> None:
    """Where few come, the half seconds between them are all calm."""
    reference = usual(first_log=0.0, first_log_spread=0.3)
    watch = Watch()
    for number in range(24):
        late = [("red", 1.5)] if number % 3 == 0 else []
        watch.take(number * BUCKET_NS, CALM, 0.0, 0.0, late, reference)

    assert watch.onset_ns is not None
    assert not watch.has_eased


def test_after_a_short_look_more_is_taken_for_chance() -> None:
    """Twice as much after twelve seconds as after twenty."""
    long, short = spreads_of(usual()), spreads_of(msgspec.structs.replace(usual(), seconds=12.0))

    assert short == tuple(2 * spread for spread in long)


def test_a_hunch_is_no_alarm_until_it_is_believed() -> None:
    """Half way to its threshold a sum says since when; believed, that is the onset."""
    held = (0.0, 2.0, 0.0, 0.0)
    watch = watched([(CALM, 0.0, 0.0)] * 4 + [(held, 0.0, 0.0)])

    assert (watch.onset_ns, watch.hunch_ns) == (None, 4 * BUCKET_NS)
    watch.believe()
    assert watch.onset_ns == 4 * BUCKET_NS
    assert watched([(CALM, 0.0, 0.0)] * 4).hunch_ns is None
