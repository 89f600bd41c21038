"""Query parameters as types, with defaults and bounds; the OpenAPI document uses them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from service.gateway.http import limits
from telemetry.numbers.windows import WINDOWS_S
from telemetry.stats.histogram_report import TOTAL

_WORD_CHARACTERS = 32
_LIST_CHARACTERS = 64

Window = Annotated[
    str,
    Meta(
        max_length=_WORD_CHARACTERS,
        description="The last so many seconds or minutes, or since the start.",
        extra_json_schema={"enum": [TOTAL, *WINDOWS_S]},
    ),
]


class HistogramsQuery(Struct, frozen=True, kw_only=True):
    """`?window=1m`."""

    window: Window = TOTAL


class MetricsQuery(Struct, frozen=True, kw_only=True):
    """`?classes=full`: latencies by all parts of the workload class, else by SLO class."""

    classes: str = ""


class RequestsQuery(Struct, frozen=True, kw_only=True):
    """Ended requests from number `since` on, `limit` of them."""

    since: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=limits.LISTED_REQUESTS.value)] = 200


class BatchQuery(Struct, frozen=True, kw_only=True):
    """How many rows of the batch grid are asked for."""

    rows: Annotated[int, Meta(ge=1, le=limits.BATCH_ROWS.value)] = 64


class ProfileQuery(Struct, frozen=True, kw_only=True):
    """A profile ends after `steps` steps or `timeout_s` seconds, whichever is first."""

    steps: Annotated[int, Meta(ge=1, le=limits.PROFILE_STEPS.value)] = 20
    timeout_s: Annotated[float, Meta(gt=0, le=limits.PROFILE_S.value)] = 30.0


class LoadsQuery(Struct, frozen=True, kw_only=True):
    """`?include=core,queues`: these sections of the load, else all."""

    include: Annotated[str, Meta(max_length=_LIST_CHARACTERS)] = "all"
