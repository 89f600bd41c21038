"""`python -m service.fleet.ray_serve.tether PID COMMAND ...` becomes the command, which the kernel
then kills when PID ends, however it ends. It imports the standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Does not return, unless the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent, *command = sys.argv[1:]
    if os.getppid() != int(parent):
        return 1
    os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
