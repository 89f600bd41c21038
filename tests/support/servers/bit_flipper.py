"""A proxy between two processes on loopback that changes what it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading


class BitFlipper:
    """`with BitFlipper(address, pattern) as proxy:` passes everything on, both ways; of what comes
    from `address` it flips one bit in the first `pattern`. With `after_bytes` it flips the bit that
    comes after so many bytes instead."""

    def __init__(
        self, address: tuple[str, int], pattern: bytes = b"", after_bytes: int | None = None
    ) -> None:
        self._target, self._pattern, self._after_bytes = address, pattern, after_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.flipped = 0
        self._open: list[socket.socket] = []

    def __enter__(self) -> BitFlipper:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                theirs, _ = self._listener.accept()
                ours = socket.create_connection(self._target)
                self._open += [theirs, ours]
                threading.Thread(target=self._pass, args=(theirs, ours, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(ours, theirs, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, flips: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                changed = bytearray(data)
                place = self._place(data, passed) if flips and not self.flipped else None
                if place is not None:
                    changed[place] ^= 1
                    self.flipped += 1
                passed += len(data)
                target.sendall(changed)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _place(self, data: bytes, passed: int) -> int | None:
        if self._after_bytes is None:
            found = data.find(self._pattern)
            return None if found < 0 else found
        place = self._after_bytes - passed
        return place if 0 <= place < len(data) else None
