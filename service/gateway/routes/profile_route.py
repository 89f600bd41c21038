"""`POST /debug/profile`: a kernel profile of the engine's next steps, for ui.perfetto.dev.

The engine writes the trace to a file in a temporary folder that only this user can read. The
gateway removes the folder when it has opened the file, so that nothing is left if the client
disconnects. It removes nothing before the engine has answered, since the engine may be writing.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, BinaryIO

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.gateway.errors import (
    ApiError,
    EngineUnavailable,
    bad_request,
    conflict,
    draining,
    error_of_end,
    not_ready,
)
from service.gateway.generation.state import GatewayState
from service.gateway.http import limits
from service.gateway.routes.types.query_types import ProfileQuery
from service.process import frames
from telemetry.facts.clock import utc_stamp
from telemetry.facts.reasons import EndReason

_STEPS, _STEPS_MAX = ProfileQuery().steps, limits.PROFILE_STEPS.value
_TIMEOUT_S, _TIMEOUT_S_MAX = ProfileQuery().timeout_s, limits.PROFILE_S.value
_WRITING_S = 60.0
_PART_BYTES = 1 << 20
_GZIP_LEVEL, _GZIP_WBITS = 4, 31
_POLL_S = 0.2


async def profile(state: GatewayState, request: Request) -> Response:
    """A trace of `steps` steps; of fewer if `timeout_s` passes or the server drains before."""
    steps, timeout_s = _steps(request), _timeout_s(request)
    if state.drain.active:
        raise draining()
    if state.engine.is_profiling:
        raise conflict(
            "another profile is being recorded; try again when it is done", "profile_running"
        )
    try:
        ended, file = await _take_profile(state, request, steps, timeout_s)
    except OSError as error:
        raise _failed(error.strerror or str(error)) from error
    return _answer(request, ended, file)


async def _take_profile(
    state: GatewayState, request: Request, steps: int, timeout_s: float
) -> tuple[frames.ProfileEnded, BinaryIO]:
    """Take the profile; returns the engine's answer and the open file. Raises ApiError, OSError."""
    folder = tempfile.mkdtemp(prefix="phasescope-profile-")  # readable by this user only
    path = Path(folder, "trace.json")
    try:
        answer = state.engine.start_profile(steps, str(path))
    except EngineUnavailable:
        shutil.rmtree(folder)
        raise not_ready() from None
    try:
        ended = await _wait_ended(state, request, answer, timeout_s)
        return ended, path.open("rb")
    finally:
        if answer.done():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            state.engine.stop_profile(keep=False)
            answer.add_done_callback(lambda _: shutil.rmtree(folder, ignore_errors=True))


async def _wait_ended(
    state: GatewayState,
    request: Request,
    answer: asyncio.Future[frames.ProfileEnded | None],
    timeout_s: float,
) -> frames.ProfileEnded:
    """Wait for the end of the profile. Raises ApiError if it fails or the client disconnects."""
    disconnected = asyncio.ensure_future(_disconnected(request))
    try:
        done = await _wait_first(answer, disconnected, timeout_s, lambda: state.drain.active)
        if not done:
            state.engine.stop_profile(keep=True)
            done = await _wait_first(answer, disconnected, _WRITING_S)
    finally:
        disconnected.cancel()
    if answer not in done:
        raise _error_of_end(EndReason.DISCONNECT) if done else _timed_out()
    ended = answer.result()
    if ended is None:
        raise _error_of_end(EndReason.ENGINE_DIED)
    if ended.error is not None:
        raise _failed(ended.error)
    return ended


async def _wait_first(
    answer: asyncio.Future[Any],
    disconnected: asyncio.Future[Any],
    wait_s: float,
    is_over: Callable[[], bool] = lambda: False,
) -> set[asyncio.Future[Any]]:
    """The futures that are done; none after `wait_s`, or when `is_over()` is true."""
    end_s = asyncio.get_running_loop().time() + wait_s
    done: set[asyncio.Future[Any]] = set()
    while not done and not is_over() and wait_s > 0:
        step_s = min(wait_s, _POLL_S)
        done, _ = await asyncio.wait(
            (answer, disconnected), timeout=step_s, return_when=asyncio.FIRST_COMPLETED
        )
        wait_s = end_s - asyncio.get_running_loop().time()
    return done


async def _disconnected(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# The query


def _steps(request: Request) -> int:
    text = request.query_params.get("steps", str(_STEPS))
    steps = int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else 0
    if not 1 <= steps <= _STEPS_MAX:
        message = f"steps must be a whole number from 1 to {_STEPS_MAX}, as in ?steps={_STEPS}"
        raise bad_request(message, "steps", "invalid_steps")
    return steps


def _timeout_s(request: Request) -> float:
    text = request.query_params.get("timeout_s", str(_TIMEOUT_S))
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s <= _TIMEOUT_S_MAX:
        most = f"{_TIMEOUT_S_MAX:g}"
        message = f"timeout_s must be a number above 0 and up to {most}, as in ?timeout_s={most}"
        raise bad_request(message, "timeout_s", "invalid_timeout")
    return timeout_s


# The answer


def _answer(request: Request, ended: frames.ProfileEnded, file: BinaryIO) -> Response:
    headers = {
        "content-disposition": f'attachment; filename="phasescope-profile-{utc_stamp()}.json"',
        "vary": "accept-encoding",
        "x-profile-steps": str(ended.steps),
        "x-profile-contents": ended.contents,
    }
    compress = accepts_gzip(",".join(request.headers.getlist("accept-encoding")))
    if compress:
        headers["content-encoding"] = "gzip"
    else:
        headers["content-length"] = str(os.fstat(file.fileno()).st_size)
    return StreamingResponse(_parts(file, compress), 200, headers, "application/json")


async def _parts(file: BinaryIO, compress: bool) -> AsyncIterator[bytes]:
    """The file in pieces, compressed if `compress`; it is never in memory as a whole."""
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WBITS)
    with file:
        while raw := await asyncio.to_thread(file.read, _PART_BYTES):
            part = await asyncio.to_thread(compressor.compress, raw) if compress else raw
            if part:
                yield part
    if compress:
        yield compressor.flush()


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    for wanted in accept_encoding.lower().split(","):
        coding, _, weight = wanted.replace(" ", "").partition(";q=")
        if coding in ("gzip", "x-gzip"):
            return weight == "" or weight.strip("0.") != ""
    return False


def _error_of_end(reason: EndReason) -> ApiError:
    error = error_of_end(reason, lambda: 1)
    assert error is not None, reason
    return error


def _failed(why: str) -> ApiError:
    message = f"the profile could not be taken: {why}"
    return ApiError(500, message, "server_error", "profile_failed")


def _timed_out() -> ApiError:
    return ApiError(
        503,
        f"the engine has not handed over the profile within {_WRITING_S:g} s of its end: it is "
        "busy with a step, or the trace is large; try again, with fewer steps",
        "server_error",
        "profile_stuck",
        headers={"retry-after": "5"},
    )
