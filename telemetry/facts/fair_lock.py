"""A re-entrant lock that whoever waits for it gets before its holder has it again.

Python's own lock is free for all: a thread that lets go of it and takes it again at once mostly
wins, for it holds the interpreter. Here everybody comes in by a door, and waits for the lock in
the doorway: who lets go has to queue up behind.
"""

from __future__ import annotations

import threading
from types import TracebackType


class FairLock:
    """As `threading.RLock`, in `with` or by `acquire` and `release`."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, timeout: float = -1) -> bool:
        """False when it took longer than `timeout` seconds at the door, or again in it."""
        me = threading.get_ident()
        if self._owner != me:
            if not self._door.acquire(timeout=timeout):
                return False
            try:
                if not self._lock.acquire(timeout=timeout):
                    return False
                self._owner = me
            finally:
                self._door.release()
        self._depth += 1
        return True

    @property
    def is_wanted(self) -> bool:
        """Somebody waits for it at this moment."""
        return self._door.locked()

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
