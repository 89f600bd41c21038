"""The entry point in the group `sglang.srt.plugins`, which SGLang calls in each of its processes.

Without an address of a sidecar it does nothing at all. With one, it hooks the scheduler's process
and that of the HTTP server; others have nothing to be seen. Whatever goes wrong here is said to the
sidecar, and SGLang goes on unobserved.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

from service.attach.inside.sglang import core, front
from service.attach.inside.sglang.seams import ENGINE, SCHEDULER, check_version
from service.attach.inside.transport import report_not_observed
from service.attach.wire import Role, socket_path


def register() -> None:
    """Called by SGLang; raises nothing."""
    path = socket_path()
    if path is not None:
        register_at(path)


def register_at(path: Path) -> None:
    """The server is SGLang's first process. Each of the others has imported by now what it runs."""
    version = ""
    is_server = multiprocessing.parent_process() is None
    if not is_server and SCHEDULER not in sys.modules:
        return
    try:
        import sglang

        version = str(sglang.__version__)
        check_version(version)
        (front if is_server else core).register(path, version)
    except Exception as error:
        role = Role.FRONT_END if is_server else Role.ENGINE_CORE
        report_not_observed(role, ENGINE, version, path=path, hook="register", error=error)
