"""The unix socket of the sidecar: a path that only this user can use."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

_BACKLOG = 64
_PEER = struct.Struct("3i")  # pid, uid, gid


class SocketUnusable(Exception):
    """The path cannot be listened on; the message is one line."""


def default_path(port: int, environment: Mapping[str, str] = os.environ) -> Path:
    """A path of this user that names the HTTP port, so that two sidecars do not meet."""
    folder = environment.get("XDG_RUNTIME_DIR")
    if folder is not None and Path(folder).is_dir():
        return Path(folder) / "phasescope" / f"attach-{port}.sock"
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "phasescope" / f"attach-{port}.sock"


def listen(path: Path) -> socket.socket:
    """A listening socket with mode 0600; a stale one, which a killed sidecar has left, is replaced.

    Raises SocketUnusable.
    """
    _make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # no moment in which others could connect
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SocketUnusable(f"cannot listen on {path}: {error.strerror or error}") from error
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def remove(path: Path, listener: socket.socket) -> None:
    """Close the socket, and remove its path."""
    listener.close()
    with contextlib.suppress(OSError):
        path.unlink()


def peer_of(connection: socket.socket) -> tuple[int | None, int]:
    """Pid and user of the process at the other end. None: it is not in a pid namespace of ours."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, uid, _ = _PEER.unpack(raw)
    return pid or None, uid


def _make_room(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.is_symlink() and not path.exists():
            return
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SocketUnusable(f"{path}: there is something else than a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise SocketUnusable(f"{path}: another sidecar listens there")
        path.unlink()
    except OSError as error:
        raise SocketUnusable(f"{path}: {error.strerror or error}") from error
