"""The client of the contract checks counts tokens, not events."""

from __future__ import annotations

import json

import pytest

from benchmarks.contract.client import Reply


@pytest.mark.parametrize("tokens", [["a"], ["a", "b", "c"]])
def test_each_token_of_an_event_is_counted_at_its_arrival(tokens: list[str]) -> None:
    """A server with a backlog puts several tokens into one event."""
    reply = Reply()
    event = {"choices": [{"text": "".join(tokens), "logprobs": {"tokens": tokens}}]}
    reply.take(json.dumps(event, separators=(",", ":")).encode())

    assert len(reply.token_ns) == len(tokens)
    assert len(set(reply.token_ns)) == 1
