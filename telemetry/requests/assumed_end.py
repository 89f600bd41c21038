"""A terminal fact for a request whose own is not there: it was lost, or has not happened yet.

A fold makes a timeline only of a request that has ended. Who looks at one in flight, or at the
requests at the end of a recording, gives it an end with this.
"""

from __future__ import annotations

from telemetry.facts.reasons import EndReason
from telemetry.facts.records import RequestEnded


def assumed_end(
    request_id: str,
    at_ns: int,
    reason: EndReason,
    status: int = 0,
    error_type: str | None = None,
) -> RequestEnded:
    """The end of a request as if it ended at `at_ns`, with no byte sent that is not known from
    elsewhere.

    `status` is the HTTP status, 0 where none was sent.
    """
    return RequestEnded(
        request_id=request_id,
        at_ns=at_ns,
        reason=reason,
        status=status,
        error_type=error_type,
        output_tokens=0,
        first_sent_ns=None,
        detokenized_ns=None,
        detokenize_busy_ns=0,
        bytes_sent=0,
        detected_ns=None,
    )
