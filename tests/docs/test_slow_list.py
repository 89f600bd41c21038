"""The list of tests that `make test` leaves out names tests, and a quicker one for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.slow import SLOW

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", sorted({*SLOW, *SLOW.values()}))
def test_a_name_of_the_list_is_that_of_a_test(name: str) -> None:
    """Else a test that was renamed would come back into `make test` unseen."""
    file, _, function = name.partition("::")
    texts = [path.read_text() for path in TESTS.rglob(file)]

    assert texts
    assert any(f"def {function.partition('[')[0]}" in text for text in texts) or not function


@pytest.mark.parametrize("name", SLOW)
def test_what_is_left_out_has_a_quicker_test_that_is_not(name: str) -> None:
    quicker = SLOW[name]

    assert not any(quicker.startswith(slow) for slow in SLOW)
