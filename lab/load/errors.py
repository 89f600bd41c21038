"""What stops a bench before it can measure; each message is one line that says what to do."""

from __future__ import annotations


class BenchError(Exception):
    """No measurement was possible."""


class ServerUnreachable(BenchError):
    """Nothing that speaks HTTP answers at the address."""


class KeyRefused(BenchError):
    """The server answered 401 or 403."""


class WrongModel(BenchError):
    """The server does not serve the named model."""


class RequestRefused(BenchError):
    """The server refuses requests of the form that the bench would send."""
