"""The application that vLLM builds gets the middleware, in whichever state it is."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette

from service.attach.inside.middleware import AttachMiddleware
from service.attach.inside.vllm_front import _with_middleware


@pytest.mark.parametrize("is_built", [False, True])
def test_an_application_gets_the_middleware_even_if_its_stack_is_built(is_built: bool) -> None:
    """vLLM's own start builds the stack, after which Starlette takes no more of them."""
    app = Starlette()
    if is_built:
        app.middleware_stack = app.build_middleware_stack()
    found = _with_middleware(lambda: app)()

    assert found is app
    stack = app.middleware_stack or app.build_middleware_stack()
    outer = stack if is_built else stack.app  # type: ignore[attr-defined]
    assert isinstance(outer, AttachMiddleware)
