"""docs/reference/limits.md, generated from the caps; `make docs` writes it."""

from __future__ import annotations

from service.gateway.http.body_room import FREE_BYTES, RECEIVED_BYTES
from service.gateway.http.limits import all_limits

_HEAD = f"""# Limits

What a client may send, written from `{all_limits.__module__}` by `make docs`. Whatever goes beyond
is refused with status 400 and an error that names the field, before the engine hears of it; a
header that goes beyond is ignored or replaced, as said below.

The whole body is bounded by `--max-body` (8 MiB unless told otherwise; 413 above it). Texts of
messages and prompts have no other cap than that and the context of the model. `GET /openapi.json`
states the same caps field by field.

Connections are bounded by flags: how many (`--max-connections`), how long a head, a body and a
pause may take (`--header-timeout`, `--body-timeout`, `--keep-alive-timeout`), how large a head may
be (`--max-header-bytes`); a head has at most 128 headers, and 16 requests may be sent ahead of
their answers. Of bodies that are being received, {RECEIVED_BYTES >> 20} MiB may be there beside the
first {FREE_BYTES >> 10} KiB of each, and of those above 4 KiB, 256 or 128 MiB may wait to be read;
then there is a 429.

| what | at most | unit | because |
|---|---|---|---|"""


def document() -> str:
    """The whole page."""
    rows = [
        f"| {limit.what} | {limit.value} | {limit.unit or '-'} | {limit.reason} |"
        for limit in all_limits()
    ]
    return "\n".join([_HEAD, *rows, ""])
