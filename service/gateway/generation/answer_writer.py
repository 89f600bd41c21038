"""What turns the output of one request into bytes, whatever the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from service.gateway.errors import ApiError
from service.gateway.generation.choice import Choice, Delta
from service.gateway.generation.prompt_echo import PromptEcho
from telemetry.requests.timings import RequestTimings


class AnswerWriter(Protocol):
    """Writes one response, as a stream or whole. `counts` are those of `responses.usage`."""

    done: bytes
    """What follows the last event of a stream."""

    def opening(self) -> bytes:
        """What is sent as soon as the engine has the request."""
        ...

    def first(self, choices: list[Choice]) -> list[bytes]:
        """What comes before the first output."""
        ...

    def chunk(self, choice: Choice, delta: Delta, counts: dict[str, Any] | None = None) -> bytes:
        """New output of a choice; `counts` is the usage so far, if each chunk has it."""
        ...

    def last(self, counts: dict[str, Any], timings: RequestTimings | None) -> bytes:
        """What comes after the last output."""
        ...

    def failed(self, error: ApiError) -> bytes | None:
        """The event of an error within the stream; None where it is the error's own body."""
        ...

    async def whole(
        self,
        choices: list[Choice],
        deltas: list[Delta],
        counts: dict[str, Any],
        timings: RequestTimings | None,
        echoes: Sequence[PromptEcho] = (),
    ) -> bytes:
        """The response in one piece; `echoes` are of its prompts, where they are sent back. Other
        tasks run while it is made."""
        ...
