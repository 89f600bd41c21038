"""The entry point in the group `vllm.general_plugins`, which vLLM calls in each of its processes.

Without an address of a sidecar it does nothing at all. With one, it prepares hooks that observe the
processes where there is something to see: the engine core and the front end. Whatever goes wrong
here is said to the sidecar, and vLLM goes on unobserved.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from service.attach.inside.versions import VLLM_TESTED, UnknownEngine, check_version
from service.attach.wire import Role, socket_path


def register() -> None:
    """Called by vLLM; raises nothing."""
    with contextlib.suppress(Exception):
        path = socket_path()
        if path is not None:
            register_at(path)


def register_at(path: Path) -> None:
    """Prepare the hooks of this process, whichever it is."""
    from service.attach.inside.front_end import vllm_front
    from service.attach.inside.transport import report_not_observed
    from service.attach.inside.vllm_core import scheduler_class

    version = ""
    try:
        import vllm

        version = str(vllm.__version__)
        scheduler_class.register(path, version, _reason_against(version))
    except Exception as error:
        report_not_observed(
            Role.ENGINE_CORE, "vllm", version, path=path, hook="register", error=error
        )
    vllm_front.register()


def _reason_against(version: str) -> str | None:
    """Why this version may not be hooked; None: it may."""
    try:
        check_version("vllm", version, VLLM_TESTED)
    except UnknownEngine as unknown:
        return str(unknown)
    return None
