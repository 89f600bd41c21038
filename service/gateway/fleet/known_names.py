"""Engines come and go under new names, and what is counted by name is bounded."""

from __future__ import annotations

from collections.abc import Container, Iterable

from service.fleet.membership.members import MOST_MEMBERS

OTHER = "other"
"""Counts for the engines that have no line of their own."""
MOST_NAMES = 2 * MOST_MEMBERS


def to_forget(names: Iterable[str], members: Container[str]) -> str | None:
    """The first of the names, in the order of their coming, that the membership does not have;
    None: it has them all."""
    return next((one for one in names if one != OTHER and one not in members), None)
