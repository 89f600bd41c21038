"""A re-entrant lock that a waiting thread gets before its last holder gets it again.

Python's own lock is not fair: a thread that releases it and acquires it again at once mostly wins,
because it holds the interpreter. Here a thread first acquires a turnstile and waits for the lock
inside it, so a thread that releases the lock queues behind the one in the turnstile.
"""

from __future__ import annotations

import threading
from types import TracebackType


class FairLock:
    """A lock like `threading.RLock`, to be used in `with` or by `acquire` and `release`."""

    def __init__(self) -> None:
        self._turnstile = threading.Lock()
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, timeout: float = -1) -> bool:
        """False if the turnstile, or then the lock, was not free within `timeout` seconds."""
        thread_id = threading.get_ident()
        if self._owner != thread_id:
            if not self._turnstile.acquire(timeout=timeout):
                return False
            try:
                if not self._lock.acquire(timeout=timeout):
                    return False
                self._owner = thread_id
            finally:
                self._turnstile.release()
        self._depth += 1
        return True

    @property
    def has_waiter(self) -> bool:
        """Whether a thread waits for the lock."""
        return self._turnstile.locked()

    def release(self) -> None:
        assert self._owner == threading.get_ident(), "released by a thread that does not hold it"
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
