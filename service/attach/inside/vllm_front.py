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

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.attach.inside.front import Front, Live
from service.attach.inside.hook import where
from service.attach.inside.middleware import AttachMiddleware
from service.attach.inside.transport import Sender
from service.attach.inside.vllm_front_hooks import install
from service.attach.wire import Role, socket_path
from telemetry.facts.clock import Clock, MonotonicClock

ENGINE = "vllm"
_BUILDERS = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.app",
    "vllm.entrypoints.openai.api_server",
)
_MARK = "_phasescope_observes"
_front: Front | None = None


def register() -> None:
    """Called by the plugin in every process of vLLM; where no server was imported, it does
    nothing."""
    for name in _BUILDERS:
        module = sys.modules.get(name)
        original = getattr(module, "build_app", None)
        if original is not None and not hasattr(original, _MARK):
            module.build_app = _with_middleware(original)


def no_python_front_end(environment: Mapping[str, str]) -> str | None:
    """Why requests cannot be seen in front of the engine core, if vLLM's settings say so."""
    if environment.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        return "the Rust front end (VLLM_USE_RUST_FRONTEND) runs no Python: no requests are seen"
    return None


def attach(app: Any) -> Front | None:
    """The front end of a vLLM application that starts; None: this engine is not attached."""
    global _front
    path = socket_path()
    if _front is None and path is not None:
        _front = _begin(app, path)
    return _front


def _begin(app: Any, path: Path) -> Front | None:
    import vllm

    clock = MonotonicClock()
    live = Live(clock)
    try:
        engine, index = app.state.engine_client, app.state.engine_client.engine_core.client_index
    except Exception as error:
        _sender(vllm.__version__, 0, path, live, clock).turn_off(
            "front_end", f"no engine client: {where(error)}", is_all=True
        )
        return None
    front = Front(
        _sender(vllm.__version__, index, path, live, clock), clock, live, _death_of(engine)
    )
    install(front, weakref.ref(engine))
    return front


def _sender(version: str, index: int, path: Path, live: Live, clock: Clock) -> Sender:
    return Sender(
        Role.FRONT_END, ENGINE, version, index, path=path, listing=live.listing, clock=clock
    )


def _death_of(engine: Any) -> Callable[[], bool]:
    reference = weakref.ref(engine)

    def is_dead() -> bool:
        return bool(getattr(reference(), "errored", False))

    return is_dead


def _with_middleware(build_app: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build_app)
    def build(*args: Any, **named: Any) -> Any:
        app = build_app(*args, **named)
        try:
            app.add_middleware(AttachMiddleware, attach=attach)
        except Exception:  # an application of another kind: it is served as it is
            return app
        return app

    setattr(build, _MARK, True)
    return build
