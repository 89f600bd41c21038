"""Files that are to run in one process are named as they are, and all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.groups import DEFAULT_SERVER, GROUP_OF, GROUPS

ROOT = Path(__file__).resolve().parents[2]


def test_a_file_of_a_group_is_there_and_in_no_other_group() -> None:
    """Else a file that was moved would run apart from the others unseen."""
    named = [file for group in GROUPS for file in group]

    assert [file for file in named if not (ROOT / file).is_file()] == []
    assert len(GROUP_OF) == len(named)


def test_whoever_uses_the_server_on_the_default_model_is_in_its_group(
    request: pytest.FixtureRequest,
) -> None:
    """Of the tests of this run: another file would start a second one in the other process."""
    users = {
        item.nodeid.partition("::")[0]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "shared_server" in item.fixturenames
    }

    assert users <= set(DEFAULT_SERVER)
