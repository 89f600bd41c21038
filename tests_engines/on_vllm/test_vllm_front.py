"""That vLLM's front end is as the adapter knows it. No server is started."""

from __future__ import annotations

import importlib
import inspect
import sys

import pytest
from vllm.entrypoints.launchers.api_server import entry
from vllm.v1.engine import EngineCoreOutput, FinishReason

from service.attach.inside.front_end import vllm_front, vllm_hooks
from service.attach.inside.front_end.front import Front, Live
from service.attach.inside.front_end.vllm_read import end_reason
from telemetry.facts.clock import MonotonicClock
from tests.attach.front_world import ListedSink


@pytest.fixture
def originals(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hooks replace comes back after the test."""
    for module, owner, method, _, _ in vllm_hooks.HOOKS:
        home = getattr(importlib.import_module(module), owner)
        monkeypatch.setattr(home, method, inspect.getattr_static(home, method))


@pytest.mark.usefixtures("originals")
def test_every_hook_fits() -> None:
    """None is missing, and none takes other parameters."""
    sink, clock = ListedSink(), MonotonicClock()

    vllm_hooks.install(Front(sink, clock, Live(clock), lambda: False))

    assert sink.turned_off == []


@pytest.mark.parametrize("reason", FinishReason)
def test_every_reason_of_vllm_to_finish_is_known(reason: FinishReason) -> None:
    """By its name; a new one would count as a failure of the server."""
    output = EngineCoreOutput(request_id="x", new_token_ids=[1], finish_reason=reason)

    assert reason.name in {"STOP", "LENGTH", "ABORT", "ERROR", "REPETITION"}
    assert end_reason(output, True)


def test_the_builder_that_servers_call_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found where the server's module imported it to."""
    for name in vllm_front.BUILDERS:
        module = sys.modules.get(name)
        if module is not None:
            monkeypatch.setattr(module, "build_app", inspect.unwrap(module.build_app))
    before = entry.build_app

    vllm_front.register()

    assert entry.build_app is not before
    assert inspect.unwrap(entry.build_app) is before
