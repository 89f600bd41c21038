"""Routes of the flight recorder: download the journal, and write a dump on the server's disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.gateway.errors import ApiError, not_found
from service.gateway.server_state import ServerState
from telemetry.journal.dumps import DumpReason, DumpRefused
from telemetry.journal.flight_recorder import FlightRecorder

MEDIA_TYPE = "application/vnd.phasescope.journal"
_PART_BYTES = 256 * 1024
_DUMP_TIMEOUT_S = 30


async def journal(state: ServerState, request: Request) -> Response:
    """The current contents of the flight recorder, in the format of a dump."""
    frames = await asyncio.to_thread(recorder_of(state).frames, DumpReason.REQUEST.value)
    headers = {"content-length": str(sum(map(len, frames)))}
    return StreamingResponse(_parts(frames), headers=headers, media_type=MEDIA_TYPE)


async def dump(state: ServerState, request: Request) -> Response:
    """Write a dump on the recorder's thread, and return its path."""
    answer = asyncio.wrap_future(recorder_of(state).dump(DumpReason.REQUEST))
    try:
        async with asyncio.timeout(_DUMP_TIMEOUT_S):
            written = await answer
    except DumpRefused as refused:
        raise _too_soon(refused) from refused
    except (OSError, TimeoutError) as error:
        raise _not_written(error) from error
    return Response(msgspec.json.encode(written), media_type="application/json")


def recorder_of(state: ServerState) -> FlightRecorder:
    """The flight recorder. Raises ApiError if it is off."""
    if state.recorder is None:
        raise not_found("the flight recorder is off (--journal-memory 0)", "recorder_off")
    return state.recorder


async def _parts(frames: list[bytes]) -> AsyncIterator[bytes]:
    """Frames joined to pieces of at least 256 KiB."""
    part: list[bytes] = []
    size_bytes = 0
    for frame in frames:
        part.append(frame)
        size_bytes += len(frame)
        if size_bytes >= _PART_BYTES:
            yield b"".join(part)
            part, size_bytes = [], 0
    yield b"".join(part)


def _too_soon(refused: DumpRefused) -> ApiError:
    seconds = str(refused.retry_after_s)
    return ApiError(
        429,
        f"{refused}; try again in {seconds} s",
        "rate_limit_error",
        "dump_too_soon",
        headers={"retry-after": seconds},
    )


def _not_written(error: OSError | TimeoutError) -> ApiError:
    why = getattr(error, "strerror", None) or "it took too long"
    return ApiError(500, f"the dump could not be written: {why}", "server_error", "dump_failed")
