"""The borders of phases from the stamps of tokens, for requests that have ended and live ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def decode_begins_ns(firsts_ns: Collection[int | None]) -> int | None:
    """When the last of a request's sequences got its first token, given the commits of the first
    tokens; None while a sequence has none."""
    known = [first_ns for first_ns in firsts_ns if first_ns is not None]
    return max(known) if known and len(known) == len(firsts_ns) else None


def first_commit_ns(firsts_ns: Iterable[int | None]) -> int | None:
    """When the first of a request's sequences got its first token. TTFT ends here for an answer
    that is not streamed."""
    return min((first_ns for first_ns in firsts_ns if first_ns is not None), default=None)


def last_commit_ns(lasts_ns: Iterable[int | None]) -> int | None:
    """When the last token of a request was committed, given the last of each sequence."""
    return max((last_ns for last_ns in lasts_ns if last_ns is not None), default=None)
