"""What `phasescope serve` logs on stderr: lines of text, or JSON objects with trace ids.

A log line never has a prompt or an output. The message of an error in a request may quote what its
client sent, so of such an error only the types and the stack are logged.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Literal

from telemetry.facts.clock import iso_time

LogFormat = Literal["text", "json"]
Say = Callable[[str], None]

# attributes that a record about a request has (`RequestRecorder.about`)
_ABOUT_REQUEST = ("request_id", "trace_id", "span_id")
_SAY = "phasescope.serve"


def set_up_logging(log_format: LogFormat, print_line: Say) -> Say:
    """Log to stderr from now on. Returns what says how the service does: `print_line` as text, an
    INFO record as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(WithoutClientText())
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else logging.Formatter("phasescope: %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if log_format == "text":
        return print_line
    logging.captureWarnings(True)
    log = logging.getLogger(_SAY)
    log.setLevel(logging.INFO)
    return log.info


class JsonFormatter(logging.Formatter):
    """One object a line: timestamp (UTC), level, logger, message; where a request is concerned its
    request_id, trace_id and span_id, the root span's; with an error exception.stacktrace."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": iso_time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _ABOUT_REQUEST:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = value
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception.stacktrace"] = record.exc_text
        return json.dumps(line)


class WithoutClientText(logging.Filter):
    """Leaves out the messages of errors in requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and getattr(record, _ABOUT_REQUEST[0], None) is not None:
            record.exc_text = _stacks(record.exc_info[1])
            record.exc_info = None
        return True


def _stacks(error: BaseException | None) -> str:
    """Type and stack of an error and of those that it came from, the first one first."""
    found: list[str] = []
    while error is not None:
        found.append(f"{''.join(traceback.format_tb(error.__traceback__))}{type(error).__name__}")
        error = error.__cause__ or error.__context__
    return "\n\n".join(reversed(found))
