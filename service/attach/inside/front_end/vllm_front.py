"""Observes vLLM's front end: the API server's process.

The plugin wraps `build_app` where it is imported already, which is only in a process that is, or
may become, an API server. The application that it builds gets the middleware; the application's
start puts the hooks into vLLM's classes. So the engine core and its workers are not touched.

    OnlineRenderer.render_*          the body is valid; then: rendered, tokenized
    OutputProcessor.add_request      a sequence goes to the engine core, with the core's name of it
    OutputProcessor.process_outputs  tokens came from the engine core, and are text
    AsyncLLM.check_admission         refused, as too many requests wait
    *._base_request_id               an id in the body wins over the one that the middleware gave

An exception in one of them never reaches vLLM; it turns that hook off.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.attach.inside.front_end.front import Front, Live
from service.attach.inside.front_end.vllm_hooks import install
from service.attach.inside.guard import where
from service.attach.inside.middleware import AttachMiddleware
from service.attach.inside.transport import Sender
from service.attach.inside.versions import VLLM_TESTED, UnknownEngine, check_version
from service.attach.wire import Role, socket_path
from telemetry.facts.clock import MonotonicClock

ENGINE = "vllm"
BUILDERS = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.app",
    "vllm.entrypoints.openai.api_server",
)
_MARK = "_phasescope_observes"


class _Process:
    """What is known of this process; made once."""

    is_begun = False
    front: Front | None = None


def register() -> None:
    """Called by the plugin in every process of vLLM; where no server was imported, it does
    nothing."""
    for name in BUILDERS:
        module = sys.modules.get(name)
        original = None if module is None else vars(module).get("build_app")
        if module is not None and original is not None and not hasattr(original, _MARK):
            vars(module)["build_app"] = _with_middleware(original)


def no_python_front_end(environment: Mapping[str, str]) -> str | None:
    """Why requests cannot be seen in front of the engine core, if vLLM's settings say so."""
    if environment.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        return "the Rust front end (VLLM_USE_RUST_FRONTEND) runs no Python: no requests are seen"
    return None


def attach(app: Any) -> Front | None:
    """The front end of a vLLM application that starts; None: it is not observed."""
    path = socket_path()
    if path is not None and not _Process.is_begun:
        _Process.is_begun = True
        _Process.front = _begin(app, path)
    return _Process.front


def _begin(app: Any, path: Path) -> Front | None:
    version, index, problem = str(importlib.import_module("vllm").__version__), 0, None
    engine: Any = None
    try:
        check_version(ENGINE, version, VLLM_TESTED)
        engine = app.state.engine_client
        index = engine.engine_core.client_index
    except UnknownEngine as error:
        problem = str(error)
    except Exception as error:
        problem = f"no engine client: {where(error)}"
    clock = MonotonicClock()
    live = Live(clock)
    sender = Sender(
        Role.FRONT_END, ENGINE, version, index, path=path, listing=live.listing, clock=clock
    )
    front = Front(sender, clock, live, _death_of(engine))
    if problem is not None:
        front.turn_off("front_end", problem, True)
        return None
    install(front)
    front.begin()
    return front


def _death_of(engine: Any) -> Callable[[], bool]:
    def is_dead() -> bool:
        return bool(engine.errored)

    return is_dead


def _with_middleware(build_app: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build_app)
    def build(*args: Any, **named: Any) -> Any:
        app = build_app(*args, **named)
        with contextlib.suppress(Exception):  # of another kind: it is served as it is
            _put_before(app)
        return app

    setattr(build, _MARK, True)
    return build


def _put_before(app: Any) -> None:
    """The middleware comes before all others, those that an application has built already too."""
    if app.middleware_stack is None:
        app.add_middleware(AttachMiddleware, attach=attach)
    else:
        app.middleware_stack = AttachMiddleware(app.middleware_stack, attach=attach)
