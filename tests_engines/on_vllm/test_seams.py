"""That this version of vLLM is as the adapter knows it."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

import vllm
from vllm.config.scheduler import SchedulerConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.structured_output import StructuredOutputManager

from service.attach.inside import plugin
from service.attach.inside.versions import VLLM_TESTED, check_seams, check_version
from service.attach.inside.vllm_core.scheduler_class import (
    CONFIG_SEAMS,
    CORE_SEAMS,
    SCHEDULER_SEAMS,
)


def test_the_version_is_the_one_that_was_asked_for() -> None:
    """Else the other tests would say nothing about it."""
    assert vllm.__version__.split("+")[0] == os.environ["PHASESCOPE_TEST_VLLM"]
    check_version("vllm", vllm.__version__, VLLM_TESTED)


def test_vllm_finds_the_plugin() -> None:
    """By the entry point, as after an installation."""
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    ours = [point for point in points if point.name == "phasescope"]

    assert [point.load() for point in ours] == [plugin.register]


def test_every_method_that_is_hooked_is_there() -> None:
    """With the parameters that the hooks read."""
    for scheduler in (Scheduler, AsyncScheduler):
        check_seams(scheduler, SCHEDULER_SEAMS)
    check_seams(EngineCore, CORE_SEAMS)
    check_seams(SchedulerConfig, CONFIG_SEAMS)
    check_seams(StructuredOutputManager, {"_create_grammar": ("request",)})


def test_the_class_that_vllm_uses_is_a_subclass_of_the_configured_one(sidecar: Any) -> None:
    """Asynchronous or not, and however often the plugin is registered."""
    plugin.register()
    for is_async, base in ((False, Scheduler), (True, AsyncScheduler)):
        config = SchedulerConfig(max_model_len=512, is_encoder_decoder=False)
        config.async_scheduling = is_async
        chosen = config.get_scheduler_cls()

        assert chosen.__mro__[2] is base
        assert (chosen.__name__, chosen.__module__) == (base.__name__, base.__module__)


def test_without_an_address_nothing_is_hooked(monkeypatch: Any) -> None:
    """The plugin is installed and does nothing."""
    monkeypatch.delenv("PHASESCOPE_ATTACH", raising=False)
    before = SchedulerConfig.get_scheduler_cls
    plugin.register()

    assert SchedulerConfig.get_scheduler_cls is before
